//! Which transactions a reader sees: PostgreSQL's snapshot, as a value.

use crate::error::{Error, Kind, Result, quoted};
use std::fmt;

/// A writer's transaction id (64 bits, epoch included).
pub type Xid = i64;

/// `xmin:xmax:xip`: every transaction below `xmin` is decided, none from `xmax` on is visible,
/// and those in `xip` were in progress.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The oldest transaction still in progress.
    pub xmin: Xid,
    /// One past the last transaction that had completed.
    pub xmax: Xid,
    /// In progress between the two, ascending.
    pub xip: Vec<Xid>,
}

impl Snapshot {
    /// The snapshot that sees nothing: where a log begins.
    pub fn empty() -> Self {
        Self { xmin: 1, xmax: 1, xip: Vec::new() }
    }

    /// Was `xid` decided when this snapshot was taken? (A decided transaction's rows are visible if it committed.)
    pub fn sees(&self, xid: Xid) -> bool {
        xid < self.xmin || (xid < self.xmax && self.xip.binary_search(&xid).is_err())
    }

    /// Those in progress here that are no longer in progress in `later`.
    pub fn finished_by(&self, later: &Self) -> Vec<Xid> {
        self.xip.iter().copied().filter(|xid| later.sees(*xid)).collect()
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin, self.xmax)?;
        for (index, xid) in self.xip.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{xid}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Snapshot {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            let why = format!("{} is not a snapshot (xmin:xmax:xip)", quoted(text));
            Error::new(Kind::StoreFailed, why)
        };
        let mut parts = text.split(':');
        let mut number = || parts.next().and_then(xid).ok_or_else(bad);
        let (xmin, xmax) = (number()?, number()?);
        let list = parts.next().ok_or_else(bad)?;
        let numbers = list.split(',').filter(|_| !list.is_empty());
        let mut xip: Vec<Xid> = numbers.map(|x| xid(x).ok_or_else(bad)).collect::<Result<_>>()?;
        xip.sort_unstable();
        xip.dedup();
        let in_progress = |xid: &Xid| (xmin..xmax).contains(xid);
        // Beyond its bounds no transaction can be in progress: a text that says so was not written by a server.
        if parts.next().is_some() || xmin > xmax || !xip.iter().all(in_progress) {
            return Err(bad());
        }
        Ok(Self { xmin, xmax, xip })
    }
}

/// A transaction id: digits only, and never zero.
fn xid(text: &str) -> Option<Xid> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|xid| digits && *xid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_are_one() {
        for text in ["1:1:", "10:20:10,14,18"] {
            assert_eq!(text.parse::<Snapshot>().unwrap().to_string(), text);
        }
        assert_eq!("1:9:4,2,4".parse::<Snapshot>().unwrap().to_string(), "1:9:2,4");
        for text in [
            "", "1:2", "a:b:", "5:3:", "1:2:3:4", "1:9:x", "0:1:", "-5:-1:", "+1:2:", "5:9:4",
            "5:9:9", "1:9:,",
        ] {
            assert!(text.parse::<Snapshot>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_transaction_in_progress_is_not_seen_and_later_counts_as_finished() {
        let a: Snapshot = "10:20:10,14".parse().unwrap();
        assert!(a.sees(9) && a.sees(13) && a.sees(19));
        assert!(!a.sees(10) && !a.sees(14) && !a.sees(20));
        let b: Snapshot = "14:30:14".parse().unwrap();
        assert_eq!(a.finished_by(&b), [10]);
    }
}
