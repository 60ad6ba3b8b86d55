//! The worker: the same binary as a child process, a relay with a direct handler.

use super::journal::{Attempt, Writer};
use super::sabotage::How;
use super::shop::{Order, Place, SUBSCRIPTION, is_failing, pack};
use relevo_core::inbox::{Answer, Failure, Settled};
use relevo_core::outbox::{MemberId, Store, Subscription};
use relevo_core::relay::RelayConfig;
use relevo_core::relay::run::start;
use relevo_core::retry::RetryPolicy;
use relevo_core::{Error, ErrorClass, Event, Kind, Result};
use relevo_stores::sqlite::{SqliteStore, SyncDirect, SyncHandler};
use rusqlite::Transaction;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Short, so that a killed worker's lanes are taken over while one watches.
pub(super) const LEASE: Duration = Duration::from_secs(1);

/// Works the log in `place` until SIGTERM, or until the parent is gone.
pub(super) async fn work(place: &Place) -> Result<()> {
    let store = SqliteStore::open_existing(&place.url())?;
    let handler = Packer {
        journal: Writer::open(&place.journal())?,
        sabotage: Sabotage::from_environment()?,
    };
    let destination = Arc::new(SyncDirect::new(&store, handler)?);
    let subscription = Subscription::new(SUBSCRIPTION).destination("the demo's parcels");
    let member = MemberId(format!("worker-{}", std::process::id()).into());
    let store: Arc<dyn Store> = Arc::new(store);
    let running = start(store, subscription, config(), destination, member).await?;
    told_to_stop().await?;
    running.stop(Duration::from_secs(5)).await
}

fn config() -> RelayConfig {
    let mut config = RelayConfig::default();
    config.lease = LEASE;
    config.lazy_record = Duration::from_millis(500);
    config.retry =
        RetryPolicy::exponential(Duration::from_millis(200), 1.5, Duration::from_secs(1))
            .max_attempts(1000);
    config
}

async fn told_to_stop() -> Result<()> {
    let failed = |e| Error::new(Kind::NotSupported, format!("signals cannot be heard: {e}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    // The terminal sends it to parent and child alike; the parent decides when the work is over.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut parent_gone = parent_gone();
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => {}
            _ = &mut parent_gone => return Ok(()),
        }
    }
}

/// The parent holds the other end of standard input and never writes: it ends with the parent.
fn parent_gone() -> oneshot::Receiver<()> {
    let (gone, answer) = oneshot::channel();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().bytes().map_while(std::io::Result::ok) {}
        // If nobody listens any more, this process is ending already.
        let _ = gone.send(());
    });
    answer
}

/// Packs a parcel for every order, in the transaction that moves the cursor.
struct Packer {
    journal: Writer,
    sabotage: Option<Sabotage>,
}

impl SyncHandler for Packer {
    fn handle(&self, event: &Event, tx: &Transaction<'_>) -> Answer {
        let order: Order = match event.json() {
            Ok(order) => order,
            Err(error) => {
                self.journal.note(Attempt::Poisoned, event.id)?;
                return Err(error.into());
            }
        };
        if is_failing(tx)? {
            self.journal.note(Attempt::Failed, event.id)?;
            return Err(Failure::Error(
                ErrorClass::Transient,
                "the packing machine is jammed".into(),
            ));
        }
        match &self.sabotage {
            None => pack(tx, event.id, &order)?,
            Some(sabotage) => sabotage.pack(tx, event, order)?,
        }
        self.journal.note(Attempt::Effect, event.id)?;
        Ok(Settled::Done)
    }
}

/// The worker's deliberate mistakes.
struct Sabotage {
    how: How,
    handled: AtomicU64,
    held: Mutex<Option<(Event, Order)>>,
}

impl Sabotage {
    /// The event of this number is the victim.
    const VICTIM: u64 = 7;

    fn from_environment() -> Result<Option<Self>> {
        let how = How::from_environment()?.filter(|how| *how != How::EventAlone);
        Ok(how.map(|how| Self { how, handled: AtomicU64::new(0), held: Mutex::new(None) }))
    }

    fn pack(&self, tx: &Transaction<'_>, event: &Event, order: Order) -> rusqlite::Result<()> {
        let victim = self.handled.fetch_add(1, Ordering::Relaxed) + 1 == Self::VICTIM;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match self.how {
            How::Lose if victim => return Ok(()),
            How::Twice if victim => pack(tx, event.id, &order)?,
            How::Reorder if victim => {
                *held = Some((event.clone(), order));
                return Ok(());
            }
            _ => {}
        }
        pack(tx, event.id, &order)?;
        match held.take() {
            Some((late, its_order)) if its_order.customer == order.customer => {
                pack(tx, late.id, &its_order)
            }
            other => {
                *held = other;
                Ok(())
            }
        }
    }
}
