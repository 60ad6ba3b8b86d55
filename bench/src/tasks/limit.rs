//! How long a turn waits for what has to come: not for ever.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// Events of a turn that takes its time.
const MANY: u64 = 10_000;
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(120);
/// Events a second, of a turn of millions: slower than everybody who is measured with so many.
const SLOW: u64 = 5_000;

/// Who waits longer fails, and says how far it came.
pub(super) struct Limit {
    start: Instant,
    most: Duration,
    events: u64,
}

impl Limit {
    /// From now on, for so many events.
    pub(super) fn of(events: u64) -> Limit {
        let least = if events >= MANY { LONG } else { SHORT };
        let most = least.max(Duration::from_secs(events / SLOW));
        Limit { start: Instant::now(), most, events }
    }

    /// Looks again and again how far it is, until all events are there.
    pub(super) async fn look(
        &self,
        every: Duration,
        mut done: impl AsyncFnMut() -> Result<u64>,
    ) -> Result<()> {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let done = done().await?;
            if done >= self.events {
                return Ok(());
            }
            self.check(done)?;
        }
    }

    /// For those who work on meanwhile.
    pub(super) fn check(&self, done: u64) -> Result<()> {
        match self.start.elapsed() < self.most {
            true => Ok(()),
            false => bail!("given up after {:?}: {done} of {} events", self.most, self.events),
        }
    }

    /// Waits until so many are done.
    pub(super) async fn wait(&self, done: &mut watch::Receiver<u64>, wanted: u64) -> Result<()> {
        let left = self.most.saturating_sub(self.start.elapsed());
        let all = tokio::time::timeout(left, done.wait_for(|done| *done >= wanted)).await;
        match all.map(|all| all.map(drop)) {
            Ok(all) => Ok(all?),
            Err(_) => {
                let done = *done.borrow();
                bail!("given up after {:?}: {done} of {wanted} events", self.most)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(1);

    #[test]
    fn a_turn_of_many_events_may_take_ten_minutes_and_one_of_millions_longer() {
        let seconds = |events| Limit::of(events).most.as_secs();
        assert_eq!([1, 9_999, 10_000, 3_000_000].map(seconds), [120, 120, 600, 600]);
        assert_eq!(seconds(10_000_000), 2_000);
    }

    #[tokio::test]
    async fn who_waits_too_long_says_how_far_it_came() {
        let (sender, mut done) = watch::channel(3);
        let limit = Limit { most: Duration::ZERO, ..Limit::of(5) };
        let error = limit.wait(&mut done, 5).await.unwrap_err().to_string();
        assert!(error.contains("3 of 5 events"), "{error}");
        let error = limit.look(EVERY, async || Ok(4)).await.unwrap_err().to_string();
        assert!(error.contains("4 of 5 events"), "{error}");
        sender.send_replace(5);
        assert!(limit.wait(&mut done, 5).await.is_ok());
    }

    #[tokio::test]
    async fn who_looks_goes_on_until_all_is_there() {
        let mut looks = 0;
        let look = async || {
            looks += 1;
            Ok(looks)
        };
        Limit::of(3).look(EVERY, look).await.unwrap();
        assert_eq!(looks, 3);
        let failed = Limit::of(3).look(EVERY, async || bail!("no answer")).await;
        assert_eq!(failed.unwrap_err().to_string(), "no answer");
    }
}
