//! `[broker.NAME]`

use super::Check;
use crate::broker::{self, Adapter};
use crate::config::duration::{Span, written};
use crate::config::file::{BrokerTable, RouteTable};
use crate::config::secret::Secret;
use crate::config::{Broker, BrokerOptions};
use relevo_brokers::http::Secret as SigningSecret;
use relevo_core::event::TopicFilter;
use std::collections::BTreeMap;
use std::time::Duration;

/// A key that only some adapters know, the schemes of these, and whether it is given.
type Key = (&'static str, &'static [&'static str], fn(&BrokerTable) -> bool);

const KEYS: [Key; 24] = [
    ("secrets", HTTP, |table| table.secrets.is_some()),
    ("secrets_file", HTTP, |table| table.secrets_file.is_some()),
    ("exchange", AMQP, |table| table.exchange.is_some()),
    ("routes", AMQP, |table| table.routes.is_some()),
    ("max_message_bytes", LIMITED, |table| table.max_message_bytes.is_some()),
    ("blocked_limit", AMQP, |table| table.blocked_limit.is_some()),
    ("management_port", AMQP, |table| table.management_port.is_some()),
    ("stream", NATS, |table| table.stream.is_some()),
    ("subject_prefix", NATS, |table| table.subject_prefix.is_some()),
    ("domain", NATS, |table| table.domain.is_some()),
    ("nkey_file", NATS, |table| table.nkey_file.is_some()),
    ("credentials_file", NATS, |table| table.credentials_file.is_some()),
    ("topic", KAFKA, |table| table.topic.is_some()),
    ("topic_prefix", KAFKA, |table| table.topic_prefix.is_some()),
    ("compression", KAFKA, |table| table.compression.is_some()),
    ("linger", KAFKA, |table| table.linger.is_some()),
    ("sasl_mechanism", KAFKA, |table| table.sasl_mechanism.is_some()),
    ("window", CONFIRMING, |table| table.window.is_some()),
    ("window_bytes", CONFIRMING, |table| table.window_bytes.is_some()),
    ("confirm_timeout", CONFIRMING, |table| table.confirm_timeout.is_some()),
    ("connect_timeout", CONFIRMING, |table| table.connect_timeout.is_some()),
    ("ca_file", ENCRYPTED, |table| table.ca_file.is_some()),
    ("client_cert", ENCRYPTED, |table| table.client_cert.is_some()),
    ("client_key", ENCRYPTED, |table| table.client_key.is_some()),
];
const HTTP: &[&str] = &["http", "https"];
const AMQP: &[&str] = &["amqp", "amqps"];
const NATS: &[&str] = &["nats", "tls"];
const KAFKA: &[&str] = &["kafka", "kafkas"];
const LIMITED: &[&str] = &["amqp", "amqps", "kafka", "kafkas"];
const CONFIRMING: &[&str] = &["amqp", "amqps", "nats", "tls", "kafka", "kafkas"];
const ENCRYPTED: &[&str] = &["amqps", "nats", "tls", "kafkas"];

/// So long a lane may be held by each thing that it waits for.
const LONGEST: Duration = Duration::from_secs(60);

/// Which key an adapter blames, and for what; the address unless it names another.
fn of_key(why: &str) -> (&str, &str) {
    let is_key = |(named, _): &(&str, &str)| KEYS.iter().any(|(key, ..)| key == named);
    why.split_once(": ").filter(is_key).unwrap_or(("url", why))
}

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
            let address = url.to_string();
            let mut broker = Broker { url, signing, options, address };
            // A key in the wrong place is told once, by its own name.
            if self.problems.len() == before {
                match broker::check(&broker) {
                    Ok(address) => broker.address = address,
                    Err(error) => {
                        let (key, why) = of_key(error.message());
                        self.bad(&["broker", &name, key], why);
                    }
                }
            }
            brokers.insert(name, broker);
        }
        brokers
    }

    fn keys_of_scheme(&mut self, name: &str, url: &Secret, table: &BrokerTable) {
        let Some(scheme) = url.scheme().filter(|_| Adapter::of(url).is_ok()) else { return };
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
        for (key, value) in [
            ("window", table.window),
            ("window_bytes", table.window_bytes),
            ("max_message_bytes", table.max_message_bytes),
        ] {
            if value == Some(0) {
                self.bad(&["broker", name, key], "at least 1");
            }
        }
        BrokerOptions {
            exchange: table.exchange.clone(),
            routes: self.routes(name, table.routes.as_deref().unwrap_or_default()),
            max_message_bytes: table.max_message_bytes.map(|bytes| bytes as usize),
            blocked_limit: self.bounded_time(name, "blocked_limit", table.blocked_limit),
            management_port: table.management_port,
            stream: table.stream.clone(),
            subject_prefix: table.subject_prefix.clone(),
            domain: table.domain.clone(),
            nkey: self.nkey(name, table),
            credentials_file: table.credentials_file.clone().map(Into::into),
            topic: table.topic.clone(),
            topic_prefix: table.topic_prefix.clone(),
            compression: table.compression.clone(),
            linger: self.bounded_time(name, "linger", table.linger),
            sasl_mechanism: table.sasl_mechanism.clone(),
            window: table.window.map(|messages| messages as usize),
            window_bytes: table.window_bytes.map(|bytes| bytes as usize),
            confirm_timeout: self.some_time(name, "confirm_timeout", table.confirm_timeout),
            connect_timeout: self.some_time(name, "connect_timeout", table.connect_timeout),
            ca_file: table.ca_file.clone().map(Into::into),
            client_certificate: table
                .client_cert
                .clone()
                .zip(table.client_key.clone())
                .map(|(certificate, key)| (certificate.into(), key.into())),
        }
    }

    /// A relay waits for as long as the adapter does, and looks at its lane only afterwards.
    fn bounded_time(&mut self, name: &str, key: &str, span: Option<Span>) -> Option<Duration> {
        if span.is_some_and(|span| span.0 > LONGEST) {
            let most = written(LONGEST);
            let why = format!("at most {most}: so long nobody else may have the lane that waits");
            self.bad(&["broker", name, key], why);
        }
        span.map(|span| span.0)
    }

    /// Within no time nothing would ever be confirmed.
    fn some_time(&mut self, name: &str, key: &str, span: Option<Span>) -> Option<Duration> {
        if span.is_some_and(|span| span.0.is_zero()) {
            self.bad(&["broker", name, key], "it needs some time");
        }
        self.bounded_time(name, key, span)
    }

    fn routes(&mut self, name: &str, tables: &[RouteTable]) -> Vec<(TopicFilter, String)> {
        let mut routes = Vec::new();
        for table in tables {
            match TopicFilter::parse(&table.topics) {
                Ok(topics) => routes.push((topics, table.exchange.clone())),
                Err(error) => self.bad(&["broker", name, "routes"], error.message()),
            }
        }
        routes
    }

    fn nkey(&mut self, name: &str, table: &BrokerTable) -> Option<Secret> {
        let file = table.nkey_file.as_ref()?;
        if table.credentials_file.is_some() {
            let text = "nkey_file and credentials_file are both given; keep one";
            self.bad(&["broker", name, "nkey_file"], text);
        }
        match std::fs::read_to_string(file) {
            Ok(seed) => Some(Secret::new(seed.trim())),
            Err(error) => {
                self.bad(&["broker", name, "nkey_file"], format!("{file} cannot be read: {error}"));
                None
            }
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
