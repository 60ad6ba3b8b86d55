use super::meeting::Meeting;
use super::{PAUSES, told_to_stop};
use crate::broker::cloudevents::Binding;
use crate::broker::{Foreign, Incoming, Settle, Tag};
use crate::error::{Error, Kind, Result};
use crate::inbox::direct::{Broken, Direct, commit, distrust, in_time};
use crate::inbox::effect::Effect;
use crate::inbox::{Handler, Outcome, TxDriver};
use crate::telemetry;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Works batches of one consumer in transactions of its driver.
pub(super) struct Worker<D, H> {
    name: Arc<str>,
    driver: D,
    direct: Direct<D, Arc<H>>,
    slow: bool,
    binding: Binding,
    foreign: Foreign,
    idle_limit: Duration,
}

/// What to tell the broker.
type Settled = Vec<(Tag, Settle)>;

impl<D: TxDriver + Clone, H: Handler<D>> Worker<D, H> {
    pub(super) fn new(
        name: Arc<str>,
        driver: D,
        handler: Arc<H>,
        binding: Binding,
        foreign: Foreign,
        idle_limit: Duration,
    ) -> Self {
        let slow = handler.slow();
        let direct = Direct::new(driver.clone(), handler).idle_limit(idle_limit);
        Self { name, driver, direct, slow, binding, foreign, idle_limit }
    }

    /// Works a batch until it is committed, whatever the store's trouble; `None` if the
    /// consumer was stopped first. A transaction that was open for long enough ends with the first of them.
    pub(super) async fn work(
        &self,
        messages: &[Incoming],
        mut stopped: watch::Receiver<bool>,
    ) -> Option<Settled> {
        let (mut all, mut rest) = (Settled::new(), messages.to_vec());
        let mut pause = PAUSES.0;
        loop {
            let meeting = Meeting::of(self.name.clone(), &rest, &self.binding, &self.foreign);
            match self.once(meeting).await {
                Ok(settled) => {
                    rest.retain(|message| settled.iter().all(|(tag, _)| *tag != message.tag));
                    all.extend(settled);
                    if rest.is_empty() {
                        return Some(all);
                    }
                    pause = PAUSES.0;
                    continue;
                }
                Err(error) => {
                    telemetry::store_error(&self.name, error.code());
                    tracing::warn!(consumer = %self.name, %error, "the store failed; trying again");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSES.1),
                () = told_to_stop(&mut stopped) => return None,
            }
        }
    }

    /// All of them in one transaction; if that breaks, each in its own.
    async fn once(&self, meeting: Meeting) -> Result<Settled> {
        if meeting.len() > 1 && !self.slow {
            match self
                .together(meeting.clone())
                .await
                .inspect_err(|broken| distrust(&self.driver, broken))
            {
                Ok(settled) => return Ok(settled),
                Err(Broken::Attempt(..)) => telemetry::count("relevo_aborted_total", &self.name, 1),
                Err(Broken::Store(error)) if error.kind() == Kind::TransactionConflict => {
                    telemetry::count("relevo_aborted_total", &self.name, 1);
                }
                Err(Broken::Store(error)) => return Err(error),
            }
        }
        let mut settled = Settled::new();
        for one in meeting.anew().singly() {
            settled.extend(self.alone(one).await?);
        }
        Ok(settled)
    }

    /// How many messages to ask the inbox about at once: all, where transactions may stay open for long.
    fn at_once(meeting: &Meeting) -> usize {
        if D::HOLD < Duration::from_secs(30) { 1 } else { meeting.len() }
    }

    /// Inbox rows, effects and landings of the batch in one transaction, a savepoint for each event.
    async fn together(&self, mut meeting: Meeting) -> Result<Settled, Broken> {
        let mut slot = None;
        let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
        in_time(effect.tx()).await?;
        let (begun, at_once) = (Instant::now(), Self::at_once(&meeting));
        while begun.elapsed() <= D::HOLD / 4
            && self.meet(&mut meeting, &mut effect, at_once).await?
        {
            while let Some(index) = meeting.next() {
                let answer = self.direct.attempt(meeting.event(index), &mut effect, true).await?;
                meeting.settle(index, answer.into());
            }
        }
        self.end(&meeting, effect).await
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
        let answers = in_time(D::meet(effect.tx().await?, &self.name, &asked)).await?;
        Meeting::check(&asked, &answers)?;
        meeting.met(answers);
        Ok(true)
    }

    /// One message: its attempt, and if that breaks its transaction, its landing.
    async fn alone(&self, meeting: Meeting) -> Result<Settled> {
        let tried = if self.slow {
            self.slowly(meeting.clone()).await
        } else {
            self.together(meeting.clone()).await
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

    /// Records an answer whose own transaction is gone.
    async fn answered(&self, mut meeting: Meeting, outcome: Outcome) -> Result<Settled, Broken> {
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
            return self.answered(meeting, outcome).await;
        }
        self.meet(&mut meeting, &mut effect, 1).await?;
        match meeting.next() {
            Some(index) => meeting.settle(index, outcome),
            // Somebody else was faster, or something of the key failed meanwhile: this effect does not happen.
            None => {
                drop(effect);
                let mut slot = None;
                let mut effect = Effect::new(&self.driver, &mut slot, self.idle_limit);
                meeting = meeting.anew();
                self.meet(&mut meeting, &mut effect, 1).await?;
                return self.end(&meeting, effect).await;
            }
        }
        self.end(&meeting, effect).await
    }

    async fn land(&self, meeting: &Meeting, tx: &mut D::Tx<'_>) -> Result<()> {
        in_time(D::seal(tx)).await?;
        let landings = meeting.landings();
        if landings.is_empty() {
            return Ok(());
        }
        in_time(D::land(tx, &self.name, landings, &meeting.landed_keys())).await
    }

    /// Landings, then the commit; only then is anything told to the broker.
    async fn end(&self, meeting: &Meeting, mut effect: Effect<'_, D>) -> Result<Settled, Broken> {
        in_time(effect.tx()).await?;
        let gone = || Error::new(Kind::StoreFailed, "the transaction is gone");
        let mut tx = effect.into_open().ok_or_else(gone)?;
        let written = match self.land(meeting, &mut tx).await {
            Ok(()) => commit::<D>(tx).await,
            Err(error) => Err(error),
        };
        written.map_err(|error| match error.kind() {
            Kind::StoreFailed | Kind::TransactionConflict => {
                Broken::Attempt(error.kind(), error.to_string())
            }
            _ => Broken::Store(error),
        })?;
        let (seen, done, landed) = meeting.counts();
        telemetry::count("relevo_inbox_duplicates_total", &self.name, seen);
        telemetry::count("relevo_consumed_total", &self.name, done);
        telemetry::count("relevo_inbox_landed_total", &self.name, landed);
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
