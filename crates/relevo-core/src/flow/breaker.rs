use crate::clock::Instant;
use crate::outbox::OpenBreaker;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whether a destination is taken to be up.
#[derive(Debug, Clone, PartialEq)]
pub enum BreakerState {
    /// Up.
    Closed,
    /// Down; nothing is handed over until then.
    Open(Instant),
    /// One small batch is out to see.
    Probing,
}

/// Keeps a dead destination from being hammered, and nothing from being parked meanwhile.
#[derive(Debug)]
pub struct Breaker {
    state: BreakerState,
    pause: Duration,
    reason: String,
    /// When it was first found down.
    since: Option<Instant>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { state: BreakerState::Closed, pause: FIRST_PAUSE, reason: String::new(), since: None }
    }
}

impl Breaker {
    /// How it stands.
    pub fn state(&self) -> &BreakerState {
        &self.state
    }

    /// May a batch go out now, and must it be a probe? Asking starts the probe when its time has come.
    pub fn admit(&mut self, now: Instant) -> Option<bool> {
        match self.state {
            BreakerState::Closed => Some(false),
            BreakerState::Open(until) if now >= until => {
                self.state = BreakerState::Probing;
                Some(true)
            }
            BreakerState::Open(_) | BreakerState::Probing => None,
        }
    }

    /// The destination answered.
    pub fn up(&mut self) {
        *self = Self::default();
    }

    /// The destination is down; pauses double up to half a minute.
    pub fn down(&mut self, now: Instant, reason: String) {
        if let BreakerState::Open(_) = self.state {
            // Others of the same moment, under way since before: the outage is no longer for it.
            return;
        }
        self.state = BreakerState::Open(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.reason = reason;
        self.since.get_or_insert(now);
    }

    /// A probe ended without telling anything about the destination: look again soon.
    pub fn inconclusive(&mut self, now: Instant) {
        if self.state == BreakerState::Probing {
            self.state = BreakerState::Open(now + FIRST_PAUSE);
        }
    }

    /// What operators read, while it is not closed.
    pub fn note(&self, now: Instant) -> Option<OpenBreaker> {
        let open_s = now.since(self.since?).as_secs_f64();
        Some(OpenBreaker { reason: self.reason.clone(), open_s })
    }

    /// Is the destination taken to be down?
    pub fn is_open(&self) -> bool {
        self.state != BreakerState::Closed
    }

    /// When to look again.
    pub fn wake_at(&self) -> Option<Instant> {
        match self.state {
            BreakerState::Open(until) => Some(until),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_goes_out_and_decides() {
        let mut breaker = Breaker::default();
        let at = |ms| Instant::at(Duration::from_millis(ms));
        assert_eq!(breaker.admit(at(0)), Some(false));
        breaker.down(at(0), "refused".into());
        breaker.down(at(1), "so was another batch, under way since before".into());
        assert_eq!(breaker.admit(at(499)), None);
        assert_eq!(breaker.admit(at(500)), Some(true));
        assert_eq!(breaker.admit(at(501)), None);
        breaker.down(at(501), "refused".into());
        assert_eq!(breaker.wake_at(), Some(at(1501)));
        // The outage began with the first refusal, however often it was probed since.
        let note = breaker.note(at(2000)).unwrap();
        assert_eq!((note.reason.as_str(), note.open_s), ("refused", 2.0));
        breaker.up();
        assert_eq!(breaker.note(at(2001)), None);
        assert_eq!(breaker.admit(at(502)), Some(false));
    }

    #[test]
    fn a_probe_that_told_nothing_is_followed_by_another_soon() {
        let mut breaker = Breaker::default();
        let at = |ms| Instant::at(Duration::from_millis(ms));
        breaker.inconclusive(at(0));
        assert!(!breaker.is_open(), "what is up stays up");
        breaker.down(at(0), "refused".into());
        breaker.inconclusive(at(100));
        assert_eq!(breaker.wake_at(), Some(at(500)), "no probe is out yet");
        assert_eq!(breaker.admit(at(500)), Some(true));
        assert!(breaker.is_open() && breaker.wake_at().is_none());
        breaker.inconclusive(at(900));
        assert_eq!(breaker.wake_at(), Some(at(1400)));
    }
}
