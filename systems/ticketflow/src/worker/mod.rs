//! The worker: two consumers, each with its effect, and a sign of life.
//!
//! - [`Notifications`]: e-mails, by [`mail`] over connections of `smtp`; [`Statistics`]: ticket metrics
//! - `processed`: an effect once per consumer and event
//! - `dead_letters`: what failed for good, published to its `.dlq`
//! - `heartbeat`: every thirty seconds, a row and a gauge

mod dead_letters;
mod heartbeat;
pub mod mail;
mod notifications;
mod processed;
mod smtp;
mod statistics;

pub use dead_letters::{Forwarder, original_id};
pub use heartbeat::{EVERY, Pulse};
pub use notifications::Notifications;
pub use statistics::Statistics;

use crate::clock::Clock;
use crate::database::{Database, Driver, ProcessedKey};
use crate::topology::{METRICS, NOTIFICATIONS};
use anyhow::Result;
use mail::Mailer;
use relevo::postgres::Deadpool;
use relevo::rabbitmq::{RabbitMqConfig, RabbitMqSubscriber};
use relevo::sqlite::SqlxSqlite;
use relevo::{Consumer, Consuming, Direct, Handler, MemberId, RelayConfig, RetryPolicy};
use relevo::{Relay, RunningRelay, Subscription, TopicFilter};
use std::sync::Arc;
use std::time::Duration;

/// Between the attempts at a message that fails.
pub const RETRIES: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(300), Duration::from_secs(900)];

/// What a worker needs, wherever its events come from.
#[derive(Clone)]
pub struct Crew {
    /// Its database.
    pub database: Database,
    /// How e-mails leave.
    pub mailer: Arc<dyn Mailer>,
    /// Between the attempts.
    pub retries: Vec<Duration>,
    /// The time.
    pub clock: Clock,
    /// When it had its last message.
    pub pulse: Pulse,
    /// What tells that an event was processed.
    pub processed_key: ProcessedKey,
}

impl Crew {
    fn notifications(&self) -> Notifications {
        Notifications::new(self.clone())
    }

    fn statistics(&self) -> Statistics {
        Statistics::new(self.clone())
    }

    fn config(&self) -> RelayConfig {
        let mut config = RelayConfig::default();
        config.retry = RetryPolicy::ladder(self.retries.iter().copied());
        config
    }

    /// Consumes both queues of RabbitMQ under this name.
    pub async fn consume(&self, rabbit: &RabbitMqConfig, name: &str) -> Result<Vec<Consuming>> {
        match &self.database {
            Database::Postgres(store) => {
                self.consume_with(Deadpool::new(store.pool().clone()), rabbit, name).await
            }
            Database::Sqlite(_, pool) => {
                self.consume_with(SqlxSqlite::new(pool.clone()), rabbit, name).await
            }
        }
    }

    async fn consume_with<D: Driver>(
        &self,
        driver: D,
        rabbit: &RabbitMqConfig,
        name: &str,
    ) -> Result<Vec<Consuming>> {
        let mails = self.queue(NOTIFICATIONS, driver.clone(), self.notifications(), rabbit, name);
        let numbers = self.queue(METRICS, driver, self.statistics(), rabbit, name);
        Ok(vec![mails.await?, numbers.await?])
    }

    async fn queue<D: Driver, H: Handler<D>>(
        &self,
        queue: &'static str,
        driver: D,
        handler: H,
        rabbit: &RabbitMqConfig,
        name: &str,
    ) -> Result<Consuming> {
        let subscriber = RabbitMqSubscriber::new(rabbit.clone(), queue);
        let consumer = Consumer::new(queue, subscriber, driver, handler).relay(self.config());
        let consumer = consumer.keys_at_once(mail::AT_ONCE);
        Ok(consumer.start(self.database.store(), MemberId(name.into())).await?)
    }

    /// Does the same with what is published into the database's own log, where there is no broker.
    pub async fn work_on_the_log(&self) -> Result<RunningRelay> {
        let relay = self.database.relay();
        let relay = match &self.database {
            Database::Postgres(store) => self.direct(relay, Deadpool::new(store.pool().clone()))?,
            Database::Sqlite(_, pool) => self.direct(relay, SqlxSqlite::new(pool.clone()))?,
        };
        Ok(relay.start().await?)
    }

    fn direct<D: Driver>(&self, relay: Relay, driver: D) -> Result<Relay> {
        let topics = TopicFilter::parse("ticket.#")?;
        let subscription = |name: &'static str| Subscription::new(name).topics([topics.clone()]);
        let mails = Direct::new(driver.clone(), self.notifications());
        let numbers = Direct::new(driver, self.statistics());
        Ok(relay.subscribe_with(subscription(NOTIFICATIONS), self.config(), mails).subscribe_with(
            subscription(METRICS),
            self.config(),
            numbers,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::mail::InProcess;
    use super::*;
    use relevo::ErrorClass;
    use relevo_core::clock::Rng;
    use relevo_core::retry::Verdict;

    /// The database is never asked.
    async fn crew(folder: &tempfile::TempDir) -> Crew {
        let file = folder.path().join("ticketflow.db");
        let database = Database::open(&format!("sqlite:{}", file.display())).await;
        Crew {
            database: database.expect("a file"),
            mailer: Arc::new(InProcess::default()),
            retries: RETRIES.to_vec(),
            clock: Clock::default(),
            pulse: Pulse::default(),
            processed_key: ProcessedKey::default(),
        }
    }

    #[tokio::test]
    async fn what_fails_is_tried_again_after_one_five_and_fifteen_minutes_and_then_it_is_dead() {
        let folder = tempfile::tempdir().unwrap();
        let (policy, mut rng) = (crew(&folder).await.config().retry, Rng::seeded(1));
        let verdict = |attempts| policy.verdict(attempts, ErrorClass::Transient, &mut rng);
        let minutes = |n: u64| Verdict::RetryIn(Duration::from_secs(n * 60));
        let wanted = [minutes(1), minutes(5), minutes(15), Verdict::Dead];
        assert_eq!([1, 2, 3, 4].map(verdict), wanted);
    }
}
