use crate::error::{Error, Kind, Result};
use crate::event::{Event, TopicFilter, header};
use crate::retry::RetryPolicy;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a dead letter does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AfterDead {
    /// Later events of the key go on.
    #[default]
    Continue,
    /// The key waits until the dead letter is replayed or archived.
    Hold,
}

/// How a subscription is worked.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RelayConfig {
    /// Which topics; any of them.
    pub topics: Vec<TopicFilter>,
    /// When to try again.
    pub retry: RetryPolicy,
    /// What a dead letter does to its key.
    pub after_dead: AfterDead,
    /// How long a silent owner keeps its lanes.
    pub lease: Duration,
    /// Most events of one batch (one transaction for direct handlers).
    pub batch: usize,
    /// Most batches under way at once.
    pub concurrency: usize,
    /// Most events a lane holds in memory.
    pub lane_queue: usize,
    /// Most rows and bytes of one page.
    pub page_rows: usize,
    /// Most payload bytes of one page.
    pub page_bytes: usize,
    /// No further page is read while more payload bytes than this wait in memory.
    pub queue_bytes: usize,
    /// The shortest and the longest pause between looks at a quiet log.
    pub poll: (Duration, Duration),
    /// The pause between looks while a doorbell works.
    pub poll_with_doorbell: Duration,
    /// More parked keys than this stop a lane, loudly.
    pub max_parked_keys: usize,
    /// So many dead letters in a row hold a key for an operator.
    pub max_deaths_in_a_row: u32,
    /// A follower in the same batch may go on after a dead letter or skip that is not recorded yet
    /// (true for direct handlers, where all is recorded in one transaction).
    pub one_transaction: bool,
    /// Idle lanes write their cursor this late.
    pub lazy_record: Duration,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            topics: vec![TopicFilter::all()],
            retry: RetryPolicy::default(),
            after_dead: AfterDead::Continue,
            lease: Duration::from_secs(10),
            batch: 50,
            concurrency: 8,
            lane_queue: 500,
            page_rows: 2000,
            page_bytes: 8 << 20,
            queue_bytes: 16 << 20,
            poll: (Duration::from_millis(50), Duration::from_secs(2)),
            poll_with_doorbell: Duration::from_secs(30),
            max_parked_keys: 10_000,
            max_deaths_in_a_row: 100,
            one_transaction: true,
            lazy_record: Duration::from_secs(5),
        }
    }
}

impl RelayConfig {
    /// Refuses what cannot be meant.
    pub fn check(&self) -> Result<()> {
        let bad = |why: &str| Err(Error::new(Kind::InvalidConfig, why));
        self.retry.check()?;
        if self.lease < Duration::from_millis(300) {
            return bad("a lease under 300 ms cannot be kept: beats would not arrive in time");
        }
        if self.batch == 0 || self.concurrency == 0 || self.page_rows == 0 || self.lane_queue == 0 {
            return bad("batch, concurrency, page and queue sizes must be at least 1");
        }
        if self.topics.is_empty() {
            return bad("a subscription needs at least one topic filter; \"#\" wants everything");
        }
        Ok(())
    }

    /// Does the subscription want this event?
    pub fn wants(&self, event: &Event) -> bool {
        TopicFilter::any_wants(&self.topics, &event.topic, event.headers.get(header::INBOX))
    }

    /// How long before the lease ends an owner stops handing over.
    pub(crate) fn margin(&self) -> Duration {
        self.lease / 5
    }

    /// How soon the next requests are looked for while some are in hand: a rate of a replay is kept to this grain.
    pub(crate) fn beat_for_requests(&self) -> Duration {
        (self.lease / 40).max(Duration::from_millis(50))
    }

    /// How often life is signed (and others are watched).
    pub(crate) fn beat_every(&self, alone: bool) -> Duration {
        if alone { self.lease / 2 } else { self.lease / 10 }
    }
}
