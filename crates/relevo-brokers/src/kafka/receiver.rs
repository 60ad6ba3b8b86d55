use super::config::KafkaConfig;
use super::connect::failed;
use super::dead_letters::DeadLetters;
use super::delivery::{Delivery, Place};
use super::group::{Member, Shared, State};
use super::partition::Partition;
use super::rights;
use super::subscriber::KafkaConsumer;
use async_trait::async_trait;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use relevo_core::broker::{Incoming, Received, Receiver, Settle, Source, Tag};
use relevo_core::error::{Error, Kind, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// So long a close waits until the group is left.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// A group in the middle of a rebalance takes no commits: so often, and after such a pause, it is told again.
const COMMIT_AGAIN: (u32, Duration) = (50, Duration::from_millis(100));

/// Who settles for longer than this is told that it does not work.
const FAR: Duration = Duration::from_secs(3600);

/// Messages of the partitions that are ours.
pub(super) struct KafkaReceiver {
    wanted: KafkaConsumer,
    consumer: Option<Arc<BaseConsumer<Member>>>,
    shared: Arc<Shared>,
    dead_letters: DeadLetters,
    left: Option<oneshot::Receiver<()>>,
    last_tag: u64,
    /// The partition that was served last: the others come first.
    served: Option<Place>,
}

impl KafkaReceiver {
    pub(super) fn new(
        config: KafkaConfig,
        wanted: KafkaConsumer,
        consumer: Arc<BaseConsumer<Member>>,
        shared: Arc<Shared>,
        left: oneshot::Receiver<()>,
    ) -> Self {
        let dead_letters = DeadLetters::new(config, wanted.dead_letters.clone());
        let (consumer, left) = (Some(consumer), Some(left));
        Self { wanted, consumer, shared, dead_letters, left, last_tag: 0, served: None }
    }

    /// What there is to say at this moment.
    fn now(&mut self, max: usize) -> Result<Option<Received>> {
        let shared = self.shared.clone();
        shared.check()?;
        let mut state = shared.state();
        if let Some(source) = state.revoked.pop_front() {
            return Ok(Some(Received::Revoked(source)));
        }
        for place in self.in_turn(&state) {
            let messages = self.page(&mut state, &place, max)?;
            if messages.is_empty() {
                continue;
            }
            self.served = Some(place.clone());
            if let Some(partition) = state.partitions.get(&place) {
                return Ok(Some(Received::Messages { source: partition.source.clone(), messages }));
            }
        }
        Ok(None)
    }

    /// The partitions, beginning with the one after that which was served last.
    fn in_turn(&self, state: &State) -> Vec<Place> {
        let open = state.partitions.iter().filter(|(_, one)| !one.paused && !one.leaving);
        let mut places: Vec<Place> = open.map(|(place, _)| place.clone()).collect();
        let after = |served: &Place| places.iter().position(|place| place > served);
        let first = self.served.as_ref().and_then(after).unwrap_or(0);
        places.rotate_left(first);
        places
    }

    fn page(&mut self, state: &mut State, place: &Place, max: usize) -> Result<Vec<Incoming>> {
        let mut messages = Vec::new();
        while messages.len() < max {
            match self.one(state, place)? {
                Some(incoming) => messages.push(incoming),
                None => break,
            }
        }
        Ok(messages)
    }

    /// The next message of a partition: one that is tried again, or a new one if there is room.
    fn one(&mut self, state: &mut State, place: &Place) -> Result<Option<Incoming>> {
        let held = state.held;
        let tag = Tag(self.last_tag + 1);
        let Some(partition) = state.partitions.get_mut(place) else { return Ok(None) };
        let incoming = if partition.is_retrying() {
            let Some((held, before)) = partition.again(Instant::now(), tag) else {
                return Ok(None);
            };
            let (incoming, offset) =
                (held.delivery.incoming(tag, held.times), held.delivery.offset);
            state.tags.remove(&before);
            state.tags.insert(tag, (place.clone(), offset));
            incoming
        } else {
            let fresh = self.fresh(partition, held);
            let fresh = fresh.map_err(|error| self.ended(&error, &place.topic))?;
            let Some(delivery) = fresh else { return Ok(None) };
            let offset = delivery.offset;
            state.held = (held.0 + 1, held.1 + delivery.bytes());
            let incoming = partition.hold(tag, delivery).delivery.incoming(tag, 1);
            state.tags.insert(tag, (place.clone(), offset));
            incoming
        };
        self.last_tag += 1;
        Ok(Some(incoming))
    }

    /// A message that was not handed out before, if there is room for it.
    fn fresh(
        &self,
        partition: &mut Partition,
        (count, bytes): (usize, usize),
    ) -> std::result::Result<Option<Delivery>, KafkaError> {
        if count >= self.wanted.max_unsettled {
            return Ok(None);
        }
        let Some(delivery) = partition.read()? else { return Ok(None) };
        // What is too large for the whole window comes alone.
        if count > 0 && bytes + delivery.bytes() > self.wanted.max_unsettled_bytes {
            partition.unread(delivery);
            return Ok(None);
        }
        Ok(Some(delivery))
    }

    /// Why it does not go on.
    fn ended(&self, error: &KafkaError, topic: &str) -> Error {
        let (code, said) = (error.rdkafka_error_code(), error.to_string());
        let (kind, why) = rights::consuming(code, said, topic, &self.wanted.group);
        failed(kind, why)
    }

    /// When something that waits is due.
    fn due(&self) -> Instant {
        let state = self.shared.state();
        let due = state.partitions.values().filter_map(Partition::due).min();
        due.unwrap_or_else(|| Instant::now() + FAR)
    }

    /// Marks what is done and what is to come again; what is to be put away is left to do.
    fn mark<'s>(&self, settled: &'s [(Tag, Settle)]) -> Vec<(Tag, &'s str)> {
        let mut dead = Vec::new();
        let mut state = self.shared.state();
        for (tag, settle) in settled {
            match settle {
                Settle::RetryAfter(after) => retry(&mut state, *tag, *after),
                Settle::Dead { reason } => dead.push((*tag, reason.as_str())),
                _ => forget(&mut state, *tag),
            }
        }
        dead
    }

    async fn put_away(&mut self, tag: Tag, reason: &str) -> Result<()> {
        let held = {
            let state = self.shared.state();
            let place = state.tags.get(&tag);
            let held = place.and_then(|(place, at)| state.partitions.get(place)?.held(*at));
            held.map(|held| (held.delivery.clone(), held.times))
        };
        let Some((delivery, times)) = held else { return Ok(()) };
        self.dead_letters.store(&delivery, times, reason).await?;
        forget(&mut self.shared.state(), tag);
        Ok(())
    }

    /// Tells the broker how far every partition is settled, and waits for its answer.
    async fn commit(&self) -> Result<()> {
        let gone = || failed(Kind::DestinationDown, "the receiver is closed");
        let consumer = self.consumer.clone().ok_or_else(gone)?;
        let offsets = self.to_commit();
        if offsets.is_empty() {
            return Ok(());
        }
        let shared = self.shared.clone();
        // Also if nobody waits for it any more it must end as it began.
        let committing = tokio::task::spawn_blocking(move || {
            let told = tell(&consumer, &offsets);
            let mut state = shared.state();
            for (place, at) in &offsets {
                if let Some(partition) = state.partitions.get_mut(place) {
                    partition.committing = partition.committing.saturating_sub(1);
                    if told.is_ok() {
                        partition.note_commit(*at);
                    }
                }
            }
            told
        });
        let told = committing.await;
        let told = told.map_err(|error| failed(Kind::DestinationDown, error.to_string()))?;
        told.map_err(|error| {
            let ended = self.ended(&error, &self.wanted.topics.join(", "));
            failed(ended.kind(), format!("a settlement was not taken: {}", ended.message()))
        })
    }

    fn to_commit(&self) -> Vec<(Place, i64)> {
        let mut offsets = Vec::new();
        for (place, partition) in &mut self.shared.state().partitions {
            if let Some(at) = partition.to_commit() {
                partition.committing += 1;
                offsets.push((place.clone(), at));
            }
        }
        offsets
    }

    fn set_paused(&self, source: &Source, paused: bool) {
        let mut state = self.shared.state();
        for partition in state.partitions.values_mut().filter(|one| one.source == *source) {
            partition.paused = paused;
        }
    }

    /// Leaves the group, in the listener's thread.
    fn leave(&mut self) -> Option<oneshot::Receiver<()>> {
        drop(self.consumer.take());
        self.shared.close();
        self.left.take()
    }
}

