use super::BINDING;
use super::config::QueueConfig;
use bytes::Bytes;
use relevo_core::broker::{Incoming, Tag, cloudevents, dead_header};
use relevo_core::clock::Instant;
use relevo_core::event::{Event, TopicFilter};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A message as it is stored.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// What filters are matched with.
    pub topic: String,
    /// An id of the sender's.
    pub message_id: Option<String>,
    /// Its media type.
    pub content_type: Option<String>,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// The bytes.
    pub payload: Bytes,
}

impl Message {
    /// A message of bytes.
    pub fn new(topic: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { topic: topic.into(), payload: payload.into(), ..Self::default() }
    }

    /// An event's, as Relevo writes it; `source` is where it is from, if it does not say so itself.
    pub fn of(event: &Event, source: &str) -> Self {
        Self {
            topic: event.topic.clone(),
            message_id: Some(event.id.to_string()),
            content_type: Some(event.content_type().to_owned()),
            headers: cloudevents::owned(cloudevents::write(event, source, &BINDING)),
            payload: event.payload.clone(),
        }
    }

    /// With this header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With this id.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }
}

struct Stored {
    message: Arc<Message>,
    /// How often it was handed out before.
    deliveries: u32,
    due: Option<Instant>,
}

struct Held {
    seq: u64,
    consumer: u64,
    stored: Stored,
}

/// What is stored, in its order, and who holds what of it.
pub(super) struct Queue {
    name: String,
    filters: Vec<TopicFilter>,
    config: QueueConfig,
    ready: BTreeMap<u64, Stored>,
    held: BTreeMap<Tag, Held>,
    /// In the order of their coming: with `exclusive` the first is served.
    consumers: Vec<u64>,
}

impl Queue {
    pub(super) fn new(name: &str, filters: Vec<TopicFilter>, config: QueueConfig) -> Self {
        Self {
            name: name.to_owned(),
            filters,
            config,
            ready: BTreeMap::new(),
            held: BTreeMap::new(),
            consumers: Vec::new(),
        }
    }

    pub(super) fn bind(&mut self, filters: Vec<TopicFilter>, config: QueueConfig) {
        (self.filters, self.config) = (filters, config);
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn config(&self) -> &QueueConfig {
        &self.config
    }

    pub(super) fn wants(&self, topic: &str) -> bool {
        self.filters.iter().any(|filter| filter.matches(topic))
    }

    pub(super) fn depth(&self) -> usize {
        self.ready.len() + self.held.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.depth() >= self.config.capacity
    }

    pub(super) fn push(&mut self, seq: u64, message: Arc<Message>) {
        self.ready.insert(seq, Stored { message, deliveries: 0, due: None });
    }

    pub(super) fn attach(&mut self, consumer: u64) {
        self.consumers.push(consumer);
    }

    /// What the consumer held comes again, at its old place.
    pub(super) fn detach(&mut self, consumer: u64) {
        self.consumers.retain(|other| *other != consumer);
        let tags: Vec<Tag> = self
            .held
            .iter()
            .filter(|(_, held)| held.consumer == consumer)
            .map(|(tag, _)| *tag)
            .collect();
        tags.into_iter().for_each(|tag| self.put_back(tag, None));
    }

    pub(super) fn forget_consumers(&mut self) {
        for consumer in std::mem::take(&mut self.consumers) {
            self.detach(consumer);
        }
    }

    fn put_back(&mut self, tag: Tag, due: Option<Instant>) {
        if let Some(Held { seq, stored, .. }) = self.held.remove(&tag) {
            let deliveries = stored.deliveries.saturating_add(1);
            self.ready.insert(seq, Stored { deliveries, due, ..stored });
        }
    }

    /// Where the next message stands that is due.
    pub(super) fn next(&self, now: Instant) -> Option<u64> {
        let is_due = |stored: &Stored| stored.due.is_none_or(|due| due <= now);
        self.ready.iter().find(|(_, stored)| is_due(stored)).map(|(seq, _)| *seq)
    }

    /// The next message that is due, for a consumer that may have it and has room for so many bytes.
    pub(super) fn take(
        &mut self,
        consumer: u64,
        tag: Tag,
        bytes: usize,
        now: Instant,
    ) -> Option<Incoming> {
        if self.config.exclusive && self.consumers.first() != Some(&consumer) {
            return None;
        }
        let seq = self.next(now)?;
        if self.ready.get(&seq)?.message.payload.len() > bytes {
            return None;
        }
        let stored = self.ready.remove(&seq)?;
        let incoming = self.incoming(seq, tag, &stored);
        self.held.insert(tag, Held { seq, consumer, stored });
        Some(incoming)
    }

    fn incoming(&self, seq: u64, tag: Tag, stored: &Stored) -> Incoming {
        let message = &stored.message;
        let mut incoming = Incoming::new(tag, message.topic.clone(), message.payload.clone());
        incoming.message_id = message.message_id.clone();
        incoming.content_type = message.content_type.clone();
        incoming.headers = message.headers.clone();
        incoming.position = Some(format!("{}@{seq}", self.name));
        incoming.redelivered = stored.deliveries > 0;
        incoming.deliveries = stored.deliveries.saturating_add(1);
        incoming
    }

    /// A tag that is not held is settled already.
    pub(super) fn forget(&mut self, tag: Tag) {
        self.held.remove(&tag);
    }

    /// The message is handed out again, not before `due`.
    pub(super) fn again(&mut self, tag: Tag, due: Instant) {
        self.put_back(tag, Some(due));
    }

    /// The message as it is to be put away.
    pub(super) fn dead_letter(&self, tag: Tag, reason: &str) -> Option<Message> {
        let mut letter = Message::clone(&self.held.get(&tag)?.stored.message);
        let own = [
            (dead_header::REASON, reason),
            (dead_header::FROM, self.name.as_str()),
            (dead_header::TOPIC, letter.topic.clone().as_str()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        letter.headers.extend(own);
        Some(letter)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.ready.values().filter_map(|stored| stored.due).min()
    }
}
