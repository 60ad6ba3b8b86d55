use async_trait::async_trait;
use relevo::{ErrorClass, Event};
use relevo_core::broker::{Confirm, Publisher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

/// An answer that takes longer is not waited for: the message may be stored.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a client that confirms early keeps messages in its buffer.
const FLUSHED_AFTER: Duration = Duration::from_secs(30);

/// Publishes to the broker of the test: a line out, a line back, for each message.
pub(super) struct Outside {
    address: String,
    member: String,
    attempts: AtomicU64,
    early: bool,
    idle: Mutex<Vec<BufReader<TcpStream>>>,
}

impl Outside {
    pub(super) fn new(address: &str, member: &str, early: bool) -> Self {
        let (address, member) = (address.to_owned(), format!("{member}-{}", std::process::id()));
        Self { address, member, attempts: AtomicU64::new(0), early, idle: Mutex::default() }
    }

    async fn connection(&self) -> std::io::Result<BufReader<TcpStream>> {
        if let Some(idle) = self.idle.lock().await.pop() {
            return Ok(idle);
        }
        TcpStream::connect(&self.address).await.map(BufReader::new)
    }

    async fn send(&self, line: String) -> Confirm {
        let Ok(mut connection) = self.connection().await else {
            return Confirm::Down { error: "no connection".into() };
        };
        match tokio::time::timeout(PATIENCE, ask(&mut connection, &line)).await {
            Ok(Ok(answer)) => {
                self.idle.lock().await.push(connection);
                read(&answer)
            }
            Ok(Err(error)) => Confirm::Unknown { error: error.to_string() },
            Err(_) => Confirm::Unknown { error: format!("no answer within {PATIENCE:?}") },
        }
    }
}

async fn ask(connection: &mut BufReader<TcpStream>, line: &str) -> std::io::Result<String> {
    connection.get_mut().write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    if connection.read_line(&mut answer).await? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}

fn read(answer: &str) -> Confirm {
    match answer.trim() {
        "stored" => Confirm::Stored,
        "down" => Confirm::Down { error: "said so".into() },
        "poison" => Confirm::Refused {
            class: ErrorClass::Permanent,
            error: "poisoned on purpose".into(),
            after: None,
        },
        other => {
            Confirm::Refused { class: ErrorClass::Transient, error: other.to_owned(), after: None }
        }
    }
}

#[async_trait]
impl Publisher for Outside {
    fn name(&self) -> &'static str {
        "outside"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let mut confirms = Vec::new();
        for event in events {
            let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
            let key = event.key.as_deref().unwrap_or_default();
            let line = format!("{} {} {key} {}/{attempt}\n", event.id, event.topic, self.member);
            if self.early {
                confirms.push(Confirm::Stored);
                let address = self.address.clone();
                tokio::spawn(late(address, line));
            } else {
                confirms.push(self.send(line).await);
            }
        }
        confirms
    }
}

/// What a client does that answers for messages which still lie in its buffer.
async fn late(address: String, line: String) {
    tokio::time::sleep(FLUSHED_AFTER).await;
    if let Ok(stream) = TcpStream::connect(address).await
        && let Err(error) = ask(&mut BufReader::new(stream), &line).await
    {
        tracing::warn!(%error, "lost on purpose");
    }
}
