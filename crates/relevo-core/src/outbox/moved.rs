use super::snapshot::Xid;
use super::tick::Tick;
use super::window::Window;

/// A cursor that an operator moved: where it stood, and where it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The tick all of which was decided before.
    pub from: Tick,
    /// The tick the open window led to, if one was open.
    pub to: Option<Tick>,
    /// The last decided place inside that window.
    pub seq: i64,
    /// Where it went.
    pub after: Tick,
}

/// Why an event that nobody had is nevertheless not pending.
pub const LEFT_OUT: &str = "left out: an operator moved the subscription forwards";

impl Moved {
    fn had_decided(&self, seq: i64, xid: Xid) -> bool {
        let window = self.to.as_ref().and_then(|to| Window::between(&self.from, to).ok());
        self.from.has_decided(seq, xid)
            || window.is_some_and(|window| seq <= self.seq && window.contains(seq, xid))
    }

    /// Did these moves of one lane, in their order, leave this row out? What a later move brings again is not left out.
    pub fn left_out<'m>(moves: impl IntoIterator<Item = &'m Self>, seq: i64, xid: Xid) -> bool {
        let mut left_out = false;
        for moved in moves {
            if !moved.after.has_decided(seq, xid) {
                left_out = false;
            } else if !moved.had_decided(seq, xid) {
                left_out = true;
            }
        }
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::TickRef;

    /// Everything up to `n` is decided: row `n` is of transaction `n`.
    fn at(n: i64) -> Tick {
        let snapshot = format!("{0}:{0}:", n + 1).parse().unwrap();
        Tick { snapshot, low: n, top: n, floor: 0, ..Tick::zero() }
    }

    fn moved(from: i64, after: i64) -> Moved {
        Moved { from: at(from), to: None, seq: 0, after: at(after) }
    }

    #[test]
    fn what_lies_between_the_old_and_the_new_place_is_left_out() {
        let forwards = [moved(2, 5)];
        let left_out: Vec<i64> = (1..=7).filter(|n| Moved::left_out(&forwards, *n, *n)).collect();
        assert_eq!(left_out, [3, 4, 5]);
    }

    #[test]
    fn what_a_later_move_brings_again_is_not_left_out() {
        let to_and_fro = [moved(2, 5), moved(6, 3)];
        let left_out: Vec<i64> = (1..=7).filter(|n| Moved::left_out(&to_and_fro, *n, *n)).collect();
        assert_eq!(left_out, [3]);
    }

    #[test]
    fn what_an_open_window_had_decided_up_to_its_place_is_not_left_out() {
        let to = Tick { tick: TickRef { number: 1, nonce: 0 }, ..at(6) };
        // Rows 3 and 4 were decided in the window from 2 to 6, when the cursor was moved on to 5 and to 8.
        for (after, expected) in [(5, vec![5]), (8, vec![5, 6, 7, 8])] {
            let moves = [Moved { from: at(2), to: Some(to.clone()), seq: 4, after: at(after) }];
            let left_out: Vec<i64> = (1..=9).filter(|n| Moved::left_out(&moves, *n, *n)).collect();
            assert_eq!(left_out, expected);
        }
    }

    #[test]
    fn what_is_no_row_of_the_open_window_was_not_decided_in_it_though_its_place_is_lower() {
        // Transaction 4 was open when the window's end was made: its row 4 is none of the window's.
        let snapshot = "4:7:4".parse().unwrap();
        let tick = TickRef { number: 1, nonce: 0 };
        let to = Tick { tick, snapshot, low: 6, top: 6, floor: 0, ..Tick::zero() };
        let moves = [Moved { from: at(2), to: Some(to), seq: 6, after: at(8) }];
        let left_out: Vec<i64> = (1..=8).filter(|n| Moved::left_out(&moves, *n, *n)).collect();
        assert_eq!(left_out, [4, 7, 8]);
    }
}
