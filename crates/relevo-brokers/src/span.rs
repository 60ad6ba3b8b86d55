//! Times as people write them in a configuration: numbers with their units.

use serde::de::{Deserialize, Deserializer, Error};
use std::time::Duration;

const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// `250ms`, `10s`, `1h30m`.
fn parse(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text.trim(), 0_u64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*millis)?)?;
        rest = tail;
    }
    Some(Duration::from_millis(total))
}

/// So that [`parse`] reads it back.
#[cfg(any(feature = "rabbitmq", test))]
pub(crate) fn written(span: Duration) -> String {
    let mut millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, unit) in UNITS {
        if millis >= unit {
            text.push_str(&format!("{}{name}", millis / unit));
            millis %= unit;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

fn read<E: Error>(text: &str) -> Result<Duration, E> {
    let wrong =
        || E::custom(format!("{text:?} is not a time with its unit, such as \"10s\" or \"1h30m\""));
    parse(text).ok_or_else(wrong)
}

#[cfg(any(feature = "nats", feature = "rabbitmq"))]
pub(crate) fn maybe<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    Option::<String>::deserialize(from)?.map(|text| read(&text)).transpose()
}

#[cfg(feature = "kafka")]
pub(crate) fn one<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    read(&String::deserialize(from)?)
}

#[cfg(feature = "rabbitmq")]
pub(crate) fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Duration>, D::Error> {
    Vec::<String>::deserialize(from)?.iter().map(|text| read(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["250ms", "10s", "1m30s", "7d", "1h1ms"] {
            assert_eq!(parse(text).map(written).as_deref(), Some(text));
        }
        for wrong in ["", "10", "s", "1x", "-1s", "99999999999999999d"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
