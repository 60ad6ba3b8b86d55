//! What the broker keeps for consumers: queues by hash of the key, each with one consumer at a time.
//!
//! A message stays until it is settled. Whoever hangs up, dies, or says nothing for a while loses its queues to the others,
//! and what it had in hand with them, in its old place: a sleeper wakes with messages that another is working on.

use super::Message;
use anyhow::Result;
use relevo_core::event::lane_of;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// How many there are.
const QUEUES: usize = 12;
/// So many messages may be unsettled in one consumer's hands.
const UNSETTLED: usize = 60;
/// A consumer that has said nothing for so long is taken for dead.
const SILENCE: Duration = Duration::from_secs(1);

/// Where a message stands: its queue, and its place there.
type Place = (usize, u64);

/// What the broker tells a consumer, one line of JSON each.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Told {
    /// A message.
    Message {
        /// To settle it by.
        tag: u64,
        /// Its queue.
        queue: usize,
        /// It was delivered before.
        redelivered: bool,
        /// The message.
        message: Message,
    },
    /// A queue is another's now.
    Revoked(usize),
}

#[derive(Debug, Clone)]
struct Kept {
    message: Message,
    delivered: bool,
}

/// A consumer that is connected.
#[derive(Debug, Default)]
struct Line {
    queues: BTreeSet<usize>,
    /// Queues that were taken away, which it has not been told yet.
    revoked: Vec<usize>,
    held: BTreeMap<u64, (Place, Kept)>,
}

#[derive(Debug, Default)]
struct State {
    /// What nobody has in hand.
    ready: BTreeMap<Place, Kept>,
    places: u64,
    tags: u64,
    lines: BTreeMap<u64, Line>,
    last_line: u64,
}

impl State {
    fn share_out(&mut self) {
        let count = self.lines.len();
        for (nth, line) in self.lines.values_mut().enumerate() {
            let mine: BTreeSet<usize> = (0..QUEUES).filter(|queue| queue % count == nth).collect();
            let lost: Vec<usize> = line.queues.difference(&mine).copied().collect();
            let held = std::mem::take(&mut line.held).into_iter();
            let (back, held) = held.partition(|(_, ((queue, _), _))| lost.contains(queue));
            let back: BTreeMap<u64, (Place, Kept)> = back;
            self.ready.extend(back.into_values());
            (line.held, line.queues) = (held, mine);
            line.revoked.extend(lost);
        }
    }

    fn connect(&mut self) -> u64 {
        self.last_line += 1;
        self.lines.insert(self.last_line, Line::default());
        self.share_out();
        self.last_line
    }

    fn hang_up(&mut self, line: u64) {
        if let Some(line) = self.lines.remove(&line) {
            self.ready.extend(line.held.into_values());
            self.share_out();
        }
    }

    /// What is to be said to a consumer now.
    fn next(&mut self, line: u64) -> Vec<Told> {
        let Some(at) = self.lines.get_mut(&line) else { return Vec::new() };
        let mut told: Vec<Told> = at.revoked.drain(..).map(Told::Revoked).collect();
        let room = UNSETTLED.saturating_sub(at.held.len());
        let mine = self.ready.iter().filter(|((queue, _), _)| at.queues.contains(queue));
        let places: Vec<Place> = mine.take(room).map(|(place, _)| *place).collect();
        for place in places {
            let Some(mut kept) = self.ready.remove(&place) else { continue };
            self.tags += 1;
            let (tag, message, redelivered) = (self.tags, kept.message.clone(), kept.delivered);
            told.push(Told::Message { tag, queue: place.0, redelivered, message });
            kept.delivered = true;
            at.held.insert(tag, (place, kept));
        }
        told
    }
}

/// The queues, and who consumes from them.
#[derive(Debug)]
pub(super) struct Queues {
    state: Mutex<State>,
    news: watch::Sender<u64>,
}

impl Default for Queues {
    fn default() -> Self {
        Self { state: Mutex::default(), news: watch::channel(0).0 }
    }
}

impl Queues {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a message until a consumer has settled it.
    pub(super) fn keep(&self, message: &Message) {
        let queue = usize::from(lane_of(&message.key)) % QUEUES;
        let mut state = self.state();
        state.places += 1;
        let place = (queue, state.places);
        state.ready.insert(place, Kept { message: message.clone(), delivered: false });
        drop(state);
        self.tell_all();
    }

    fn tell_all(&self) {
        self.news.send_modify(|number| *number += 1);
    }

    /// Serves one consumer until it is gone.
    pub(super) async fn serve(&self, stream: BufReader<TcpStream>) -> Result<()> {
        let line = self.state().connect();
        self.tell_all();
        let served = self.talk(line, stream).await;
        self.state().hang_up(line);
        self.tell_all();
        served
    }

    async fn talk(&self, line: u64, stream: BufReader<TcpStream>) -> Result<()> {
        let (read, mut write) = tokio::io::split(stream);
        let mut lines = BufReader::new(read).lines();
        let mut news = self.news.subscribe();
        let mut heard = Instant::now();
        loop {
            let told = self.state().next(line);
            for told in told {
                let text = serde_json::to_string(&told)?;
                write.write_all(format!("{text}\n").as_bytes()).await?;
            }
            tokio::select! {
                said = timeout_at(heard + SILENCE, lines.next_line()) => match said {
                    Ok(Ok(Some(text))) => {
                        heard = Instant::now();
                        self.hear(line, &text);
                    }
                    _ => return Ok(()),
                },
                changed = news.changed() => changed?,
            }
        }
    }

    /// A message is settled; anything else is a sign of life.
    fn hear(&self, line: u64, text: &str) {
        let tag = text.strip_prefix("settle ").and_then(|tag| tag.parse().ok());
        if let (Some(tag), Some(line)) = (tag, self.state().lines.get_mut(&line)) {
            line.held.remove(&tag);
        }
    }
}
