use super::NAME;
use super::connect::unusable;
use rdkafka::ClientConfig;
use relevo_core::broker::cloudevents::decode;
use relevo_core::error::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

const DEFAULT_PORT: &str = "9092";

/// What the client takes as its `message.max.bytes`.
const MESSAGE_BYTES: RangeInclusive<usize> = 1_000..=1_000_000_000;

/// Settings of the client that a promise of this adapter rests on, by each of their names, and those that this
/// configuration has ways of its own for: who is believed, and as whom it logs in.
const OURS: [&str; 26] = [
    "acks",
    "allow.auto.create.topics",
    "bootstrap.servers",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "enable.ssl.certificate.verification",
    "group.id",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "partitioner",
    "request.required.acks",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
];

/// How a password is proved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// As it is: only with TLS.
    Plain,
    /// SCRAM with SHA-256.
    ScramSha256,
    /// SCRAM with SHA-512.
    #[default]
    ScramSha512,
}

impl Mechanism {
    /// Every mechanism.
    pub const ALL: [Self; 3] = [Self::Plain, Self::ScramSha256, Self::ScramSha512];

    /// The protocol's name for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }

    /// Reads what [`Self::as_str`] writes, in any case.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.as_str().eq_ignore_ascii_case(text))
    }
}

/// How batches are compressed on their way and in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Snappy.
    Snappy,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// Every way.
    pub const ALL: [Self; 4] = [Self::None, Self::Snappy, Self::Lz4, Self::Zstd];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Reads what [`Self::as_str`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| compression.as_str() == text)
    }
}

/// Who we are to the brokers. It never prints.
#[derive(Clone, PartialEq, Eq)]
struct Login {
    user: String,
    password: String,
}

/// Which certificates are believed and shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TlsFiles {
    authority: Option<PathBuf>,
    client: Option<(PathBuf, PathBuf)>,
}

/// Which brokers, as whom, and within which limits.
#[derive(Clone)]
#[non_exhaustive]
pub struct KafkaConfig {
    servers: Vec<String>,
    login: Option<Login>,
    mechanism: Mechanism,
    tls: TlsFiles,
    require_tls: bool,
    settings: BTreeMap<String, String>,
    /// The client's name, as the brokers' logs and quotas show it.
    pub client_name: String,
    /// The CloudEvents source of events that name none.
    pub source: String,
    /// The one Kafka topic of all events; otherwise it is the event's own topic.
    pub topic: Option<String>,
    /// What the Kafka topic of every event begins with, before its own topic.
    pub topic_prefix: Option<String>,
    /// How batches are compressed.
    pub compression: Compression,
    /// How long a message waits for others to share a batch with.
    pub linger: Duration,
    /// How long a confirm may take, with all that the client tries meanwhile.
    pub ack_timeout: Duration,
    /// How long connecting and asking for a topic may take.
    pub connect_timeout: Duration,
    /// The largest message.
    pub max_message_bytes: usize,
    /// Most messages without their confirm.
    pub max_in_flight: usize,
    /// Most bytes of messages without their confirm.
    pub max_in_flight_bytes: usize,
}

impl KafkaConfig {
    /// Connects to one of these brokers, which name the others: `kafka://user:password@host1:9092,host2:9092`,
    /// `kafkas://` for TLS. A user logs in by SCRAM-SHA-512 unless told otherwise.
    pub fn to(url: &str) -> Result<Self> {
        let mut config = Self {
            servers: Vec::new(),
            login: None,
            mechanism: Mechanism::default(),
            tls: TlsFiles::default(),
            require_tls: false,
            settings: BTreeMap::new(),
            client_name: "relevo".into(),
            source: "relevo".into(),
            topic: None,
            topic_prefix: None,
            compression: Compression::None,
            linger: Duration::ZERO,
            ack_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            max_message_bytes: 1_000_000,
            max_in_flight: 10_000,
            max_in_flight_bytes: 32 << 20,
        };
        let (scheme, rest) = url.trim().split_once("://").ok_or_else(|| bad("has no scheme"))?;
        config.require_tls = match scheme {
            "kafka" => false,
            "kafkas" => true,
            _ => return Err(bad("begins with neither kafka:// nor kafkas://")),
        };
        config.read_servers(rest)?;
        Ok(config)
    }

    fn read_servers(&mut self, rest: &str) -> Result<()> {
        let (login, servers) = match rest.rsplit_once('@') {
            Some((login, servers)) => (Some(login), servers),
            None => (None, rest),
        };
        if let Some(login) = login {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            self.login = Some(Login { user: decode(user), password: decode(password) });
        }
        let servers = servers.strip_suffix('/').unwrap_or(servers);
        for server in servers.split(',').map(str::trim).filter(|server| !server.is_empty()) {
            self.servers.push(with_port(server)?);
        }
        if self.servers.is_empty() { Err(bad("names no server")) } else { Ok(()) }
    }

