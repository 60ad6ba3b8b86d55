use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Received, Receiver, Settle, Source, Subscriber, Tag};
use relevo_testkit::eventually;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Where the work on a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Received,
    Committed,
    Acknowledged,
}

/// By its payload, where each message came from.
pub(super) type Came = BTreeMap<String, Source>;

/// What came to a consumer. Whoever comes to the step waits there until it may go on.
#[derive(Clone)]
pub(super) struct Stop {
    at: Option<Step>,
    /// So much has to come before it counts as received.
    whole: usize,
    came: Arc<Mutex<Came>>,
    reached: watch::Sender<bool>,
    open: watch::Sender<bool>,
}

impl Stop {
    /// At this step, with `whole` messages.
    pub(super) fn at(step: Step, whole: usize) -> Self {
        Self { at: Some(step), whole, ..Self::nowhere() }
    }

    /// It only looks on.
    pub(super) fn nowhere() -> Self {
        let (reached, open) = (watch::Sender::new(false), watch::Sender::new(false));
        Self { at: None, whole: 0, came: Arc::default(), reached, open }
    }

    /// What came so far.
    pub(super) fn came(&self) -> Came {
        self.all().clone()
    }

    /// Waits until somebody stands still.
    pub(super) async fn reached(&self) {
        eventually("the step", async || self.reached.borrow().then_some(())).await;
    }

    /// From now on it stands still, wherever it is: if it loses its receiver it opens no other.
    pub(super) fn stand(&self) {
        self.reached.send_replace(true);
    }

    /// It goes on.
    pub(super) fn go_on(&self) {
        self.open.send_replace(true);
    }

    fn all(&self) -> MutexGuard<'_, Came> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_incomplete(&self) -> bool {
        self.at == Some(Step::Received) && !*self.open.borrow() && self.all().len() < self.whole
    }

    async fn pass(&self, step: Step) {
        if self.at == Some(step) {
            self.stand();
            self.opened().await;
        }
    }

    async fn opened(&self) {
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.expect("the sender lives as long as `self`");
    }
}

/// A subscriber whose receivers stop at a step.
pub(super) struct Stopping(pub(super) Arc<dyn Subscriber>, pub(super) Stop);

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
        let (receiver, stop) = (self.0.open().await?, self.1.clone());
        Ok(Box::new(StoppingReceiver {
            receiver,
            stop,
            waiting: VecDeque::new(),
            sources: BTreeMap::new(),
            told: BTreeSet::new(),
        }))
    }
}

struct StoppingReceiver {
    receiver: Box<dyn Receiver>,
    stop: Stop,
    /// What came and was not handed on: a dropped `next` loses nothing.
    waiting: VecDeque<Received>,
    sources: BTreeMap<Tag, Source>,
    /// Sources of which the broker knows that something is done.
    told: BTreeSet<Source>,
}

impl StoppingReceiver {
    fn note(&mut self, received: &Received) {
        let Received::Messages { source, messages } = received else { return };
        for message in messages {
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            self.stop.all().insert(text, source.clone());
            self.sources.insert(message.tag, source.clone());
        }
    }
}

#[async_trait]
impl Receiver for StoppingReceiver {
    async fn next(&mut self, max: usize) -> Result<Received> {
        while self.waiting.is_empty() || self.stop.is_incomplete() {
            let received = self.receiver.next(max).await?;
            self.note(&received);
            self.waiting.push_back(received);
        }
        self.stop.pass(Step::Received).await;
        self.waiting.pop_front().ok_or_else(|| unreachable!("it was put there"))
    }

    /// At the last step it stops when each source has come to it.
    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        self.stop.pass(Step::Committed).await;
        self.receiver.settle(settled).await?;
        let told = settled.iter().filter_map(|(tag, _)| self.sources.get(tag).cloned());
        self.told.extend(told);
        if self.sources.values().all(|source| self.told.contains(source)) {
            self.stop.pass(Step::Acknowledged).await;
        }
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
