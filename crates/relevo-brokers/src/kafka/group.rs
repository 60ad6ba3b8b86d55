//! A member of a consumer group: what the group's broker says, and what belongs to us because of it.
//!
//! A thread of its own listens to the client, so that a consumer that is slow, or that waits for its own work, still
//! takes part in its group. When a partition is to go to another member, it goes when what is held of it is settled,
//! or when that takes too long: so nothing is worked on twice.

use super::delivery::{Delivery, Place};
use super::partition::Partition;
use super::{lag, rights, watch};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::RDKafkaRespErr;
use relevo_core::broker::{Source, Tag};
use relevo_core::error::{Kind, Result};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// So long the thread waits for the client before it looks whether it is to end.
const LISTEN: Duration = Duration::from_millis(100);
/// The same while a partition is about to go.
const LISTEN_CLOSELY: Duration = Duration::from_millis(10);

/// What thread, receiver and client share.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Rings when there is something new.
    pub(super) changed: Notify,
    closing: AtomicBool,
    /// Why this member is over. It has a lock of its own: the client may say so while the state is at work.
    failed: Mutex<Option<(Kind, String)>>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) partitions: BTreeMap<Place, Partition>,
    /// What is held, by its tag.
    pub(super) tags: HashMap<Tag, (Place, i64)>,
    /// How many messages are held, and how many bytes.
    pub(super) held: (usize, usize),
    /// Taken away, and not told yet.
    pub(super) revoked: VecDeque<Source>,
    /// What the metric of the lag has of these partitions.
    pub(super) shown: lag::Shown,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member leaves its group; what it held goes to the others.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    /// An error if this member is over.
    pub(super) fn check(&self) -> Result<()> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failed {
            Some((kind, why)) => Err(super::connect::failed(*kind, why.clone())),
            None => Ok(()),
        }
    }

    fn fail(&self, why: (Kind, String)) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.changed.notify_waiters();
    }
}

/// A rebalance of the group, as far as it is about us.
enum Change {
    Given(TopicPartitionList),
    Taken(TopicPartitionList),
}

/// What the client tells us, beside messages.
pub(super) struct Member {
    group: String,
    topics: String,
    shared: Arc<Shared>,
    changes: Mutex<VecDeque<Change>>,
    watch: watch::Watch,
}

impl Member {
    pub(super) fn new(group: &str, topics: &[String], shared: Arc<Shared>) -> Self {
        let (group, topics) = (group.to_owned(), topics.join(", "));
        Self { group, topics, shared, changes: Mutex::default(), watch: watch::Watch::default() }
    }

    /// What the client complained about last.
    pub(super) fn complaint(&self) -> Option<watch::Complaint> {
        self.watch.complaint()
    }

    fn end(&self, code: Option<RDKafkaErrorCode>, said: String) {
        self.shared.fail(rights::consuming(code, said, &self.topics, &self.group));
    }

    fn changes(&self) -> MutexGuard<'_, VecDeque<Change>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Member {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        watch::log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.watch.complain(&error, reason);
        let code = error.rdkafka_error_code();
        if code.is_some_and(is_final) {
            self.end(code, reason.to_owned());
        }
    }

    fn stats(&self, statistics: Statistics) {
        lag::show(&self.group, &self.shared, &statistics);
    }
}

impl ConsumerContext for Member {
    /// Called while the client is listened to. What is taken away goes later, when it is drained; a member that ends
    /// gives everything at once.
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let given = event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.shared.closing.load(Ordering::SeqCst) {
            if !given {
                log_failure(take_away(consumer, partitions));
            }
            return;
        }
        let change = if given { Change::Given } else { Change::Taken };
        self.changes().push_back(change(partitions.clone()));
    }
}

/// Errors after which this member gets nothing any more.
fn is_final(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::InvalidGroupId
            | Code::InconsistentGroupProtocol
            | Code::FencedInstanceId
            | Code::Fatal
    )
}

fn take_away<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &TopicPartitionList,
) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(partitions),
        _ => consumer.unassign(),
    }
}

fn log_failure(result: KafkaResult<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "Kafka: a rebalance could not be carried out");
    }
}

/// Listens to the client until the member is closed, then leaves the group.
pub(super) struct Listener {
    consumer: Arc<BaseConsumer<Member>>,
    shared: Arc<Shared>,
    /// So long a partition that is to go waits for its work.
    handover: Duration,
    /// Changes in their order; the first waits since then.
    pending: VecDeque<Change>,
    since: Option<Instant>,
}

