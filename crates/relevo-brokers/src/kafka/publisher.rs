use super::answer::{self, Answer, refused};
use super::config::KafkaConfig;
use super::connect::{Asked, Connection};
use super::watch::{Report, Ticket};
use super::window::{Room, Window};
use super::{NAME, capabilities, headers, rights, topic};
use crate::patience::{NO_TURN, by, longer_than, over_in};
use async_trait::async_trait;
use futures::future::join_all;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::BaseRecord;
use relevo_core::broker::{Capabilities, Confirm, Publisher};
use relevo_core::error::ErrorClass;
use relevo_core::event::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant as Latest, timeout};

/// A topic that was just made is not known to every broker yet: so often, and after such a pause, one that was never
/// missed before is asked for again.
const ASK_AGAIN: (u32, Duration) = (2, Duration::from_millis(150));

const CLOSED: &str = "the publisher is closed";

/// So many topics are remembered as being there, or as missing.
const TOPICS_KNOWN: usize = 10_000;

/// Publishes by an idempotent producer: topic = topic, key = key, one delivery report for each message.
///
/// Stored means that every replica that is in step has it (`acks=all`), at least `min.insync.replicas` of them.
pub struct KafkaPublisher {
    config: KafkaConfig,
    window: Window,
    slot: Mutex<Slot>,
    /// Topics that are there.
    known: Lock<BTreeSet<String>>,
    questions: Mutex<Questions>,
    /// Nothing new is taken.
    closed: AtomicBool,
}

#[derive(Default)]
struct Slot {
    /// Batches many messages in one request.
    shared: Option<Arc<Connection>>,
    /// One message in a request: for those whose batch was refused.
    single: Option<Arc<Connection>>,
}

/// One question at a time.
#[derive(Default)]
struct Questions {
    /// When one had no answer, and why: who waited for that need not ask again.
    failed: Option<(Instant, String)>,
    missing: BTreeSet<String>,
}

/// A message on its way, or what is known of it already.
enum Sent {
    Waits(oneshot::Receiver<Report>),
    Known(Confirm),
}

impl KafkaPublisher {
    /// Publishes as `config` says; connects at the first event.
    pub fn new(config: KafkaConfig) -> Self {
        let window = Window::new(config.max_in_flight, config.max_in_flight_bytes);
        let (slot, known, questions) = (Mutex::default(), Lock::default(), Mutex::default());
        Self { config, window, slot, known, questions, closed: AtomicBool::new(false) }
    }

    /// The servers without anything secret.
    pub fn address(&self) -> String {
        self.config.address()
    }

