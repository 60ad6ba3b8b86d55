//! Where events go.

use super::secret::Secret;
use relevo_core::event::TopicFilter;
use std::path::PathBuf;
use std::time::Duration;

/// A broker or an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Broker {
    /// Its URL; the scheme picks the adapter.
    pub url: Secret,
    /// What requests are signed with.
    pub signing: Vec<Secret>,
    /// What only some adapters know.
    pub options: BrokerOptions,
    /// The URL as it may be shown.
    pub(super) address: String,
}

impl std::fmt::Display for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.address)
    }
}

/// What may be said of a broker beside its URL. What is not said is the adapter's own default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerOptions {
    /// The exchange that events are published to.
    pub exchange: Option<String>,
    /// Topics that go to another exchange; the first that matches counts.
    pub routes: Vec<(TopicFilter, String)>,
    /// Larger payloads are poison.
    pub max_message_bytes: Option<usize>,
    /// A connection that the broker has blocked for longer is down.
    pub blocked_limit: Option<Duration>,
    /// Where the management API answers, which tells what bindings there are.
    pub management_port: Option<u16>,
    /// The one stream that events must be stored in.
    pub stream: Option<String>,
    /// What the subject of every event begins with, before its topic.
    pub subject_prefix: Option<String>,
    /// The JetStream domain.
    pub domain: Option<String>,
    /// The seed of an nkey.
    pub nkey: Option<Secret>,
    /// A `.creds` file with a JWT and its seed.
    pub credentials_file: Option<PathBuf>,
    /// The one Kafka topic of all events.
    pub topic: Option<String>,
    /// What the Kafka topic of every event begins with, before its own.
    pub topic_prefix: Option<String>,
    /// How Kafka's batches are compressed.
    pub compression: Option<String>,
    /// How long a message waits for others to share a batch with.
    pub linger: Option<Duration>,
    /// How a user's password is proved to Kafka.
    pub sasl_mechanism: Option<String>,
    /// Most messages that wait for their confirm.
    pub window: Option<usize>,
    /// Most bytes that wait for their confirm.
    pub window_bytes: Option<usize>,
    /// A confirm that takes longer is unknown.
    pub confirm_timeout: Option<Duration>,
    /// How long connecting may take.
    pub connect_timeout: Option<Duration>,
    /// Authorities that are trusted, PEM.
    pub ca_file: Option<PathBuf>,
    /// Certificate and key to show to the broker, PEM.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
}
