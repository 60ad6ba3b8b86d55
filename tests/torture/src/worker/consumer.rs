//! Consumes from the test's broker, and tells what is in hand: a message is in flight from its arrival until it is settled.

use crate::broker::{CONSUME, Told};
use crate::story::{Line as Say, tell};
use async_trait::async_trait;
use relevo::{Error, Kind, Result};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{
    Capabilities, Incoming, Received, Receiver, Settle, Source, Subscriber, Tag,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

/// Signs of life.
const BEAT: Duration = Duration::from_millis(200);

/// The broker at this address.
pub(super) struct FromBroker {
    address: String,
    early: bool,
}

impl FromBroker {
    /// `early` settles what comes before anybody has worked on it.
    pub(super) fn new(address: &str, early: bool) -> Self {
        Self { address: address.to_owned(), early }
    }
}

fn down(why: impl ToString) -> Error {
    Error::new(Kind::DestinationDown, why.to_string())
}

#[async_trait]
impl Subscriber for FromBroker {
    fn name(&self) -> &'static str {
        "torture"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::default();
        (can.consumes, can.ordered, can.exclusive_sources) = (true, true, true);
        can
    }

    fn binding(&self) -> Binding {
        Binding::AMQP
    }

    async fn open(&self) -> Result<Box<dyn Receiver>> {
        let stream = TcpStream::connect(&self.address).await.map_err(down)?;
        let (read, mut write) = stream.into_split();
        write.write_all(format!("{CONSUME}\n").as_bytes()).await.map_err(down)?;
        let write = Arc::new(Mutex::new(write));
        let (hear, heard) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(read, hear));
        tasks.spawn(beat(write.clone()));
        let (hand, early) = (Hand::default(), self.early);
        Ok(Box::new(Line { heard, write, hand, early, _tasks: tasks }))
    }
}

/// Until the broker is gone.
async fn listen(read: OwnedReadHalf, hear: mpsc::UnboundedSender<Told>) {
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(told) = serde_json::from_str(&line) else { return };
        if hear.send(told).is_err() {
            return;
        }
    }
}

async fn beat(write: Arc<Mutex<OwnedWriteHalf>>) {
    while write.lock().await.write_all(b"beat\n").await.is_ok() {
        tokio::time::sleep(BEAT).await;
    }
}

/// A connection. What it holds is bounded by what the broker lets a consumer have unsettled.
struct Line {
    heard: mpsc::UnboundedReceiver<Told>,
    write: Arc<Mutex<OwnedWriteHalf>>,
    hand: Hand,
    early: bool,
    _tasks: JoinSet<()>,
}

/// What came, and what of it is unsettled.
#[derive(Default)]
struct Hand {
    waiting: VecDeque<Told>,
    paused: BTreeSet<usize>,
    /// Unsettled, with their queues.
    held: BTreeMap<u64, usize>,
}

fn source(queue: usize) -> Source {
    Source::named(queue.to_string())
}

fn queue(source: &Source) -> usize {
    source.0.parse().unwrap_or(usize::MAX)
}

impl Line {
    async fn arrived(&mut self, told: Told) -> Result<()> {
        let early = match &told {
            Told::Message { tag, .. } if self.early => Some(format!("settle {tag}\n")),
            _ => None,
        };
        self.hand.arrived(told);
        match early {
            Some(text) => self.say(&text).await,
            None => Ok(()),
        }
    }

    async fn say(&self, text: &str) -> Result<()> {
        self.write.lock().await.write_all(text.as_bytes()).await.map_err(down)
    }
}

impl Hand {
    fn arrived(&mut self, told: Told) {
        if let Told::Message { tag, queue, .. } = &told {
            tell(&Say::Began(*tag, 1));
            self.held.insert(*tag, *queue);
        }
        self.waiting.push_back(told);
    }

    /// What of all that arrived comes next: messages of one queue, or that one is another's now.
    fn take(&mut self, max: usize) -> Option<Received> {
        let open = |told: &Told| !matches!(told, Told::Message { queue, .. } if self.paused.contains(queue));
        let first = self.waiting.iter().position(open)?;
        let from = match &self.waiting[first] {
            Told::Revoked(queue) => return Some(self.revoked(*queue, first)),
            Told::Message { queue, .. } => *queue,
        };
        let mut messages = Vec::new();
        while messages.len() < max && self.waiting.get(first).is_some_and(|told| is_of(told, from))
        {
            messages.extend(self.waiting.remove(first).and_then(incoming));
        }
        Some(Received::Messages { source: source(from), messages })
    }

