//! The shopkeeper: a thread that places orders at a rate, and breaks what it is told to break.
//!
//! SQLite has one write lock. While the keeper is between two orders it can find out whether the worker holds
//! that lock, and so stop the worker between two transactions. The journal tells it when the worker is in the
//! middle of one, which is when it is killed.

use super::crew::signal;
use super::journal::{Attempt, Reader};
use super::shop::{Place, Shop, sql};
use relevo_core::{Error, EventId, Kind, Result};
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use rustix::process::{Pid, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How often the keeper looks for the right moment to stop the worker.
const TRIES: u64 = 150;

/// A wish to the keeper.
enum Wish {
    /// The next order carries bytes nobody can read.
    Poison,
    /// The handler fails, or works again.
    Fail(bool),
    /// Stop this process while it holds no lock.
    Stop(Pid, oneshot::Sender<()>),
    /// Kill this process between an effect and its commit, if that comes within a while. Answers whether it did.
    Kill(Pid, oneshot::Sender<bool>),
}

/// The keeper as others see it.
pub(super) struct Keeper {
    wishes: Sender<Wish>,
    rolled_back: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Keeper {
    /// Places `rate` orders a second from now on.
    pub(super) fn start(place: &Place, shop: Shop, rate: u32) -> Result<Self> {
        let (wishes, inbox) = channel();
        let rolled_back = Arc::new(AtomicU64::new(0));
        let probe = place.connect()?;
        probe.busy_timeout(Duration::ZERO).map_err(sql)?;
        let journal = Reader::open(&place.journal())?;
        let body =
            Body { shop, probe, journal, last_effect: None, rolled_back: rolled_back.clone() };
        let every = Duration::from_secs(1) / rate.max(1);
        let thread = std::thread::Builder::new()
            .name("shopkeeper".into())
            .spawn(move || body.work(&inbox, every));
        let thread = thread
            .map_err(|e| Error::new(Kind::StoreFailed, format!("the shopkeeper's thread: {e}")))?;
        Ok(Self { wishes, rolled_back, thread })
    }

    pub(super) fn rolled_back(&self) -> u64 {
        self.rolled_back.load(Ordering::Relaxed)
    }

    pub(super) fn poison(&self) {
        self.wish(Wish::Poison);
    }

    pub(super) fn fail(&self, on: bool) {
        self.wish(Wish::Fail(on));
    }

    /// Stops a process between two of its transactions.
    pub(super) async fn stop(&self, pid: Pid) {
        let (answer, wait) = oneshot::channel();
        self.wish(Wish::Stop(pid, answer));
        // A keeper that is gone answers nothing; its end is reported by `close`.
        let _ = wait.await;
    }

    /// Kills a process, in the middle of a transaction if one comes soon. True if it was.
    pub(super) async fn kill(&self, pid: Pid) -> bool {
        let (answer, wait) = oneshot::channel();
        self.wish(Wish::Kill(pid, answer));
        wait.await.unwrap_or(false)
    }

    fn wish(&self, wish: Wish) {
        if self.wishes.send(wish).is_err() {
            tracing::error!("the shopkeeper is gone");
        }
    }

    /// True if it ended by itself, which only an error does.
    pub(super) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// No more orders.
    pub(super) fn close(self) -> Result<()> {
        drop(self.wishes);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(Error::new(Kind::StoreFailed, "the shopkeeper panicked")))
    }
}

struct Body {
    shop: Shop,
    probe: Connection,
    journal: Reader,
    last_effect: Option<EventId>,
    rolled_back: Arc<AtomicU64>,
}

impl Body {
    fn work(mut self, wishes: &Receiver<Wish>, every: Duration) -> Result<()> {
        let mut next = Instant::now();
        loop {
            match wishes.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(wish) => self.grant(wish)?,
                Err(RecvTimeoutError::Disconnected) => return self.shop.fail(false),
                Err(RecvTimeoutError::Timeout) => {
                    self.place()?;
                    // After a hold-up nothing is caught up: the rate is a rate, not a debt.
                    next = (next + every).max(Instant::now().checked_sub(every).unwrap_or(next));
                }
            }
        }
    }

    fn place(&mut self) -> Result<()> {
        let placed = self.shop.place()?;
        self.rolled_back.fetch_add(u64::from(!placed.committed), Ordering::Relaxed);
        Ok(())
    }

    fn grant(&mut self, wish: Wish) -> Result<()> {
        match wish {
            Wish::Poison => self.shop.poison_next(),
            Wish::Fail(on) => self.shop.fail(on)?,
            Wish::Stop(pid, answer) => {
                self.stop_when(pid, |body| body.is_locked().map(|locked| !locked))?;
                // Nobody may be waiting any more: then the demo is ending.
                let _ = answer.send(());
            }
            Wish::Kill(pid, answer) => {
                let inside = self.stop_when(pid, Self::is_in_the_middle)?;
                signal(pid, Signal::KILL);
                let _ = answer.send(inside);
            }
        }
        Ok(())
    }

    /// Stops the process when `right` says that the moment is. If it does not come within some tries, the
    /// process is stopped all the same. True if it came.
    fn stop_when(&mut self, pid: Pid, right: impl Fn(&mut Self) -> Result<bool>) -> Result<bool> {
        for pause in 0..TRIES {
            signal(pid, Signal::STOP);
            // A process on the other core runs on for a moment.
            std::thread::sleep(Duration::from_millis(1));
            if right(self)? {
                return Ok(true);
            }
            if pause + 1 < TRIES {
                signal(pid, Signal::CONT);
                // The worker needs something to be in the middle of.
                self.place()?;
                std::thread::sleep(Duration::from_micros(100 + 97 * (pause % 50)));
            }
        }
        Ok(false)
    }

    /// Has the worker written an effect that is not committed?
    fn is_in_the_middle(&mut self) -> Result<bool> {
        for (attempt, id) in self.journal.read()? {
            if attempt == Attempt::Effect {
                self.last_effect = Some(id);
            }
        }
        let Some(id) = self.last_effect else { return Ok(false) };
        let committed = "SELECT 1 FROM shop_parcel WHERE order_id = ?1";
        let mut committed = self.probe.prepare_cached(committed).map_err(sql)?;
        committed.exists([id.to_string()]).map(|committed| !committed).map_err(sql)
    }

    /// Does somebody hold the write lock? The keeper itself does not.
    fn is_locked(&mut self) -> Result<bool> {
        match self.probe.transaction_with_behavior(TransactionBehavior::Immediate) {
            Ok(tx) => tx.rollback().map(|()| false).map_err(sql),
            Err(rusqlite::Error::SqliteFailure(error, _))
                if error.code == ErrorCode::DatabaseBusy =>
            {
                Ok(true)
            }
            Err(error) => Err(sql(error)),
        }
    }
}