impl Listener {
    /// Starts the thread; the receiver of the answer is told when the group is left.
    pub(super) fn start(
        consumer: Arc<BaseConsumer<Member>>,
        shared: Arc<Shared>,
        handover: Duration,
    ) -> std::io::Result<tokio::sync::oneshot::Receiver<()>> {
        let (left, has_left) = tokio::sync::oneshot::channel();
        let listener = Self { consumer, shared, handover, pending: VecDeque::new(), since: None };
        std::thread::Builder::new().name("relevo-kafka".into()).spawn(move || {
            listener.listen();
            drop(left);
        })?;
        Ok(has_left)
    }

    fn listen(mut self) {
        while !self.shared.closing.load(Ordering::SeqCst) {
            let wait = if self.pending.is_empty() { LISTEN } else { LISTEN_CLOSELY };
            match self.consumer.poll(wait) {
                Some(Ok(message)) => self.early(Delivery::read(&message)),
                Some(Err(error)) => self.complaint(&error),
                None => {}
            }
            self.pending.extend(self.consumer.context().changes().drain(..));
            self.carry_out();
        }
        let gone = std::mem::take(&mut self.shared.state().partitions);
        lag::forget(&self.consumer.context().group, &self.shared, gone.values());
        // Their queues must be gone before the client ends.
        drop(gone);
    }

    fn complaint(&self, error: &KafkaError) {
        let fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
        let code = error.rdkafka_error_code();
        if fatal || code.is_some_and(is_final) {
            self.consumer.context().end(code, error.to_string());
        } else {
            tracing::debug!(%error, "Kafka: a consumer's complaint");
        }
    }

    /// A message that came before its partition had a queue.
    fn early(&self, delivery: Delivery) {
        if let Some(partition) = self.shared.state().partitions.get_mut(&delivery.place) {
            partition.came_early(delivery);
        }
        self.shared.changed.notify_waiters();
    }

    /// Carries out what can be: each change waits for the one before it.
    fn carry_out(&mut self) {
        while let Some(change) = self.pending.pop_front() {
            let done = match &change {
                Change::Given(partitions) => self.take(partitions),
                Change::Taken(partitions) => self.give(partitions),
            };
            if !done {
                self.since.get_or_insert_with(Instant::now);
                self.pending.push_front(change);
                return;
            }
            self.since = None;
        }
    }

    fn take(&self, partitions: &TopicPartitionList) -> bool {
        log_failure(match self.consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => self.consumer.incremental_assign(partitions),
            _ => self.consumer.assign(partitions),
        });
        for place in places(partitions) {
            let mut queue = self.consumer.split_partition_queue(&place.topic, place.partition);
            if let Some(queue) = &mut queue {
                let shared = self.shared.clone();
                queue.set_nonempty_callback(move || shared.changed.notify_waiters());
            }
            let partition = Partition::new(Source::named(place.name()), queue);
            self.shared.state().partitions.insert(place, partition);
        }
        self.shared.changed.notify_waiters();
        true
    }

    /// Lets partitions go when nobody works on them, or has done so for too long. False if they are to wait.
    fn give(&self, partitions: &TopicPartitionList) -> bool {
        let lost = self.consumer.assignment_lost();
        let late = self.since.is_some_and(|since| since.elapsed() >= self.handover);
        let leaving = places(partitions);
        let mut state = self.shared.state();
        for place in &leaving {
            if let Some(partition) = state.partitions.get_mut(place) {
                partition.leaving = true;
                let committing = partition.committing > 0;
                if !lost && (committing || !(late || partition.is_drained())) {
                    return false;
                }
            }
        }
        let gone: Vec<Partition> =
            leaving.iter().filter_map(|place| state.partitions.remove(place)).collect();
        state.tags.retain(|_, (place, _)| !leaving.contains(place));
        for (count, bytes) in gone.iter().map(Partition::held_total) {
            state.held = (state.held.0 - count, state.held.1 - bytes);
        }
        state.revoked.extend(gone.iter().map(|partition| partition.source.clone()));
        drop(state);
        lag::forget(&self.consumer.context().group, &self.shared, gone.iter());
        drop(gone);
        log_failure(take_away(&self.consumer, partitions));
        self.shared.changed.notify_waiters();
        true
    }
}

fn places(partitions: &TopicPartitionList) -> Vec<Place> {
    let place = |(topic, partition): (String, i32)| Place { topic, partition };
    partitions.to_topic_map().into_keys().map(place).collect()
}
