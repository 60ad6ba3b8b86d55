//! How long a relay waits for an adapter that keeps limits of its own.

use std::time::Duration;

/// What a message is told that never left.
pub(crate) const NO_TURN: &str =
    "its turn did not come in time: what is under way has no confirm yet";

/// Time that a machine with much to do needs beside what it waits for.
const SLACK: Duration = Duration::from_secs(5);

/// Whoever waits so long hears the adapter's own answers.
pub(crate) fn longer_than(limits: impl IntoIterator<Item = Duration>) -> Duration {
    limits.into_iter().fold(SLACK, Duration::saturating_add)
}
