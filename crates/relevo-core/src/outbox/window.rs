//! The window between two ticks: what the later sees and the earlier did not.

use super::snapshot::{Snapshot, Xid};
use super::tick::Tick;
use crate::error::{Error, Kind, Result};
use crate::mutant;

/// A frozen stretch of the log, read in the order of `seq`.
///
/// Late rows (below `low` of the start) come before all others by their `seq`,
/// so one number is the position inside the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Late rows lie above this ...
    pub late_above: i64,
    /// ... and up to this; main rows lie above it.
    pub late_to: i64,
    /// Main rows lie up to this.
    pub main_to: i64,
    /// Late rows belong to one of these transactions.
    pub late_xids: Vec<Xid>,
    /// Main rows are seen by this ...
    pub seen_by: Snapshot,
    /// ... and not by this.
    pub not_seen_by: Snapshot,
    /// True for the window into another cluster, where old and new transaction ids do not compare:
    /// rows up to `late_to` count if `not_seen_by` did not see them, rows above it all count.
    pub rebase: bool,
}

impl Window {
    /// The window from `from` to a later tick `to`.
    pub fn between(from: &Tick, to: &Tick) -> Result<Self> {
        if to.tick.number <= from.tick.number {
            return Err(Error::new(
                Kind::TickMissing,
                format!(
                    "no window leads from tick {} to tick {}",
                    from.tick.number, to.tick.number
                ),
            ));
        }
        let rebase = from.generation != to.generation && !mutant!(RebaseComparesXids);
        let late_xids =
            if mutant!(NoLateRows) { Vec::new() } else { from.snapshot.finished_by(&to.snapshot) };
        let floor = if mutant!(NoFloor) { 0 } else { from.floor.min(from.low) };
        Ok(Self {
            late_above: if rebase { from.floor } else { floor },
            late_to: if rebase { from.top } else { from.low },
            main_to: to.top,
            late_xids,
            seen_by: to.snapshot.clone(),
            not_seen_by: from.snapshot.clone(),
            rebase,
        })
    }

    /// Does a committed row of the log lie in this window? The stores say the same in their own language.
    pub fn contains(&self, seq: i64, xid: Xid) -> bool {
        if seq <= self.late_above || seq > self.main_to {
            return false;
        }
        if self.rebase {
            return seq > self.late_to || !self.not_seen_by.sees(xid);
        }
        if seq <= self.late_to {
            return self.late_xids.binary_search(&xid).is_ok();
        }
        self.seen_by.sees(xid) && !self.not_seen_by.sees(xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::TickRef;

    fn tick(number: i64, snapshot: &str, low: i64, top: i64, floor: i64) -> Tick {
        Tick {
            tick: TickRef { number, nonce: 1 },
            snapshot: snapshot.parse().unwrap(),
            low,
            top,
            floor,
            ..Tick::zero()
        }
    }

    #[test]
    fn a_row_is_in_exactly_one_of_two_adjoining_windows() {
        let (a, b, c) =
            (tick(0, "1:1:", 0, 0, 0), tick(1, "5:9:5", 10, 12, 0), tick(2, "11:11:", 14, 14, 0));
        let (first, second) = (Window::between(&a, &b).unwrap(), Window::between(&b, &c).unwrap());
        // Transaction 5 was open at b: its row 3 comes late, in the second window.
        assert!(!first.contains(3, 5) && second.contains(3, 5));
        assert!(first.contains(4, 6) && !second.contains(4, 6));
        // Row 12 belongs to transaction 10, which began after b's snapshot though it drew its seq before top(b).
        assert!(!first.contains(12, 10) && second.contains(12, 10));
    }

    #[test]
    fn a_window_that_leads_nowhere_is_refused() {
        let a = tick(3, "1:1:", 0, 0, 0);
        assert_eq!(Window::between(&a, &a).unwrap_err().kind(), Kind::TickMissing);
    }

    #[test]
    fn a_window_ends_where_its_ticks_saw_the_log_end() {
        let (a, b) = (tick(0, "9:9:", 10, 10, 10), tick(1, "20:20:", 14, 14, 10));
        let window = Window::between(&a, &b).unwrap();
        assert!(window.contains(11, 12) && window.contains(14, 12));
        assert!(!window.contains(10, 12), "before it");
        assert!(!window.contains(15, 12), "beyond it, though its transaction is seen");
    }

    #[test]
    fn a_window_into_another_cluster_goes_by_place_and_not_by_transaction_ids() {
        // Up to 10 was looked at before the move; transaction 5 was open then, and its row 7 came along.
        let from = tick(1, "5:9:5", 10, 10, 6);
        let to = Tick { generation: 2, ..tick(2, "3:3:", 12, 12, 12) };
        let window = Window::between(&from, &to).unwrap();
        assert!(window.contains(7, 5) && !window.contains(8, 6));
        assert!(window.contains(11, 900) && window.contains(12, 2), "what came after it");
        assert!(!window.contains(6, 5) && !window.contains(13, 2));
        assert!(!window.contains(10, 6) && window.contains(10, 5), "the last that was looked at");
    }
}
