use super::failed;
use crate::turns::Turns;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use relevo_core::event::TopicFilter;
use relevo_core::{Error, Kind, Result};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Where RabbitMQ is, and how events are published to it.
#[derive(Clone)]
#[non_exhaustive]
pub struct RabbitMqConfig {
    /// Of the first node; the others differ in nothing but their address.
    pub(super) uri: AMQPUri,
    /// Host and port of each node.
    pub(super) nodes: Vec<(String, u16)>,
    pub(super) turns: Turns,
    pub(super) tls: OwnedTLSConfig,
    /// The exchange that events are published to; the routing key is the topic. Empty is the default exchange,
    /// where the topic is the name of a queue.
    pub exchange: String,
    /// Topics that go to another exchange; the first that matches counts.
    pub routes: Vec<(TopicFilter, String)>,
    /// The CloudEvents source of events that name none.
    pub source: String,
    /// Most messages that wait for their confirm.
    pub window: usize,
    /// Most bytes that wait for their confirm.
    pub window_bytes: usize,
    /// Larger payloads are poison. RabbitMQ closes the channel at its `max_message_size` (128 MiB in 3.x, 16 MiB
    /// in 4.x).
    pub max_message_bytes: usize,
    /// A confirm that takes longer is unknown.
    pub confirm_timeout: Duration,
    /// How long connecting and logging in may take, over all nodes.
    pub connect_timeout: Duration,
    /// A connection that the broker has blocked (memory or disk alarm) for longer is down; what was sent on it is
    /// unknown.
    pub blocked_limit: Duration,
}

impl RabbitMqConfig {
    /// The largest window: messages.
    pub const MOST_MESSAGES: usize = 100_000;
    /// The largest window: bytes.
    pub const MOST_BYTES: usize = 1 << 30;

    /// `amqp://user:password@host:port/vhost` or `amqps://...`. Without a virtual host, or with an empty one, it is
    /// `/`. The nodes of a cluster are parted by commas: `amqp://app@one,two:5673,three/shop`. Parameters of the URL:
    /// `heartbeat` (seconds), `auth_mechanism=external`, `channel_max`, `frame_max`.
    pub fn to(url: &str) -> Result<Self> {
        let (mut uri, nodes) = parse(url)?;
        if uri.vhost.is_empty() {
            uri.vhost = "/".into();
        }
        // A peer that vanished silently is noticed within twenty seconds.
        uri.query.heartbeat.get_or_insert(10);
        Ok(Self {
            uri,
            nodes,
            turns: Turns::default(),
            tls: OwnedTLSConfig::default(),
            exchange: "amq.topic".into(),
            routes: Vec::new(),
            source: "relevo".into(),
            window: 1000,
            window_bytes: 16 << 20,
            max_message_bytes: 16 << 20,
            confirm_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            blocked_limit: Duration::from_secs(5),
        })
    }