    /// As this user.
    pub fn user(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some(Login { user: user.into(), password: password.into() });
        self
    }

    /// How the user's password is proved.
    pub fn mechanism(mut self, mechanism: Mechanism) -> Self {
        self.mechanism = mechanism;
        self
    }

    /// By TLS, believing the authorities of this PEM file instead of the system's.
    pub fn authority(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.authority = Some(path.into());
        self.require_tls = true;
        self
    }

    /// By TLS, showing this certificate (PEM files).
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.tls.client = Some((certificate.into(), key.into()));
        self.require_tls = true;
        self
    }

    /// All events go to this Kafka topic.
    pub fn topic(mut self, name: impl Into<String>) -> Self {
        self.topic = Some(name.into());
        self
    }

    /// What every Kafka topic begins with.
    pub fn topic_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.topic_prefix = Some(prefix.into());
        self
    }

    /// The CloudEvents source of events that name none.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// How batches are compressed.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// How long a message waits for others to share a batch with.
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// How long a confirm may take.
    pub fn ack_timeout(mut self, limit: Duration) -> Self {
        self.ack_timeout = limit;
        self
    }

    /// How long connecting may take.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The largest message; the brokers' and the topics' limits count beside it.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Most messages and bytes without their confirm.
    pub fn window(mut self, messages: usize, bytes: usize) -> Self {
        self.max_in_flight = messages.max(1);
        self.max_in_flight_bytes = bytes.max(1);
        self
    }

    /// A setting of librdkafka by its own name, such as `client.rack`. Those that a promise rests on are refused.
    pub fn setting(mut self, name: &str, value: impl Into<String>) -> Result<Self> {
        if OURS.contains(&name) {
            let why = format!("{name} cannot be set: what Relevo promises rests on it");
            return Err(Error::new(Kind::InvalidConfig, why).from_adapter(NAME));
        }
        self.settings.insert(name.to_owned(), value.into());
        Ok(self)
    }

    /// Whether the client will take each setting by itself, and can read the files of certificates. Nobody is asked.
    pub fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::new(Kind::InvalidConfig, why).from_adapter(NAME));
        if !MESSAGE_BYTES.contains(&self.max_message_bytes) {
            let (least, most) = MESSAGE_BYTES.into_inner();
            return bad(format!("max_message_bytes: the client takes from {least} to {most}"));
        }
        if self.linger >= self.ack_timeout {
            let (linger, limit) = (self.linger, self.ack_timeout);
            return bad(format!("linger: {linger:?} is no less than confirm_timeout, {limit:?}"));
        }
        self.producer().create_native_config().map_err(unusable)?;
        self.check_files()
    }

    /// Whether the files of certificates can be read.
    fn check_files(&self) -> Result<()> {
        let client = self.tls.client.iter().flat_map(|(certificate, key)| [certificate, key]);
        for file in self.tls.authority.iter().chain(client) {
            std::fs::read(file).map_err(|error| {
                let why = format!("{} cannot be read: {error}", file.display());
                Error::new(Kind::InvalidConfig, why).from_adapter(NAME)
            })?;
        }
        Ok(())
    }

    /// The servers without anything secret.
    pub fn address(&self) -> String {
        let scheme = if self.require_tls { "kafkas" } else { "kafka" };
        format!("{scheme}://{}", self.servers.join(","))
    }

    /// What every client is told.
    pub(super) fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", self.servers.join(","))
            .set("client.id", &self.client_name)
            .set("allow.auto.create.topics", "false")
            .set("log.connection.close", "false")
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.max.ms", "2000")
            .set("socket.connection.setup.timeout.ms", millis(self.connect_timeout, 1000))
            .set("socket.timeout.ms", millis(self.ack_timeout, 1000));
        self.secure(&mut client);
        for (name, value) in &self.settings {
            client.set(name, value);
        }
        client
    }

    fn secure(&self, client: &mut ClientConfig) {
        let protocol = match (&self.login, self.require_tls) {
            (None, false) => "PLAINTEXT",
            (None, true) => "SSL",
            (Some(_), false) => "SASL_PLAINTEXT",
            (Some(_), true) => "SASL_SSL",
        };
        client.set("security.protocol", protocol);
        if self.require_tls {
            // Without a file the system's authorities are looked for where distributions have them.
            let authority = self.tls.authority.as_ref().map(|path| path.display().to_string());
            client.set("ssl.ca.location", authority.as_deref().unwrap_or("probe"));
            client.set("ssl.endpoint.identification.algorithm", "https");
        }
        if let Some((certificate, key)) = &self.tls.client {
            client.set("ssl.certificate.location", certificate.display().to_string());
            client.set("ssl.key.location", key.display().to_string());
        }
        if let Some(login) = &self.login {
            client.set("sasl.mechanism", self.mechanism.as_str());
            client.set("sasl.username", &login.user).set("sasl.password", &login.password);
        }
    }

    /// What a producer is told: every message once, in its order, on all replicas that are in step.
    pub(super) fn producer(&self) -> ClientConfig {
        let mut client = self.client();
        // Batches are no larger than a message may be: the brokers' limit is for either.
        let batch = self.max_message_bytes.min(1_000_000).to_string();
        client
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("partitioner", "murmur2_random")
            .set("compression.type", self.compression.as_str())
            .set("linger.ms", self.linger.as_millis().to_string())
            .set("message.timeout.ms", millis(self.ack_timeout, 1))
            .set("message.max.bytes", self.max_message_bytes.to_string())
            .set("batch.size", batch)
            // The window bounds it; the client's own limit is above. Messages whose reports are handed out together count
            // there until the last of these is.
            .set("queue.buffering.max.messages", self.queue_messages().to_string())
            .set("queue.buffering.max.kbytes", (self.queue_bytes() >> 10).to_string());
        client
    }

    fn queue_messages(&self) -> usize {
        self.max_in_flight.saturating_mul(2).saturating_add(1000).min(i32::MAX as usize)
    }

    fn queue_bytes(&self) -> usize {
        // A message counts with its headers there, and one that is larger than the window travels alone.
        let bytes = self.max_in_flight_bytes.saturating_mul(2) + 2 * self.max_message_bytes;
        bytes.clamp(1 << 20, i32::MAX as usize)
    }
}

