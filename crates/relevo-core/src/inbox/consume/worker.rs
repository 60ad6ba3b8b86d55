use super::Settled;
use super::at_broker::AtBroker;
use super::meeting::{Meet, Meeting, Met};
use crate::broker::cloudevents::Binding;
use crate::broker::{Foreign, Incoming, Settle};
use crate::error::{Error, Kind, Result};
use crate::event::EventId;
use crate::inbox::direct::{
    Broken, Direct, Shared, Tried, commit, distrust, in_time, is_spoilt, outcome_of,
};
use crate::inbox::effect::Effect;
use crate::inbox::{Handler, Outcome, TxDriver};
use crate::{mutant, telemetry};
use futures::{StreamExt, stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Works batches of one consumer in transactions of its driver.
pub struct Worker<D, H> {
    name: Arc<str>,
    driver: D,
    direct: Direct<D, Arc<H>>,
    slow: bool,
    binding: Binding,
    foreign: Foreign,
    idle_limit: Duration,
    keys_at_once: usize,
    /// Set where what fails is left to the broker.
    at_broker: Option<AtBroker>,
    /// The ids of what lands.
    ids: Arc<dyn Fn() -> EventId + Send + Sync>,
}

impl<D: TxDriver + Clone, H: Handler<D>> Worker<D, H> {
    /// A worker of the consumer called `name`, whose messages are written as `binding` says.
    pub fn new(name: impl Into<Arc<str>>, driver: D, handler: Arc<H>, binding: Binding) -> Self {
        let slow = handler.slow();
        let (foreign, idle_limit) = (Foreign::default(), Duration::from_secs(8));
        let direct = Direct::new(driver.clone(), handler).idle_limit(idle_limit);
        let ids = Arc::new(EventId::fresh);
        let (name, keys_at_once, at_broker) = (name.into(), 1, None);
        Self {
            name,
            driver,
            direct,
            slow,
            binding,
            foreign,
            idle_limit,
            keys_at_once,
            at_broker,
            ids,
        }
    }

    /// How messages that are no CloudEvents become events.
    pub fn foreign(mut self, foreign: Foreign) -> Self {
        self.foreign = foreign;
        self
    }

    /// How long a session may idle inside a transaction: less than the lease. (A consumer says four fifths of it.)
    pub fn idle_limit(mut self, limit: Duration) -> Self {
        self.idle_limit = limit;
        self.direct = self.direct.idle_limit(limit);
        self
    }

    /// How many keys of a batch a slow handler works at the same time (default 1).
    pub fn keys_at_once(mut self, keys: usize) -> Self {
        self.keys_at_once = keys.max(1);
        self
    }

    /// Leaves what fails to the broker; nothing of it lands.
    pub(super) fn at_broker(mut self, at_broker: Option<AtBroker>) -> Self {
        self.at_broker = at_broker;
        self
    }

    /// Where the ids of what lands come from (default: fresh ones).
    pub fn ids(mut self, ids: impl Fn() -> EventId + Send + Sync + 'static) -> Self {
        self.ids = Arc::new(ids);
        self
    }

    /// Works a batch of one source and answers with what is committed, to be told to the broker: all of it, or only its
    /// beginning where a transaction had been open for long enough. An error is the store's: try again.
    pub async fn work(&self, messages: &[Incoming]) -> Result<Settled> {
        let meeting = Meeting::of(self.name.clone(), messages, &self.binding, &self.foreign);
        self.once(meeting.left_to_broker(self.at_broker.is_some())).await
    }

    /// All of them in one transaction; if that breaks, each in its own.
    async fn once(&self, meeting: Meeting) -> Result<Settled> {
        if meeting.len() > 1 && !self.slow {
            let careful = D::SAVEPOINTS_TELL || self.direct.caution.is_due();
            let mut together = self.together(meeting.clone(), careful, None).await;
            if let Ok(Shared::Spoilt(known)) = together {
                telemetry::spoilt(&self.name);
                together = self.together(meeting.clone(), true, Some(known)).await;
            }
            match together.inspect_err(|broken| distrust(&self.driver, broken)) {
                Ok(Shared::Done(settled)) => return Ok(settled),
                Ok(Shared::Spoilt(_)) => {}
                Err(Broken::Attempt(..)) => telemetry::count("relevo_aborted_total", &self.name, 1),
                Err(Broken::Store(error)) if error.kind() == Kind::TransactionConflict => {
                    telemetry::count("relevo_aborted_total", &self.name, 1);
                }
                Err(Broken::Store(error)) => return Err(error),
            }
        }
        match self.slow && self.keys_at_once > 1 && !self.keeps_place() {
            true => self.by_key(meeting.anew()).await,
            false => self.in_turn(meeting.anew()).await,
        }
    }

    /// Each key by itself: where a slow handler waits for somebody, other keys need not wait with it. Trouble begins no
    /// further key and cuts none short: it may have told the world outside what it has not committed yet.
    async fn by_key(&self, meeting: Meeting) -> Result<Settled> {
        let troubled = AtomicBool::new(false);
        let work = async |key| match troubled.load(Relaxed) {
            true => Ok(Settled::new()),
            false => self.in_turn(key).await.inspect_err(|_| troubled.store(true, Relaxed)),
        };
        let keys = stream::iter(meeting.by_key()).map(work);
        let ended: Vec<_> = keys.buffer_unordered(self.keys_at_once).collect().await;
        let settled: Result<Vec<_>> = ended.into_iter().collect();
        Ok(settled?.concat())
    }

    /// One message after another, until one is to be worked again.
    async fn in_turn(&self, meeting: Meeting) -> Result<Settled> {
        let mut settled = Settled::new();
        for one in meeting.singly() {
            let decided = self.alone(one).await?;
            let waits = decided.is_empty() || self.holds_up(&decided);
            settled.extend(decided);
            if waits {
                // What follows it may be of its key.
                break;
            }
        }
        Ok(settled)
    }

    /// True if what is to be tried again waits in its place, with all behind it.
    fn keeps_place(&self) -> bool {
        self.at_broker.as_ref().is_some_and(AtBroker::in_order)
    }

    /// True if what follows waits until a message was tried again.
    fn holds_up(&self, decided: &Settled) -> bool {
        self.keeps_place()
            && decided.iter().any(|(_, settle)| matches!(settle, Settle::RetryAfter(_)))
    }

    /// A transaction in which something failed leaves nothing, where what fails is the broker's: not its inbox row.
    fn unless_left_to_broker(&self, meeting: &Meeting) -> Result<(), Broken> {
        match self.at_broker.is_some() && meeting.has_failures() {
            true => Err(Broken::Attempt(Kind::HandlerFailed, "one of the batch failed".into())),
            false => Ok(()),
        }
    }

    /// What to tell the broker of a message that failed, where that is the broker's.
    fn left_to_broker(&self, meeting: &Meeting, outcome: &Outcome) -> Option<Settled> {
        let at_broker = self.at_broker.as_ref()?;
        let ((tag, deliveries), id) = (meeting.delivery()?, meeting.event(0).id);
        let settle = at_broker.settle(id, deliveries, outcome)?;
        tracing::warn!(consumer = %self.name, event = %id, deliveries, ?outcome, ?settle, "left to the broker");
        telemetry::count("relevo_inbox_returned_total", &self.name, 1);
        Some(vec![(tag, settle)])
    }

    /// How many messages to ask the inbox about at once: all, where transactions may stay open for long.
    fn at_once(meeting: &Meeting) -> usize {
        if D::HOLD < Duration::from_secs(30) { 1 } else { meeting.len() }
    }

    /// Inbox rows, effects and landings of the batch in one transaction. Without savepoints (`careful`) nothing comes of it
    /// if anything but a done effect does. What is `known` was tried already.
    async fn together(
        &self,
        mut meeting: Meeting,
        careful: bool,
        mut known: Option<Tried>,
    ) -> Result<Shared<Settled>, Broken> {
        let mut slot = None;
        let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
        in_time(effect.tx()).await?;
        let (begun, at_once) = (Instant::now(), Self::at_once(&meeting));
        while begun.elapsed() <= D::HOLD / 4
            && self.meet(&mut meeting, &mut effect, at_once).await?
        {
            self.unless_left_to_broker(&meeting)?;
            while let Some(index) = meeting.next() {
                if let Some(outcome) = outcome_of(&mut known, index) {
                    meeting.settle(index, outcome);
                    continue;
                }
                let attempt = self.direct.attempt(meeting.event(index), &mut effect, careful);
                let outcome: Outcome = attempt.await?.into();
                if outcome != Outcome::Done {
                    self.direct.caution.learn();
                }
                meeting.settle(index, outcome.clone());
                self.unless_left_to_broker(&meeting)?;
                if is_spoilt(&outcome, careful) {
                    return Ok(Shared::Spoilt((index, outcome)));
                }
            }
        }
        let settled = self.end(&meeting, effect).await?;
        slot.into_iter().for_each(|conn| self.driver.committed(conn));
        Ok(Shared::Done(settled))
    }

    /// Asks the inbox about the next messages; false if there are none.
    async fn meet(
        &self,
        meeting: &mut Meeting,
        effect: &mut Effect<'_, D>,
        max: usize,
    ) -> Result<bool> {
        let asked = meeting.to_meet(max);
        if asked.is_empty() {
            return Ok(false);
        }
        let answers = match mutant!(DedupOutsideEffect) {
            true => self.meet_apart(&asked).await?,
            false => in_time(D::meet(effect.tx().await?, &self.name, &asked)).await?,
        };
        Meeting::check(&asked, &answers)?;
        meeting.met(answers);
        Ok(true)
    }

    /// What a wrong consumer does: the notes in the inbox commit before, and apart from, the effect.
    async fn meet_apart(&self, asked: &[Meet]) -> Result<Vec<Met>> {
        let mut slot = None;
        let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
        let answers = D::meet(effect.tx().await?, &self.name, asked).await?;
        match effect.into_open() {
            Some(tx) => commit::<D>(tx).await.map(|()| answers),
            None => Ok(answers),
        }
    }

    /// One message: its attempt, and if that breaks its transaction, its landing.
    async fn alone(&self, meeting: Meeting) -> Result<Settled> {
        let malformed = meeting.malformed();
        if let Some(left) = malformed.and_then(|outcome| self.left_to_broker(&meeting, &outcome)) {
            return Ok(left);
        }
        let tried = match self.slow {
            true => self.slowly(meeting.clone()).await,
            false => self.quickly(meeting.clone()).await,
        };
        let (kind, error) = match tried.inspect_err(|broken| distrust(&self.driver, broken)) {
            Ok(settled) => return Ok(settled),
            Err(Broken::Attempt(kind, error)) => (kind, error),
            Err(Broken::Store(error)) => return Err(error),
        };
        let outcome = Outcome::Failed {
            class: kind.class(),
            error: format!("{}: {error}", kind.code()),
            after: None,
        };
        match self
            .answered(meeting, outcome)
            .await
            .inspect_err(|broken| distrust(&self.driver, broken))
        {
            Ok(settled) => Ok(settled),
            Err(Broken::Store(error)) => Err(error),
            Err(Broken::Attempt(kind, error)) => Err(Error::new(kind, error)),
        }
    }

    /// One message in a transaction of its own. What is not done is rolled back, and its answer lands.
    async fn quickly(&self, mut meeting: Meeting) -> Result<Settled, Broken> {
        let untold = meeting.clone();
        let mut slot = None;
        let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
        in_time(effect.tx()).await?;
        self.meet(&mut meeting, &mut effect, 1).await?;
        let Some(index) = meeting.next() else { return self.end(&meeting, effect).await };
        let answer = self.direct.attempt(meeting.event(index), &mut effect, false).await?;
        let outcome: Outcome = answer.into();
        if outcome != Outcome::Done {
            // The connection too: until it is back, some drivers only mean to roll back, and the inbox's row is held.
            drop(effect);
            drop(slot);
            return self.answered(untold, outcome).await;
        }
        meeting.settle(index, outcome);
        let settled = self.end(&meeting, effect).await?;
        slot.into_iter().for_each(|conn| self.driver.committed(conn));
        Ok(settled)
    }

    /// Records an answer whose own transaction is gone.
    async fn answered(&self, mut meeting: Meeting, outcome: Outcome) -> Result<Settled, Broken> {
        if let Some(left) = self.left_to_broker(&meeting, &outcome) {
            return Ok(left);
        }
        let mut slot = None;
        let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
        self.meet(&mut meeting, &mut effect, 1).await?;
        if let Some(index) = meeting.next() {
            meeting.settle(index, outcome);
        }
        self.end(&meeting, effect).await
    }

    /// A slow handler: nothing is held open while it has not used its transaction. Whether the message is new is asked
    /// before, to spare the work, and decided inside the effect's transaction.
    async fn slowly(&self, mut meeting: Meeting) -> Result<Settled, Broken> {
        let mut look = meeting.clone();
        {
            let mut slot = None;
            let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
            self.meet(&mut look, &mut effect, 1).await?;
            // Dropped, and so rolled back, unless nothing is to be handed over.
            if look.next().is_none() {
                return self.end(&look, effect).await;
            }
        }
        let mut slot = None;
        let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
        let outcome: Outcome =
            self.direct.attempt(meeting.event(0), &mut effect, false).await?.into();
        if outcome != Outcome::Done {
            drop(effect);
            drop(slot);
            return self.answered(meeting, outcome).await;
        }
        self.meet(&mut meeting, &mut effect, 1).await?;
        match meeting.next() {
            Some(index) => meeting.settle(index, outcome),
            // Somebody else was faster, or something of the key failed meanwhile: this effect does not happen.
            None => {
                drop(effect);
                drop(slot);
                let mut slot = None;
                let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
                meeting = meeting.anew();
                self.meet(&mut meeting, &mut effect, 1).await?;
                if meeting.next().is_some() {
                    // What it would have waited for is decided meanwhile: nothing is noted, and it is worked again.
                    return Ok(Settled::new());
                }
                return self.end(&meeting, effect).await;
            }
        }
        self.end(&meeting, effect).await
    }

    async fn land(&self, meeting: &Meeting, tx: &mut D::Tx<'_>) -> Result<()> {
        in_time(D::seal(tx)).await?;
        let landings = meeting.landings(&*self.ids);
        if landings.is_empty() || mutant!(LandingDropped) {
            return Ok(());
        }
        in_time(D::land(tx, &self.name, landings, &meeting.landed_keys())).await
    }

    /// What a wrong consumer does: effects and notes commit, then it lands what failed.
    async fn land_apart(&self, meeting: &Meeting, tx: D::Tx<'_>) -> Result<()> {
        commit::<D>(tx).await?;
        let mut slot = None;
        let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
        self.land(meeting, effect.tx().await?).await?;
        match effect.into_open() {
            Some(tx) => commit::<D>(tx).await,
            None => Ok(()),
        }
    }

    /// Landings, then the commit; only then is anything told to the broker. What the server refuses because of what a
    /// handler wrote is the attempt's failure; where no handler wrote anything, it is the store's.
    async fn end(&self, meeting: &Meeting, mut effect: Effect<'_, D>) -> Result<Settled, Broken> {
        in_time(effect.tx()).await?;
        let gone = || Error::new(Kind::StoreFailed, "the transaction is gone");
        let mut tx = effect.into_open().ok_or_else(gone)?;
        let written = match mutant!(LandsApart) {
            true => self.land_apart(meeting, tx).await,
            false => match self.land(meeting, &mut tx).await {
                Ok(()) => commit::<D>(tx).await,
                Err(error) => Err(error),
            },
        };
        written.map_err(|error| match error.kind() {
            Kind::StoreFailed | Kind::TransactionConflict if meeting.has_effects() => {
                Broken::Attempt(error.kind(), error.to_string())
            }
            _ => Broken::Store(error),
        })?;
        let (seen, done, landed) = meeting.counts();
        telemetry::count("relevo_inbox_duplicates_total", &self.name, seen);
        telemetry::count("relevo_consumed_total", &self.name, done);
        telemetry::count("relevo_inbox_landed_total", &self.name, landed);
        for (event, reason) in meeting.skipped() {
            tracing::info!(consumer = %self.name, %event, reason, "skipped");
            telemetry::count("relevo_skipped_total", &self.name, 1);
        }
        Ok(meeting.settled())
    }
}

/// A handler shared by what comes from the broker and what landed.
impl<D: TxDriver, H: Handler<D>> Handler<D> for Arc<H> {
    async fn handle(
        &self,
        event: &crate::event::Event,
        effect: &mut Effect<'_, D>,
    ) -> crate::inbox::Answer {
        (**self).handle(event, effect).await
    }

    fn slow(&self) -> bool {
        (**self).slow()
    }

    fn limit(&self) -> Duration {
        (**self).limit()
    }

    fn answered_before(&self, event: &crate::event::Event) -> Option<Outcome> {
        (**self).answered_before(event)
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
