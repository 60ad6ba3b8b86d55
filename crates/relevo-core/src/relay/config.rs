use crate::error::{Error, Kind, Result};
use crate::event::{Event, TopicFilter, header};
use crate::retry::RetryPolicy;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Batches at once where neither the configuration nor the destination says otherwise.
pub const CONCURRENCY: usize = 8;

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

/// Whether several events of one key may be under way to a broker at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Order is kept: one at a time, or several where the destination promises that a failure fails all later ones.
    #[default]
    Key,
    /// Order is kept by one at a time, whatever the destination promises.
    OneByOne,
    /// Order does not matter: a failed event may arrive after later ones of its key.
    Any,
}

impl Order {
    /// Every order there is.
    pub const ALL: [Self; 3] = [Self::Key, Self::OneByOne, Self::Any];

    /// The word used in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::OneByOne => "one_by_one",
            Self::Any => "any",
        }
    }

    /// Reads the word that [`Self::as_str`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.as_str() == text)
    }
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
    /// Whether several events of a key may be under way to a broker at once.
    pub order: Order,
    /// The destination promises that a publish that fails makes all later ones of its key fail.
    pub failure_fails_later: bool,
    /// How long a silent owner keeps its lanes.
    pub lease: Duration,
    /// Most events of one batch (one transaction for direct handlers).
    pub batch: usize,
    /// Most payload bytes of one batch; a larger event goes alone.
    pub batch_bytes: usize,
    /// Most batches under way at once; `None` leaves it to the destination.
    pub concurrency: Option<usize>,
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
    /// What a broker confirmed is recorded this late, so that many batches of many lanes share a transaction. A crash
    /// brings copies of what was confirmed meanwhile.
    pub record_every: Duration,
    /// A cursor that only passed events nobody wants is written this late.
    pub lazy_record: Duration,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            topics: vec![TopicFilter::all()],
            retry: RetryPolicy::default(),
            after_dead: AfterDead::Continue,
            order: Order::Key,
            failure_fails_later: false,
            lease: Duration::from_secs(10),
            batch: 50,
            batch_bytes: 2 << 20,
            concurrency: None,
            lane_queue: 500,
            page_rows: 4000,
            page_bytes: 2 << 20,
            queue_bytes: 8 << 20,
            poll: (Duration::from_millis(50), Duration::from_secs(2)),
            poll_with_doorbell: Duration::from_secs(30),
            max_parked_keys: 10_000,
            max_deaths_in_a_row: 100,
            one_transaction: true,
            record_every: Duration::from_millis(100),
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
        if [self.batch, self.batches_at_once(), self.page_rows, self.lane_queue].contains(&0) {
            return bad("batch, concurrency, page and queue sizes must be at least 1");
        }
        if self.topics.is_empty() {
            return bad("a subscription needs at least one topic filter; \"#\" wants everything");
        }
        Ok(())
    }

    /// Most batches under way at once.
    pub fn batches_at_once(&self) -> usize {
        self.concurrency.unwrap_or(CONCURRENCY)
    }

    /// Does the subscription want this event?
    pub fn wants(&self, event: &Event) -> bool {
        TopicFilter::any_wants(&self.topics, &event.topic, event.headers.get(header::INBOX))
    }

    /// May several events of a key be under way at once? Where a dead letter holds its key, what follows must not be
    /// on its way already.
    pub(crate) fn several_per_key(&self) -> bool {
        let allowed = match self.order {
            Order::OneByOne => false,
            Order::Key => self.failure_fails_later && self.after_dead == AfterDead::Continue,
            Order::Any => true,
        };
        allowed && !self.one_transaction
    }

    /// How long before the lease ends an owner stops handing over.
    pub(crate) fn margin(&self) -> Duration {
        self.lease / 5
    }

    /// How long a session may idle inside a handler's transaction where nothing else is said: whoever falls asleep in it
    /// holds its lane's row no longer than the lease.
    pub(crate) fn idle_limit(&self) -> Duration {
        self.lease - self.margin()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_its_word_and_no_other_word_is_one() {
        for order in Order::ALL {
            assert_eq!(Order::parse(order.as_str()), Some(order));
            assert_eq!(serde_json::to_value(order).unwrap(), order.as_str());
        }
        assert_eq!(Order::ALL.map(Order::as_str), ["key", "one_by_one", "any"]);
        assert_eq!((Order::parse(""), Order::parse("Key")), (None, None));
    }

    #[test]
    fn the_page_about_limits_tells_what_the_defaults_are() {
        let page = include_str!("../../../../docs/ARCHITECTURE.md");
        let config = RelayConfig::default();
        let mib = |bytes: usize| format!("{} MiB", bytes >> 20);
        let (rows, bytes) = (config.page_rows, mib(config.page_bytes));
        for told in [
            format!("`lane_queue` | {} |", config.lane_queue),
            format!("`record_every` | {} ms;", config.record_every.as_millis()),
            format!("`page_bytes` | {},{:03} rows, {bytes} |", rows / 1000, rows % 1000),
            format!("`queue_bytes` | {} |", mib(config.queue_bytes)),
            format!("`batch_bytes` | {}, {};", config.batch, mib(config.batch_bytes)),
            format!("`concurrency` | {CONCURRENCY}, or"),
            format!("`max_parked_keys` | {},000,", config.max_parked_keys / 1000),
        ] {
            assert!(page.contains(&told), "{told}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let config = RelayConfig::default;
        let shortest = Duration::from_millis(300);
        assert!(config().check().is_ok());
        assert!(RelayConfig { lease: shortest, ..config() }.check().is_ok());
        for (refused, why) in [
            (RelayConfig { lease: shortest - Duration::from_millis(1), ..config() }, "lease"),
            (RelayConfig { batch: 0, ..config() }, "at least 1"),
            (RelayConfig { concurrency: Some(0), ..config() }, "at least 1"),
            (RelayConfig { page_rows: 0, ..config() }, "at least 1"),
            (RelayConfig { lane_queue: 0, ..config() }, "at least 1"),
            (RelayConfig { topics: Vec::new(), ..config() }, "topic filter"),
        ] {
            let error = refused.check().unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidConfig);
            assert!(error.message().contains(why), "{error}");
        }
        let one =
            RelayConfig { batch: 1, concurrency: Some(1), page_rows: 1, lane_queue: 1, ..config() };
        assert!(one.check().is_ok());
    }

    #[test]
    fn requests_are_looked_for_forty_times_a_lease_but_not_all_the_time() {
        let every = |lease| RelayConfig { lease, ..RelayConfig::default() }.beat_for_requests();
        assert_eq!(every(Duration::from_secs(10)), Duration::from_millis(250));
        assert_eq!(every(Duration::from_millis(300)), Duration::from_millis(50));
    }
}
