//! The time of day, as everything here is told it: tests let a month pass in a moment.

use chrono::{DateTime, Duration, Utc};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A clock that can be set forward. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    ahead_ms: Arc<AtomicI64>,
}

impl Clock {
    /// The time, to the microsecond: what a `timestamptz` keeps.
    pub fn now(&self) -> DateTime<Utc> {
        let ahead = Duration::milliseconds(self.ahead_ms.load(Ordering::Relaxed));
        let now = Utc::now() + ahead;
        DateTime::from_timestamp_micros(now.timestamp_micros()).unwrap_or(now)
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.ahead_ms.fetch_add(by.num_milliseconds(), Ordering::Relaxed);
    }
}
