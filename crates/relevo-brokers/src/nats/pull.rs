//! Asks a consumer for messages, one request at a time.

use super::config::NatsConfig;
use super::connect::{Connection, error};
use super::subscriber::NatsConsumer;
use async_nats::{Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use relevo_core::error::{Error, Kind, Result};
use std::time::Duration;
use tokio::time::Instant;

/// A request that found nothing ends after so many heartbeats, and the next one is made.
const HEARTBEATS: u32 = 6;

/// What came.
pub(super) enum Pulled {
    Message(Message),
    /// The request ended; there may be more.
    Ended,
    /// The next message is larger than the room that was asked for.
    NoRoom,
}

/// A consumer's messages on a connection.
pub(super) struct Pulls {
    connection: Connection,
    answers: Subscriber,
    /// Where answers come: this and the request's number.
    inbox: String,
    number: u64,
    api: String,
    /// How many messages are still to come for the current request.
    wanted: usize,
    heartbeat: Duration,
    silent_at: Instant,
    asked_at: std::time::Instant,
}

impl Pulls {
    pub(super) async fn open(
        config: &NatsConfig,
        consumer: &NatsConsumer,
        connection: Connection,
    ) -> Result<Self> {
        let inbox = connection.client.new_inbox();
        let answers =
            connection.client.subscribe(format!("{inbox}.*")).await.map_err(|cause| {
                error(Kind::DestinationDown, format!("no subscription: {cause}"))
            })?;
        let api = config.api_prefix();
        Ok(Self {
            connection,
            answers,
            inbox,
            number: 0,
            api: format!("{api}.CONSUMER.MSG.NEXT.{}.{}", consumer.stream, consumer.name),
            wanted: 0,
            heartbeat: consumer.heartbeat,
            silent_at: Instant::now(),
            asked_at: std::time::Instant::now(),
        })
    }

    /// A request is under way.
    pub(super) fn is_asking(&self) -> bool {
        self.wanted > 0
    }

    /// Asks for so many messages of together so many bytes. Dropped in the middle, nothing was asked.
    pub(super) async fn ask(&mut self, batch: usize, bytes: Option<usize>) -> Result<()> {
        let (number, asked_at) = (self.number + 1, std::time::Instant::now());
        let mut ask = serde_json::json!({
            "batch": batch,
            "expires": (self.heartbeat * HEARTBEATS).as_nanos() as u64,
            "idle_heartbeat": self.heartbeat.as_nanos() as u64,
        });
        if let Some(bytes) = bytes {
            ask["max_bytes"] = bytes.into();
        }
        let reply = format!("{}.{number}", self.inbox);
        let sent = self
            .connection
            .client
            .publish_with_reply(self.api.clone(), reply, Bytes::from(ask.to_string()))
            .await;
        sent.map_err(|cause| error(Kind::DestinationDown, cause.to_string()))?;
        (self.number, self.wanted, self.asked_at) = (number, batch, asked_at);
        self.heard();
        Ok(())
    }

    /// What has come already.
    pub(super) fn now(&mut self) -> Result<Option<Pulled>> {
        while let Some(came) = self.answers.next().now_or_never() {
            if let Some(pulled) = self.understand(came)? {
                return Ok(Some(pulled));
            }
        }
        Ok(None)
    }

    /// What comes next; an error if not even a heartbeat comes. Dropping it loses nothing.
    pub(super) async fn next(&mut self) -> Result<Pulled> {
        loop {
            let came = tokio::time::timeout_at(self.silent_at, self.answers.next()).await;
            let came = came.map_err(|_| self.silence())?;
            if let Some(pulled) = self.understand(came)? {
                return Ok(pulled);
            }
        }
    }

    /// Waits until the connection is lost; what comes meanwhile stays where it is.
    pub(super) async fn lost(&self) -> Error {
        while self.connection.is_up() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        lost()
    }

    fn silence(&self) -> Error {
        let why = format!("no heartbeat of the consumer within {:?}", self.patience());
        error(Kind::DestinationDown, self.connection.explained(why, self.asked_at))
    }

    fn patience(&self) -> Duration {
        self.heartbeat * 5 / 2
    }

    fn heard(&mut self) {
        self.silent_at = Instant::now() + self.patience();
    }

    fn understand(&mut self, came: Option<Message>) -> Result<Option<Pulled>> {
        let Some(message) = came else { return Err(lost()) };
        self.heard();
        let Some(status) = message.status.filter(|status| *status != StatusCode::OK) else {
            self.wanted = self.wanted.saturating_sub(1);
            return Ok(Some(Pulled::Message(message)));
        };
        let why = message.description.as_deref().unwrap_or_default();
        let gone = |why: &str| Err(error(Kind::DestinationRefused, why.to_owned()));
        match status {
            StatusCode::IDLE_HEARTBEAT => Ok(None),
            StatusCode::NO_RESPONDERS => gone("the consumer is not there, or has no leader"),
            _ if why.contains("Deleted") || why.contains("push based") => gone(why),
            _ if why.starts_with("Exceeded") => gone(why),
            // Of a request that is over.
            _ if !self.is_current(&message) => Ok(None),
            _ => {
                self.wanted = 0;
                let too_large = why.contains("Size Exceeds MaxBytes");
                Ok(Some(if too_large { Pulled::NoRoom } else { Pulled::Ended }))
            }
        }
    }

    fn is_current(&self, message: &Message) -> bool {
        let number = message.subject.rsplit('.').next().and_then(|text| text.parse().ok());
        number == Some(self.number)
    }

    /// Ends the subscription and returns what was on its way, as far as it comes within the limit.
    pub(super) async fn drain(mut self, limit: Duration) -> Vec<Message> {
        let (mut late, until) = (Vec::new(), Instant::now() + limit);
        if let Ok(Ok(())) = tokio::time::timeout_at(until, self.answers.drain()).await {
            while let Ok(Some(message)) = tokio::time::timeout_at(until, self.answers.next()).await
            {
                late.extend(message.status.is_none().then_some(message));
            }
        }
        late
    }
}

pub(super) fn lost() -> Error {
    error(Kind::DestinationDown, "the connection was lost".into())
}
