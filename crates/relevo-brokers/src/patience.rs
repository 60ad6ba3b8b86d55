//! How long a relay waits for an adapter that keeps limits of its own.

use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// What a message is told that never left.
pub(crate) const NO_TURN: &str =
    "its turn did not come in time: what is under way has no confirm yet";

/// Time that a machine with much to do needs beside what it waits for.
const SLACK: Duration = Duration::from_secs(5);

/// Longer than anybody waits; a clock cannot tell what is much later.
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// When this time is over.
pub(crate) fn over_in(limit: Duration) -> Instant {
    Instant::now() + limit.min(FAR)
}

/// What comes before `latest`. After it nothing does, not even what is there already.
pub(crate) async fn by<T>(latest: Instant, awaited: impl Future<Output = T>) -> Option<T> {
    let come = timeout_at(latest, awaited).await.ok();
    come.filter(|_| Instant::now() < latest)
}

/// Whoever waits so long hears the adapter's own answers.
pub(crate) fn longer_than(limits: impl IntoIterator<Item = Duration>) -> Duration {
    limits.into_iter().fold(SLACK, Duration::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test]
    async fn what_is_there_after_its_time_has_not_come() {
        assert_eq!(by(over_in(Duration::MAX), ready(1)).await, Some(1));
        assert_eq!(by(over_in(Duration::ZERO), ready(1)).await, None);
        assert_eq!(by(over_in(Duration::from_millis(1)), pending::<u8>()).await, None);
    }
}
