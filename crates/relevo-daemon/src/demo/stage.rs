//! The demo as it runs: time passes, keys are pressed, things break, and at the end all is counted.

use super::breaks::{Fault, Step, schedule};
use super::cards;
use super::floor::Floor;
use super::ink::{clock, thousands};
use super::part::{Part, Profile};
use super::picture::Scene;
use super::screen::Screen;
use super::shop::Place;
use super::troupe::Troupe;
use super::verify::Open;
use super::works::Works;
use proof::Verdict;
use relevo_core::{Error, Kind, Result};
use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(80);
/// Between two lines where there is no picture.
const LINE: Duration = Duration::from_secs(1);
/// So long what is left of the shop may take to be delivered at the end, and a system to have its first user.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was asked for.
pub(super) struct Plan {
    pub(super) parts: Vec<Part>,
    pub(super) profile: Profile,
    pub(super) folder: PathBuf,
    pub(super) length: Option<Duration>,
    /// Orders, or changes of a system alone, without which it does not end by itself.
    pub(super) at_least: u64,
    pub(super) breaks: Vec<Fault>,
    /// Orders a second, or changes of a system alone.
    pub(super) rate: Option<u32>,
    pub(super) picture: bool,
    pub(super) json: bool,
}

impl Plan {
    fn has_shop(&self) -> bool {
        self.parts.contains(&Part::Shop)
    }

    fn title(&self) -> String {
        match (&self.parts[..], self.profile) {
            ([Part::Shop], _) => "a shop floor on SQLite, no broker".into(),
            ([one], Profile::Embedded) => format!("{} on SQLite, no broker", one.title()),
            ([one], Profile::Real) => format!("{} on its real parts", one.title()),
            _ => "a shop floor and two systems on SQLite".into(),
        }
    }
}

/// Everything that is on.
pub(super) struct Stage {
    plan: Plan,
    title: String,
    shop: Option<Works>,
    troupe: Troupe,
    floor: Floor,
    steps: VecDeque<(Duration, Step)>,
    screen: Option<Screen>,
    ending: bool,
    next_line: Duration,
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
    /// Starts every part that was asked for.
    pub(super) async fn set(plan: Plan) -> Result<Self> {
        let shop = match plan.has_shop() {
            true => {
                let rate = plan.rate.unwrap_or(Part::Shop.rate());
                Some(Works::open(Place::in_folder(&plan.folder), rate).await?)
            }
            false => None,
        };
        // `--rate` is the shop's, where there is one.
        let rate = plan.rate.filter(|_| shop.is_none());
        let troupe = Troupe::start(&plan.parts, plan.profile, &plan.folder, rate).await?;
        let steps = schedule(&plan.breaks, plan.length.unwrap_or(Duration::from_secs(20))).into();
        let screen = if plan.picture { Some(Screen::open()?) } else { None };
        let mut floor = Floor::new(shop.is_some());
        for card in troupe.cards() {
            let title = card.part.title();
            floor.note(format!("{title}'s API, open on loopback only: {}", card.url));
        }
        Ok(Self {
            title: plan.title(),
            plan,
            shop,
            troupe,
            floor,
            steps,
            screen,
            ending: false,
            next_line: LINE,
            said: 0,
            unheard: false,
        })
    }

