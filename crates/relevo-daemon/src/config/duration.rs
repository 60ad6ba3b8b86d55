//! Times with a unit: `250ms`, `10s`, `5m`, `1h30m`, `7d`.

use relevo_core::error::quoted;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;
use std::time::Duration;

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const EXPECTED: &str =
    "a time with its unit, such as \"250ms\", \"10s\", \"5m\", \"1h30m\" or \"7d\"";

/// A length of time as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

/// Reads a length of time; the error says what would be right.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{} is not {EXPECTED}", quoted(text));
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        total = number
            .checked_mul(*millis)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(wrong)?;
        rest = tail.trim_start();
    }
    Ok(Duration::from_millis(total))
}

/// Writes a length of time so that [`parse`] reads it back.
pub fn written(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".into();
    }
    let mut text = String::new();
    for (name, unit) in UNITS.iter().rev() {
        if millis >= *unit {
            text.push_str(&format!("{}{name}", millis / unit));
            millis %= unit;
        }
    }
    text
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                parse(text).map(Span).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_with_its_unit_and_written_back() {
        for (text, millis) in
            [("250ms", 250), ("10s", 10_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("0s", 0)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(written(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_time_without_a_unit_is_refused_with_what_would_be_right() {
        for text in ["", "10", "s", "10 parsecs", "-1s", "1.5h", "99999999999999999999d"] {
            assert!(parse(text).unwrap_err().contains("\"10s\""), "{text}");
        }
    }
}