    /// Trusts the authorities of this PEM file beside those of the system.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Result<Self> {
        self.only_with_tls("ca_file")?;
        let pem = String::from_utf8(read(path.as_ref())?);
        let pem = pem.map_err(|_| bad(format!("{} is not PEM", path.as_ref().display())))?;
        self.tls.cert_chain = Some(pem);
        Ok(self)
    }

    /// Shows this certificate to the broker; both are PEM files.
    pub fn client_certificate(
        mut self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self> {
        self.only_with_tls("client_cert")?;
        let (pem, key) = (read(certificate.as_ref())?, read(key.as_ref())?);
        self.tls.identity = Some(OwnedIdentity::PKCS8 { pem, key });
        Ok(self)
    }

    /// Publishes to this exchange.
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.exchange = exchange.into();
        self
    }

    /// Publishes what matches `topics` to another exchange.
    pub fn route(mut self, topics: TopicFilter, exchange: impl Into<String>) -> Self {
        self.routes.push((topics, exchange.into()));
        self
    }

    /// The CloudEvents source of events that name none.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// Most messages, and most bytes, that wait for their confirm: [`Self::MOST_MESSAGES`] and [`Self::MOST_BYTES`] of them
    /// if more are given.
    pub fn window(mut self, messages: usize, bytes: usize) -> Self {
        self.window = messages.clamp(1, Self::MOST_MESSAGES);
        self.window_bytes = bytes.clamp(1, Self::MOST_BYTES);
        self
    }

    /// Larger payloads are poison.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// A confirm that takes longer is unknown.
    pub fn confirm_timeout(mut self, limit: Duration) -> Self {
        self.confirm_timeout = limit;
        self
    }

    /// How long connecting and logging in may take, over all nodes.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long the broker may block the connection before it counts as down.
    pub fn blocked_limit(mut self, limit: Duration) -> Self {
        self.blocked_limit = limit;
        self
    }

    /// The address, of all nodes, without anything secret.
    pub fn address(&self) -> String {
        let nodes: Vec<String> =
            self.nodes.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        self.address_of(&nodes.join(","))
    }

    /// The address of these nodes without anything secret.
    pub(super) fn address_of(&self, nodes: &str) -> String {
        let scheme = match self.uri.scheme {
            AMQPScheme::AMQP => "amqp",
            AMQPScheme::AMQPS => "amqps",
        };
        format!("{scheme}://{nodes}/{}", self.uri.vhost.replace('/', "%2F"))
    }

    pub(super) fn exchange_of(&self, topic: &str) -> &str {
        let route = self.routes.iter().find(|(filter, _)| filter.matches(topic));
        route.map_or(self.exchange.as_str(), |(_, exchange)| exchange)
    }

    fn only_with_tls(&self, what: &str) -> Result<()> {
        match self.uri.scheme {
            AMQPScheme::AMQPS => Ok(()),
            AMQPScheme::AMQP => Err(bad(format!("{what} is for amqps:// addresses"))),
        }
    }
}

impl fmt::Debug for RabbitMqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqConfig")
            .field("address", &self.address())
            .field("exchange", &self.exchange)
            .field("client_certificate", &self.tls.identity.is_some())
            .finish_non_exhaustive()
    }
}

/// The URL of the first node, and where each is.
fn parse(url: &str) -> Result<(AMQPUri, Vec<(String, u16)>)> {
    let mut first = None;
    let mut nodes = Vec::new();
    for url in one_for_each_node(url)? {
        // What stands behind a colon repeats a part of the URL, which may carry a password.
        let told = |why: String| why.split(':').next().unwrap_or_default().to_owned();
        let uri: AMQPUri =
            url.parse().map_err(|why| bad(format!("not an AMQP URL: {}", told(why))))?;
        nodes.push((uri.authority.host.clone(), uri.authority.port));
        first.get_or_insert(uri);
    }
    first.map(|uri| (uri, nodes)).ok_or_else(|| bad("not an AMQP URL: no host".into()))
}

/// `amqp://user@a,b/vhost` as `amqp://user@a/vhost` and `amqp://user@b/vhost`.
fn one_for_each_node(url: &str) -> Result<Vec<String>> {
    let no_url = || bad("not an AMQP URL: it begins with amqp:// or amqps://".into());
    let (scheme, rest) = url.split_once("://").ok_or_else(no_url)?;
    if !["amqp", "amqps"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(no_url());
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // What was meant as a password would be read, and shown, as the virtual host.
    if path.contains('@') {
        let why = "a '/', '?' or '#' in the user's name or password is written %2F, %3F or %23";
        return Err(bad(format!("not an AMQP URL: {why}, an '@' in the virtual host %40")));
    }
    // A password may have commas too.
    let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let hosts: Vec<&str> = hosts.split(',').map(str::trim).collect();
    if hosts.len() > 1 && hosts.iter().any(|host| host.is_empty()) {
        return Err(bad("not an AMQP URL: a comma without a host".into()));
    }
    // The client's parser would read such a host as localhost, and say nothing.
    if hosts.iter().any(|host| host.starts_with('[')) {
        return Err(bad("an IPv6 address cannot be written here; write the host's name".into()));
    }
    Ok(hosts.into_iter().map(|host| format!("{scheme}://{user}{host}{path}")).collect())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| bad(format!("{} cannot be read: {error}", path.display())))
}

