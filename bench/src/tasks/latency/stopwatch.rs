//! When each event's COMMIT was sent, and how long after that it was received: one clock for both.

use crate::judge::{self, Judge};
use crate::tasks::Plan;
use anyhow::Result;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Points of a distribution.
const POINTS: u32 = 48;

pub(crate) struct Stopwatch {
    start: Instant,
    plan: Plan,
    /// Microseconds since the start; zero is not yet.
    sent: Vec<AtomicU64>,
    received: Vec<AtomicU64>,
    judge: Mutex<Judge>,
    seen: watch::Sender<u64>,
}

impl Stopwatch {
    pub(crate) fn new(plan: Plan) -> Stopwatch {
        let none = || (0..plan.events).map(|_| AtomicU64::new(0)).collect();
        let judge = Mutex::new(Judge::new(plan.events, plan.keys));
        let (start, seen) = (Instant::now(), watch::channel(0).0);
        Stopwatch { start, plan, sent: none(), received: none(), judge, seen }
    }

    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64 + 1
    }

    /// The COMMIT of these is about to be sent.
    pub(crate) fn send(&self, events: &[u64]) {
        let now = self.now();
        events.iter().for_each(|n| self.sent[*n as usize].store(now, Relaxed));
    }

    /// An event arrived: its first arrival counts.
    pub(crate) fn receive(&self, payload: &[u8]) {
        let now = self.now();
        let read = judge::read(payload);
        let n = read.map(|(key, number)| number * u64::from(self.plan.keys) + u64::from(key));
        if let Some(slot) = n.and_then(|n| self.received.get(n as usize)) {
            let _ = slot.compare_exchange(0, now, Relaxed, Relaxed);
        }
        let mut judge = self.judge();
        judge.see(payload);
        self.seen.send_modify(|seen| *seen += 1);
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every event arrived, once and in order.
    pub(crate) async fn all(&self, patience: Duration) -> Result<()> {
        let mut seen = self.seen.subscribe();
        let all = seen.wait_for(|seen| *seen >= self.plan.events);
        let all = tokio::time::timeout(patience, all).await;
        self.judge().verdict()?;
        all??;
        Ok(())
    }

    /// Seconds between the first commit and the last arrival.
    pub(crate) fn took(&self) -> f64 {
        let first = self.sent.iter().map(|sent| sent.load(Relaxed)).min().unwrap_or(0);
        let last = self.received.iter().map(|received| received.load(Relaxed)).max().unwrap_or(0);
        (last - first) as f64 / 1e6
    }

    /// Milliseconds from COMMIT to arrival, in order of size.
    pub(crate) fn latencies(&self) -> Vec<f64> {
        let each = self.sent.iter().zip(&self.received);
        let mut all: Vec<f64> =
            each.map(|(sent, got)| (got.load(Relaxed) - sent.load(Relaxed)) as f64 / 1e3).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// The longest wait, in milliseconds, of what was not there yet at `moment`: counted from then on.
    pub(crate) fn longest_after(&self, moment: u64) -> f64 {
        let each = self.sent.iter().zip(&self.received);
        let waits = each.map(|(sent, got)| {
            let (sent, got) = (sent.load(Relaxed), got.load(Relaxed));
            got.saturating_sub(sent.max(moment))
        });
        waits.max().unwrap_or(0) as f64 / 1e3
    }
}

/// The smallest value that at least this part of all are not above.
pub(crate) fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// Parts and their percentiles, ever closer together towards the slowest.
pub(crate) fn distribution(sorted: &[f64]) -> Vec<(f64, f64)> {
    let part = |point: u32| 1.0 - 10f64.powf(-3.0 * f64::from(point) / f64::from(POINTS));
    (0..=POINTS).map(part).map(|part| (part, percentile(sorted, part))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), 500.0);
        assert_eq!(percentile(&values, 0.99), 990.0);
        assert_eq!(percentile(&values, 0.999), 999.0);
        assert_eq!(percentile(&[7.0], 0.999), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
        let points = distribution(&values);
        assert_eq!(points.first(), Some(&(0.0, 1.0)));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
    }

    #[tokio::test]
    async fn every_event_is_accounted_for() {
        let plan = Plan { events: 4, keys: 2, bytes: 64 };
        let watch = Stopwatch::new(plan);
        watch.send(&[0, 1, 2, 3]);
        for n in [1, 0, 2, 3] {
            let (key, number) = judge::nth(n, 2);
            watch.receive(&judge::payload(key, number, 64));
        }
        watch.all(Duration::from_secs(60)).await.unwrap();
        assert_eq!(watch.latencies().len(), 4);
        watch.receive(&judge::payload(0, 0, 64));
        assert!(watch.all(Duration::from_secs(60)).await.is_err());
    }
}
