//! `relevo config check | example`

use super::Globals;
use super::failure::Outcome;
use super::output::{Column, Output};
use super::show::escaped;
use crate::config::duration::written;
use crate::config::{Config, SubscriptionConfig, example};
use relevo_core::outbox::Start;
use relevo_core::relay::AfterDead;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Check the configuration, or show every key with its default
#[derive(Debug, clap::Subcommand)]
pub(super) enum ConfigCommand {
    /// Read the configuration strictly and tell what it means
    #[command(after_help = "\
Every wrong key and value is told with its line. A variable overrides any key.
Passwords are never printed.

Examples:
  relevo config check
  relevo config check -c etc/relevo.toml
  RELEVO__STORE__MAIN__URL=sqlite:other.db relevo config check")]
    Check,
    /// Print a relevo.toml with every key and its default
    #[command(after_help = "Example:\n  relevo config example > relevo.toml")]
    Example,
}

impl ConfigCommand {
    pub(super) fn run(self, globals: &Globals, out: &Output) -> Outcome {
        match self {
            Self::Check => {
                let config = globals.require_config()?;
                globals.note_store_of(&config);
                check(&config, out)?;
            }
            Self::Example if out.json => out.json(&json!({"example": example::full()}))?,
            Self::Example => out.line(example::full().trim_end())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn check(config: &Config, out: &Output) -> std::io::Result<()> {
    if out.json {
        return out.json(&view(config));
    }
    for (name, url) in &config.stores {
        out.line(format!("store {name}: {}", escaped(&url.to_string())))?;
    }
    for (name, url) in &config.brokers {
        out.line(format!("broker {name}: {}", escaped(&url.to_string())))?;
    }
    for name in config.topologies.keys() {
        out.line(format!("topology {name}: `relevo topology plan` compares it"))?;
    }
    out.line(format!("http: {}", config.listen))?;
    if !config.subscriptions.is_empty() {
        out.line("")?;
        let row = |(name, it): (&String, &SubscriptionConfig)| {
            vec![
                name.clone(),
                it.store.clone(),
                it.to.clone(),
                start(it),
                after_dead(it).into(),
                topics(it).join(" "),
            ]
        };
        let columns = ["SUBSCRIPTION", "STORE", "TO", "START", "AFTER DEAD"].map(Column::Whole);
        let columns: Vec<Column> = columns.into_iter().chain([Column::Wrapped("TOPICS")]).collect();
        out.table(&columns, config.subscriptions.iter().map(row).collect())?;
        out.line("")?;
    }
    for warning in &config.warnings {
        out.line(format!("warning: {}", escaped(warning)))?;
    }
    out.line("the configuration is valid")
}

fn topics(subscription: &SubscriptionConfig) -> Vec<String> {
    subscription.relay.topics.iter().map(ToString::to_string).collect()
}

fn start(subscription: &SubscriptionConfig) -> String {
    match subscription.subscription.start {
        Start::Beginning => "beginning".into(),
        Start::Now => "now".into(),
        Start::Time(time) => time.to_rfc3339(),
    }
}

fn after_dead(subscription: &SubscriptionConfig) -> &'static str {
    match subscription.relay.after_dead {
        AfterDead::Continue => "continue",
        AfterDead::Hold => "hold",
    }
}

fn urls<T: std::fmt::Display>(urls: &std::collections::BTreeMap<String, T>) -> Value {
    urls.iter().map(|(name, url)| (name.clone(), Value::String(url.to_string()))).collect()
}

fn view(config: &Config) -> Value {
    let subscription = |(name, it): (&String, &SubscriptionConfig)| {
        json!({
            "name": name,
            "store": it.store,
            "to": it.to,
            "topics": topics(it),
            "start": start(it),
            "after_dead": after_dead(it),
            "order": it.relay.order.as_str(),
            "batch": it.relay.batch,
            "batch_bytes": it.relay.batch_bytes,
            "concurrency": it.relay.concurrency,
            "handler_limit": written(it.handler_limit),
        })
    };
    json!({
        "valid": true,
        "service": config.service,
        "stores": urls(&config.stores),
        "brokers": urls(&config.brokers),
        "topologies": config.topologies.keys().collect::<Vec<_>>(),
        "subscriptions": config.subscriptions.iter().map(subscription).collect::<Vec<_>>(),
        "listen": config.listen.to_string(),
        "drain": written(config.drain),
        "warnings": config.warnings,
    })
}
