use super::config::NatsConfig;
use super::connect::{Connection, error};
use super::delivery::Delivery;
use super::pull::{Pulled, Pulls, lost};
use super::subscriber::NatsConsumer;
use super::{dead_letters, unreadable};
use async_nats::{Request, Subject};
use async_trait::async_trait;
use bytes::Bytes;
use relevo_core::broker::{Incoming, Received, Receiver, Settle, Source, Tag};
use relevo_core::error::{Kind, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// "Still working on it": the server waits longer before it delivers it again.
const IN_PROGRESS: &[u8] = b"+WPI";
const DONE: &[u8] = b"+ACK";
const GIVEN_BACK: &[u8] = b"-NAK";

/// So long a close waits for what is still on its way, and again so long until everything is given back. From a server
/// that may be gone nothing better is to be had: what it did not take comes again when its time is over.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

type Held = Arc<Mutex<BTreeMap<Tag, Delivery>>>;

/// Messages of one consumer.
pub(super) struct NatsReceiver {
    config: NatsConfig,
    consumer: NatsConsumer,
    connection: Connection,
    pulls: Option<Pulls>,
    source: Source,
    held: Held,
    /// Taken from the connection, not yet by the caller.
    ready: VecDeque<Incoming>,
    /// Delivered too often: to be put away.
    worn_out: Vec<Tag>,
    last_tag: u64,
    paused: bool,
    /// The next message is too large for what is left; how much was held then.
    no_room: Option<usize>,
    unreadable: Arc<Mutex<BTreeSet<u64>>>,
    keeper: AbortHandle,
}

impl NatsReceiver {
    pub(super) async fn open(
        config: NatsConfig,
        consumer: NatsConsumer,
        connection: Connection,
        unreadable: Arc<Mutex<BTreeSet<u64>>>,
    ) -> Result<Self> {
        let pulls = Pulls::open(&config, &consumer, connection.clone()).await?;
        let held = Held::default();
        let keeper = keep(connection.clone(), held.clone(), consumer.ack_wait);
        Ok(Self {
            source: Source::named(format!("{}/{}", consumer.stream, consumer.name)),
            config,
            consumer,
            connection,
            pulls: Some(pulls),
            held,
            ready: VecDeque::new(),
            worn_out: Vec::new(),
            last_tag: 0,
            paused: false,
            no_room: None,
            unreadable,
            keeper,
        })
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Tag, Delivery>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_bytes(&self) -> usize {
        self.held().values().map(Delivery::bytes).sum()
    }

    /// Takes what has come, asks for more if there is room, and waits for one thing to happen.
    async fn advance(&mut self, max: usize) -> Result<()> {
        while let Some(tag) = self.worn_out.last().copied() {
            let times = self.consumer.max_deliver.unwrap_or_default();
            self.bury(tag, &format!("delivered more than {times} times and never settled")).await?;
            self.worn_out.pop();
        }
        let room = self.room().min(max);
        let pulls = self.pulls.as_mut().ok_or_else(lost)?;
        if !pulls.is_asking() {
            match room {
                0 => return Err(pulls.lost().await),
                _ if self.paused => return Err(pulls.lost().await),
                _ => self.ask(room).await?,
            }
        }
        let pulls = self.pulls.as_mut().ok_or_else(lost)?;
        let came = pulls.next().await?;
        self.take(came);
        Ok(())
    }

    /// How many more messages may come.
    fn room(&self) -> usize {
        let held = self.held();
        let bytes: usize = held.values().map(Delivery::bytes).sum();
        let waits = self.no_room.is_some_and(|held| bytes >= held && bytes > 0);
        if waits || bytes >= self.consumer.max_unsettled_bytes {
            return 0;
        }
        self.consumer.max_unsettled.saturating_sub(held.len())
    }

    async fn ask(&mut self, room: usize) -> Result<()> {
        let held = self.held_bytes();
        // What is too large for the whole window comes alone.
        let alone = held == 0 && self.no_room.is_some();
        let left = self.consumer.max_unsettled_bytes.saturating_sub(held);
        let pulls = self.pulls.as_mut().ok_or_else(lost)?;
        match alone {
            true => pulls.ask(1, None).await?,
            false => pulls.ask(room, Some(left)).await?,
        }
        if alone {
            self.no_room = None;
        }
        Ok(())
    }

    fn take(&mut self, came: Pulled) {
        match came {
            Pulled::Message(message) => match Delivery::read(message) {
                Some(delivery) => self.hold(delivery),
                None => tracing::warn!("a message that is no delivery came from the consumer"),
            },
            Pulled::NoRoom => {
                self.no_room = Some(self.held_bytes());
            }
            Pulled::Ended => {}
        }
    }

    fn hold(&mut self, delivery: Delivery) {
        self.last_tag += 1;
        let tag = Tag(self.last_tag);
        if self.consumer.max_deliver.is_some_and(|most| delivery.times > most) {
            self.worn_out.push(tag);
        } else {
            self.ready.push_back(delivery.incoming(tag, &self.consumer.stream));
        }
        self.held().insert(tag, delivery);
    }

    /// What is ready; `None` means wait.
    fn hand_out(&mut self, max: usize) -> Result<Option<Received>> {
        while let Some(came) = self.pulls.as_mut().ok_or_else(lost)?.now()? {
            self.take(came);
        }
        if self.paused || self.ready.is_empty() {
            return Ok(None);
        }
        let messages = self.ready.drain(..max.min(self.ready.len())).collect();
        Ok(Some(Received::Messages { source: self.source.clone(), messages }))
    }

    /// A message that the client cannot read ends the connection. If it was one of those, they are handed out in
    /// another way and the receiver goes on; otherwise it is over.
    async fn revive(&mut self, cause: relevo_core::Error) -> Result<()> {
        let was_asking = self.pulls.take().is_some_and(|pulls| pulls.is_asking());
        if !was_asking || self.connection.is_up() {
            return Err(cause);
        }
        let Ok(connection) = self.consumer.connect(&self.config).await else {
            return Err(cause);
        };
        let known = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let found = unreadable::find(&connection, &self.config, &self.consumer, &known).await;
        let Some(found) = found.ok().filter(|found| !found.is_empty()) else {
            // Sooner than when their time is over, and before what followed them.
            let held = std::mem::take(&mut *self.held());
            return_all(&connection, held.into_values()).await;
            return Err(cause);
        };
        self.pulls = Some(Pulls::open(&self.config, &self.consumer, connection.clone()).await?);
        self.keeper.abort();
        self.keeper = keep(connection.clone(), self.held.clone(), self.consumer.ack_wait);
        self.connection = connection;
        for delivery in found {
            let mut known = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(delivery.sequence);
            drop(known);
            self.hold(delivery);
        }
        Ok(())
    }

    /// Puts a message away: first the letter, then the end.
    async fn bury(&self, tag: Tag, reason: &str) -> Result<()> {
        let Some(delivery) = self.held().get(&tag).cloned() else { return Ok(()) };
        dead_letters::store(&self.connection, &self.config, &self.consumer, &delivery, reason)
            .await?;
        let reason: String = reason.chars().filter(|c| !c.is_control()).take(200).collect();
        self.tell(&delivery.reply, Bytes::from(format!("+TERM {reason}"))).await?;
        self.held().remove(&tag);
        Ok(())
    }

    async fn tell(&self, reply: &Subject, word: Bytes) -> Result<()> {
        let told = self.connection.client.publish(reply.clone(), word).await;
        told.map_err(|cause| error(Kind::DestinationDown, cause.to_string()))
    }

    /// Tells the server and waits for its answer: all that was told before is done then, too.
    async fn tell_last(&self, reply: &Subject, word: Bytes) -> Result<()> {
        let request = Request::new().payload(word).timeout(Some(self.config.ack_timeout));
        let began = Instant::now();
        let told = self.connection.client.send_request(reply.clone(), request).await;
        told.map(drop).map_err(|cause| {
            let why = format!("the server did not take a settlement: {cause}");
            error(Kind::DestinationDown, self.connection.explained(why, began))
        })
    }
}

/// A message that the server is about to be told of. Until then it is out of the keeper's hands, and not lost: dropped,
/// it is held as before.
struct Untold {
    held: Held,
    tag: Tag,
    delivery: Delivery,
    told: bool,
}

impl Untold {
    fn take(held: &Held, tag: Tag) -> Option<Self> {
        let delivery = held.lock().unwrap_or_else(PoisonError::into_inner).remove(&tag)?;
        Some(Self { held: held.clone(), tag, delivery, told: false })
    }

    fn reply(&self) -> &Subject {
        &self.delivery.reply
    }

    fn told(mut self) {
        self.told = true;
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        if !self.told {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.insert(self.tag, self.delivery.clone());
        }
    }
}

/// What the server is told of a settled message; `None` where more is to be done.
fn word(settle: &Settle) -> Option<Bytes> {
    match settle {
        Settle::RetryAfter(delay) => {
            let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX >> 1).max(1);
            Some(Bytes::from(format!("-NAK {{\"delay\": {delay}}}")))
        }
        Settle::Dead { .. } => None,
        _ => Some(Bytes::from_static(DONE)),
    }
}

/// As long as the receiver lives, so do its messages: the time within which they must be settled is renewed.
fn keep(connection: Connection, held: Held, ack_wait: Duration) -> AbortHandle {
    let every = (ack_wait / 3).max(Duration::from_millis(50));
    let keeping = async move {
        let mut before = BTreeSet::new();
        loop {
            tokio::time::sleep(every).await;
            let now: Vec<(Tag, Subject)> = {
                let held = held.lock().unwrap_or_else(PoisonError::into_inner);
                held.iter().map(|(tag, delivery)| (*tag, delivery.reply.clone())).collect()
            };
            for (_, reply) in now.iter().filter(|(tag, _)| before.contains(tag)) {
                let told =
                    connection.client.publish(reply.clone(), Bytes::from_static(IN_PROGRESS));
                if told.await.is_err() {
                    return;
                }
            }
            before = now.into_iter().map(|(tag, _)| tag).collect();
        }
    };
    tokio::spawn(keeping).abort_handle()
}

#[async_trait]
impl Receiver for NatsReceiver {
    async fn next(&mut self, max: usize) -> Result<Received> {
        let max = max.max(1);
        loop {
            let stepped = match self.hand_out(max) {
                Ok(Some(received)) => return Ok(received),
                Ok(None) => self.advance(max).await,
                Err(cause) => Err(cause),
            };
            if let Err(cause) = stepped {
                self.revive(cause).await?;
            }
        }
    }

    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        if self.pulls.is_none() || !self.connection.is_up() {
            return Err(lost());
        }
        let mut last: Option<(Untold, Bytes)> = None;
        for (tag, settle) in settled {
            if let Settle::Dead { reason } = settle {
                self.bury(*tag, reason).await?;
                continue;
            }
            let Some(word) = word(settle) else { continue };
            let Some(untold) = Untold::take(&self.held, *tag) else { continue };
            if let Some((untold, word)) = last.replace((untold, word)) {
                self.tell(untold.reply(), word).await?;
                untold.told();
            }
        }
        if let Some((untold, word)) = last {
            self.tell_last(untold.reply(), word).await?;
            untold.told();
        }
        Ok(())
    }

    async fn pause(&mut self, source: &Source) -> Result<()> {
        self.paused |= *source == self.source;
        Ok(())
    }

    async fn resume(&mut self, source: &Source) -> Result<()> {
        self.paused &= *source != self.source;
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        if let Some(pulls) = self.pulls.take() {
            let held = std::mem::take(&mut *self.held());
            give_back(self.connection.clone(), pulls, held).await;
        }
        Ok(())
    }
}

