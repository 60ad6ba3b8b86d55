//! From every broker into a real database: each event takes effect once, whatever happens on the way.
//!
//! - `copies`: what arrives twice, late, out of order, over connections that break
//! - `landing`: what fails waits in the database, and the broker has nothing of it left
//! - `at_broker`: retries that are left to the broker
//! - `sharing`: consumers that come and go while others work
//! - `step`: a source that is taken away at each step of the work
//! - `stopping`: a consumer that stands still at a step, and what came to it

mod at_broker;
mod copies;
mod landing;
mod sharing;
mod step;
mod stopping;

pub use at_broker::*;
pub use copies::*;
pub use landing::*;
pub use sharing::*;
pub use step::*;

use crate::script::Script;
use crate::world::{PgHandlers, PostgresWorld, Terms, World, quick};
use relevo_core::Result;
use relevo_core::broker::{Confirm, Publisher, Subscriber};
use relevo_core::event::{Event, NewEvent};
use relevo_core::inbox::Consuming;
use relevo_testkit::conformance::broker::{self as suite, BrokerWorld, Rig};
use relevo_testkit::eventually;
use std::sync::Arc;
use std::time::Duration;

/// The one list of these cases, with the capabilities that each needs; hands it to the macro named first, after the
/// tokens that belong to it.
#[macro_export]
macro_rules! once_cases {
    ([$($then:tt)*] $($own:tt)*) => {
        $($then)*! { [$($own)*]
            copies_and_stragglers_take_effect_once: publishes consumes,
            a_key_that_fails_waits_in_the_database_and_nothing_waits_at_the_broker: publishes consumes,
            one_that_fails_to_the_end_is_a_dead_letter_and_those_behind_it_go_on_in_order: publishes consumes,
            what_landed_before_a_crash_is_known_when_it_comes_again: publishes consumes,
            what_a_handler_publishes_is_published_if_its_effect_is_there_and_only_then: publishes consumes,
            what_fails_is_tried_again_by_the_broker_and_ends_in_its_dead_letters: publishes consumes,
            a_retry_keeps_its_place_where_the_broker_says_so_and_only_there: publishes consumes,
            what_waits_at_the_broker_is_overtaken_by_its_key_and_takes_effect_once: publishes consumes delays_at_broker,
            a_consumer_says_at_its_start_that_order_is_not_kept: publishes consumes,
            consumers_that_come_and_go_do_everything_once_and_in_order: publishes consumes exclusive_sources,
            a_source_that_goes_when_its_messages_came_is_worked_once: publishes consumes,
            a_source_that_goes_inside_a_transaction_is_worked_once: publishes consumes,
            a_source_that_goes_after_the_commit_is_worked_once: publishes consumes,
            a_source_that_goes_after_the_acknowledgement_is_worked_once: publishes consumes exclusive_sources,
        }
    };
}

/// A module of the given name with a `#[test]` for each case, each on a fresh destination of the harness.
#[macro_export]
macro_rules! once_tests {
    ($name:ident, $harness:expr) => {
        mod $name {
            use super::*;
            $crate::once_cases! { [$crate::once_case_tests] $harness }
        }
    };
}

/// What [`once_tests!`](crate::once_tests) makes of the list.
#[doc(hidden)]
#[macro_export]
macro_rules! once_case_tests {
    ([$harness:expr] $($case:ident: $($need:ident)*,)*) => {
        $(#[test]
        fn $case() {
            use relevo_testkit::conformance::broker::{self, Need};
            let needs = [$(Need { name: stringify!($need), met: |can| can.$need }),*];
            broker::run(&$harness, "once", stringify!($case), &needs, async |rig| {
                let Some(both) = $crate::once::Both::fresh(rig).await? else { return Ok(()) };
                $crate::once::$case(&both).await
            });
        })*
    };
}

/// A destination at a broker, and a database for the effects.
pub struct Both<'r> {
    broker: &'r dyn BrokerWorld,
    world: Arc<dyn World>,
    publisher: Arc<dyn Publisher>,
}

impl<'r> Both<'r> {
    /// A fresh database beside a fresh destination; `None` if there is no PostgreSQL and need not be.
    pub async fn fresh(rig: &'r Rig) -> Result<Option<Self>> {
        let Some(world) = PostgresWorld::fresh(15, PgHandlers::Sqlx).await else { return Ok(None) };
        let (broker, publisher) = (&*rig.world, rig.world.publisher()?);
        Ok(Some(Self { broker, world: Arc::new(world), publisher }))
    }

    fn event(&self, key: &str, text: impl ToString) -> Event {
        let event = NewEvent::bytes(self.broker.topic(), text.to_string()).key(key);
        Event::stored(event, chrono::Utc::now())
    }

    /// Publishes until all of it is stored, each in its turn.
    async fn store(&self, events: &[Event]) {
        for event in events {
            eventually("stored", async || {
                let confirms = self.publisher.publish(&[event]).await;
                (confirms == [Confirm::Stored]).then_some(())
            })
            .await;
        }
    }

    /// Of one queue, stream or topic that others may consume too.
    fn subscriber(&self) -> Result<Arc<dyn Subscriber>> {
        self.broker.subscriber(suite::Consuming::at_most(20))
    }

    /// The same, where each source has one consumer at a time.
    fn exclusive(&self) -> Result<Arc<dyn Subscriber>> {
        self.broker.subscriber(suite::Consuming::at_most(20).exclusively())
    }

    /// The same as the first, where what is to come again later waits at the broker.
    fn delaying(&self) -> Result<Arc<dyn Subscriber>> {
        self.broker.subscriber(suite::Consuming::at_most(20).delays_at_broker())
    }

    async fn consume(&self, subscriber: impl Subscriber, script: &Script) -> Consuming {
        let terms = Terms { idle_limit: Duration::from_secs(90), ..quick().into() };
        self.consume_on(subscriber, terms, script).await
    }

    async fn consume_on(
        &self,
        subscriber: impl Subscriber,
        terms: Terms,
        script: &Script,
    ) -> Consuming {
        let consuming = self.world.consume("once", Box::new(subscriber), terms, script).await;
        consuming.unwrap_or_else(|| panic!("this world cannot consume"))
    }
}

async fn end(consuming: Consuming) {
    let stopped = consuming.stop(Duration::from_secs(60)).await;
    stopped.unwrap_or_else(|error| panic!("it does not stop: {error}"));
}
