//! The store, the driver, the handler and the publisher as a simulated process has them. Each statement is a step
//! of its own, which may be lost, late, or the last thing the process did.

use super::call::{Mailbox, NOTE, WAVE};
use super::inbox::{LandStep, MeetStep};
use super::options::{MS, Options, SECOND, SubscriptionOptions};
use super::plan::Plan;
use super::world::World;
use async_trait::async_trait;
use relevo_core::broker::{self, Confirm, Publisher};
use relevo_core::event::{Event, NewEvent};
use relevo_core::inbox::{Answer, Effect, Failure, Handler, Meet, Met, Settled, TxDriver};
use relevo_core::outbox::{
    Beat, Capabilities, Claim, Fleet, LaneChange, LaneId, LaneState, MemberId, Page, PageRequest,
    ParkedEvent, Probe, Retention, Store, Subscription, Token, Upkeep,
};
use relevo_core::{Error, ErrorClass, Kind, Result};
use relevo_stores::memory::{PageStep, Refusal, Statement, TxId};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The store through the eyes of one process.
pub(super) struct SimStore {
    pub(super) mailbox: Mailbox,
    pub(super) process: usize,
    pub(super) doorbell: bool,
}

fn not_here<T>(what: &str) -> Result<T> {
    Err(Error::new(Kind::NotSupported, format!("{what} is the scheduler's business")))
}