/// Everything that is not settled goes back, what is still on its way too.
async fn give_back(connection: Connection, pulls: Pulls, held: BTreeMap<Tag, Delivery>) {
    // First the end of what was asked for: what is given back before it would come here again.
    let late = pulls.drain(CLOSE_LIMIT).await.into_iter().filter_map(Delivery::read);
    let giving_back = return_all(&connection, held.into_values().chain(late));
    if tokio::time::timeout(CLOSE_LIMIT, giving_back).await.is_err() {
        tracing::warn!(limit = ?CLOSE_LIMIT, "closed before the server took everything back");
    }
}

async fn return_all(connection: &Connection, deliveries: impl Iterator<Item = Delivery>) {
    for delivery in deliveries {
        let told = connection.client.publish(delivery.reply, Bytes::from_static(GIVEN_BACK));
        if let Err(cause) = told.await {
            tracing::debug!(%cause, "what is unsettled goes back when its time is over");
            return;
        }
    }
    if let Err(cause) = connection.client.flush().await {
        tracing::debug!(%cause, "what is unsettled goes back when its time is over");
    }
}

impl Drop for NatsReceiver {
    fn drop(&mut self) {
        self.keeper.abort();
        let held = std::mem::take(&mut *self.held());
        // Without a runtime it goes back when its time is over.
        if let (Some(pulls), Ok(runtime)) =
            (self.pulls.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(give_back(self.connection.clone(), pulls, held));
        }
    }
}
