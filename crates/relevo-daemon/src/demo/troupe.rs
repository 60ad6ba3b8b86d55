//! The systems beside the shop floor: started, watched, broken, mended, and judged at the end. Each has a task of its own, so
//! that nothing that one of them waits for holds up the picture.

use super::part::{Part, Profile};
use proof::{Break, Figures, System, Verdict};
use relevo_core::{Error, Kind, Result};
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
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

/// What a system is told.
enum Order {
    Begin(&'static Break),
    Mend(&'static Break),
}

/// What it tells.
enum News {
    Figures(Figures),
    /// Something was broken or mended, or could not be; what is broken now.
    Done(String, Vec<&'static str>),
}

struct Actor {
    card: Card,
    /// Gone once it is told to finish.
    orders: Option<UnboundedSender<Order>>,
    news: UnboundedReceiver<News>,
    /// Until it is judged.
    task: Option<JoinHandle<proof::Result<Verdict>>>,
    verdict: Option<Verdict>,
}

impl Actor {
    fn start(part: Part, system: Box<dyn System>) -> Self {
        let card = Card {
            part,
            url: system.url(),
            figures: Figures::default(),
            broken: Vec::new(),
            lost: None,
        };
        let (orders, told) = unbounded_channel();
        let (tell, news) = unbounded_channel();
        let body = Body { part, system, broken: Vec::new(), news: tell };
        let task = Some(tokio::spawn(body.work(told)));
        Self { card, orders: Some(orders), news, task, verdict: None }
    }

    /// Takes in what it told; answers with what is to be said.
    fn look(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Figures(figures) => self.card.figures = figures,
                News::Done(text, broken) => {
                    self.card.broken = broken;
                    said.push(text);
                }
            }
        }
        said
    }

    async fn judged(&mut self) -> Result<bool> {
        let Some(task) = self.task.take_if(|task| task.is_finished()) else {
            return Ok(self.task.is_none());
        };
        let part = self.card.part;
        let ended = task.await.map_err(|error| panicked(part, &error))?;
        let verdict = ended.map_err(|error| part.failed(&error))?;
        self.look();
        self.card.show(&verdict);
        self.verdict = Some(verdict);
        Ok(true)
    }
}

/// The system in its task.
struct Body {
    part: Part,
    system: Box<dyn System>,
    broken: Vec<&'static str>,
    news: UnboundedSender<News>,
}

impl Body {
    /// Obeys until nobody orders any more; then it finishes.
    async fn work(mut self, mut orders: UnboundedReceiver<Order>) -> proof::Result<Verdict> {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => return self.system.finish(PATIENCE).await,
                },
                _ = looks.tick() => self.look().await,
            }
        }
    }

    async fn obey(&mut self, order: Order) {
        let is_broken = |what: &Break| self.broken.contains(&what.name);
        let (done, words) = match order {
            Order::Begin(what) if !is_broken(what) => {
                let begun = self.system.begin(what.name).await;
                if begun.is_ok() && what.ends.is_some() {
                    self.broken.push(what.name);
                }
                (begun, what.begins)
            }
            Order::Mend(what) if is_broken(what) => {
                let mended = self.system.mend(what.name).await;
                if mended.is_ok() {
                    self.broken.retain(|name| *name != what.name);
                }
                (mended, what.ends.unwrap_or_default())
            }
            Order::Begin(_) | Order::Mend(_) => return,
        };
        let text = match done {
            Ok(()) => format!("{}: {words}", self.part.title()),
            Err(error) => format!("{}: not done, {error:#}", self.part.title()),
        };
        self.tell(News::Done(text, self.broken.clone()));
    }

    async fn look(&mut self) {
        match self.system.figures().await {
            Ok(figures) => self.tell(News::Figures(figures)),
            // A real database may be down for a while; the figures stay as they were.
            Err(error) => tracing::warn!(error = format!("{error:#}"), "a system's figures"),
        }
    }

    fn tell(&self, news: News) {
        // Nobody listens while the demo is given up.
        let _ = self.news.send(news);
    }
}

/// All systems that are on.
pub(super) struct Troupe {
    actors: Vec<Actor>,
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
            let system = part.start(profile, folder, rate).await?;
            actors.extend(system.map(|system| Actor::start(*part, system)));
        }
        Ok(Self { actors })
    }

    pub(super) fn cards(&self) -> impl Iterator<Item = &Card> {
        self.actors.iter().map(|actor| &actor.card)
    }

    /// Changes that were acknowledged, of all systems.
    pub(super) fn committed(&self) -> u64 {
        self.cards().map(|card| card.figures.committed).sum()
    }

    /// Takes in what the systems told; answers with what is to be said of it.
    pub(super) fn look(&mut self) -> Vec<String> {
        self.actors.iter_mut().flat_map(Actor::look).collect()
    }

    pub(super) fn is_broken(&self, what: &Break) -> bool {
        self.cards().any(|card| card.broken.contains(&what.name))
    }

    /// Breaks something, soon.
    pub(super) fn begin(&self, part: Part, what: &'static Break) {
        self.order(part, Order::Begin(what));
    }

    /// Mends it, soon.
    pub(super) fn mend(&self, part: Part, what: &'static Break) {
        self.order(part, Order::Mend(what));
    }

    fn order(&self, part: Part, order: Order) {
        let actor = self.actors.iter().find(|actor| actor.card.part == part);
        if let Some(orders) = actor.and_then(|actor| actor.orders.as_ref()) {
            // One that ended by itself says why when it is judged.
            let _ = orders.send(order);
        }
    }

    /// No more traffic: each system is mended, drained and judged, all at the same time.
    pub(super) fn finish(&mut self) {
        self.actors.iter_mut().for_each(|actor| actor.orders = None);
    }

    /// Are all verdicts there?
    pub(super) async fn is_judged(&mut self) -> Result<bool> {
        let mut all = true;
        for actor in &mut self.actors {
            all &= actor.judged().await?;
        }
        Ok(all)
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
        self.broken.clear();
    }
}

fn panicked(part: Part, error: &tokio::task::JoinError) -> Error {
    Error::new(Kind::StoreFailed, format!("{} ended in its verdict: {error}", part.title()))
}