#[async_trait]
impl Store for SimStore {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.concurrent_writers = true;
        capabilities.shared_by_processes = true;
        capabilities.doorbell = self.doorbell;
        capabilities.parallel_effects = true;
        capabilities.direct_effects = true;
        capabilities.own_log = true;
        capabilities.key_order = true;
        capabilities
    }

    async fn probe(&self) -> Result<Probe> {
        Ok(Probe::new("simulated", 1, "none"))
    }

    async fn subscribe(&self, _: &Subscription) -> Result<()> {
        not_here("subscribing")
    }

    async fn beat(&self, beat: &Beat) -> Result<Fleet> {
        let (beat, process) = (beat.clone(), self.process);
        self.mailbox.call("beat", move |world| Ok(world.beat(process, &beat))).await
    }

    async fn take_lanes(
        &self,
        subscription: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        let name: Arc<str> = subscription.into();
        let (claims, member, taken_name) = (claims.to_vec(), member.clone(), name.clone());
        let taken = self
            .mailbox
            .call("take lanes", move |world| world.take_lanes(&taken_name, &claims, &member))
            .await?;
        self.mailbox
            .call("load taken lanes", move |world| {
                let state = |(lane, token): &(u16, Token)| {
                    let id = LaneId { subscription: name.clone(), lane: *lane };
                    world.db.load_lane(&id, *token, max_parked).map(|state| (*lane, state))
                };
                Ok(taken.iter().filter_map(state).collect())
            })
            .await
    }

    async fn load_lane(
        &self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Result<Option<LaneState>> {
        let lane = lane.clone();
        self.mailbox
            .call("load lane", move |world| Ok(world.load_lane(&lane, token, max_parked)))
            .await
    }

    async fn release_lanes(&self, subscription: &str, claims: &[Claim]) -> Result<()> {
        let (name, claims): (Arc<str>, _) = (subscription.into(), claims.to_vec());
        self.mailbox.call("release lanes", move |world| world.release_lanes(&name, &claims)).await
    }

    async fn read_page(&self, request: &PageRequest) -> Result<Page> {
        let page = Arc::new(Mutex::new(PageStep::new(request.clone())));
        loop {
            let (name, step) =
                (page.lock().unwrap_or_else(PoisonError::into_inner).name(), page.clone());
            let read = move |world: &mut World| {
                let mut step = step.lock().unwrap_or_else(PoisonError::into_inner);
                world.page_step(&mut step)
            };
            if let Some(page) = self.mailbox.call(name, read).await? {
                return Ok(page);
            }
        }
    }

    async fn read_parked(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>> {
        let (lane, key) = (lane.clone(), key.to_owned());
        self.mailbox
            .call("read parked", move |world| Ok(world.db.read_parked(&lane, &key, max_rows)?))
            .await
    }

    async fn record(&self, changes: &[LaneChange]) -> Result<()> {
        let (changes, process) = (changes.to_vec(), self.process);
        let (mut tx, mut done) = (None, 0);
        let fence = move |world: &mut World| {
            let tx = *tx.get_or_insert_with(|| world.begin(Some(process), 500 * MS));
            world.record_all(tx, &changes, &mut done)?;
            Ok(tx)
        };
        let tx = self.mailbox.call("record", fence).await?;
        let mut open = SimTx { mailbox: self.mailbox.clone(), tx, ended: false, apart: None };
        let committed =
            self.mailbox.call("commit record", move |world| Ok(world.commit(tx)?)).within(tx).await;
        open.ended = committed.is_ok();
        committed
    }

    /// The scheduler rings by itself.
    fn doorbell(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        None
    }

    async fn upkeep(&self, _: &Retention) -> Result<Upkeep> {
        not_here("upkeep")
    }

    async fn forget_member(&self, _: &str, _: &MemberId) -> Result<()> {
        not_here("forgetting a member")
    }
}

/// An open transaction of a process.
pub(super) struct SimTx {
    mailbox: Mailbox,
    tx: TxId,
    ended: bool,
    /// A change that a wrong driver records after the commit.
    apart: Option<LaneChange>,
}

impl Drop for SimTx {
    fn drop(&mut self) {
        if !self.ended {
            self.mailbox.drop_transaction(self.tx);
        }
    }
}

/// Opens transactions for handlers.
#[derive(Clone)]
pub(super) struct SimDriver {
    pub(super) mailbox: Mailbox,
    pub(super) process: usize,
}

impl TxDriver for SimDriver {
    const SAVEPOINTS_TELL: bool = false;
    type Conn = ();
    type Tx<'c> = SimTx;

    async fn acquire(&self) -> Result<()> {
        Ok(())
    }

    async fn begin<'c>(&'c self, _: &'c mut (), idle_limit: Duration) -> Result<SimTx> {
        let (process, idle) = (self.process, idle_limit.as_micros() as u64);
        let tx =
            self.mailbox.call("begin", move |world| Ok(world.begin(Some(process), idle))).await?;
        Ok(SimTx { mailbox: self.mailbox.clone(), tx, ended: false, apart: None })
    }

    async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
        let id = tx.tx;
        tx.mailbox.call("savepoint", move |world| world.savepoint(id)).within(id).await
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        let id = tx.tx;
        tx.mailbox.call("undo", move |world| world.undo(id)).within(id).await
    }

    async fn record(tx: &mut Self::Tx<'_>, change: &LaneChange) -> Result<()> {
        if mutant!(EffectOutsideRecord) {
            tx.apart = Some(change.clone());
            return Ok(());
        }
        if mutant!(RecordBeforeEffect) {
            return record_apart(&tx.mailbox, change.clone()).await;
        }
        let (id, change, mut done) = (tx.tx, change.clone(), 0);
        let fence =
            move |world: &mut World| world.record_all(id, std::slice::from_ref(&change), &mut done);
        tx.mailbox.call("record in effect", fence).within(id).await
    }

    async fn meet(tx: &mut Self::Tx<'_>, consumer: &str, messages: &[Meet]) -> Result<Vec<Met>> {
        let (id, mut step) = (tx.tx, MeetStep::new(tx.tx, consumer, messages.to_vec()));
        tx.mailbox.call("meet", move |world| world.meet(&mut step)).within(id).await
    }

    async fn land(
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        events: Vec<NewEvent>,
        keys: &[String],
    ) -> Result<()> {
        let id = tx.tx;
        let (consumer, keys) = (consumer.to_owned(), keys.to_vec());
        let mut step = LandStep { tx: id, consumer, events, keys, last: None };
        tx.mailbox.call("land", move |world| world.land(&mut step)).within(id).await
    }

    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        error.downcast_ref::<Error>().is_some_and(|error| error.kind() == Kind::TransactionConflict)
    }

    async fn commit(mut tx: Self::Tx<'_>) -> Result<()> {
        let id = tx.tx;
        let committed =
            tx.mailbox.call("commit effect", move |world| Ok(world.commit(id)?)).within(id).await;
        tx.ended = committed.is_ok();
        if let (Ok(()), Some(change)) = (&committed, tx.apart.take()) {
            return record_apart(&tx.mailbox, change).await;
        }
        committed.or_else(|error| match error.kind() {
            Kind::Unreachable if mutant!(CommitUnknownIsDone) => Ok(()),
            Kind::Unreachable => {
                Err(Error::new(Kind::CommitUnknown, "the answer to COMMIT is lost"))
            }
            _ => Err(error),
        })
    }
}

/// What a wrong driver does: the record in a transaction of its own.
async fn record_apart(mailbox: &Mailbox, change: LaneChange) -> Result<()> {
    let record = move |world: &mut World| {
        let tx = world.begin(None, SECOND);
        world.record_all(tx, std::slice::from_ref(&change), &mut 0)?;
        Ok(world.commit(tx)?)
    };
    mailbox.call("record apart", record).await
}

/// The handler of a direct subscription, or of a consumer.
pub(super) struct SimHandler {
    pub(super) mailbox: Mailbox,
    pub(super) subscriber: usize,
    pub(super) slow: bool,
}

