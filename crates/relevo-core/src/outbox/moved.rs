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
}
