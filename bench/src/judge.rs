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
}

impl Judge {
    /// Expects `events` events, whose keys take turns.
    pub(crate) fn new(events: u64, keys: u32) -> Judge {
        let next = vec![0; keys as usize];
        Judge { next, events, seen: 0, twice: 0, out_of_order: 0, strange: 0 }
    }

    pub(crate) fn see(&mut self, payload: &[u8]) {
        let Some((key, number)) = read(payload) else {
            self.strange += 1;
            return;
        };
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

fn read(payload: &[u8]) -> Option<(u32, u64)> {
    let (key, rest) = payload.split_first_chunk::<4>()?;
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
}