impl SimHandler {
    /// The handler of the consumer of this name.
    pub(super) fn of_consumer(mailbox: &Mailbox, options: &Options, name: &str) -> Self {
        let named = |subscription: &SubscriptionOptions| subscription.name == name;
        let subscriber = options.subscriptions.iter().position(named).unwrap_or(usize::MAX);
        let slow = options.consumer(name).is_some_and(|consumer| consumer.slow);
        Self { mailbox: mailbox.clone(), subscriber, slow }
    }
}

impl Handler<SimDriver> for SimHandler {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, SimDriver>) -> Answer {
        let (subscriber, about) = (self.subscriber, event.clone());
        let tx = match effect.tx().await {
            Ok(tx) => tx.tx,
            Err(error) => {
                let id = event.id;
                let failed = move |world: &mut World| {
                    world.journal.failed(subscriber, id, false);
                    Ok(())
                };
                self.mailbox.call(NOTE, failed).await?;
                return Err(error.into());
            }
        };
        let work = move |world: &mut World| world.work(subscriber, tx, &about);
        let plan =
            self.mailbox.call("handler", work).within(tx).about(subscriber, event.id).await?;
        match plan {
            Plan::Fine | Plan::Publishes => Ok(Settled::Done),
            Plan::Fails(_) => Err(Failure::Error(ErrorClass::Transient, "not now".into())),
            // Unwinds like a panic, without the noise of one.
            Plan::Panics(_) => std::panic::resume_unwind(Box::new("planned")),
            Plan::AsksForLater => Err(Failure::retry_after(Duration::from_millis(30), "later")),
            Plan::Fatal { mended_by_replay: true } => Err(Failure::for_good("no such order")),
            Plan::Fatal { mended_by_replay: false } => {
                Err(Failure::Error(ErrorClass::Poison, "unreadable".into()))
            }
            Plan::Skips => Ok(Settled::Skip("not for us".into())),
        }
    }

    fn slow(&self) -> bool {
        self.slow
    }
}

/// Publishes to the simulated broker.
pub(super) struct SimPublisher {
    pub(super) mailbox: Mailbox,
    pub(super) subscriber: usize,
    pub(super) process: usize,
}

#[async_trait]
impl Publisher for SimPublisher {
    fn name(&self) -> &'static str {
        "simulated"
    }

    /// One of two brokers is taken to be down when it takes nothing.
    fn capabilities(&self) -> broker::Capabilities {
        let mut can = broker::Capabilities::default();
        can.publishes = true;
        can.down_if_nothing_is_taken = self.subscriber.is_multiple_of(2);
        can
    }

    /// The messages travel at the same time: they arrive in any order.
    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let count = events.len();
        let order = self.mailbox.call(WAVE, move |world| Ok(world.shuffled(count))).await;
        let order = order.unwrap_or_else(|_| (0..count).collect());
        let mut confirms = vec![Confirm::Unknown { error: "never sent".into() }; count];
        for index in order {
            let (event, subscriber, process) =
                (events[index].clone(), self.subscriber, self.process);
            let id = event.id;
            let arrives = move |world: &mut World| {
                let zombie = world.is_zombie(process);
                Ok(world.arrives(subscriber, &event, zombie))
            };
            let answer = self.mailbox.call("publish", arrives).about(subscriber, id).await;
            confirms[index] =
                answer.unwrap_or_else(|error| Confirm::Unknown { error: error.to_string() });
            self.mailbox.told.tell((process, subscriber, id), &confirms[index]);
        }
        confirms
    }
}

impl World {
    /// Goes on after the first `done` of them when a row that was locked is free.
    fn record_all(&mut self, tx: TxId, changes: &[LaneChange], done: &mut usize) -> Statement<()> {
        self.active(tx);
        self.handlers_at_work(tx, false);
        for change in &changes[*done..] {
            let recorded = self.record_in(tx, change);
            match self.waits_for_no_handler("a record", recorded) {
                Ok(()) => *done += 1,
                Err(Refusal::Failed(error)) => {
                    if error.kind() == Kind::Stale {
                        self.seen.sometimes("a stale record was refused");
                    }
                    self.rollback(tx);
                    return Err(Refusal::Failed(error));
                }
                Err(locked) => return Err(locked),
            }
        }
        Ok(())
    }

    fn savepoint(&mut self, tx: TxId) -> Statement<()> {
        self.active(tx);
        self.db.savepoint(tx, "event")?;
        self.journal.savepoint(tx);
        Ok(())
    }

    fn undo(&mut self, tx: TxId) -> Statement<()> {
        self.active(tx);
        self.db.rollback_to(tx, "event")?;
        self.journal.undo(tx);
        Ok(())
    }
}
