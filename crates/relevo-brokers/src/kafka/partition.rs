use super::delivery::Delivery;
use super::group::Member;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::KafkaError;
use relevo_core::broker::{Source, Tag};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A record that somebody works on, or that waits to be worked on again.
pub(super) struct Held {
    pub(super) tag: Tag,
    pub(super) delivery: Arc<Delivery>,
    /// How often it was handed out.
    pub(super) times: u32,
    /// When it is to be handed out again.
    due: Option<Instant>,
}

/// A partition that is ours for now.
pub(super) struct Partition {
    pub(super) source: Source,
    queue: Option<PartitionQueue<Member>>,
    /// Read from the client, not handed out yet.
    ahead: VecDeque<Delivery>,
    held: BTreeMap<i64, Held>,
    /// One past the last record that was handed out.
    next: Option<i64>,
    /// What the broker knows of.
    committed: Option<i64>,
    /// Commits that are under way.
    pub(super) committing: usize,
    pub(super) paused: bool,
    /// It goes to another consumer as soon as what is held is settled.
    pub(super) leaving: bool,
}

impl Partition {
    pub(super) fn new(source: Source, queue: Option<PartitionQueue<Member>>) -> Self {
        Self {
            source,
            queue,
            ahead: VecDeque::new(),
            held: BTreeMap::new(),
            next: None,
            committed: None,
            committing: 0,
            paused: false,
            leaving: false,
        }
    }

    /// A record that came before the partition had a queue of its own.
    pub(super) fn came_early(&mut self, delivery: Delivery) {
        self.ahead.push_back(delivery);
    }

    /// The next record that was not handed out yet, read from the client.
    pub(super) fn read(&mut self) -> Result<Option<Delivery>, KafkaError> {
        if let Some(delivery) = self.ahead.pop_front() {
            return Ok(Some(delivery));
        }
        let polled = self.queue.as_ref().and_then(|queue| queue.poll(Duration::ZERO));
        Ok(polled.transpose()?.map(|message| Delivery::read(&message)))
    }

    /// There was no room for it.
    pub(super) fn unread(&mut self, delivery: Delivery) {
        self.ahead.push_front(delivery);
    }

    pub(super) fn hold(&mut self, tag: Tag, delivery: Delivery) -> &Held {
        let offset = delivery.offset;
        self.next = Some(offset + 1);
        let held = Held { tag, delivery: Arc::new(delivery), times: 1, due: None };
        self.held.entry(offset).or_insert(held)
    }

    pub(super) fn held(&self, offset: i64) -> Option<&Held> {
        self.held.get(&offset)
    }

    /// Nothing new of it comes while one of its records is tried again: the order is kept.
    pub(super) fn is_retrying(&self) -> bool {
        self.held.values().any(|held| held.due.is_some() || held.times > 1)
    }

    /// When the first record that waits is due.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.paused { None } else { self.held.values().find_map(|held| held.due) }
    }

    /// The first record that waits, if it is due, under a new tag; and its tag before.
    pub(super) fn again(&mut self, now: Instant, tag: Tag) -> Option<(&Held, Tag)> {
        let first = self.held.values_mut().find(|held| held.due.is_some())?;
        if first.due.is_some_and(|due| due > now) {
            return None;
        }
        first.due = None;
        first.times += 1;
        let before = std::mem::replace(&mut first.tag, tag);
        Some((first, before))
    }

    pub(super) fn retry(&mut self, offset: i64, due: Instant) {
        if let Some(held) = self.held.get_mut(&offset) {
            held.due = Some(due);
        }
    }

    /// It is done with; its bytes, if it was held.
    pub(super) fn forget(&mut self, offset: i64) -> Option<usize> {
        self.held.remove(&offset).map(|held| held.delivery.bytes())
    }

    /// How many records are held, and how many bytes.
    pub(super) fn held_total(&self) -> (usize, usize) {
        (self.held.len(), self.held.values().map(|held| held.delivery.bytes()).sum())
    }

    /// Everything before this offset is settled; `None` if the broker knows that already.
    pub(super) fn to_commit(&self) -> Option<i64> {
        self.settled().filter(|at| self.committed.is_none_or(|committed| committed < *at))
    }

    /// The first offset that is not settled.
    pub(super) fn settled(&self) -> Option<i64> {
        let next = self.next?;
        Some(self.held.keys().next().copied().unwrap_or(next))
    }

    pub(super) fn note_commit(&mut self, at: i64) {
        self.committed = self.committed.max(Some(at));
    }

    /// Nobody works on it any more.
    pub(super) fn is_drained(&self) -> bool {
        let at_work = self.held.values().any(|held| held.due.is_none());
        !at_work && self.committing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::delivery::Place;
    use super::*;

    fn partition(offsets: &[i64]) -> Partition {
        let mut partition = Partition::new(Source::named("t/0"), None);
        for offset in offsets {
            let tag = Tag(u64::try_from(*offset).unwrap());
            partition
                .hold(tag, Delivery::empty(Place { topic: "t".into(), partition: 0 }, *offset));
        }
        partition
    }

    #[test]
    fn only_what_is_settled_without_a_gap_is_committed() {
        let mut partition = partition(&[5, 6, 9]);
        assert_eq!(partition.to_commit(), Some(5));
        partition.forget(6);
        assert_eq!(partition.to_commit(), Some(5), "5 is not settled");
        partition.forget(5);
        assert_eq!(partition.to_commit(), Some(9));
        partition.note_commit(9);
        assert_eq!(partition.to_commit(), None);
        partition.forget(9);
        assert_eq!(partition.to_commit(), Some(10));
        assert_eq!(Partition::new(Source::named("t/1"), None).to_commit(), None);
    }

    #[test]
    fn what_is_tried_again_holds_up_what_follows_until_it_is_settled() {
        let mut partition = partition(&[1, 2]);
        let now = Instant::now();
        partition.retry(2, now);
        partition.retry(1, now + Duration::from_secs(5));
        assert!(partition.again(now, Tag(11)).is_none(), "the first waits, so does the second");
        let later = now + Duration::from_secs(6);
        let (held, before) = partition.again(later, Tag(11)).unwrap();
        assert_eq!((held.delivery.offset, before, held.times), (1, Tag(1), 2));
        assert_eq!(partition.again(later, Tag(12)).unwrap().0.delivery.offset, 2);
        partition.forget(1);
        assert!(partition.is_retrying());
        partition.forget(2);
        assert!(!partition.is_retrying() && partition.is_drained());
    }
}
