use super::sharing::assert_once_and_in_order;
use super::{Both, end};
use crate::script::Script;
use crate::world::effects;
use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Received, Receiver, Settle, Source, Subscriber, Tag};
use relevo_testkit::conformance::broker::Fault;
use relevo_testkit::eventually;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Where the work on a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Received,
    Committed,
    Acknowledged,
}

/// Whoever comes to this step waits there until it may go on.
#[derive(Clone)]
struct Stop {
    at: Option<Step>,
    reached: watch::Sender<bool>,
    open: watch::Sender<bool>,
}

impl Stop {
    fn at(step: Option<Step>) -> Self {
        Self { at: step, reached: watch::Sender::new(false), open: watch::Sender::new(false) }
    }

    async fn pass(&self, step: Step) {
        if self.at == Some(step) {
            self.reached.send_replace(true);
            self.opened().await;
        }
    }

    async fn opened(&self) {
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.expect("the sender lives as long as `self`");
    }
}

/// A subscriber whose receivers stop at a step.
struct Stopping(Arc<dyn Subscriber>, Stop);

#[async_trait]
impl Subscriber for Stopping {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn binding(&self) -> Binding {
        self.0.binding()
    }

    /// Whoever stands still does not come back before it goes on.
    async fn open(&self) -> Result<Box<dyn Receiver>> {
        if *self.1.reached.borrow() {
            self.1.opened().await;
        }
        let receiver = self.0.open().await?;
        Ok(Box::new(StoppingReceiver { receiver, stop: self.1.clone(), received: None }))
    }
}

struct StoppingReceiver {
    receiver: Box<dyn Receiver>,
    stop: Stop,
    /// What came and was not handed on: a dropped `next` loses nothing.
    received: Option<Received>,
}

#[async_trait]
impl Receiver for StoppingReceiver {
    async fn next(&mut self, max: usize) -> Result<Received> {
        let received = match self.received.take() {
            Some(received) => received,
            None => self.receiver.next(max).await?,
        };
        let held = self.received.insert(received);
        if matches!(held, Received::Messages { .. }) {
            self.stop.pass(Step::Received).await;
        }
        self.received.take().ok_or_else(|| unreachable!("it was put there"))
    }

    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        self.stop.pass(Step::Committed).await;
        self.receiver.settle(settled).await?;
        self.stop.pass(Step::Acknowledged).await;
        Ok(())
    }

    async fn pause(&mut self, source: &Source) -> Result<()> {
        self.receiver.pause(source).await
    }

    async fn resume(&mut self, source: &Source) -> Result<()> {
        self.receiver.resume(source).await
    }

    async fn close(self: Box<Self>) -> Result<()> {
        self.receiver.close().await
    }
}

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

/// The first consumer stops at a step (without one, inside its transaction); meanwhile connections break and another one
/// comes, to which what the first had goes. Then it goes on as if nothing had happened.
async fn goes_at(both: &Both<'_>, step: Option<Step>) -> Result<()> {
    let subscriber = both.exclusive()?;
    let events: Vec<_> = (0..120).map(|n| both.event(&format!("k{}", n % 12), n)).collect();
    both.store(&events[..60]).await;
    let gate = Arc::new(Semaphore::new(0));
    let script = Script::done().limit(Duration::from_secs(90));
    let script = if step.is_none() { script.gate(&gate) } else { script };
    let stop = Stop::at(step);
    let first = both.consume(Stopping(subscriber.clone(), stop.clone()), &script).await;
    let at_work = || events.iter().any(|event| script.attempts(event.id) > 0);
    eventually("the first is there", async || match step {
        Some(_) => stop.reached.borrow().then_some(()),
        None => at_work().then_some(()),
    })
    .await;
    stop.reached.send_replace(true);
    // It tells when something comes to it, and waits for nothing.
    let other = Stop::at(Some(Step::Received));
    other.open.send_replace(true);
    let quick = Script::done();
    let second = both.consume(Stopping(subscriber, other.clone()), &quick).await;
    both.broker.fault(Fault::Cut).await?;
    // So that there is something in whatever it gets.
    both.store(&events[60..]).await;
    eventually("the other one has a source", async || other.reached.borrow().then_some(())).await;
    stop.open.send_replace(true);
    gate.add_permits(Semaphore::MAX_PERMITS / 2);
    let rows = effects(&*both.world, events.len()).await;
    assert_once_and_in_order(&rows, &events);
    end(first).await;
    end(second).await;
    assert_eq!(both.world.effects().await.len(), events.len(), "an effect twice");
    Ok(())
}
