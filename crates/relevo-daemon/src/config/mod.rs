//! `relevo.toml`: named tables, read strictly. A key nobody knows is an error that names the nearest known one,
//! with its line; every wrong value is told at once; what may hold a password is never printed.

pub mod adopt;
mod broker;
mod check;
pub(crate) use check::parse_start;
pub mod duration;
mod env;
pub mod example;
mod file;
mod problem;
mod secret;
mod suggest;

use crate::broker::topology::Wanted;
use file::File;
use problem::Source;
use relevo_core::limits::Limits;
use relevo_core::outbox::adopt::Mapping;
use relevo_core::outbox::{Retention, Subscription};
use relevo_core::relay::RelayConfig;
use relevo_core::{Error, Kind, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use broker::{Broker, BrokerOptions};
pub use secret::{Secret, redacted};
pub use suggest::{did_you_mean, nearest};

/// The name looked for where no other is given.
pub const FILE_NAME: &str = "relevo.toml";

/// Where `/metrics` and `/health/*` are served unless configured otherwise: loopback only.
pub const LISTEN: &str = "127.0.0.1:9464";

/// How long one attempt of a delivery may take.
pub const HANDLER_LIMIT: Duration = Duration::from_secs(30);

/// How long SIGTERM waits for what is under way.
pub const DRAIN: Duration = Duration::from_secs(20);

/// A configuration that was read and checked: every name in it leads somewhere.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The service's name, the label of every metric.
    pub service: String,
    /// Stores by name.
    pub stores: BTreeMap<String, Secret>,
    /// Brokers and endpoints by name.
    pub brokers: BTreeMap<String, Broker>,
    /// What must be there at a broker, by the broker's name.
    pub topologies: BTreeMap<String, Arc<dyn Wanted>>,
    /// Outbox tables of somebody else's, by the name they are adopted under.
    pub adopted: BTreeMap<String, Adopted>,
    /// Subscriptions by name.
    pub subscriptions: BTreeMap<String, SubscriptionConfig>,
    /// What may be published.
    pub limits: Limits,
    /// How long what is kept.
    pub retention: Retention,
    /// Where metrics and health are served.
    pub listen: SocketAddr,
    /// How long SIGTERM waits for what is under way.
    pub drain: Duration,
    /// Worth saying aloud, though it works.
    pub warnings: Vec<String>,
}

/// An outbox table of somebody else's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adopted {
    /// The store in whose database it is, a name in [`Config::stores`].
    pub store: String,
    /// What its columns mean.
    pub mapping: Mapping,
}

/// A subscription and how it is worked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SubscriptionConfig {
    /// The store whose log it reads, a name in [`Config::stores`].
    pub store: String,
    /// The table whose rows are its events instead, a name in [`Config::adopted`].
    pub adopt: Option<String>,
    /// Where its events go, a name in [`Config::brokers`].
    pub to: String,
    /// What the store keeps of it.
    pub subscription: Subscription,
    /// How it is worked.
    pub relay: RelayConfig,
    /// How long one attempt may take.
    pub handler_limit: Duration,
}

impl Config {
    /// Reads a file and the variables `RELEVO__...` of this process.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, error))?;
        Self::read(&path.display().to_string(), &text, std::env::vars())
    }

    /// Reads a text, called `name` in errors, and whatever of `variables` overrides it.
    pub fn read(
        name: &str,
        text: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self> {
        let mut source = Source { name, text, overridden: Vec::new() };
        // The file alone first: only then does an error know its line.
        let mut file: File =
            toml::from_str(text).map_err(|error| source.refuse_file::<File>(&error))?;
        let overrides = env::overrides(variables);
        if !overrides.is_empty() {
            let mut table: toml::Table =
                toml::from_str(text).map_err(|error| source.refuse_text(&error))?;
            for (variable, value) in overrides {
                let path = env::apply(&mut table, &variable, &value)?;
                source.overridden.push((path, variable));
                file =
                    File::deserialize(table.clone()).map_err(|error| source.refuse_text(&error))?;
            }
        }
        check::config(file).map_err(|problems| source.refuse(&problems))
    }

    /// The store meant by `name`, or the only one there is.
    pub fn store(&self, name: Option<&str>) -> Result<&Secret> {
        let names: Vec<&str> = self.stores.keys().map(String::as_str).collect();
        match (name, names.as_slice()) {
            (Some(name), _) => self.stores.get(name).ok_or_else(|| {
                let near = did_you_mean(name, names.iter().copied());
                Error::new(
                    Kind::InvalidConfig,
                    format!("there is no [store.{name}]{near} (there are: {})", names.join(", ")),
                )
            }),
            (None, [only]) => Ok(&self.stores[*only]),
            (None, []) => Err(Error::new(
                Kind::InvalidConfig,
                "the configuration has no [store.NAME]; add one with its url",
            )),
            (None, _) => Err(Error::new(
                Kind::InvalidConfig,
                format!(
                    "the configuration has several stores; say which: --store {}",
                    names.join(" or --store ")
                ),
            )),
        }
    }
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => "; `relevo init` writes one",
        _ => "",
    };
    Error::new(Kind::InvalidConfig, format!("{} cannot be read: {error}{hint}", path.display()))
        .because(error)
}

#[cfg(test)]
mod tests;
