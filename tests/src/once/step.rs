use super::sharing::{assert_once, assert_once_and_in_order};
use super::stopping::{Came, Step, Stop, Stopping};
use super::{Both, end};
use crate::script::Script;
use crate::world::effects;
use relevo_core::Result;
use relevo_core::event::Event;
use relevo_testkit::conformance::broker::Fault;
use relevo_testkit::eventually;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// As many as a consumer may have unsettled: the first one has all of them, of every source.
const IN_HAND: usize = 20;
const EVENTS: usize = 120;

/// Not worked yet.
pub async fn a_source_that_goes_when_its_messages_came_is_worked_once(
    both: &Both<'_>,
) -> Result<()> {
    goes_at(both, Some(Step::Received)).await
}

/// Worked, and nothing of it is there yet.
pub async fn a_source_that_goes_inside_a_transaction_is_worked_once(both: &Both<'_>) -> Result<()> {
    goes_at(both, None).await
}

/// Done, and the broker does not know.
pub async fn a_source_that_goes_after_the_commit_is_worked_once(both: &Both<'_>) -> Result<()> {
    goes_at(both, Some(Step::Committed)).await
}

/// Done, and the broker knows.
pub async fn a_source_that_goes_after_the_acknowledgement_is_worked_once(
    both: &Both<'_>,
) -> Result<()> {
    goes_at(both, Some(Step::Acknowledged)).await
}

/// The first consumer stops at a step (without one, inside its transaction) with something of each source; meanwhile
/// connections break and another one comes, to which what the first had goes. Then it goes on as if nothing had happened.
async fn goes_at(both: &Both<'_>, step: Option<Step>) -> Result<()> {
    let subscriber = both.exclusive()?;
    let events: Vec<_> = (0..EVENTS).map(|n| both.event(&format!("k{}", n % 12), n)).collect();
    let (in_hand, later) = events.split_at(IN_HAND);
    both.store(in_hand).await;
    let gate = Arc::new(Semaphore::new(0));
    let script = Script::done().limit(Duration::from_secs(90)).gate(&gate);
    let stop = step.map_or_else(Stop::nowhere, |step| Stop::at(step, IN_HAND));
    let first = both.consume(Stopping(subscriber.clone(), stop.clone()), &script).await;
    let had =
        First { both, script: &script, gate: &gate, stop: &stop, in_hand }.come_to(step).await;
    stop.stand();
    let other = Stop::nowhere();
    let second = both.consume(Stopping(subscriber, other.clone()), &Script::done()).await;
    both.broker.fault(Fault::Cut).await?;
    // So that there is something in whatever it gets.
    both.store(later).await;
    let moved = || went_over(step, &had, &other.came());
    eventually("what the first had is the other one's", async || moved().then_some(())).await;
    stop.go_on();
    gate.add_permits(Semaphore::MAX_PERMITS / 2);
    let rows = effects(&*both.world, events.len()).await;
    match both.broker.capabilities().exclusive_sources {
        true => assert_once_and_in_order(&rows, &events),
        false => assert_once(&rows, &events),
    }
    end(first).await;
    end(second).await;
    assert_eq!(both.world.effects().await.len(), events.len(), "an effect twice");
    Ok(())
}

/// The very messages come again; those that the broker knows to be done do not, but what follows them in their source.
fn went_over(step: Option<Step>, had: &Came, has: &Came) -> bool {
    match step {
        Some(Step::Acknowledged) => has.values().any(|new| had.values().any(|old| old == new)),
        _ => has.keys().any(|message| had.contains_key(message)),
    }
}

/// The consumer that stops, and what it is to have in hand then.
struct First<'r> {
    both: &'r Both<'r>,
    script: &'r Script,
    gate: &'r Semaphore,
    stop: &'r Stop,
    in_hand: &'r [Event],
}

impl First<'_> {
    /// Waits until something of each source is at the step; what it has then.
    async fn come_to(&self, step: Option<Step>) -> Came {
        let whole = self.in_hand.len();
        eventually("all that it may have", async || {
            Some(self.stop.came()).filter(|came| came.len() == whole)
        })
        .await;
        if step == Some(Step::Received) {
            self.stop.reached().await;
            return self.stop.came();
        }
        let at_work = |event: &Event| self.script.attempts(event.id) > 0;
        eventually("each source is worked", async || self.each_source(at_work)).await;
        if step.is_some() {
            self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
            self.stop.reached().await;
            eventually("each source has an effect", async || {
                let rows = self.both.world.effects().await;
                self.each_source(|event| rows.iter().any(|row| row.event == event.id))
            })
            .await;
        }
        self.stop.came()
    }

    /// Something if one of each source's events is like this.
    fn each_source(&self, is: impl Fn(&Event) -> bool) -> Option<()> {
        let came = self.stop.came();
        let like_this = self.in_hand.iter().filter(|event| is(event));
        let texts: Vec<_> =
            like_this.map(|event| String::from_utf8_lossy(&event.payload)).collect();
        let has = |source| texts.iter().any(|text| came.get(&**text) == Some(source));
        came.values().all(has).then_some(())
    }
}
