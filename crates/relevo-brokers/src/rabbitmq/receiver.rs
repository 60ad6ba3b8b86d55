use super::connect::{Link, confirming, reason, within};
use super::prefetch::Prefetch;
use super::subscriber::{DeadLetterTo, Rung};
use super::{failed, headers};
use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use futures::future::join_all;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicPublishOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Acker, BasicProperties, Channel, Confirmation, Consumer};
use relevo_core::broker::{Incoming, Received, Receiver, Settle, Source, Tag, dead_header};
use relevo_core::{Kind, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A header frame has room for so much of a reason beside a message's own headers.
const REASON_BYTES: usize = 4096;
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// So often a receiver with a paused queue looks whether its connection is there.
const LOOK: Duration = Duration::from_secs(1);
const FAR: Duration = Duration::from_secs(3600);

/// A queue that is consumed.
pub(super) struct Queue {
    source: Source,
    consumer: Option<Consumer>,
    paused: bool,
}

impl Queue {
    pub(super) fn new(source: Source, consumer: Consumer) -> Self {
        Self { source, consumer: Some(consumer), paused: false }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<lapin::Result<Delivery>>> {
        match self.consumer.as_mut().filter(|_| !self.paused) {
            Some(consumer) => Pin::new(consumer).poll_next(context),
            None => Poll::Pending,
        }
    }
}

/// A message that the broker waits to hear of.
struct Held {
    acker: Acker,
    properties: BasicProperties,
    incoming: Incoming,
    /// The place of its queue.
    at: usize,
}

/// How often a quorum queue delivered a message before.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// How often it had been delivered when it went into a ladder. Not in dead letters: put back, they begin anew.
const CLIMBED: &str = "x-relevo-deliveries";

/// What is known of earlier deliveries: through ladders, by the queue; at least whether there was one.
fn count(incoming: &mut Incoming) {
    let told = |name| incoming.header(name).and_then(|text| text.parse::<u32>().ok());
    let by_queue = told(DELIVERY_COUNT).unwrap_or_default().max(incoming.redelivered.into());
    let before = told(CLIMBED).unwrap_or_default().saturating_add(by_queue);
    incoming.deliveries = before.saturating_add(1);
    incoming.redelivered = before > 0;
    // Bookkeeping that changes with every delivery is no part of the message.
    incoming.headers.retain(|(name, _)| !is_count(name));
}

/// Deliveries of one connection. A paused queue is not read: what the broker has sent ahead, at most the prefetch,
/// waits here, and the rest there; so a pause neither reorders nor hands the queue to another consumer.
pub(super) struct RabbitMqReceiver {
    connection: Arc<Link>,
    queues: Vec<Queue>,
    ladder: Vec<Rung>,
    dead_letters: Option<DeadLetterTo>,
    limit: Duration,
    prefetch: Prefetch,
    held: HashMap<Tag, Held>,
    /// What is handed out again when it is due.
    later: BTreeMap<(Instant, Tag), Held>,
    last_tag: u64,
    next_queue: usize,
    forwarding: Option<Channel>,
}

/// What polling the queues found.
enum Found {
    Delivery(usize, Box<Delivery>),
    Gone(usize),
    Failed(lapin::Error),
}

impl RabbitMqReceiver {
    /// Of no queue yet.
    pub(super) fn new(
        connection: Link,
        ladder: Vec<Rung>,
        dead_letters: Option<DeadLetterTo>,
        limit: Duration,
        prefetch: Prefetch,
    ) -> Self {
        Self {
            connection: Arc::new(connection),
            queues: Vec::new(),
            ladder,
            dead_letters,
            limit,
            prefetch,
            held: HashMap::new(),
            later: BTreeMap::new(),
            last_tag: 0,
            next_queue: 0,
            forwarding: None,
        }
    }

    pub(super) fn connection(&self) -> &Link {
        &self.connection
    }

    pub(super) fn add(&mut self, queue: Queue) {
        self.queues.push(queue);
    }

    /// The queues in turn, so that a busy one does not hide the others.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Found> {
        for step in 0..self.queues.len() {
            let at = (self.next_queue + step) % self.queues.len();
            match self.queues[at].poll(context) {
                Poll::Pending => {}
                Poll::Ready(Some(Ok(delivery))) => {
                    self.next_queue = at + 1;
                    return Poll::Ready(Found::Delivery(at, Box::new(delivery)));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Found::Failed(error)),
                Poll::Ready(None) => return Poll::Ready(Found::Gone(at)),
            }
        }
        Poll::Pending
    }

    fn hold(&mut self, at: usize, delivery: Delivery) -> Incoming {
        self.last_tag += 1;
        let tag = Tag(self.last_tag);
        let mut delivery = delivery;
        let payload = Bytes::from(std::mem::take(&mut delivery.data));
        let mut incoming = headers::incoming(tag, &delivery, payload);
        count(&mut incoming);
        let Delivery { acker, properties, .. } = delivery;
        self.held.insert(tag, Held { acker, properties, incoming: incoming.clone(), at });
        incoming
    }

    /// The first message that has waited long enough, under a new tag.
    fn again(&mut self) -> Option<Received> {
        let now = Instant::now();
        let due =
            |(at, _): &&(Instant, Tag), held: &Held| *at <= now && !self.queues[held.at].paused;
        let place = *self.later.iter().find(|(place, held)| due(place, held))?.0;
        let mut held = self.later.remove(&place)?;
        self.last_tag += 1;
        held.incoming.tag = Tag(self.last_tag);
        held.incoming.deliveries = held.incoming.deliveries.saturating_add(1);
        held.incoming.redelivered = true;
        let (source, messages) = (self.queues[held.at].source.clone(), vec![held.incoming.clone()]);
        self.held.insert(held.incoming.tag, held);
        Some(Received::Messages { source, messages })
    }

    /// When the first message that waits is due; those of paused queues are not.
    fn next_due(&self) -> Option<Instant> {
        let waits = |held: &Held| !self.queues[held.at].paused;
        self.later.iter().find(|(_, held)| waits(held)).map(|((due, _), _)| *due)
    }

    /// When to look again, whatever the queues say: something that waits is due; and where a queue is paused, and so not
    /// read, it would not tell that the connection is gone.
    fn wake(&self) -> Instant {
        let is_paused = self.queues.iter().any(|queue| queue.paused);
        let look = Instant::now() + if is_paused { LOOK } else { FAR };
        self.next_due().map_or(look, |due| due.min(look))
    }

    /// The first delivery and whatever else of its queue is here already. Nothing is awaited in between, so nothing
    /// gets lost with a dropped future.
    fn page(&mut self, at: usize, first: Delivery, max: usize) -> Received {
        let mut messages = vec![self.hold(at, first)];
        let mut context = Context::from_waker(std::task::Waker::noop());
        while messages.len() < max {
            // An end or an error shows itself again on the next call.
            let Poll::Ready(Some(Ok(delivery))) = self.queues[at].poll(&mut context) else { break };
            messages.push(self.hold(at, delivery));
        }
        Received::Messages { source: self.queues[at].source.clone(), messages }
    }

    /// The broker took the queue away: what it had sent comes again, wherever the queue is then.
    fn revoke(&mut self, at: usize) -> Received {
        self.queues[at].consumer = None;
        self.held.retain(|_, held| held.at != at);
        self.later.retain(|_, held| held.at != at);
        Received::Revoked(self.queues[at].source.clone())
    }

    fn usable(&self) -> Result<()> {
        if !self.connection.status().connected() {
            return Err(failed(Kind::DestinationDown, "the connection was lost"));
        }
        match self.queues.iter().any(|queue| queue.consumer.is_some()) {
            true => self.bounded(),
            false => Err(failed(Kind::DestinationRefused, "every consumed queue was deleted")),
        }
    }

    /// What was sent ahead cannot be sent back but all together, by ending.
    fn bounded(&self) -> Result<()> {
        let unsettled = self.held.values().chain(self.later.values());
        let bytes = unsettled.map(|held| held.incoming.payload.len()).sum();
        let Some(fitting) = self.prefetch.narrow(self.held.len() + self.later.len(), bytes) else {
            return Ok(());
        };
        let most = self.prefetch.max_bytes();
        let why = format!(
            "{bytes} bytes are unsettled, more than {most}: consumed anew with a prefetch of {fitting}"
        );
        Err(failed(Kind::DestinationDown, why))
    }

    fn rung(&self, after: Duration) -> Option<String> {
        self.ladder.iter().find(|rung| rung.delay >= after).map(|rung| rung.queue.clone())
    }

    async fn retry(&mut self, tag: Tag, after: Duration) -> Result<()> {
        let Some(queue) = self.rung(after) else {
            let held = self.held.remove(&tag);
            self.later.extend(held.map(|held| ((Instant::now() + after, tag), held)));
            return Ok(());
        };
        let Some(held) = self.held.get(&tag) else { return Ok(()) };
        // It comes back by the queue's name; its topic travels along, and how often it was delivered.
        let times = held.incoming.deliveries.to_string();
        let more = [(dead_header::TOPIC, held.incoming.topic.as_str()), (CLIMBED, times.as_str())];
        let properties = headers::with_headers(&uncounted(&held.properties), &more);
        let payload = held.incoming.payload.clone();
        self.forward("", &queue, &payload, properties).await?;
        self.acknowledge(&BTreeSet::from([tag])).await
    }

    async fn put_away(&mut self, tag: Tag, reason: &str) -> Result<()> {
        let Some(held) = self.held.get(&tag) else { return Ok(()) };
        let Some(to) = self.dead_letters.clone() else {
            let why = "no dead-letter exchange is configured: the message stays in its queue";
            return Err(failed(Kind::InvalidConfig, why));
        };
        let times = held.incoming.deliveries.to_string();
        let more = [
            (dead_header::REASON, shortened(reason)),
            (dead_header::FROM, self.queues[held.at].source.0.as_ref()),
            (dead_header::TOPIC, held.incoming.topic.as_str()),
            (dead_header::ATTEMPTS, times.as_str()),
        ];
        let properties = headers::with_headers(&uncounted(&held.properties), &more);
        let key = to.routing_key.unwrap_or_else(|| held.incoming.topic.clone());
        let payload = held.incoming.payload.clone();
        self.forward(&to.exchange, &key, &payload, properties).await?;
        self.acknowledge(&BTreeSet::from([tag])).await
    }

    /// Within the limit: what a connection that breaks is told meanwhile may never get an answer. What is not told yet
    /// when this is dropped stays in hand.
    async fn acknowledge(&mut self, done: &BTreeSet<Tag>) -> Result<()> {
        let telling =
            done.iter().filter_map(|tag| self.held.get(tag)).map(|held| tell(&held.acker));
        let late = |_| failed(Kind::DestinationDown, "an acknowledgement does not come to an end");
        let told = tokio::time::timeout(self.limit, join_all(telling)).await.map_err(late)?;
        self.held.retain(|tag, _| !done.contains(tag));
        told.into_iter().collect()
    }

    /// Stores a message elsewhere, confirmed and routed, before it is acknowledged here.
    async fn forward(
        &mut self,
        exchange: &str,
        key: &str,
        payload: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        let refused = |why: String| {
            failed(
                Kind::DestinationRefused,
                format!("exchange {exchange:?}, routing key {key:?}: {why}"),
            )
        };
        let usable = self.forwarding.take().filter(|channel| channel.status().connected());
        let channel = match usable {
            Some(channel) => channel,
            None => confirming(&self.connection, self.limit).await.map_err(refused)?,
        };
        let name =
            |text: &str| ShortString::try_new(text).map_err(|error| refused(error.to_string()));
        let (to, by) = (name(exchange)?, name(key)?);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirmed = within(self.limit, "a confirm", async {
            channel.basic_publish(to, by, options, payload, properties).await?.await
        });
        match confirmed.await.map_err(refused)? {
            Confirmation::Ack(None) => {
                self.forwarding = Some(channel);
                Ok(())
            }
            Confirmation::Ack(Some(returned)) => Err(refused(returned.reply_text.to_string())),
            _ => Err(refused("the broker did not take it".into())),
        }
    }
}

/// Tells the broker, unless a call that was dropped has done so: a channel that is gone has told nobody.
async fn tell(acker: &Acker) -> Result<()> {
    match acker.ack(BasicAckOptions::default()).await {
        Ok(false) if acker.poisoned() => {
            Err(failed(Kind::DestinationDown, "the channel was closed"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(failed(Kind::DestinationDown, reason(&error))),
    }
}

fn is_count(name: &str) -> bool {
    [DELIVERY_COUNT, CLIMBED].contains(&name)
}

/// The properties without counts, which would be believed of the next queue.
fn uncounted(properties: &BasicProperties) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        if !is_count(name.as_str()) {
            table.insert(name.clone(), value.clone());
        }
    }
    properties.clone().with_headers(table)
}

fn shortened(reason: &str) -> &str {
    let end = (0..=REASON_BYTES.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
    &reason[..end.unwrap_or_default()]
}

#[async_trait]
impl Receiver for RabbitMqReceiver {
    async fn next(&mut self, max: usize) -> Result<Received> {
        loop {
            self.usable()?;
            if let Some(received) = self.again() {
                return Ok(received);
            }
            let wake = self.wake();
            let found = tokio::select! {
                found = poll_fn(|context| self.poll(context)) => found,
                () = sleep_until(wake) => continue,
            };
            match found {
                Found::Delivery(at, first) => return Ok(self.page(at, *first, max)),
                Found::Gone(at) => return Ok(self.revoke(at)),
                Found::Failed(error) => return Err(failed(Kind::DestinationDown, reason(&error))),
            }
        }
    }

    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        let mut done = BTreeSet::new();
        for (tag, settle) in settled {
            match settle {
                _ if done.contains(tag) => {}
                Settle::RetryAfter(after) => self.retry(*tag, *after).await?,
                Settle::Dead { reason } => self.put_away(*tag, reason).await?,
                _ => drop(done.insert(*tag)),
            }
        }
        self.acknowledge(&done).await
    }

    async fn pause(&mut self, source: &Source) -> Result<()> {
        self.set_paused(source, true);
        Ok(())
    }

    async fn resume(&mut self, source: &Source) -> Result<()> {
        self.set_paused(source, false);
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<()> {
        let hung_up = self.connection.hang_up(CLOSE_LIMIT).await;
        hung_up.map_err(|why| failed(Kind::DestinationDown, why))
    }
}

impl Drop for RabbitMqReceiver {
    /// The connection ends before its consumers do. A consumer that is dropped is cancelled, and with a single active
    /// one the broker goes on with the next while messages are still in hand here: they would come back too late.
    fn drop(&mut self) {
        let queues = std::mem::take(&mut self.queues);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let connection = self.connection.clone();
        if connection.status().connected() {
            runtime.spawn(async move {
                if let Err(why) = connection.hang_up(CLOSE_LIMIT).await {
                    tracing::debug!(%why, "a dropped receiver did not end in good order");
                }
                drop(queues);
            });
        }
    }
}

impl RabbitMqReceiver {
    fn set_paused(&mut self, source: &Source, paused: bool) {
        for queue in self.queues.iter_mut().filter(|queue| queue.source == *source) {
            queue.paused = paused;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_counted_through_ladders_and_by_the_queue() {
        let arriving = |redelivered: bool, headers: &[(&str, &str)]| {
            let mut incoming = Incoming::new(Tag(1), "t", Bytes::new());
            let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            incoming.headers = headers.iter().map(own).collect();
            incoming.redelivered = redelivered;
            count(&mut incoming);
            (incoming.deliveries, incoming.redelivered, incoming.headers.len())
        };
        let (ladder, queue) = ((CLIMBED, "2"), (DELIVERY_COUNT, "3"));
        assert_eq!(arriving(false, &[("own", "1")]), (1, false, 1));
        assert_eq!(arriving(true, &[]), (2, true, 0), "a classic queue says no more");
        assert_eq!(arriving(false, &[ladder]), (3, true, 0));
        assert_eq!(arriving(true, &[queue, ("own", "1")]), (4, true, 1));
        assert_eq!(arriving(true, &[ladder, queue]), (6, true, 0));
        assert_eq!(arriving(false, &[(CLIMBED, "many")]), (1, false, 0));
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "é".repeat(REASON_BYTES);
        assert_eq!(shortened(&long).len(), REASON_BYTES);
        let odd = format!("x{long}");
        assert_eq!(shortened(&odd).len(), REASON_BYTES - 1);
    }
}
