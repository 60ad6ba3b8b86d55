//! A store with handlers of one driver, and the table their effects go to.

mod effects;
mod memory;
mod postgres;
mod sqlite;

use crate::script::Script;
use async_trait::async_trait;
use relevo_core::broker::{Foreign, Subscriber};
use relevo_core::dead_letters::{DeadFilter, DeadLetter, Operate};
use relevo_core::event::{EventId, NewEvent};
use relevo_core::inbox::{Consumer, Consuming, TxDriver};
use relevo_core::outbox::{MemberId, Store, Subscription};
use relevo_core::relay::RelayConfig;
use relevo_core::relay::run::{Destination, Running, start};
use relevo_core::retry::RetryPolicy;
use relevo_testkit::eventually;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use effects::Scripted;
pub use memory::MemoryWorld;
pub use postgres::{PgHandlers, PostgresWorld};
pub use sqlite::{SqliteHandlers, SqliteWorld};

/// How long a handler's session may idle inside its transaction.
const IDLE_LIMIT: Duration = Duration::from_secs(8);

/// A `#[test]` for each case of a list, a function of this package's module `$cases`, each in a fresh world.
#[doc(hidden)]
#[macro_export]
macro_rules! world_case_tests {
    ([$cases:ident $world:expr] $($case:ident,)*) => {
        $(#[test]
        fn $case() {
            $crate::engine::run(async || {
                let Some(world) = $world.await else { return };
                let world: std::sync::Arc<dyn $crate::world::World> = std::sync::Arc::new(world);
                $crate::$cases::$case(&world).await
            });
        })*
    };
}

/// One effect: a row that a handler wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectRow {
    /// The event.
    pub event: EventId,
    /// Its order key.
    pub key: String,
    /// Its payload.
    pub payload: String,
}

/// A fresh store, migrated, with an application's table `effects` beside it.
#[async_trait]
pub trait World: Send + Sync + 'static {
    /// The port the relay works through.
    fn store(&self) -> Arc<dyn Store>;

    /// The port operators work through.
    fn operate(&self) -> Arc<dyn Operate>;

    /// A destination whose handler writes each event into `effects` and then does what the script says.
    fn destination(&self, script: &Script) -> Arc<dyn Destination>;

    /// A consumer of `subscriber` whose handler does as [`Self::destination`]'s; `None` if this driver's handlers cannot
    /// consume from a broker.
    async fn consume(
        &self,
        name: &str,
        subscriber: Box<dyn Subscriber>,
        terms: Terms,
        script: &Script,
    ) -> Option<Consuming>;

    /// Publishes events in one transaction of the application and commits.
    async fn publish(&self, events: Vec<NewEvent>) -> Vec<EventId>;

    /// The committed effects, in the order in which they were written.
    async fn effects(&self) -> Vec<EffectRow>;

    /// The same data as another process would open it.
    async fn another(&self) -> Box<dyn World>;

    /// How many transactions are open at this moment.
    async fn open_transactions(&self) -> usize;
}

/// What a consumer is told beside its source and its handler.
#[derive(Debug, Clone)]
pub struct Terms {
    /// For what landed.
    pub relay: RelayConfig,
    /// For messages that are no CloudEvents.
    pub foreign: Foreign,
    /// What fails is left to the broker.
    pub at_broker: Option<RetryPolicy>,
    /// How long a session may idle inside a transaction.
    pub idle_limit: Duration,
}

impl From<RelayConfig> for Terms {
    fn from(relay: RelayConfig) -> Self {
        Self { relay, foreign: Foreign::default(), at_broker: None, idle_limit: IDLE_LIMIT }
    }
}

/// Starts a consumer with transactions of `driver`.
async fn consume_with<D: effects::Effects + TxDriver + Clone>(
    store: Arc<dyn Store>,
    driver: D,
    name: &str,
    subscriber: Box<dyn Subscriber>,
    terms: Terms,
    script: &Script,
) -> Option<Consuming> {
    let consumer = Consumer::new(name, subscriber, driver, Scripted(script.clone()));
    let mut consumer = consumer.relay(terms.relay).foreign(terms.foreign);
    consumer = consumer.idle_limit(terms.idle_limit);
    if let Some(policy) = terms.at_broker {
        consumer = consumer.retry_at_broker(policy);
    }
    let started = consumer.start(store, member(&format!("{name}-{}", uuid::Uuid::new_v4()))).await;
    Some(started.unwrap_or_else(|error| panic!("the consumer does not start: {error}")))
}

/// Figures that make a test quick: a lease of a second, polls of milliseconds.
pub fn quick() -> RelayConfig {
    let mut config = RelayConfig::default();
    config.lease = Duration::from_secs(1);
    config.poll = (Duration::from_millis(5), Duration::from_millis(50));
    config.poll_with_doorbell = Duration::from_millis(500);
    config.record_every = Duration::from_millis(10);
    config.lazy_record = Duration::from_millis(100);
    config.retry = RetryPolicy::ladder([Duration::from_millis(20), Duration::from_millis(20)]);
    config
}

/// A name for one process at work.
pub fn member(name: &str) -> MemberId {
    MemberId(name.into())
}

/// Starts a relay with quick figures.
pub async fn relay(world: &dyn World, subscription: &str, script: &Script) -> Running {
    relay_with(world, Subscription::new(subscription), quick(), script, "relay").await
}

/// Starts a relay.
pub async fn relay_with(
    world: &dyn World,
    subscription: Subscription,
    config: RelayConfig,
    script: &Script,
    name: &str,
) -> Running {
    let started =
        start(world.store(), subscription, config, world.destination(script), member(name));
    started.await.unwrap_or_else(|error| panic!("the relay does not start: {error}"))
}

/// Stops a relay in good order.
pub async fn stop(running: Running) {
    running
        .stop(Duration::from_secs(20))
        .await
        .unwrap_or_else(|error| panic!("it does not stop: {error}"));
}

/// Waits until so many effects are committed, and no more.
pub async fn effects(world: &dyn World, count: usize) -> Vec<EffectRow> {
    let what = format!("{count} effects");
    let rows =
        eventually(&what, async || Some(world.effects().await).filter(|rows| rows.len() >= count))
            .await;
    assert_eq!(rows.len(), count, "more effects than events: {rows:?}");
    rows
}

/// Waits until there are so many dead letters.
pub async fn dead_letters(world: &dyn World, count: usize) -> Vec<DeadLetter> {
    eventually(&format!("{count} dead letters"), async || {
        let letters = world.operate().dead_letters(&DeadFilter::default(), None, 100).await.ok()?;
        Some(letters).filter(|letters| letters.len() >= count)
    })
    .await
}

/// The payloads of each key, in order.
pub fn by_key(rows: &[EffectRow]) -> BTreeMap<&str, Vec<&str>> {
    let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in rows {
        keys.entry(&row.key).or_default().push(&row.payload);
    }
    keys
}

/// An event of a key with a text.
pub fn event(key: &str, text: impl ToString) -> NewEvent {
    NewEvent::bytes("thing.happened", text.to_string()).key(key)
}