fn bad(why: String) -> Error {
    failed(Kind::InvalidConfig, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_never_shown() {
        let config = RabbitMqConfig::to("amqps://us%40r:s3cret@example.org/sh%2Fop").unwrap();
        assert_eq!(config.address(), "amqps://example.org:5671/sh%2Fop");
        assert!(!format!("{config:?}").contains("s3cret"));
        for url in [
            "amqp://u:s3cret@",
            "http://u:s3cret@h",
            "amqp://u:s3cret@h:99999/",
            "amqp://u:s3cret@a,,b/",
            "amqp://u:s3cret@a,b:99999/",
            "amqp:u:s3cret@h",
            "amqp://u:s3cret@[::1]/",
            "s3cret",
        ] {
            let error = RabbitMqConfig::to(url).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidConfig, "{url}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_password_with_a_slash_is_not_taken_for_the_virtual_host() {
        for url in ["amqp://user:s3/cret@host", "amqp://user:/s3cret@host/shop", "amqp://u:s3?t@h"]
        {
            let refused = RabbitMqConfig::to(url).unwrap_err().to_string();
            assert!(refused.contains("%2F") && !refused.contains("s3"), "{refused}");
        }
        for url in ["x:y://u:s3cret@h", "http://u:s3cret@h", "amqp://h?auth_mechanism=s3cret"] {
            let refused = RabbitMqConfig::to(url).unwrap_err().to_string();
            assert!(refused.contains("not an AMQP URL") && !refused.contains("s3"), "{refused}");
        }
        assert_eq!(RabbitMqConfig::to("amqp://h/a%40b").unwrap().uri.vhost, "a@b");
    }

    #[test]
    fn no_virtual_host_is_the_default_one() {
        for url in ["amqp://h", "amqp://h/", "amqp://h/%2f"] {
            assert_eq!(RabbitMqConfig::to(url).unwrap().uri.vhost, "/", "{url}");
        }
        assert_eq!(RabbitMqConfig::to("amqp://h/shop").unwrap().uri.vhost, "shop");
    }

    #[test]
    fn the_nodes_of_a_cluster_share_everything_but_their_address() {
        let url = "amqps://us%40r:s3,cret@one, two:5673,three/sh%2Fop?heartbeat=30";
        let config = RabbitMqConfig::to(url).unwrap();
        assert_eq!(config.address(), "amqps://one:5671,two:5673,three:5671/sh%2Fop");
        assert_eq!(config.uri.authority.userinfo.password, "s3,cret");
        assert_eq!((config.uri.vhost.as_str(), config.uri.query.heartbeat), ("sh/op", Some(30)));
    }

    #[test]
    fn certificates_need_an_encrypted_address() {
        let refused = RabbitMqConfig::to("amqp://h").unwrap().ca_file("/nowhere").unwrap_err();
        assert!(refused.to_string().contains("amqps://"), "{refused}");
        let missing = RabbitMqConfig::to("amqps://h").unwrap().ca_file("/nowhere").unwrap_err();
        assert!(missing.to_string().contains("/nowhere"), "{missing}");
    }

    #[test]
    fn a_topic_has_the_exchange_of_its_first_route() {
        let config = RabbitMqConfig::to("amqp://h").unwrap().exchange("events");
        let config = config.route(TopicFilter::parse("invoice.#").unwrap(), "billing");
        assert_eq!(config.exchange_of("invoice.sent"), "billing");
        assert_eq!(config.exchange_of("ticket.created"), "events");
    }
}
