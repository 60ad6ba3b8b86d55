use std::time::Duration;

/// Inbox rows outlive whatever a replay can reach by this part of it: what dies was met a while before, and a log goes
/// in pieces.
const MARGIN: u32 = 10;

/// The finest time that every store notes.
const INSTANT: Duration = Duration::from_millis(1);

/// How long what is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// Events, after every subscription is past them.
    pub events: Duration,
    /// Dead letters, after they died.
    pub dead_letters: Duration,
    /// Inbox rows. Stores keep them for [`Self::inbox_kept`], which may be longer, and beyond that while something older
    /// is still on its way outside: no replay under way outlives its proof.
    pub inbox: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        Self { events: 7 * day, dead_letters: 90 * day, inbox: 120 * day }
    }
}

impl Retention {
    /// How far back a rewind or a replay finds something to bring again.
    pub fn replay_reach(&self) -> Duration {
        self.events.max(self.dead_letters)
    }

    /// The least time for inbox rows: a tenth longer than [`Self::replay_reach`], and always longer.
    pub fn inbox_least(&self) -> Duration {
        let reach = self.replay_reach();
        reach.saturating_add((reach / MARGIN).max(INSTANT))
    }

    /// How long stores keep inbox rows: as configured, but never shorter than [`Self::inbox_least`]. A row that is just
    /// as old stays.
    pub fn inbox_kept(&self) -> Duration {
        self.inbox.max(self.inbox_least())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn kept(events: Duration, dead_letters: Duration, inbox: Duration) -> Duration {
        Retention { events, dead_letters, inbox }.inbox_kept()
    }

    #[test]
    fn inbox_rows_are_kept_longer_than_anything_that_can_be_replayed() {
        for (events, dead_letters) in [
            (Duration::ZERO, Duration::ZERO),
            (Duration::from_millis(1), Duration::ZERO),
            (Duration::from_millis(9), Duration::from_millis(8)),
            (7 * DAY, 90 * DAY),
            (400 * DAY, 90 * DAY),
        ] {
            let reach = events.max(dead_letters);
            for inbox in [Duration::ZERO, events, dead_letters, reach] {
                let kept = kept(events, dead_letters, inbox);
                assert!(kept > reach && kept >= reach + reach / 10, "{kept:?} after {reach:?}");
            }
        }
    }

    #[test]
    fn what_is_long_enough_is_kept_as_configured() {
        assert_eq!(kept(7 * DAY, 90 * DAY, 99 * DAY), 99 * DAY);
        assert_eq!(kept(7 * DAY, 90 * DAY, 99 * DAY - INSTANT), 99 * DAY);
        assert_eq!(Retention::default().inbox_kept(), 120 * DAY);
        assert_eq!(kept(Duration::MAX, DAY, DAY), Duration::MAX, "for ever is for ever");
    }
}
