use crate::clock::Instant;
use std::time::Duration;

/// Pauses that double while nothing comes (or everything fails) and start again when something does.
#[derive(Debug)]
pub struct Pace {
    shortest: Duration,
    longest: Duration,
    pause: Duration,
    until: Instant,
}

impl Pace {
    /// Pauses between these two.
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, pause: shortest, until: Instant::ZERO }
    }

    /// Nothing came: wait longer than last time.
    pub fn quiet(&mut self, now: Instant) {
        self.until = now + self.pause;
        self.pause = (self.pause * 2).min(self.longest);
    }

    /// Something came.
    pub fn busy(&mut self) {
        self.pause = self.shortest;
        self.until = Instant::ZERO;
    }

    /// May one look now?
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// When the pause ends.
    pub fn until(&self) -> Instant {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pause_after(pace: &mut Pace, now: Instant) -> Duration {
        pace.quiet(now);
        pace.until().since(now)
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again_when_something_comes() {
        let (now, mut pace) = (Instant::ZERO + 7 * MS, Pace::new(50 * MS, 150 * MS));
        let pauses = [0; 4].map(|_| pause_after(&mut pace, now));
        assert_eq!(pauses, [50 * MS, 100 * MS, 150 * MS, 150 * MS]);
        pace.busy();
        assert!(pace.is_over(now), "what came may be followed by more");
        assert_eq!(pause_after(&mut pace, now), 50 * MS);
    }

    #[test]
    fn a_pause_is_over_at_its_end_and_not_before() {
        let (now, mut pace) = (Instant::ZERO + 7 * MS, Pace::new(50 * MS, 150 * MS));
        assert!(pace.is_over(Instant::ZERO), "one that never began");
        pace.quiet(now);
        assert!(!pace.is_over(now + 49 * MS));
        assert!(pace.is_over(now + 50 * MS));
    }
}
