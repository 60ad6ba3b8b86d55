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