    /// What was of this queue is in other hands. What came after the news is not: the queue is ours again.
    fn revoked(&mut self, queue: usize, news: usize) -> Received {
        self.paused.remove(&queue);
        let later = self.waiting.split_off(news + 1);
        self.waiting.truncate(news);
        self.waiting.retain(|told| !is_of(told, queue));
        self.waiting.extend(later);
        let ours: BTreeSet<u64> = self.waiting.iter().filter_map(tag_of).collect();
        let lost =
            |(tag, of): (&u64, &usize)| (*of == queue && !ours.contains(tag)).then_some(*tag);
        let lost: Vec<u64> = self.held.iter().filter_map(lost).collect();
        lost.into_iter().for_each(|tag| self.let_go(tag, "revoked"));
        Received::Revoked(source(queue))
    }

    fn let_go(&mut self, tag: u64, how: &str) {
        if self.held.remove(&tag).is_some() {
            tell(&Say::Ended(tag, how.to_owned()));
        }
    }
}

fn is_of(told: &Told, of: usize) -> bool {
    matches!(told, Told::Message { queue, .. } if *queue == of)
}

fn tag_of(told: &Told) -> Option<u64> {
    match told {
        Told::Message { tag, .. } => Some(*tag),
        Told::Revoked(_) => None,
    }
}

fn incoming(told: Told) -> Option<Incoming> {
    let Told::Message { tag, redelivered, message, .. } = told else { return None };
    let mut incoming = Incoming::new(Tag(tag), message.topic, message.payload);
    incoming.headers = message.headers;
    incoming.redelivered = redelivered;
    Some(incoming)
}

#[async_trait]
impl Receiver for Line {
    async fn next(&mut self, max: usize) -> Result<Received> {
        loop {
            while let Ok(told) = self.heard.try_recv() {
                self.arrived(told).await?;
            }
            if let Some(received) = self.hand.take(max) {
                return Ok(received);
            }
            let told = self.heard.recv().await.ok_or_else(|| down("the broker hung up"))?;
            self.arrived(told).await?;
        }
    }

    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        for (Tag(tag), settle) in settled {
            if *settle != Settle::Done {
                return Err(Error::new(Kind::NotSupported, "this broker only takes what is done"));
            }
            self.say(&format!("settle {tag}\n")).await?;
            self.hand.let_go(*tag, "settled");
        }
        Ok(())
    }

    async fn pause(&mut self, source: &Source) -> Result<()> {
        self.hand.paused.insert(queue(source));
        Ok(())
    }

    async fn resume(&mut self, source: &Source) -> Result<()> {
        self.hand.paused.remove(&queue(source));
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<()> {
        // Dropping it hangs up.
        Ok(())
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let held: Vec<u64> = self.held.keys().copied().collect();
        held.into_iter().for_each(|tag| self.let_go(tag, "given back"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Message;

    fn message(tag: u64, queue: usize) -> Told {
        let message = Message {
            id: uuid::Uuid::from_u128(u128::from(tag)),
            topic: String::new(),
            key: String::new(),
            attempt: String::new(),
            payload: String::new(),
            headers: Vec::new(),
        };
        Told::Message { tag, queue, redelivered: false, message }
    }

    fn tags(received: Option<Received>) -> Vec<u64> {
        match received {
            Some(Received::Messages { messages, .. }) => {
                messages.iter().map(|message| message.tag.0).collect()
            }
            other => panic!("no messages: {other:?}"),
        }
    }

    #[test]
    fn a_queue_that_comes_back_at_once_comes_with_its_messages() {
        let mut hand = Hand::default();
        for told in [message(1, 0), message(2, 1), Told::Revoked(0), message(3, 0), message(4, 0)] {
            hand.arrived(told);
        }
        assert_eq!(tags(hand.take(1)), [1]);
        hand.paused.extend([0, 1]);
        assert!(matches!(hand.take(9), Some(Received::Revoked(_))));
        assert_eq!(hand.held.keys().copied().collect::<Vec<_>>(), [2, 3, 4], "1 is in other hands");
        assert_eq!(tags(hand.take(9)), [3, 4], "worked again, and in order");
        hand.paused.clear();
        assert_eq!(tags(hand.take(9)), [2]);
    }
}
