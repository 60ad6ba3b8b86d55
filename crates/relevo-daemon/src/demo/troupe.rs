//! The systems beside the shop floor: started, watched, broken, mended, and judged at the end.

use super::part::{Part, Profile};
use proof::{Break, Figures, System, Verdict};
use relevo_core::{Error, Kind, Result};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Between two looks at the figures.
const LOOK_EVERY: Duration = Duration::from_millis(400);
/// So long what is left of a system may take to be delivered at the end.
const PATIENCE: Duration = Duration::from_secs(120);

/// What one sees of a system.
#[derive(Debug, Clone)]
pub(super) struct Card {
    pub(super) part: Part,
    pub(super) url: String,
    pub(super) figures: Figures,
    /// The names of what is broken now.
    pub(super) broken: Vec<&'static str>,
    /// Known at the end.
    pub(super) lost: Option<u64>,
}

struct Actor {
    card: Card,
    /// Until it is judged.
    system: Option<Box<dyn System>>,
    judging: Option<JoinHandle<proof::Result<Verdict>>>,
    verdict: Option<Verdict>,
}

/// All systems that are on.
pub(super) struct Troupe {
    actors: Vec<Actor>,
    looked: Option<Instant>,
}

impl Troupe {
    /// Starts those of `parts` that are systems, one after the other.
    pub(super) async fn start(
        parts: &[Part],
        profile: Profile,
        folder: &Path,
        rate: Option<u32>,
    ) -> Result<Self> {
        let mut actors = Vec::new();
        for part in parts {
            let rate = rate.unwrap_or(part.rate());
            let Some(system) = part.start(profile, folder, rate).await? else { continue };
            let card = Card {
                part: *part,
                url: system.url(),
                figures: Figures::default(),
                broken: Vec::new(),
                lost: None,
            };
            actors.push(Actor { card, system: Some(system), judging: None, verdict: None });
        }
        Ok(Self { actors, looked: None })
    }

    pub(super) fn cards(&self) -> impl Iterator<Item = &Card> {
        self.actors.iter().map(|actor| &actor.card)
    }

    /// Changes that were acknowledged, of all systems.
    pub(super) fn committed(&self) -> u64 {
        self.cards().map(|card| card.figures.committed).sum()
    }

    /// Brings the figures up to this moment, now and then.
    pub(super) async fn look(&mut self) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        for actor in &mut self.actors {
            let Some(system) = &actor.system else { continue };
            match system.figures().await {
                Ok(figures) => actor.card.figures = figures,
                // A real database may be down for a while; the figures stay as they were.
                Err(error) => tracing::warn!(error = format!("{error:#}"), "a system's figures"),
            }
        }
        self.looked = Some(Instant::now());
    }

    pub(super) fn is_broken(&self, what: &Break) -> bool {
        self.cards().any(|card| card.broken.contains(&what.name))
    }

    /// Breaks something. Answers with what is to be said of it.
    pub(super) async fn begin(&mut self, part: Part, what: &'static Break) -> Option<String> {
        let actor = self.actor(part).filter(|it| !it.card.broken.contains(&what.name))?;
        let begun = actor.system.as_mut()?.begin(what.name).await;
        if begun.is_ok() && what.ends.is_some() {
            actor.card.broken.push(what.name);
        }
        Some(said(part, begun, what.begins))
    }

    /// Mends it.
    pub(super) async fn mend(&mut self, part: Part, what: &'static Break) -> Option<String> {
        let actor = self.actor(part).filter(|it| it.card.broken.contains(&what.name))?;
        let mended = actor.system.as_mut()?.mend(what.name).await;
        if mended.is_ok() {
            actor.card.broken.retain(|name| *name != what.name);
        }
        Some(said(part, mended, what.ends.unwrap_or_default()))
    }

    fn actor(&mut self, part: Part) -> Option<&mut Actor> {
        self.actors.iter_mut().find(|actor| actor.card.part == part)
    }

    /// No more traffic: each system is mended, drained and judged, all at the same time.
    pub(super) fn finish(&mut self) {
        for actor in &mut self.actors {
            if let Some(system) = actor.system.take() {
                actor.card.broken.clear();
                actor.judging = Some(tokio::spawn(system.finish(PATIENCE)));
            }
        }
    }

    /// Are all verdicts there?
    pub(super) async fn is_judged(&mut self) -> Result<bool> {
        for actor in &mut self.actors {
            if let Some(judging) = actor.judging.take_if(|judging| judging.is_finished()) {
                let part = actor.card.part;
                let ended = judging.await.map_err(|error| panicked(part, &error))?;
                let verdict = ended.map_err(|error| part.failed(&error))?;
                actor.card.show(&verdict);
                actor.verdict = Some(verdict);
            }
        }
        Ok(self.actors.iter().all(|actor| actor.judging.is_none()))
    }

    /// The verdicts, in the order in which the systems are shown.
    pub(super) fn verdicts(self) -> impl Iterator<Item = (Part, Verdict)> {
        self.actors.into_iter().filter_map(|actor| Some((actor.card.part, actor.verdict?)))
    }
}

impl Card {
    fn show(&mut self, verdict: &Verdict) {
        let report = &verdict.report;
        (self.figures.committed, self.figures.effects) = (report.committed, report.effects);
        (self.figures.dead, self.figures.pending) = (report.dead, 0);
        self.lost = Some(report.lost);
    }
}

fn said(part: Part, done: proof::Result<()>, words: &str) -> String {
    match done {
        Ok(()) => format!("{}: {words}", part.title()),
        Err(error) => format!("{}: not done, {error:#}", part.title()),
    }
}

fn panicked(part: Part, error: &tokio::task::JoinError) -> Error {
    Error::new(Kind::StoreFailed, format!("{} ended in its verdict: {error}", part.title()))
}