fn millis(time: Duration, least: u128) -> String {
    time.as_millis().clamp(least, 300_000).to_string()
}

fn with_port(server: &str) -> Result<String> {
    if server.contains(['/', '?', '#']) {
        return Err(bad("has more than servers in it; options are settings of their own"));
    }
    let has_port = match server.rsplit_once(':') {
        // An IPv6 address has its colons in brackets.
        Some((_, port)) if !port.contains(']') => {
            port.parse::<u16>().map_err(|_| bad("has a port that is none"))?;
            true
        }
        _ => false,
    };
    Ok(if has_port { server.to_owned() } else { format!("{server}:{DEFAULT_PORT}") })
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConfig")
            .field("address", &self.address())
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// The URL may carry a password: it is not repeated.
fn bad(why: &str) -> Error {
    Error::new(Kind::InvalidConfig, format!("the address of the Kafka brokers {why}"))
        .from_adapter(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_servers_share_the_login_and_nothing_secret_is_shown() {
        let config =
            KafkaConfig::to("kafkas://us%40r:p%3Aw@a.example:9094, b.example,[::1]").unwrap();
        assert_eq!(config.address(), "kafkas://a.example:9094,b.example:9092,[::1]:9092");
        let client = config.client();
        assert_eq!(client.get("sasl.username"), Some("us@r"));
        assert_eq!(client.get("sasl.password"), Some("p:w"));
        assert_eq!(client.get("security.protocol"), Some("SASL_SSL"));
        assert_eq!(client.get("sasl.mechanism"), Some("SCRAM-SHA-512"));
        let shown = format!("{config:?}");
        assert!(!shown.contains("p:w") && !shown.contains("p%3Aw"), "{shown}");
    }

    #[test]
    fn an_address_that_is_none_is_refused_without_showing_it() {
        for url in [
            "",
            "h:9092",
            "kafka://",
            "kafka://u:s3cret@",
            "http://u:s3cret@h",
            "kafka://u:s3cret@h/path",
            "kafka://u:s3cret@h:port",
            "kafka://h?s3cret",
        ] {
            let error = KafkaConfig::to(url).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidConfig, "{url}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn what_a_promise_rests_on_cannot_be_set() {
        let config = KafkaConfig::to("kafka://h").unwrap();
        for (name, value) in [
            ("acks", "1"),
            ("delivery.timeout.ms", "0"),
            ("metadata.broker.list", "elsewhere:9092"),
            ("security.protocol", "PLAINTEXT"),
            ("enable.ssl.certificate.verification", "false"),
            ("ssl.endpoint.identification.algorithm", "none"),
            ("ssl.ca.location", "other.pem"),
            ("ssl.ca.pem", "other"),
            ("ssl.certificate.location", "other.pem"),
            ("ssl.key.location", "other.key"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.mechanisms", "PLAIN"),
            ("sasl.username", "other"),
            ("sasl.password", "other"),
        ] {
            let refused = config.clone().setting(name, value).unwrap_err();
            assert_eq!(refused.kind(), Kind::InvalidConfig, "{name}");
        }
        let config = config.setting("client.rack", "a").unwrap();
        assert_eq!(config.client().get("client.rack"), Some("a"));
        let producer = config.producer();
        for (name, value) in
            [("enable.idempotence", "true"), ("acks", "all"), ("partitioner", "murmur2_random")]
        {
            assert_eq!(producer.get(name), Some(value), "{name}");
        }
    }
}
