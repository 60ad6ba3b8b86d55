//! SmartEdify as a part of `relevo demo`: people at work, what can be broken meanwhile, and the verdict.

use crate::embedded::{self, Break as Fault, Options, Running};
use crate::metrics;
use crate::real::{self, Real};
use anyhow::{Context, Result};
use async_trait::async_trait;
use clap::ValueEnum;
use metrics_exporter_prometheus::PrometheusHandle;
use proof::{Break, Figures, System, Verdict};
use std::path::Path;
use std::time::Duration;

/// What can be broken; the names are those of [`embedded::Break`] behind the system's own.
pub const BREAKS: &[Break] = &[
    Break {
        name: "smartedify-poison",
        help: "A change in SmartEdify whose event makes no sense: it ends in outbox_events_dlq",
        key: 'n',
        label: "nonsense",
        begins: "nonsense: an event that ends in outbox_events_dlq",
        ends: None,
    },
    Break {
        name: "smartedify-fail",
        help: "SmartEdify's downstream service fails for two seconds",
        key: 'e',
        label: "errors",
        begins: "the downstream service fails; events are tried again",
        ends: Some("the downstream service works again"),
    },
    Break {
        name: "smartedify-down",
        help: "SmartEdify's downstream service cannot be reached for two seconds",
        key: 'u',
        label: "unreachable",
        begins: "the downstream service is gone; changes wait",
        ends: Some("the downstream service is there again"),
    },
    Break {
        name: "smartedify-twice",
        help: "In SmartEdify an effect takes place and its answer is lost: the event is sent twice",
        key: 't',
        label: "twice",
        begins: "an answer gets lost: its events are sent twice",
        ends: None,
    },
    Break {
        name: "smartedify-relay",
        help: "SmartEdify's relay is ended without a word and another one takes over",
        key: 'r',
        label: "relay",
        begins: "the relay is gone without a word, another one takes over",
        ends: None,
    },
];

/// The relay that took over may work when the one before has said nothing for so long.
const LEASE: Duration = Duration::from_secs(2);
/// Nobody wants to watch for five minutes.
const LONGEST_RETRY: Duration = Duration::from_secs(2);

/// On files in this folder; people ask for so many changes a second.
pub async fn embedded(folder: &Path, rate: u32) -> Result<Box<dyn System>> {
    let mut options = Options::in_folder(folder);
    options.rate = rate;
    options.admin_token = std::env::var("SMARTEDIFY_ADMIN_TOKEN").ok().filter(|it| !it.is_empty());
    options.metrics = recorder();
    options.settings.lease = LEASE;
    options.settings.backoff.max = LONGEST_RETRY;
    Ok(Box::new(embedded::start(options).await?))
}

/// On the parts that the environment names; what clients were told is noted in this folder.
pub async fn real(folder: &Path, rate: u32) -> Result<Box<dyn System>> {
    std::fs::create_dir_all(folder)?;
    Ok(Box::new(real::start(folder, rate, recorder()).await?))
}

/// For `/metrics`; nothing where another system in this process keeps the metrics already.
fn recorder() -> Option<PrometheusHandle> {
    metrics::install("tenant-service").ok()
}

fn fault(name: &str) -> Result<Fault> {
    let own = name.strip_prefix("smartedify-").and_then(|own| Fault::from_str(own, false).ok());
    own.with_context(|| format!("SmartEdify has no {name}"))
}

/// Both ways are shown, broken and judged alike.
macro_rules! shown {
    ($($way:ident)*) => {$(
        #[async_trait]
        impl System for $way {
            fn url(&self) -> String {
                format!("http://{}", self.addresses().api)
            }

            async fn figures(&self) -> Result<Figures> {
                $way::figures(self).await
            }

            async fn begin(&mut self, name: &str) -> Result<()> {
                self.break_it(fault(name)?).await
            }

            async fn mend(&mut self, name: &str) -> Result<()> {
                self.mend_one(fault(name)?);
                Ok(())
            }

            async fn finish(self: Box<Self>, patience: Duration) -> Result<Verdict> {
                $way::finish(*self, patience).await
            }
        }
    )*};
}

shown!(Running Real);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_of_the_faults() {
        let known: Vec<Fault> = BREAKS.iter().map(|it| fault(it.name).expect(it.name)).collect();
        assert_eq!(known, Fault::value_variants());
        assert!(fault("smartedify-mail").is_err() && fault("poison").is_err());
    }
}
