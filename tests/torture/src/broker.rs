//! A broker that keeps a journal of what it stored, and behaves as badly as real ones do.

use crate::check::Applied;
use crate::story::Fate;
use anyhow::{Context, Result};
use relevo_core::clock::Rng;
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
    rng: Mutex<Rng>,
}

enum Answer {
    Say(&'static str),
    Close,
    Silence,
}

impl Broker {
    /// Listens on a free port; everything it does wrong is decided by `seed`.
    pub async fn start(seed: u64) -> Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let rng = Mutex::new(Rng::seeded(seed));
        let broker =
            Arc::new(Self { address, stored: Mutex::default(), down: AtomicBool::new(false), rng });
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

    /// Takes it away as a whole, or brings it back.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    fn store(&self, line: &str) -> Option<Fate> {
        let mut words = line.split(' ');
        let id: Uuid = words.next()?.parse().ok()?;
        let fate = Fate::of_topic(words.next()?)?;
        let (key, attempt) = (words.next()?.to_owned(), words.next()?.to_owned());
        if fate != Fate::Poison {
            let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
            let at = stored.len() as i64;
            stored.push(Applied { at, id, key, cause: None, attempt });
        }
        Some(fate)
    }

    fn answer(&self, line: &str) -> Answer {
        if self.down.load(Ordering::SeqCst) {
            return Answer::Say("down");
        }
        let dice = self.rng.lock().map_or(0, |mut rng| rng.below(1000));
        match dice {
            // Refused, or gone before it was stored.
            0..20 => return Answer::Say("busy"),
            20..25 => return Answer::Close,
            _ if line.contains(Fate::Flaky.topic()) && dice < 300 => return Answer::Say("flaky"),
            _ => {}
        }
        match (self.store(line), dice) {
            (None, _) => Answer::Say("not understood"),
            (Some(Fate::Poison), _) => Answer::Say("poison"),
            // Stored, and the publisher never learns.
            (Some(_), 990..997) => Answer::Close,
            (Some(_), 997..998) => Answer::Silence,
            (Some(_), _) => Answer::Say("stored"),
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
        match broker.answer(line.trim_end()) {
            Answer::Say(word) => stream.get_mut().write_all(format!("{word}\n").as_bytes()).await?,
            Answer::Close => return Ok(()),
            Answer::Silence => {}
        }
        line.clear();
    }
    Ok(())
}