fn forget(state: &mut State, tag: Tag) {
    let Some((place, offset)) = state.tags.remove(&tag) else { return };
    let partition = state.partitions.get_mut(&place);
    if let Some(bytes) = partition.and_then(|partition| partition.forget(offset)) {
        state.held = (state.held.0 - 1, state.held.1 - bytes);
    }
}

fn retry(state: &mut State, tag: Tag, after: Duration) {
    // The tag is settled: what comes again has another.
    let Some((place, offset)) = state.tags.remove(&tag) else { return };
    if let Some(partition) = state.partitions.get_mut(&place) {
        partition.retry(offset, Instant::now() + after);
    }
}

/// Commits offsets. Who does not own a partition any more has nothing to say about it, and need not know.
fn tell(
    consumer: &BaseConsumer<Member>,
    offsets: &[(Place, i64)],
) -> std::result::Result<(), KafkaError> {
    let mut list = TopicPartitionList::new();
    for (place, at) in offsets {
        list.add_partition_offset(&place.topic, place.partition, Offset::Offset(*at))?;
    }
    let mut told = Ok(());
    for again in 0..COMMIT_AGAIN.0 {
        if again > 0 {
            std::thread::sleep(COMMIT_AGAIN.1);
        }
        told = consumer.commit(&list, CommitMode::Sync);
        match &told {
            Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::RebalanceInProgress)) => {}
            Err(KafkaError::ConsumerCommit(code)) if is_stale(*code) => return Ok(()),
            _ => break,
        }
    }
    told
}

fn is_stale(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::IllegalGeneration
            | Code::UnknownMemberId
            | Code::FencedInstanceId
            | Code::StaleMemberEpoch
            | Code::AssignmentLost
            | Code::NoOffset
    )
}

#[async_trait]
impl Receiver for KafkaReceiver {
    async fn next(&mut self, max: usize) -> Result<Received> {
        let shared = self.shared.clone();
        loop {
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(received) = self.now(max.max(1))? {
                return Ok(received);
            }
            tokio::select! {
                () = &mut changed => {}
                () = sleep_until(self.due()) => {}
            }
        }
    }

    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        self.shared.check()?;
        for (tag, reason) in self.mark(settled) {
            self.put_away(tag, reason).await?;
        }
        self.commit().await
    }

    async fn pause(&mut self, source: &Source) -> Result<()> {
        self.set_paused(source, true);
        Ok(())
    }

    async fn resume(&mut self, source: &Source) -> Result<()> {
        self.set_paused(source, false);
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        if let Some(left) = self.leave()
            && tokio::time::timeout(CLOSE_LIMIT, left).await.is_err()
        {
            tracing::warn!(group = self.wanted.group, "the group was not left in time");
        }
        Ok(())
    }
}

impl Drop for KafkaReceiver {
    fn drop(&mut self) {
        self.leave();
    }
}
