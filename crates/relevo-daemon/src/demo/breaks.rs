//! What can be broken, by a key or by a schedule.

use super::part::Part;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::time::Duration;

/// Something to break on the shop floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Break {
    /// An order whose bytes no handler can read
    Poison,
    /// The handler fails for two seconds
    Fail,
    /// The worker is stopped (SIGSTOP) for two seconds
    Stop,
    /// The worker is killed (kill -9) and another one started
    Kill,
}

/// Something to break on the shop floor, or in one of the systems beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Shop(Break),
    In(Part, &'static proof::Break),
}

impl Fault {
    fn all() -> impl Iterator<Item = Self> {
        let shop = Break::value_variants().iter().copied().map(Self::Shop);
        shop.chain(Part::ALL.into_iter().flat_map(Self::of_system))
    }

    fn of_system(part: Part) -> impl Iterator<Item = Self> {
        part.breaks().iter().map(move |what| Self::In(part, what))
    }

    fn value(self) -> Option<PossibleValue> {
        match self {
            Self::Shop(what) => what.to_possible_value(),
            Self::In(_, what) => Some(PossibleValue::new(what.name).help(what.help)),
        }
    }

    pub(super) fn name(self) -> String {
        self.value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Where it happens.
    pub(super) fn part(self) -> Part {
        match self {
            Self::Shop(_) => Part::Shop,
            Self::In(part, _) => part,
        }
    }

    /// Is it broken until it is mended?
    fn lasts(self) -> bool {
        match self {
            Self::Shop(what) => matches!(what, Break::Fail | Break::Stop),
            Self::In(_, what) => what.ends.is_some(),
        }
    }

    /// What of these systems a key breaks or mends.
    pub(super) fn by_key(parts: &[Part], key: u8) -> Option<Self> {
        let mut faults = parts.iter().copied().flat_map(Self::of_system);
        faults.find(|fault| matches!(fault, Self::In(_, what) if what.key == char::from(key)))
    }
}

/// Reads a name, and lists all of them in the help.
pub(super) fn parser() -> impl TypedValueParser<Value = Fault> {
    PossibleValuesParser::new(Fault::all().filter_map(Fault::value)).try_map(|name| {
        Fault::all().find(|fault| fault.name() == name).ok_or("nothing of this name can be broken")
    })
}

/// How long what lasts is broken when nobody mends it by a key.
const LASTS: Duration = Duration::from_secs(2);

/// What is to happen, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Begin(Fault),
    End(Fault),
}

/// Spreads `breaks` evenly over `length`; what lasts ends before the time is over.
pub(super) fn schedule(breaks: &[Fault], length: Duration) -> Vec<(Duration, Step)> {
    let part = length / (breaks.len() as u32 + 1);
    let mut steps = Vec::new();
    for (index, what) in breaks.iter().enumerate() {
        let at = part * (index as u32 + 1);
        steps.push((at, Step::Begin(*what)));
        if what.lasts() {
            steps.push((at + LASTS.min(part / 2), Step::End(*what)));
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn breaks_are_spread_and_end_before_the_next_begins() {
        let second = Duration::from_secs;
        let (fail, kill) = (Fault::Shop(Break::Fail), Fault::Shop(Break::Kill));
        let steps = schedule(&[fail, kill], second(9));
        let expected = [
            (second(3), Step::Begin(fail)),
            (second(3) + Duration::from_millis(1500), Step::End(fail)),
            (second(6), Step::Begin(kill)),
        ];
        assert_eq!(steps, expected);
        assert!(schedule(&[], second(5)).is_empty());
    }

    #[test]
    fn no_two_things_have_one_name_or_one_key_and_each_label_begins_with_its_key() {
        let names: Vec<String> = Fault::all().map(Fault::name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        let mut keys: BTreeSet<char> = "pfskq".chars().collect();
        for fault in Fault::all() {
            if let Fault::In(part, what) = fault {
                assert!(what.name.starts_with(&format!("{}-", part.name())), "{what:?}");
                assert!(what.label.starts_with(what.key) && keys.insert(what.key), "{what:?}");
                assert_eq!(Fault::by_key(&Part::ALL, what.key as u8), Some(fault));
                // Behind a clock and the system's name it fits eighty columns.
                let longest = what.begins.len().max(what.ends.unwrap_or_default().len());
                assert!(longest <= 60, "{what:?}");
            }
        }
    }
}
