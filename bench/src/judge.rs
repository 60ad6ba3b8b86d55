//! What every run is judged by: nothing lost, nothing twice, each key in order.

use anyhow::{Result, bail};
use bytes::Bytes;

/// The first bytes of every payload: its key, and its number within the key.
pub(crate) const STAMP: usize = 12;

/// A payload of `bytes` bytes, stamped.
pub(crate) fn payload(key: u32, number: u64, bytes: usize) -> Bytes {
    let mut text = Vec::with_capacity(bytes.max(STAMP));
    text.extend_from_slice(&key.to_be_bytes());
    text.extend_from_slice(&number.to_be_bytes());
    text.resize(bytes.max(STAMP), b'x');
    text.into()
}

/// A payload of text, for those who carry no bytes: the stamp in hexadecimal digits, then the same letter.
fn stamp_of_text(text: &[u8]) -> Option<[u8; STAMP]> {
    let digits = text.strip_prefix(b"\"").unwrap_or(text).get(..STAMP * 2)?;
    let mut stamp = [0; STAMP];
    for (byte, pair) in stamp.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(stamp)
}

/// A payload of text of about so many bytes.
pub(crate) fn text_payload(key: u32, number: u64, bytes: usize) -> String {
    let hex = format!("{key:08x}{number:016x}");
    let rest = bytes.saturating_sub(hex.len());
    hex + &"x".repeat(rest)
}

/// Which event of a plan is the n-th: keys take turns.
pub(crate) fn nth(n: u64, keys: u32) -> (u32, u64) {
    ((n % u64::from(keys)) as u32, n / u64::from(keys))
}

/// Counts what arrives against what was planned.
#[derive(Debug)]
pub(crate) struct Judge {
    next: Vec<u64>,
    events: u64,
    seen: u64,
    twice: u64,
    out_of_order: u64,
    strange: u64,
    /// None of this key's are to come.
    spared: Option<u32>,
}

impl Judge {
    /// Expects `events` events, whose keys take turns.
    pub(crate) fn new(events: u64, keys: u32) -> Judge {
        let next = vec![0; keys as usize];
        Judge { next, events, seen: 0, twice: 0, out_of_order: 0, strange: 0, spared: None }
    }

    /// Expects none of this key: whatever comes of it is a stranger.
    pub(crate) fn sparing(mut self, key: Option<u32>) -> Judge {
        if let Some(key) = key {
            let keys = self.next.len() as u64;
            self.events -= (self.events + keys - 1 - u64::from(key)) / keys;
            self.spared = Some(key);
        }
        self
    }

    /// How many events are to come.
    pub(crate) fn wanted(&self) -> u64 {
        self.events
    }

    pub(crate) fn see(&mut self, payload: &[u8]) {
        let Some((key, number)) = read(payload) else {
            self.strange += 1;
            return;
        };
        if self.spared == Some(key) {
            self.strange += 1;
            return;
        }
        match self.next.get_mut(key as usize) {
            None => self.strange += 1,
            Some(next) if number == *next => {
                *next += 1;
                self.seen += 1;
            }
            Some(next) if number < *next => self.twice += 1,
            Some(_) => self.out_of_order += 1,
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.seen + self.out_of_order >= self.events
    }

    /// An error unless each event came once and in order.
    pub(crate) fn verdict(&self) -> Result<()> {
        let Judge { events, seen, twice, out_of_order, strange, .. } = self;
        if seen != events || *twice + *out_of_order + *strange > 0 {
            bail!(
                "of {events} events {seen} came in order, {out_of_order} out of order, {twice} twice, {strange} are strangers"
            );
        }
        Ok(())
    }
}

/// A payload's key, and its number within the key. A stamp of bytes begins with a zero: no plan has so many keys.
pub(crate) fn read(payload: &[u8]) -> Option<(u32, u64)> {
    match payload.first()? {
        0 => read_stamp(payload),
        _ => read_stamp(&stamp_of_text(payload)?),
    }
}

fn read_stamp(stamp: &[u8]) -> Option<(u32, u64)> {
    let (key, rest) = stamp.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*key), u64::from_be_bytes(*rest.first_chunk::<8>()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(order: &[u64]) -> Result<()> {
        let mut judge = Judge::new(4, 2);
        for n in order {
            let (key, number) = nth(*n, 2);
            judge.see(&payload(key, number, 64));
        }
        judge.verdict()
    }

    #[test]
    fn only_all_once_and_in_order_of_each_key_passes() {
        assert!(judged(&[0, 1, 2, 3]).is_ok() && judged(&[1, 3, 0, 2]).is_ok());
        assert!(judged(&[0, 1, 2]).unwrap_err().to_string().contains("of 4 events 3"));
        assert!(judged(&[0, 1, 2, 3, 2]).unwrap_err().to_string().contains("1 twice"));
        assert!(judged(&[2, 0, 1, 3]).unwrap_err().to_string().contains("1 out of order"));
    }
    #[test]
    fn a_spared_key_is_not_waited_for_and_may_not_come() {
        let mut judge = Judge::new(5, 2).sparing(Some(0));
        assert_eq!(judge.wanted(), 2);
        for number in 0..2 {
            judge.see(&payload(1, number, 64));
        }
        assert!(judge.is_complete() && judge.verdict().is_ok());
        judge.see(&payload(0, 0, 64));
        assert!(judge.verdict().is_err());
    }

    #[test]
    fn a_stamp_can_be_text_with_or_without_quotes() {
        let text = text_payload(7, 9, 64);
        assert_eq!(text.len(), 64);
        for text in [text.clone(), format!("\"{text}\"")] {
            assert_eq!(read(text.as_bytes()), Some((7, 9)));
        }
        assert_eq!(read(b"no stamp"), None);
    }
}
