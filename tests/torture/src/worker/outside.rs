use crate::adopted;
use crate::broker::Message;
use async_trait::async_trait;
use relevo::{ErrorClass, Event};
use relevo_core::broker::cloudevents::{self, Binding};
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
    /// Events come from an adopted table, whose rows may have ids of their own.
    adopted: bool,
    idle: Mutex<Vec<BufReader<TcpStream>>>,
}

impl Outside {
    pub(super) fn new(address: &str, member: &str) -> Self {
        let (address, member) = (address.to_owned(), format!("{member}-{}", std::process::id()));
        let (attempts, idle) = (AtomicU64::new(0), Mutex::default());
        Self { address, member, attempts, early: false, adopted: false, idle }
    }

    /// Answers before anything is stored.
    pub(super) fn early(mut self, early: bool) -> Self {
        self.early = early;
        self
    }

    /// Events come from an adopted table.
    pub(super) fn adopted(mut self, adopted: bool) -> Self {
        self.adopted = adopted;
        self
    }

    fn line(&self, event: &Event) -> String {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let headers = cloudevents::owned(cloudevents::write(event, "torture", &Binding::AMQP));
        let message = Message {
            id: if self.adopted { adopted::identity_of(event) } else { event.id.0 },
            topic: event.topic.clone(),
            key: event.key.clone().unwrap_or_default(),
            attempt: format!("{}/{attempt}", self.member),
            payload: String::from_utf8_lossy(&event.payload).into_owned(),
            headers,
        };
        format!("{}\n", serde_json::json!(message))
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
            let line = self.line(event);
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
