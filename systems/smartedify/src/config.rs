//! Configuration, from the environment or the command line.

use crate::broker::{At, Broker};
use crate::outbox::Settings;
use crate::outbox::backoff::{Backoff, Growth};
use crate::outbox::cleanup::Keep;
use chrono::TimeDelta;
use std::sync::Arc;
use std::time::Duration;

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BrokerKind {
    /// NATS JetStream
    Nats,
    /// Apache Kafka, for more than 10,000 events a second
    Kafka,
}

/// The tenant service's database.
#[derive(Debug, Clone, clap::Args)]
pub struct ServiceDb {
    /// Where the tenant service keeps its tables: postgres://... or sqlite:FILE
    #[arg(long = "database", env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub url: String,
}

/// The downstream service's database.
#[derive(Debug, Clone, clap::Args)]
pub struct DownstreamDb {
    /// Where the downstream service keeps its tables: postgres://... or sqlite:FILE
    #[arg(
        id = "downstream",
        long,
        env = "DOWNSTREAM_DATABASE_URL",
        value_name = "URL",
        hide_env_values = true
    )]
    pub url: String,
}

/// The broker, the same for whoever publishes and consumes.
#[derive(Debug, Clone, clap::Args)]
pub struct BrokerArgs {
    /// Which broker; chosen once, never changed while events are under way
    #[arg(long, env = "SMARTEDIFY_BROKER", value_enum, default_value = "nats")]
    pub broker: BrokerKind,

    /// Where it is: nats://host:4222 or kafka://host:9092, several parted by commas
    #[arg(
        long,
        env = "SMARTEDIFY_BROKER_URL",
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222",
        hide_env_values = true
    )]
    pub broker_url: String,

    /// The stream (NATS) or topic (Kafka)
    #[arg(long, env = "SMARTEDIFY_STREAM", value_name = "NAME", default_value = "smartedify")]
    pub stream: String,

    /// After so long a consumer that died loses what it held to another
    #[arg(long, env = "SMARTEDIFY_ACK_WAIT_MS", value_name = "MS", default_value_t = 30_000)]
    pub ack_wait_ms: u64,
}

impl BrokerArgs {
    /// The broker meant.
    pub fn broker(&self) -> Broker {
        let at = match self.broker {
            BrokerKind::Nats => At::Nats(self.broker_url.clone()),
            BrokerKind::Kafka => At::Kafka(self.broker_url.clone()),
        };
        let mut broker = Broker::at(at).stream(&self.stream);
        broker.ack_wait = Duration::from_millis(self.ack_wait_ms);
        broker
    }
}

/// How the outbox is relayed and cleaned up.
#[derive(Debug, Clone, clap::Args)]
pub struct OutboxArgs {
    /// The shortest pause between two looks at a quiet outbox
    #[arg(long, env = "OUTBOX_POLL_MIN_MS", value_name = "MS", default_value_t = 500)]
    pub poll_min_ms: u64,

    /// The longest
    #[arg(long, env = "OUTBOX_POLL_MAX_MS", value_name = "MS", default_value_t = 2000)]
    pub poll_max_ms: u64,

    /// Most rows of one claim and events of one batch
    #[arg(long, env = "OUTBOX_BATCH", value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=50))]
    pub batch: u16,

    /// How the delays of an event that failed grow
    #[arg(long, env = "OUTBOX_BACKOFF", value_enum, default_value = "exponential")]
    pub backoff: Growth,

    /// The first delay
    #[arg(long, env = "OUTBOX_BACKOFF_BASE_MS", value_name = "MS", default_value_t = 50)]
    pub backoff_base_ms: u64,

    /// The longest delay, before jitter (exponential only)
    #[arg(long, env = "OUTBOX_BACKOFF_MAX_S", value_name = "S", default_value_t = 300)]
    pub backoff_max_s: u64,

    /// After so many attempts a transient error is a dead letter too [default: never]
    #[arg(long, env = "OUTBOX_MAX_ATTEMPTS", value_name = "N")]
    pub max_attempts: Option<u32>,

    /// How long a relay that says nothing keeps its share
    #[arg(long, env = "OUTBOX_LEASE_MS", value_name = "MS", default_value_t = 10_000)]
    pub lease_ms: u64,

    /// Published events go after so many days
    #[arg(long, env = "OUTBOX_RETENTION_DAYS", value_name = "DAYS", default_value_t = 30)]
    pub retention_days: u32,

    /// Dead letters go after so many days
    #[arg(long, env = "OUTBOX_DLQ_RETENTION_DAYS", value_name = "DAYS", default_value_t = 90)]
    pub dlq_retention_days: u32,
}

impl OutboxArgs {
    /// For the relay.
    pub fn settings(&self) -> Settings {
        let ms = Duration::from_millis;
        let backoff = Backoff {
            growth: self.backoff,
            base: ms(self.backoff_base_ms),
            max: Duration::from_secs(self.backoff_max_s),
            max_attempts: self.max_attempts,
        };
        Settings {
            poll: (ms(self.poll_min_ms), ms(self.poll_max_ms)),
            batch: self.batch.into(),
            backoff,
            lease: ms(self.lease_ms),
            keep_dead: Duration::from_secs(u64::from(self.dlq_retention_days) * 86_400),
        }
    }

    /// For the clean-up.
    pub fn keep(&self) -> Keep {
        Keep {
            published: TimeDelta::days(self.retention_days.into()),
            dead: TimeDelta::days(self.dlq_retention_days.into()),
        }
    }
}

/// What reads the admin token: an empty one is none.
pub fn admin_token(token: Option<&str>) -> Option<Arc<str>> {
    token.filter(|token| !token.is_empty()).map(Arc::from)
}
