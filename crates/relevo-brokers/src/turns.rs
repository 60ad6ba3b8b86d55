//! Which of a cluster's servers is asked first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What one of so many servers may take of the time that is left for all; at least something, in milliseconds that people
/// can read.
pub(crate) fn share_of(left: Duration, servers: usize) -> Duration {
    let millis = left.as_micros().div_ceil(1000).div_ceil(servers.max(1) as u128).max(1);
    Duration::from_millis(millis.min(u64::MAX.into()) as u64)
}

/// Each connection begins with the server after the one where the last began. So one that answers and serves nothing
/// (cut off from the others, still starting) is left behind by the next attempt, and connections spread over all.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<AtomicUsize>);

impl Turns {
    /// All servers, each once.
    pub(crate) fn over<'s, T>(&self, servers: &'s [T]) -> impl Iterator<Item = &'s T> + use<'s, T> {
        let first = self.0.fetch_add(1, Ordering::Relaxed) % servers.len().max(1);
        let (before, after) = servers.split_at(first);
        after.iter().chain(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_is_asked_and_each_time_another_one_first() {
        let turns = Turns::default();
        let next = |turns: &Turns| turns.over(&['a', 'b', 'c']).collect::<String>();
        assert_eq!(next(&turns), "abc");
        assert_eq!(next(&turns.clone()), "bca", "copies of a configuration take turns together");
        assert_eq!((next(&turns), next(&turns)), ("cab".into(), "abc".into()));
        assert_eq!(turns.over::<char>(&[]).count(), 0);
    }

    #[test]
    fn servers_share_what_is_left_of_the_time() {
        let millis = Duration::from_millis;
        assert_eq!(share_of(millis(900), 3), millis(300));
        assert_eq!(share_of(millis(899) + Duration::from_nanos(999_001), 3), millis(300));
        assert_eq!(share_of(millis(1000), 1), millis(1000));
        assert_eq!(share_of(Duration::ZERO, 2), millis(1));
        assert_eq!(share_of(Duration::MAX, 1), millis(u64::MAX));
    }
}
