//! A broker that keeps a journal of what it stored, and behaves as badly as real ones do.
//!
//! - `queues`: where it has consumers, what waits for them

mod queues;

pub use queues::Told;

use crate::check::Applied;
use crate::story::Fate;
use anyhow::{Context, Result};
use queues::Queues;
use relevo_core::clock::Rng;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

/// What the outside has, and whether it is there at all.
#[derive(Debug)]
pub struct Broker {
    address: String,
    stored: Mutex<Vec<Applied>>,
    down: AtomicBool,
    /// It answers every message, and at once.
    calm: AtomicBool,
    rng: Mutex<Rng>,
    /// Set where it has consumers: then it is for them to fail, and it refuses nothing for what it is.
    queues: Option<Queues>,
}

/// A message on its way to the broker, and on to its consumers: one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The event.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: String,
    /// Which process, which attempt.
    pub attempt: String,
    /// What it carries, text.
    pub payload: String,
    /// Its attributes as headers.
    pub headers: Vec<(String, String)>,
}

/// The first line of a consumer.
pub const CONSUME: &str = "consume";

/// Of a thousand cases, one in which nothing goes wrong.
const ALL_WELL: u64 = 500;

enum Answer {
    Say(&'static str),
    Close,
    Silence,
}

impl Broker {
    /// Listens on a free port; everything it does wrong is decided by `seed`.
    pub async fn start(seed: u64) -> Result<Arc<Self>> {
        Self::open(seed, None).await
    }

    /// The same with queues, for consumers.
    pub async fn with_queues(seed: u64) -> Result<Arc<Self>> {
        Self::open(seed, Some(Queues::default())).await
    }

    async fn open(seed: u64, queues: Option<Queues>) -> Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let rng = Mutex::new(Rng::seeded(seed));
        let (stored, down, calm) = (Mutex::default(), AtomicBool::default(), AtomicBool::default());
        let broker = Arc::new(Self { address, stored, down, calm, rng, queues });
        tokio::spawn(accept(listener, broker.clone()));
        Ok(broker)
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Everything it stored, copies included, in the order in which it did.
    pub fn stored(&self) -> Vec<Applied> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It has stored this already: its publishers go on with a copy of another one's database.
    pub fn remember(&self, stored: Vec<Applied>) {
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = stored;
    }

    /// Takes it away as a whole, or brings it back.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Makes it behave, or lets it misbehave again. Whoever publishes waits for a silent broker's answer; that is not
    /// the time that others need to take over.
    pub fn set_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::SeqCst);
    }

    /// What goes wrong with a message, of a thousand.
    fn dice(&self) -> u64 {
        match self.calm.load(Ordering::SeqCst) {
            true => ALL_WELL,
            false => self.rng.lock().map_or(ALL_WELL, |mut rng| rng.below(1000)),
        }
    }

    /// Stored, and in its queue, in one step: their orders are the same.
    fn store(&self, message: Message) {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queues) = &self.queues {
            queues.keep(&message);
        }
        let (at, Message { id, key, attempt, .. }) = (stored.len() as i64, message);
        stored.push(Applied { at, id, key, cause: None, attempt });
    }

    fn answer(&self, line: &str) -> Answer {
        if self.down.load(Ordering::SeqCst) {
            return Answer::Say("down");
        }
        let Ok(message) = serde_json::from_str::<Message>(line) else {
            return Answer::Say("not understood");
        };
        let fate = Fate::of_topic(&message.topic).filter(|_| self.queues.is_none());
        let dice = self.dice();
        match dice {
            // Refused, or gone before it was stored.
            0..20 => return Answer::Say("busy"),
            20..25 => return Answer::Close,
            _ if fate == Some(Fate::Flaky) && dice < 300 => return Answer::Say("flaky"),
            _ if fate == Some(Fate::Poison) => return Answer::Say("poison"),
            _ => {}
        }
        self.store(message);
        match dice {
            // Stored, and the publisher never learns.
            990..997 => Answer::Close,
            997..998 => Answer::Silence,
            _ => Answer::Say("stored"),
        }
    }
}

async fn accept(listener: TcpListener, broker: Arc<Broker>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, broker.clone()));
    }
}

async fn serve(stream: TcpStream, broker: Arc<Broker>) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await.context("reading")? > 0 {
        if let Some(queues) = broker.queues.as_ref().filter(|_| line.trim_end() == CONSUME) {
            return queues.serve(stream).await;
        }
        match broker.answer(line.trim_end()) {
            Answer::Say(word) => stream.get_mut().write_all(format!("{word}\n").as_bytes()).await?,
            Answer::Close => return Ok(()),
            Answer::Silence => {}
        }
        line.clear();
    }
    Ok(())
}
