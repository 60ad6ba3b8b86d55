//! A publisher that is watched: what was confirmed, in which order, and how fast it went on.

use super::Outcome;
use crate::judge::{self, Judge};
use async_trait::async_trait;
use relevo::broker::{Capabilities, Confirm, Publisher};
use relevo::{ErrorClass, Event};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Points of a curve of progress.
const POINTS: u64 = 50;

/// What is seen of a run.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) judge: Judge,
    start: Instant,
    every: u64,
    /// When the first was confirmed.
    first: Option<Instant>,
    /// Seconds since the start, and events that were confirmed by then.
    progress: Vec<(f64, f64)>,
}

impl Seen {
    pub(crate) fn new(judge: Judge, events: u64) -> Seen {
        let every = (events / POINTS).max(1);
        Seen { judge, start: Instant::now(), every, first: None, progress: vec![(0.0, 0.0)] }
    }

    pub(crate) fn note(&mut self, stored: u64) {
        if stored > 0 {
            self.first.get_or_insert_with(Instant::now);
        }
        let last = self.progress.last().map_or(0.0, |(_, events)| *events);
        if stored as f64 >= last + self.every as f64 || self.judge.is_complete() {
            self.progress.push((self.start.elapsed().as_secs_f64(), stored as f64));
        }
    }

    /// Adds what was seen to the outcome of a drain that began then.
    pub(crate) fn tell(&self, outcome: &mut Outcome, began: Instant) {
        let start = self.first.map(|first| (first - began).as_secs_f64());
        outcome.values.extend(start.map(|start| ("start_s".to_owned(), start)));
        // One batch has no rate but its own.
        let steady = Some(steady_rate(&self.progress)).filter(|rate| rate.is_finite());
        outcome.values.extend(steady.map(|rate| ("steady_rate".to_owned(), rate)));
        outcome.curves.insert("progress".into(), self.progress.clone());
    }
}

/// The rate between a tenth of the events and all of them: starting costs the same, however many wait.
fn steady_rate(progress: &[(f64, f64)]) -> f64 {
    let Some((end, all)) = progress.last() else { return f64::NAN };
    let began = progress.iter().find(|(_, events)| *events >= all / 10.0);
    match began {
        Some((began, before)) if end > began => (all - before) / (end - began),
        _ => f64::NAN,
    }
}

/// Counts what a publisher was confirmed, and looks at its order.
pub(crate) struct Counting {
    /// Without one, everything is confirmed at once.
    inner: Option<Box<dyn Publisher>>,
    /// Events of this key are refused, always.
    poisoned: Option<u32>,
    stored: watch::Sender<u64>,
    seen: Arc<Mutex<Seen>>,
}

/// The same from outside.
pub(crate) struct Watched {
    pub(crate) stored: watch::Receiver<u64>,
    seen: Arc<Mutex<Seen>>,
}

impl Counting {
    pub(crate) fn new(
        inner: Option<Box<dyn Publisher>>,
        poisoned: Option<u32>,
        seen: Seen,
    ) -> (Counting, Watched) {
        let (sender, stored) = watch::channel(0);
        let seen = Arc::new(Mutex::new(seen));
        let watched = Watched { stored, seen: seen.clone() };
        (Counting { inner, poisoned, stored: sender, seen }, watched)
    }

    fn is_poisoned(&self, event: &Event) -> bool {
        self.poisoned.is_some() && judge::read(&event.payload).map(|(key, _)| key) == self.poisoned
    }

    async fn hand_over(&self, events: &[&Event]) -> Vec<Confirm> {
        let sound: Vec<&Event> =
            events.iter().copied().filter(|event| !self.is_poisoned(event)).collect();
        let confirms = match &self.inner {
            Some(inner) => inner.publish(&sound).await,
            None => vec![Confirm::Stored; sound.len()],
        };
        if sound.len() == events.len() {
            return confirms;
        }
        let mut confirms = confirms.into_iter();
        let answer = |event: &&Event| match self.is_poisoned(event) {
            true => Some(refusal()),
            false => confirms.next(),
        };
        events.iter().filter_map(answer).collect()
    }
}

fn refusal() -> Confirm {
    let error = "this key is poisoned".to_owned();
    Confirm::Refused { class: ErrorClass::Transient, error, after: None }
}

impl Watched {
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Publisher for Counting {
    fn name(&self) -> &'static str {
        self.inner.as_ref().map_or("null", |inner| inner.name())
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.as_ref().map_or_else(Capabilities::default, |inner| inner.capabilities())
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let confirms = self.hand_over(events).await;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let confirmed = events.iter().zip(&confirms).filter(|(_, c)| **c == Confirm::Stored);
        let count = confirmed.map(|(event, _)| seen.judge.see(&event.payload)).count();
        self.stored.send_modify(|stored| *stored += count as u64);
        seen.note(*self.stored.borrow());
        confirms
    }

    fn publish_limit(&self) -> Option<Duration> {
        self.inner.as_ref().and_then(|inner| inner.publish_limit())
    }

    fn largest_wave(&self) -> usize {
        self.inner.as_ref().map_or(usize::MAX, |inner| inner.largest_wave())
    }

    fn window(&self) -> Option<usize> {
        self.inner.as_ref().and_then(|inner| inner.window())
    }

    async fn close(&self) {
        if let Some(inner) = &self.inner {
            inner.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_does_not_count_the_start() {
        // Two seconds until the first tenth, then a hundred events a second.
        let progress = [(0.0, 0.0), (2.0, 10.0), (2.5, 60.0), (2.9, 100.0)];
        assert!((steady_rate(&progress) - 100.0).abs() < 1e-6);
        assert!(steady_rate(&[(0.0, 0.0)]).is_nan());
    }
}
