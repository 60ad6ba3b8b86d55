//! From what the file says to what it means; every wrong value is a [`Problem`], and all are found in one go.

mod adopt;
mod broker;
mod limits;
mod retry;
mod subscription;
mod topology;

use super::file::{File, StoreTable};
use super::problem::Problem;
use super::secret::Secret;
use super::{Adopted, Broker, Config, DRAIN, HANDLER_LIMIT};
use crate::store;
use relevo_core::retry::RetryPolicy;
use std::collections::BTreeMap;

pub(crate) use subscription::parse_start;

/// The whole configuration, or everything that is wrong with it.
pub(super) fn config(file: File) -> Result<Config, Vec<Problem>> {
    let mut check = Check::default();
    let stores = check.stores(file.store);
    let brokers = check.brokers(file.broker);
    let topologies = check.topologies(file.topology, &brokers);
    let retries = check.retries(file.retry);
    let limits = check.limits(&file.limits);
    let base = check.relay_defaults(&file.limits);
    let retention = check.retention(&file.retention);
    let listen = check.listen(file.http.listen);
    let drain = file.limits.drain.map_or(DRAIN, |span| span.0);
    let adopted = check.adopted(file.adopt, &stores);
    let known = Known { stores: &stores, brokers: &brokers, retries: &retries, adopted: &adopted };
    let limit = file.limits.handler_limit.map_or(HANDLER_LIMIT, |span| span.0);
    let mut subscriptions = BTreeMap::new();
    for (name, table) in file.subscription {
        if let Some(subscription) = check.subscription(&name, table, &known, &base, limit) {
            subscriptions.insert(name, subscription);
        }
    }
    check.adopted_once(&adopted, &subscriptions);
    if !check.problems.is_empty() {
        return Err(check.problems);
    }
    let service = file.service.name.unwrap_or_else(|| "relevo".into());
    Ok(Config {
        service,
        stores,
        brokers,
        topologies,
        adopted,
        subscriptions,
        limits,
        retention,
        listen,
        drain,
        warnings: check.warnings,
    })
}

/// Names that a subscription may refer to.
struct Known<'a> {
    stores: &'a BTreeMap<String, Secret>,
    brokers: &'a BTreeMap<String, Broker>,
    retries: &'a BTreeMap<String, RetryPolicy>,
    adopted: &'a BTreeMap<String, Adopted>,
}

#[derive(Default)]
struct Check {
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Check {
    fn bad(&mut self, path: &[&str], text: impl Into<String>) {
        self.problems.push(Problem {
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            text: text.into(),
        });
    }

    fn name(&mut self, table: &str, name: &str) {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 100 || !name.chars().all(plain) {
            self.bad(
                &[table, name],
                "a name is made of letters, digits, '-', '_' and '.', at most 100 of them",
            );
        }
    }

    fn stores(&mut self, tables: BTreeMap<String, StoreTable>) -> BTreeMap<String, Secret> {
        let mut stores = BTreeMap::new();
        for (name, table) in tables {
            let Some(url) = self.url("store", &name, table.url, table.url_file) else { continue };
            if let Err(error) = store::check_url(&url) {
                self.bad(&["store", &name, "url"], error.message());
            }
            stores.insert(name, url);
        }
        stores
    }

    /// From `url`, or from the first line of `url_file`.
    fn url(
        &mut self,
        table: &str,
        name: &str,
        url: Option<String>,
        file: Option<String>,
    ) -> Option<Secret> {
        self.name(table, name);
        match (url, file) {
            (Some(_), Some(_)) => {
                self.bad(&[table, name, "url_file"], "url and url_file are both given; keep one");
                None
            }
            (Some(url), None) => Some(Secret::new(url)),
            (None, Some(file)) => match std::fs::read_to_string(&file) {
                Ok(text) => Some(Secret::new(text.trim())),
                Err(error) => {
                    self.bad(&[table, name, "url_file"], format!("{file} cannot be read: {error}"));
                    None
                }
            },
            (None, None) => {
                self.bad(&[table, name], "url (or url_file) is missing");
                None
            }
        }
    }
}
