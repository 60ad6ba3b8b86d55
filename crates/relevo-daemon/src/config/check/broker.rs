//! `[broker.NAME]`

use super::Check;
use crate::config::file::BrokerTable;
use crate::config::secret::Secret;
use crate::config::{Broker, BrokerOptions};
use relevo_brokers::http::{HttpConfig, Secret as SigningSecret};
use std::collections::BTreeMap;

/// A key that only some adapters know, the schemes of these, and whether it is given.
type Key = (&'static str, &'static [&'static str], fn(&BrokerTable) -> bool);

const KEYS: [Key; 9] = [
    ("secrets", HTTP, |table| table.secrets.is_some()),
    ("secrets_file", HTTP, |table| table.secrets_file.is_some()),
    ("exchange", AMQP, |table| table.exchange.is_some()),
    ("window", CONFIRMING, |table| table.window.is_some()),
    ("window_bytes", CONFIRMING, |table| table.window_bytes.is_some()),
    ("confirm_timeout", CONFIRMING, |table| table.confirm_timeout.is_some()),
    ("ca_file", ENCRYPTED, |table| table.ca_file.is_some()),
    ("client_cert", ENCRYPTED, |table| table.client_cert.is_some()),
    ("client_key", ENCRYPTED, |table| table.client_key.is_some()),
];
const HTTP: &[&str] = &["http", "https"];
const AMQP: &[&str] = &["amqp", "amqps"];
const CONFIRMING: &[&str] = &["amqp", "amqps", "nats", "tls"];
const ENCRYPTED: &[&str] = &["amqps", "nats", "tls"];

impl Check {
    pub(super) fn brokers(
        &mut self,
        tables: BTreeMap<String, BrokerTable>,
    ) -> BTreeMap<String, Broker> {
        let mut brokers = BTreeMap::new();
        for (name, mut table) in tables {
            let signing = self.signing(&name, &table);
            let (url, url_file) = (table.url.take(), table.url_file.take());
            let Some(url) = self.url("broker", &name, url, url_file) else { continue };
            let before = self.problems.len();
            self.keys_of_scheme(&name, &url, &table);
            let options = self.options(&name, &table);
            let broker = Broker { url, signing, options };
            // A key in the wrong place is told once, by its own name.
            if self.problems.len() == before
                && let Err(why) = check_broker(&broker)
            {
                self.bad(&["broker", &name, "url"], why);
            }
            brokers.insert(name, broker);
        }
        brokers
    }

    fn keys_of_scheme(&mut self, name: &str, url: &Secret, table: &BrokerTable) {
        let Some(scheme) = url.scheme() else { return };
        for (key, schemes, is_given) in KEYS {
            if is_given(table) && !schemes.contains(&scheme) {
                let those: Vec<String> =
                    schemes.iter().map(|scheme| format!("{scheme}://")).collect();
                let text = format!("{key} is for {}, not for {scheme}:", those.join(", "));
                self.bad(&["broker", name, key], text);
            }
        }
    }

    fn options(&mut self, name: &str, table: &BrokerTable) -> BrokerOptions {
        if table.client_cert.is_some() != table.client_key.is_some() {
            self.bad(&["broker", name], "client_cert and client_key belong together");
        }
        for (key, value) in [("window", table.window), ("window_bytes", table.window_bytes)] {
            if value == Some(0) {
                self.bad(&["broker", name, key], "at least 1");
            }
        }
        BrokerOptions {
            exchange: table.exchange.clone(),
            window: table.window.map(|messages| messages as usize),
            window_bytes: table.window_bytes.map(|bytes| bytes as usize),
            confirm_timeout: table.confirm_timeout.map(|span| span.0),
            ca_file: table.ca_file.clone().map(Into::into),
            client_certificate: table
                .client_cert
                .clone()
                .zip(table.client_key.clone())
                .map(|(certificate, key)| (certificate.into(), key.into())),
        }
    }

    /// What requests are signed with, from `secrets` or from the lines of `secrets_file`.
    fn signing(&mut self, name: &str, table: &BrokerTable) -> Vec<Secret> {
        let secrets = self.secrets(name, table);
        if let Some(Err(error)) =
            secrets.iter().map(|secret| SigningSecret::parse(secret)).find(Result::is_err)
        {
            self.bad(&["broker", name, "secrets"], error.message());
        }
        secrets.into_iter().map(Secret::new).collect()
    }

    fn secrets(&mut self, name: &str, table: &BrokerTable) -> Vec<String> {
        match (&table.secrets, &table.secrets_file) {
            (Some(_), Some(_)) => {
                self.bad(
                    &["broker", name, "secrets_file"],
                    "secrets and secrets_file are both given; keep one",
                );
                Vec::new()
            }
            (Some(secrets), None) => secrets.clone(),
            (None, Some(file)) => match std::fs::read_to_string(file) {
                Ok(text) => text.split_whitespace().map(str::to_owned).collect(),
                Err(error) => {
                    self.bad(
                        &["broker", name, "secrets_file"],
                        format!("{file} cannot be read: {error}"),
                    );
                    Vec::new()
                }
            },
            (None, None) => Vec::new(),
        }
    }
}

/// Where events can go in this version, by the scheme of a broker's URL.
fn check_broker(broker: &Broker) -> Result<(), String> {
    let url = &broker.url;
    let told = |error: relevo_core::Error| error.message().to_owned();
    match url.scheme() {
        Some("stdout") => Ok(()),
        Some("http" | "https") => HttpConfig::to(url.expose()).map(drop).map_err(told),
        #[cfg(feature = "rabbitmq")]
        Some("amqp" | "amqps") => broker.rabbitmq("relevo").map(drop).map_err(told),
        Some(scheme) => Err(format!(
            "the scheme {scheme:?} is not one of this build: {}",
            crate::config::DESTINATIONS
        )),
        None => Err("a URL begins with its scheme, such as http://".into()),
    }
}