    /// Plays to the end and counts.
    pub(super) async fn play(mut self) -> Result<Vec<(Part, Verdict)>> {
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
            if self.unheard || self.shop.as_ref().is_some_and(Works::is_over) || self.is_played() {
                break;
            }
        }
        self.end().await
    }

    /// The time is over, everything was broken that was to be, and there is enough to judge by.
    fn is_played(&self) -> bool {
        let committed = match self.shop {
            Some(_) => self.floor.figures.committed,
            None => self.troupe.committed(),
        };
        let late =
            |by: Duration| self.plan.length.is_some_and(|length| self.floor.now() >= length + by);
        // A system that nobody could use yet has nothing to prove; one that nobody ever can will say so.
        let is_used = self.troupe.cards().all(|card| card.figures.committed > 0);
        late(Duration::ZERO)
            && (is_used || late(PATIENCE))
            && self.steps.is_empty()
            && committed >= self.plan.at_least
    }

    async fn frame(&mut self) -> Result<()> {
        while self.steps.front().is_some_and(|(at, _)| *at <= self.floor.now()) {
            if let Some((_, step)) = self.steps.pop_front() {
                self.step(step).await?;
            }
        }
        if let Some(shop) = &mut self.shop {
            shop.replace_worker(&mut self.floor)?;
        }
        self.look()
    }

    /// Sees what is new and shows it.
    fn look(&mut self) -> Result<()> {
        if let Some(shop) = &mut self.shop {
            shop.look(&mut self.floor)?;
        }
        let said = self.troupe.look();
        said.into_iter().for_each(|text| self.floor.note(text));
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
            title: &self.title,
            floor: &self.floor,
            shop: self.shop.as_ref().map(Works::front),
            systems: self.troupe.cards().collect(),
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
            lines.extend(self.figures());
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

    fn figures(&self) -> impl Iterator<Item = String> {
        let f = &self.floor.figures;
        let n = thousands;
        let now = clock(self.floor.now());
        let shop = self.shop.as_ref().map(|_| {
            format!(
                "{now} committed {}  effects {}  on their way {}  retried {}  dead {}  duplicates absorbed {}",
                n(f.committed),
                n(f.effects),
                n(f.pending()),
                n(f.retried),
                n(f.dead),
                n(f.duplicates)
            )
        });
        let systems = self.troupe.cards();
        shop.into_iter().chain(systems.map(move |card| format!("{now} {}", cards::plain(card))))
    }

    async fn press(&mut self, key: u8) -> Result<()> {
        let own = self.shop.as_ref().and_then(|shop| shop.by_key(key));
        let step = match (own, Fault::by_key(&self.plan.parts, key)) {
            (Some((what, true)), _) => Step::Begin(Fault::Shop(what)),
            (Some((what, false)), _) => Step::End(Fault::Shop(what)),
            (None, Some(fault)) if self.is_broken(fault) => Step::End(fault),
            (None, Some(fault)) => Step::Begin(fault),
            (None, None) => return Ok(()),
        };
        self.step(step).await
    }

    fn is_broken(&self, fault: Fault) -> bool {
        matches!(fault, Fault::In(_, what) if self.troupe.is_broken(what))
    }

    async fn step(&mut self, step: Step) -> Result<()> {
        match (step, &mut self.shop) {
            (Step::Begin(Fault::Shop(what)), Some(shop)) => {
                shop.begin(what, &mut self.floor).await?;
            }
            (Step::End(Fault::Shop(what)), Some(shop)) => shop.mend(what, &mut self.floor),
            (Step::Begin(Fault::In(part, what)), _) => self.troupe.begin(part, what),
            (Step::End(Fault::In(part, what)), _) => self.troupe.mend(part, what),
            (_, None) => {}
        }
        Ok(())
    }

    /// Nothing more comes in, everything is mended; waits for what is left, and counts.
    async fn end(mut self) -> Result<Vec<(Part, Verdict)>> {
        self.ending = true;
        if let Some(shop) = &mut self.shop {
            shop.close(&mut self.floor)?;
        }
        self.troupe.finish();
        let open = self.drain().await?;
        drop(self.screen);
        let mut verdicts = Vec::new();
        if let Some(shop) = self.shop {
            verdicts.push((Part::Shop, shop.verdict(&open).await?));
        }
        verdicts.extend(self.troupe.verdicts());
        Ok(verdicts)
    }

    async fn drain(&mut self) -> Result<Open> {
        let begun = Instant::now();
        loop {
            let open = match &self.shop {
                Some(shop) => shop.open_orders().await?,
                None => Open::default(),
            };
            let is_judged = self.troupe.is_judged().await?;
            self.look()?;
            if is_judged && (open.pending == 0 || begun.elapsed() > PATIENCE) {
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
