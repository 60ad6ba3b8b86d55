//! Configuration, from the environment or the command line.

use crate::broker::{At, Broker, KEPT_DAYS};
use crate::outbox::Settings;
use crate::outbox::backoff::{Backoff, Growth};
use crate::outbox::cleanup::Keep;
use anyhow::{Result, ensure};
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

    /// How long rows stay.
    #[command(flatten)]
    pub retention: RetentionArgs,
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
            keep_dead: Duration::from_secs(u64::from(self.retention.dlq_retention_days) * 86_400),
        }
    }
}

/// How long rows stay.
#[derive(Debug, Clone, clap::Args)]
pub struct RetentionArgs {
    /// Published events go after so many days
    #[arg(long, env = "OUTBOX_RETENTION_DAYS", value_name = "DAYS", default_value_t = 30)]
    pub retention_days: u32,

    /// Dead letters go after so many days
    #[arg(long, env = "OUTBOX_DLQ_RETENTION_DAYS", value_name = "DAYS", default_value_t = 90)]
    pub dlq_retention_days: u32,

    /// The ids of processed events are forgotten after so many days: a week longer than dead letters stay, or more
    #[arg(long, env = "PROCESSED_RETENTION_DAYS", value_name = "DAYS", default_value_t = 180)]
    pub processed_retention_days: u32,
}

impl RetentionArgs {
    /// For the clean-up. Refused if an id would be forgotten while its event can still come again.
    pub fn keep(&self) -> Result<Keep> {
        let (processed, reach) =
            (self.processed_retention_days, self.dlq_retention_days.saturating_add(KEPT_DAYS));
        ensure!(
            processed >= reach,
            "PROCESSED_RETENTION_DAYS is {processed}, and an event can come again for {reach} days: as a dead letter for \
             {}, then in the broker's stream for {KEPT_DAYS}",
            self.dlq_retention_days
        );
        let days = |days: u32| TimeDelta::days(days.into());
        let (published, dead) = (days(self.retention_days), days(self.dlq_retention_days));
        Ok(Keep { published, dead, processed: days(processed) })
    }
}

/// What reads the admin token: an empty one is none.
pub fn admin_token(token: Option<&str>) -> Option<Arc<str>> {
    token.filter(|token| !token.is_empty()).map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Given {
        #[command(flatten)]
        outbox: OutboxArgs,
    }

    fn given(options: &str) -> Result<OutboxArgs, clap::Error> {
        let words = ["smartedify"].into_iter().chain(options.split_whitespace());
        Given::try_parse_from(words).map(|given| given.outbox)
    }

    #[test]
    fn what_is_configured_is_what_the_relay_gets() {
        let told = "--poll-min-ms 20 --poll-max-ms 300 --batch 7 --backoff linear --backoff-base-ms 70 --backoff-max-s 9 \
                    --max-attempts 4 --lease-ms 3000 --dlq-retention-days 5";
        let settings = given(told).unwrap().settings();
        let ms = Duration::from_millis;
        assert_eq!((settings.poll, settings.batch), ((ms(20), ms(300)), 7));
        let backoff = Backoff {
            growth: Growth::Linear,
            base: ms(70),
            max: Duration::from_secs(9),
            max_attempts: Some(4),
        };
        assert_eq!(settings.backoff, backoff);
        assert_eq!(settings.lease, Duration::from_secs(3));
        assert_eq!(settings.keep_dead, Duration::from_secs(5 * 86_400));
        let exponential = given("--backoff exponential").unwrap().settings().backoff;
        assert_eq!(exponential.growth, Growth::Exponential);
        for wrong in ["--batch 51", "--batch 0", "--backoff quadratic", "--max-attempts some"] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
    }

    /// Only where the environment of the tests says nothing.
    #[test]
    fn without_a_word_everything_is_as_documented() {
        let set =
            |arg: &clap::Arg| arg.get_env().is_some_and(|name| std::env::var_os(name).is_some());
        if Given::command().get_arguments().any(set) {
            return;
        }
        let (told, documented) = (given("").unwrap().settings(), Settings::default());
        assert_eq!(format!("{told:?}"), format!("{documented:?}"));
        let keep = given("").unwrap().retention.keep().unwrap();
        assert_eq!(keep, Keep::default());
    }

    #[test]
    fn every_setting_has_a_variable() {
        let command = Given::command();
        let variable =
            |arg: &clap::Arg| arg.get_env().and_then(|name| name.to_str()).map(str::to_owned);
        let variables: Vec<String> = command.get_arguments().filter_map(variable).collect();
        let documented = "OUTBOX_POLL_MIN_MS OUTBOX_POLL_MAX_MS OUTBOX_BATCH OUTBOX_BACKOFF OUTBOX_BACKOFF_BASE_MS \
                          OUTBOX_BACKOFF_MAX_S OUTBOX_MAX_ATTEMPTS OUTBOX_LEASE_MS OUTBOX_RETENTION_DAYS \
                          OUTBOX_DLQ_RETENTION_DAYS PROCESSED_RETENTION_DAYS";
        assert_eq!(variables.join(" "), documented);
    }

    #[test]
    fn ids_are_kept_for_longer_than_their_events_can_come_again() {
        let keep = given("--retention-days 3 --dlq-retention-days 5 --processed-retention-days 12");
        let days = TimeDelta::days;
        let wanted = Keep { published: days(3), dead: days(5), processed: days(12) };
        assert_eq!(keep.unwrap().retention.keep().unwrap(), wanted);
        for short in
            ["--dlq-retention-days 5 --processed-retention-days 11", "--dlq-retention-days 174"]
        {
            let refused = given(short).unwrap().retention.keep().unwrap_err().to_string();
            assert!(refused.contains("can come again"), "{short}: {refused}");
        }
    }

    #[test]
    fn an_empty_token_is_none() {
        assert_eq!(admin_token(None), None);
        assert_eq!(admin_token(Some("")), None);
        assert_eq!(admin_token(Some("t")).as_deref(), Some("t"));
    }
}