    async fn connection(&self, single: bool) -> Result<Arc<Connection>, String> {
        let mut slot = self.slot.lock().await;
        if self.is_closed() {
            return Err(CLOSED.into());
        }
        let wanted = if single { &mut slot.single } else { &mut slot.shared };
        if let Some(open) = wanted.as_ref().filter(|open| open.is_usable()) {
            return Ok(open.clone());
        }
        let opened = Connection::open(&self.client(single)).map_err(|error| error.to_string())?;
        Ok(wanted.insert(Arc::new(opened)).clone())
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn client(&self, single: bool) -> ClientConfig {
        let mut client = self.config.producer();
        if single {
            client.set("batch.num.messages", "1");
        }
        client
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whether the brokers are there and have these topics. What is refused because of its topic, and why;
    /// an error if nobody answers.
    async fn look(
        &self,
        connection: &Arc<Connection>,
        topics: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Confirm>, String> {
        if connection.watch().is_some_and(|watch| watch.take_trouble()) {
            self.known().clear();
        }
        let mut refused = BTreeMap::new();
        for topic in topics {
            if self.known().contains(topic) {
                continue;
            }
            if let Some(why) = self.ask(connection, topic).await? {
                refused.insert(topic.clone(), why);
            }
        }
        Ok(refused)
    }

    async fn ask(
        &self,
        connection: &Arc<Connection>,
        topic: &str,
    ) -> Result<Option<Confirm>, String> {
        let asked = Instant::now();
        let mut questions = self.questions.lock().await;
        if let Some((when, why)) = &questions.failed
            && *when >= asked
        {
            return Err(why.clone());
        }
        match self.answer(connection, topic, &mut questions.missing).await {
            Asked::There(_) => {
                self.note(topic);
                Ok(None)
            }
            Asked::Missing => {
                let why = format!("the topic {topic} is not there");
                Ok(Some(refused(ErrorClass::Permanent, why)))
            }
            Asked::Forbidden(_) => {
                Ok(Some(refused(ErrorClass::Transient, rights::unwritten(topic))))
            }
            Asked::NoAnswer(why) => {
                let why = connection.explained(why);
                questions.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    async fn answer(
        &self,
        connection: &Arc<Connection>,
        topic: &str,
        missing: &mut BTreeSet<String>,
    ) -> Asked {
        let mut asked = self.question(connection, topic).await;
        let mut patience = if missing.contains(topic) { 0 } else { ASK_AGAIN.0 };
        while asked == Asked::Missing && patience > 0 {
            patience -= 1;
            tokio::time::sleep(ASK_AGAIN.1).await;
            asked = self.question(connection, topic).await;
        }
        if missing.len() >= TOPICS_KNOWN {
            missing.clear();
        }
        match asked {
            Asked::Missing => missing.insert(topic.to_owned()),
            _ => missing.remove(topic),
        };
        asked
    }

    async fn question(&self, connection: &Arc<Connection>, topic: &str) -> Asked {
        let (asking, name) = (connection.clone(), topic.to_owned());
        let limit = self.config.connect_timeout;
        let answer = tokio::task::spawn_blocking(move || asking.ask(&name, limit)).await;
        answer.unwrap_or_else(|error| Asked::NoAnswer(error.to_string()))
    }

    fn note(&self, topic: &str) {
        let mut known = self.known();
        if known.len() >= TOPICS_KNOWN {
            known.clear();
        }
        known.insert(topic.to_owned());
    }

    /// Hands a message to the client, which takes it in the order of these calls; not after `latest`.
    async fn send(
        &self,
        connection: &Connection,
        (event, topic): (&Event, &str),
        latest: Latest,
    ) -> Sent {
        let closed = || Sent::Known(Confirm::Down { error: CLOSED.into() });
        let late = || Sent::Known(Confirm::Down { error: NO_TURN.into() });
        let (Some(producer), Some(watch)) = (connection.producer(), connection.watch()) else {
            return closed();
        };
        let Some(room) = by(latest, self.window.enter(event.payload.len())).await else {
            return late();
        };
        // Asked only now: who has room is waited for by a close, and who comes after it is not sent.
        if self.is_closed() {
            return closed();
        }
        let (mut record, answered) = self.record(event, topic, room);
        loop {
            let delivered = watch.delivered.notified();
            tokio::pin!(delivered);
            delivered.as_mut().enable();
            record = match producer.send(record) {
                Ok(()) => return Sent::Waits(answered),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => back,
                Err((error, _)) => {
                    return Sent::Known(untaken(connection, topic, &error));
                }
            };
            if by(latest, delivered).await.is_none() {
                return late();
            }
        }
    }

    fn record<'e>(
        &self,
        event: &'e Event,
        topic: &'e str,
        room: Room,
    ) -> (BaseRecord<'e, str, [u8], Box<Ticket>>, oneshot::Receiver<Report>) {
        let (answer, answered) = oneshot::channel();
        let ticket = Box::new(Ticket { answer, _room: Some(room) });
        let record = BaseRecord::with_opaque_to(topic, ticket)
            .payload(&event.payload[..])
            .headers(headers::of(event, &self.config.source));
        match &event.key {
            Some(key) => (record.key(key.as_str()), answered),
            None => (record, answered),
        }
    }

    /// All messages over one producer, each with what its report means.
    async fn send_all(
        &self,
        connection: &Connection,
        messages: &[(&Event, &str)],
        latest: Latest,
    ) -> Vec<Answer> {
        let mut sent = Vec::with_capacity(messages.len());
        for message in messages {
            sent.push(self.send(connection, *message, latest).await);
        }
        let answers = sent.into_iter().zip(messages).map(async |(sent, (_, topic))| match sent {
            Sent::Known(confirm) => Answer::Own(confirm),
            Sent::Waits(answered) => self.understand(connection, topic, answered.await.ok()),
        });
        join_all(answers).await
    }

    fn understand(&self, connection: &Connection, topic: &str, report: Option<Report>) -> Answer {
        // The producer ended before it reported.
        let report = report.unwrap_or(Err(RDKafkaErrorCode::PurgeInflight));
        if report.is_err() {
            self.known().remove(topic);
        }
        match report {
            Err(code) if answer::is_forbidden(code, connection.could_never_write()) => {
                Answer::Own(refused(ErrorClass::Transient, rights::unwritten(topic)))
            }
            report => answer::meaning(report),
        }
    }

    /// Sends again, each alone, what was refused together with others.
    async fn send_single(&self, messages: &[(&Event, &str)], latest: Latest) -> Vec<Confirm> {
        match self.connection(true).await {
            Ok(connection) => {
                let answers = self.send_all(&connection, messages, latest).await;
                answers.into_iter().map(Answer::alone).collect()
            }
            Err(error) => messages.iter().map(|_| Confirm::Down { error: error.clone() }).collect(),
        }
    }

    async fn publish_to(
        &self,
        connection: &Arc<Connection>,
        events: &[&Event],
    ) -> Result<Vec<Confirm>, String> {
        let mut batch = Batch::new(events, &self.config);
        let asking = self.config.connect_timeout.saturating_add(self.config.ack_timeout);
        let missing = timeout(asking, self.look(connection, &batch.distinct())).await;
        let missing = missing.map_err(|_| format!("no answer for each topic within {asking:?}"))?;
        batch.refuse(&missing?);
        let open = batch.open();
        let latest = over_in(self.config.ack_timeout);
        let answers = self.send_all(connection, &batch.messages(&open), latest).await;
        let again = batch.answer(open, answers);
        if !again.is_empty() {
            let confirms = self.send_single(&batch.messages(&again), latest).await;
            batch.confirm(again, confirms);
        }
        Ok(batch.finish())
    }
}

/// What is known of a message that the client did not take.
fn untaken(connection: &Connection, topic: &str, error: &KafkaError) -> Confirm {
    let code = error.rdkafka_error_code();
    if code.is_some_and(|code| answer::is_forbidden(code, connection.may_not_write())) {
        return refused(ErrorClass::Transient, rights::unwritten(topic));
    }
    answer::untaken(code, error.to_string())
}

/// Messages that are published together, and what is known of each.
struct Batch<'e> {
    events: &'e [&'e Event],
    topics: Vec<String>,
    confirms: Vec<Option<Confirm>>,
}

impl<'e> Batch<'e> {
    fn new(events: &'e [&'e Event], config: &KafkaConfig) -> Self {
        let (topics, confirms) = events
            .iter()
            .map(|event| match topic::of(&event.topic, config) {
                Ok(topic) => (topic, None),
                Err(why) => (String::new(), Some(refused(ErrorClass::Poison, why))),
            })
            .unzip();
        Self { events, topics, confirms }
    }

    /// Those that nothing is known of yet.
    fn open(&self) -> Vec<usize> {
        (0..self.events.len()).filter(|at| self.confirms[*at].is_none()).collect()
    }

    fn distinct(&self) -> BTreeSet<String> {
        self.open().into_iter().map(|at| self.topics[at].clone()).collect()
    }

    fn messages(&self, of: &[usize]) -> Vec<(&'e Event, &str)> {
        of.iter().map(|at| (self.events[*at], self.topics[*at].as_str())).collect()
    }

    fn refuse(&mut self, topics: &BTreeMap<String, Confirm>) {
        for at in self.open() {
            self.confirms[at] = topics.get(&self.topics[at]).cloned();
        }
    }

    /// Takes answers; those who have none of their own are told.
    fn answer(&mut self, of: Vec<usize>, answers: Vec<Answer>) -> Vec<usize> {
        let mut again = Vec::new();
        for (at, answer) in of.into_iter().zip(answers) {
            if matches!(answer, Answer::Batch(_)) {
                again.push(at);
            }
            self.confirms[at] = Some(answer.alone());
        }
        again
    }

    fn confirm(&mut self, of: Vec<usize>, confirms: Vec<Confirm>) {
        for (at, confirm) in of.into_iter().zip(confirms) {
            self.confirms[at] = Some(confirm);
        }
    }

    fn finish(self) -> Vec<Confirm> {
        let lost = || Confirm::Unknown { error: "no answer was kept for it".into() };
        self.confirms.into_iter().map(|confirm| confirm.unwrap_or_else(lost)).collect()
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let published = match self.connection(false).await {
            Ok(connection) => self.publish_to(&connection, events).await,
            Err(error) => Err(error),
        };
        published.unwrap_or_else(|error| {
            events.iter().map(|_| Confirm::Down { error: error.clone() }).collect()
        })
    }

    /// The questions for its topics, its turn, the report, and once more a report for what goes again alone: each of these
    /// ends by itself.
    fn publish_limit(&self) -> Option<Duration> {
        let KafkaConfig { ack_timeout, connect_timeout, .. } = &self.config;
        Some(longer_than([ack_timeout.saturating_mul(4), *connect_timeout]))
    }

    /// More would wait for room that these have.
    fn largest_wave(&self) -> usize {
        self.config.max_in_flight
    }

    fn window(&self) -> Option<usize> {
        Some(self.config.max_in_flight)
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut slot = self.slot.lock().await;
        let open = [slot.shared.take(), slot.single.take()];
        drop(slot);
        let drained = tokio::time::timeout(self.config.ack_timeout, self.window.drained()).await;
        if drained.is_err() {
            tracing::warn!("closed with messages under way whose fate is unknown");
        }
        for connection in open.into_iter().flatten() {
            connection.purge();
        }
    }
}
