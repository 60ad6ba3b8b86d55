//! The shop floor at work: orders placed, a worker process, and what can be broken of it.

use super::breaks::Break;
use super::crew::{Crew, Worker};
use super::floor::{Floor, Watch};
use super::keeper::Keeper;
use super::picture::Front;
use super::shop::{Place, Shop};
use super::verify::{self, Open};
use proof::Verdict;
use relevo_core::Result;
use relevo_core::dead_letters::Operate;
use relevo_stores::sqlite::SqliteStore;
use std::time::Instant;

/// Everything of the shop that is on.
pub(super) struct Works {
    place: Place,
    rate: u32,
    store: SqliteStore,
    crew: Crew,
    /// Places orders, until the end begins.
    keeper: Option<Keeper>,
    watch: Watch,
    failing: bool,
    opened: Instant,
}

impl Works {
    /// Makes the tables, opens the shop, starts the worker.
    pub(super) async fn open(place: Place, rate: u32) -> Result<Self> {
        let opened = Instant::now();
        let store = SqliteStore::open(&place.url())?;
        store.migrate().await?;
        let shop = Shop::open(&place, store.outbox())?;
        shop.fail(false)?;
        let crew = Crew::start(place.clone())?;
        let keeper = Some(Keeper::start(&place, shop, rate)?);
        let watch = Watch::open(&place)?;
        Ok(Self { place, rate, store, crew, keeper, watch, failing: false, opened })
    }

    /// As the picture shows it.
    pub(super) fn front(&self) -> Front {
        Front {
            worker: self.crew.state,
            pid: self.crew.pid().map(|pid| pid.as_raw_nonzero().get()),
            started: self.crew.started,
            failing: self.failing,
            rate: self.rate,
        }
    }

    /// True if no more orders come, which only an error does.
    pub(super) fn is_over(&self) -> bool {
        self.keeper.as_ref().is_none_or(Keeper::is_over)
    }

    /// Another worker for one that ended by itself.
    pub(super) fn replace_worker(&mut self, floor: &mut Floor) -> Result<()> {
        let Some(how) = self.crew.ended() else { return Ok(()) };
        floor.note(format!("the worker ended by itself ({how}); starting another"));
        self.crew.replace(&how)
    }

    /// Sees what is new.
    pub(super) fn look(&mut self, floor: &mut Floor) -> Result<()> {
        let before = floor.figures.effects;
        self.watch.look(floor)?;
        if self.crew.state == Worker::Waiting && floor.figures.effects > before {
            self.crew.state = Worker::AtWork;
            floor.note("the new worker has the lanes");
        }
        if let Some(keeper) = &self.keeper {
            floor.figures.rolled_back = keeper.rolled_back();
        }
        if before == 0 && floor.figures.effects > 0 {
            let after = self.opened.elapsed().as_secs_f64();
            floor.note(format!("first event delivered, {after:.2} s after the start"));
        }
        Ok(())
    }

    /// What a key breaks, or mends if it is broken: true for the first.
    pub(super) fn by_key(&self, key: u8) -> Option<(Break, bool)> {
        match key {
            b'p' => Some((Break::Poison, true)),
            b'f' => Some((Break::Fail, !self.failing)),
            b's' => Some((Break::Stop, self.crew.state != Worker::Stopped)),
            b'k' => Some((Break::Kill, true)),
            _ => None,
        }
    }

    pub(super) async fn begin(&mut self, what: Break, floor: &mut Floor) -> Result<()> {
        match what {
            Break::Poison => self.poison(floor),
            Break::Fail => self.fail(true, floor),
            Break::Stop => self.stop(floor).await,
            Break::Kill => self.kill(floor).await?,
        }
        Ok(())
    }

    pub(super) fn mend(&mut self, what: Break, floor: &mut Floor) {
        match what {
            Break::Fail => self.fail(false, floor),
            Break::Stop => self.wake(floor),
            Break::Poison | Break::Kill => {}
        }
    }

    fn poison(&self, floor: &mut Floor) {
        if let Some(keeper) = &self.keeper {
            keeper.poison();
        }
        floor.note("poison: the next order carries bytes that no handler can read");
    }

    fn fail(&mut self, on: bool, floor: &mut Floor) {
        let Some(keeper) = self.keeper.as_ref().filter(|_| self.failing != on) else { return };
        self.failing = on;
        keeper.fail(on);
        floor.note(if on {
            "fail: the handler fails; its keys are parked and tried again"
        } else {
            "the handler works again"
        });
    }

    async fn stop(&mut self, floor: &mut Floor) {
        if let (Some(pid), Worker::AtWork, Some(keeper)) =
            (self.crew.pid(), self.crew.state, &self.keeper)
        {
            keeper.stop(pid).await;
            self.crew.state = Worker::Stopped;
            floor.note("stop: SIGSTOP to the worker; orders go on");
        }
    }

    fn wake(&mut self, floor: &mut Floor) {
        if self.crew.state == Worker::Stopped {
            self.crew.wake();
            floor.note("SIGCONT: the worker wakes and takes its lanes again");
        }
    }

    async fn kill(&mut self, floor: &mut Floor) -> Result<()> {
        self.wake(floor);
        let (Some(pid), Some(keeper)) = (self.crew.pid(), &self.keeper) else { return Ok(()) };
        let inside = keeper.kill(pid).await;
        self.crew.bury().await?;
        // What the killed one still committed is not the next one's work.
        self.watch.look(floor)?;
        let moment =
            if inside { "in the middle of a transaction" } else { "between two transactions" };
        floor.note(format!("kill -9 {} {moment}; starting another worker", pid.as_raw_nonzero()));
        self.crew.hire()?;
        self.crew.state = Worker::Waiting;
        Ok(())
    }

    /// No more orders, and everything mended.
    pub(super) fn close(&mut self, floor: &mut Floor) -> Result<()> {
        self.fail(false, floor);
        self.wake(floor);
        match self.keeper.take() {
            Some(keeper) => keeper.close(),
            None => Ok(()),
        }
    }

    /// What has not come to its end yet.
    pub(super) async fn open_orders(&self) -> Result<Open> {
        let operate: &dyn Operate = &self.store;
        verify::open_orders(&self.place, operate).await
    }

    /// Ends the worker, and counts.
    pub(super) async fn verdict(mut self, open: &Open) -> Result<Verdict> {
        self.crew.dismiss().await?;
        verify::verdict(&self.place, open)
    }
}
