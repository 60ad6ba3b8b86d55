//! The demo as it runs: time passes, keys are pressed, things break, and at the end all is counted.

use super::breaks::{Break, Step, schedule};
use super::crew::{Crew, Worker};
use super::floor::{Floor, Watch};
use super::keeper::Keeper;
use super::picture::{Scene, clock, thousands};
use super::screen::Screen;
use super::shop::{Place, Shop};
use super::verify::{self, Open, Verdict};
use relevo_core::dead_letters::Operate;
use relevo_core::{Error, Kind, Result};
use relevo_stores::sqlite::SqliteStore;
use std::collections::VecDeque;
use std::io::Write;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(80);
/// Between two lines where there is no picture.
const LINE: Duration = Duration::from_secs(1);
/// So long what is left may take to be delivered at the end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was asked for.
pub(super) struct Plan {
    pub(super) place: Place,
    pub(super) length: Option<Duration>,
    /// Orders without which it does not end by itself.
    pub(super) at_least: u64,
    pub(super) breaks: Vec<Break>,
    pub(super) rate: u32,
    pub(super) picture: bool,
    pub(super) json: bool,
}

/// Everything that is on.
pub(super) struct Stage {
    plan: Plan,
    store: SqliteStore,
    crew: Crew,
    /// Places orders, until the end begins.
    keeper: Option<Keeper>,
    watch: Watch,
    floor: Floor,
    steps: VecDeque<(Duration, Step)>,
    screen: Option<Screen>,
    failing: bool,
    ending: bool,
    next_line: Duration,
    first_seen: bool,
    said: usize,
    /// Nobody reads what is printed any more.
    unheard: bool,
}

/// What a key or the clock asks for.
enum Next {
    Frame,
    Key(u8),
    End,
}

impl Stage {
    /// Makes the tables, opens the shop, starts the worker.
    pub(super) async fn set(plan: Plan) -> Result<Self> {
        let store = SqliteStore::open(&plan.place.url())?;
        store.migrate().await?;
        let shop = Shop::open(&plan.place, store.outbox())?;
        shop.fail(false)?;
        let crew = Crew::start(plan.place.clone())?;
        let keeper = Keeper::start(&plan.place, shop, plan.rate)?;
        let watch = Watch::open(&plan.place)?;
        let steps = schedule(&plan.breaks, plan.length.unwrap_or(Duration::from_secs(20))).into();
        let screen = if plan.picture { Some(Screen::open()?) } else { None };
        Ok(Self {
            plan,
            store,
            crew,
            keeper: Some(keeper),
            watch,
            floor: Floor::new(),
            steps,
            screen,
            failing: false,
            ending: false,
            next_line: LINE,
            first_seen: false,
            said: 0,
            unheard: false,
        })
    }

    /// Plays to the end and counts.
    pub(super) async fn play(mut self) -> Result<Verdict> {
        let mut interrupt = on(SignalKind::interrupt())?;
        let mut terminate = on(SignalKind::terminate())?;
        let mut frames = tokio::time::interval(FRAME);
        frames.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let next = tokio::select! {
                _ = frames.tick() => Next::Frame,
                Some(key) = pressed(&mut self.screen) => Next::Key(key),
                _ = interrupt.recv() => Next::End,
                _ = terminate.recv() => Next::End,
            };
            match next {
                Next::Key(b'q' | 3 | 4) | Next::End => break,
                Next::Key(key) => self.press(key).await?,
                Next::Frame => self.frame().await?,
            }
            if self.unheard || self.keeper.as_ref().is_none_or(Keeper::is_over) || self.is_played()
            {
                break;
            }
        }
        self.end().await
    }

    /// The time is over, everything was broken that was to be, and there is enough to judge by.
    fn is_played(&self) -> bool {
        self.plan.length.is_some_and(|length| self.floor.now() >= length)
            && self.steps.is_empty()
            && self.floor.figures.committed >= self.plan.at_least
    }

    async fn frame(&mut self) -> Result<()> {
        while self.steps.front().is_some_and(|(at, _)| *at <= self.floor.now()) {
            if let Some((_, step)) = self.steps.pop_front() {
                self.step(step).await?;
            }
        }
        if let Some(how) = self.crew.ended() {
            self.floor.note(format!("the worker ended by itself ({how}); starting another"));
            self.crew.replace(&how)?;
        }
        self.look()
    }

    /// Sees what is new and shows it.
    fn look(&mut self) -> Result<()> {
        let before = self.floor.figures.effects;
        self.watch.look(&mut self.floor)?;
        if self.crew.state == Worker::Waiting && self.floor.figures.effects > before {
            self.crew.state = Worker::AtWork;
            self.floor.note("the new worker has the lanes");
        }
        if let Some(keeper) = &self.keeper {
            self.floor.figures.rolled_back = keeper.rolled_back();
        }
        if !self.first_seen && self.floor.figures.effects > 0 {
            self.first_seen = true;
            let after = self.floor.now().as_secs_f64();
            self.floor.note(format!("first event delivered, {after:.2} s after the start"));
        }
        match &self.screen {
            Some(screen) => screen.show(&self.scene(screen).draw()),
            None => {
                self.print_lines();
                Ok(())
            }
        }
    }

    fn scene(&self, screen: &Screen) -> Scene<'_> {
        let (columns, rows) = screen.size();
        Scene {
            floor: &self.floor,
            worker: self.crew.state,
            pid: self.crew.pid().map(|pid| pid.as_raw_nonzero().get()),
            started: self.crew.started,
            failing: self.failing,
            rate: self.plan.rate,
            ending: self.ending,
            columns,
            rows,
            colour: screen.colour,
        }
    }

    /// Without a picture: what happened as it happens, and the figures every second.
    fn print_lines(&mut self) {
        let mut lines: Vec<String> = Vec::new();
        let fresh = (self.floor.noted - self.said).min(self.floor.events.len());
        let events = self.floor.events.iter().skip(self.floor.events.len() - fresh);
        lines.extend(events.map(|(at, text)| format!("{} {text}", clock(*at))));
        self.said = self.floor.noted;
        if self.floor.now() >= self.next_line {
            self.next_line = self.floor.now() + LINE;
            lines.push(self.figures());
        }
        for line in lines {
            // With --json, standard output is for the one object at the end.
            let printed = match self.plan.json {
                true => writeln!(std::io::stderr(), "{line}"),
                false => writeln!(std::io::stdout(), "{line}"),
            };
            // Whoever read along has seen enough: count, and end.
            self.unheard |= printed.is_err();
        }
    }

    fn figures(&self) -> String {
        let f = &self.floor.figures;
        let n = thousands;
        format!(
            "{} committed {}  effects {}  on their way {}  retried {}  dead {}  duplicates absorbed {}",
            clock(self.floor.now()),
            n(f.committed),
            n(f.effects),
            n(f.pending()),
            n(f.retried),
            n(f.dead),
            n(f.duplicates)
        )
    }

    async fn press(&mut self, key: u8) -> Result<()> {
        let step = match key {
            b'p' => Step::Begin(Break::Poison),
            b'f' if self.failing => Step::End(Break::Fail),
            b'f' => Step::Begin(Break::Fail),
            b's' if self.crew.state == Worker::Stopped => Step::End(Break::Stop),
            b's' => Step::Begin(Break::Stop),
            b'k' => Step::Begin(Break::Kill),
            _ => return Ok(()),
        };
        self.step(step).await
    }

    async fn step(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Begin(Break::Poison) => {
                if let Some(keeper) = &self.keeper {
                    keeper.poison();
                }
                self.floor.note("poison: the next order carries bytes that no handler can read");
            }
            Step::Begin(Break::Fail) => self.fail(true),
            Step::End(Break::Fail) => self.fail(false),
            Step::Begin(Break::Stop) => self.stop().await,
            Step::End(Break::Stop) => self.wake(),
            Step::Begin(Break::Kill) => self.kill().await?,
            Step::End(Break::Poison | Break::Kill) => {}
        }
        Ok(())
    }

    fn fail(&mut self, on: bool) {
        let Some(keeper) = self.keeper.as_ref().filter(|_| self.failing != on) else { return };
        self.failing = on;
        keeper.fail(on);
        self.floor.note(if on {
            "fail: the handler fails; its keys are parked and tried again"
        } else {
            "the handler works again"
        });
    }

    async fn stop(&mut self) {
        if let (Some(pid), Worker::AtWork, Some(keeper)) =
            (self.crew.pid(), self.crew.state, &self.keeper)
        {
            keeper.stop(pid).await;
            self.crew.state = Worker::Stopped;
            self.floor.note("stop: SIGSTOP to the worker; orders go on");
        }
    }

    fn wake(&mut self) {
        if self.crew.state == Worker::Stopped {
            self.crew.wake();
            self.floor.note("SIGCONT: the worker wakes and takes its lanes again");
        }
    }

    async fn kill(&mut self) -> Result<()> {
        self.wake();
        let (Some(pid), Some(keeper)) = (self.crew.pid(), &self.keeper) else { return Ok(()) };
        let inside = keeper.kill(pid).await;
        self.crew.bury().await?;
        // What the killed one still committed is not the next one's work.
        self.watch.look(&mut self.floor)?;
        let moment =
            if inside { "in the middle of a transaction" } else { "between two transactions" };
        self.floor
            .note(format!("kill -9 {} {moment}; starting another worker", pid.as_raw_nonzero()));
        self.crew.hire()?;
        self.crew.state = Worker::Waiting;
        Ok(())
    }

    /// No more orders, everything mended; waits for what is left, ends the worker, counts.
    async fn end(mut self) -> Result<Verdict> {
        self.fail(false);
        self.wake();
        self.ending = true;
        if let Some(keeper) = self.keeper.take() {
            keeper.close()?;
        }
        let open = self.drain().await?;
        self.crew.dismiss().await?;
        drop(self.screen);
        verify::verdict(&self.plan.place, &open)
    }

    async fn drain(&mut self) -> Result<Open> {
        let begun = Instant::now();
        loop {
            let open = verify::open_orders(&self.plan.place, &self.store).await?;
            self.look()?;
            if open.pending == 0 || begun.elapsed() > PATIENCE {
                return Ok(open);
            }
            tokio::time::sleep(FRAME).await;
        }
    }
}

/// The next key; never, without a screen.
async fn pressed(screen: &mut Option<Screen>) -> Option<u8> {
    match screen {
        Some(screen) => screen.keys.recv().await,
        None => std::future::pending().await,
    }
}

fn on(kind: SignalKind) -> Result<Signal> {
    signal(kind)
        .map_err(|e| Error::new(Kind::NotSupported, format!("signals cannot be heard: {e}")))
}
