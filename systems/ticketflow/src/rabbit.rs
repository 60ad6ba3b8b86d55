//! Looking into RabbitMQ: does it answer, how long is a queue, and taking one message out of it.

use crate::api::{Check, Copies};
use crate::topology::dlq;
use anyhow::{Context, Result};
use async_trait::async_trait;
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use relevo::EventId;
use tokio::sync::Mutex;

/// A connection that is made when it is needed, and again when it is lost.
pub struct Rabbit {
    url: String,
    connection: Mutex<Option<Connection>>,
}

impl Rabbit {
    /// At this URL; nothing is asked yet.
    pub fn at(url: &str) -> Self {
        Self { url: url.to_owned(), connection: Mutex::default() }
    }

    async fn channel(&self) -> Result<Channel> {
        let mut connection = self.connection.lock().await;
        if let Some(alive) = connection.as_ref().filter(|it| it.status().connected()) {
            return Ok(alive.create_channel().await?);
        }
        let made = Connection::connect(&self.url, ConnectionProperties::default()).await;
        // The reason names no address: a URL carries a password.
        let made = made.map_err(|error| anyhow::anyhow!("no connection: {error}"))?;
        Ok(connection.insert(made).create_channel().await?)
    }

    /// How many messages wait in a queue.
    pub async fn depth(&self, queue: &str) -> Result<u32> {
        let channel = self.channel().await?;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue.into(), passive, FieldTable::default()).await?;
        channel.close(200, "looked".into()).await?;
        Ok(declared.message_count())
    }

    /// Takes the message with this id out of a queue; the others stay as they were.
    async fn take(&self, queue: &str, id: &str) -> Result<bool> {
        let channel = self.channel().await?;
        let mut found = false;
        while !found {
            let next = channel.basic_get(queue.into(), BasicGetOptions::default()).await?;
            let Some(message) = next else { break };
            let this = message.properties.message_id().as_ref();
            found = this.is_some_and(|this| this.as_str() == id);
            if found {
                message.ack(BasicAckOptions::default()).await?;
            }
        }
        // What was looked at and not acknowledged goes back to its place with the channel.
        channel.close(200, "looked".into()).await?;
        Ok(found)
    }
}

#[async_trait]
impl Check for Rabbit {
    fn name(&self) -> &'static str {
        "RabbitMQ"
    }

    async fn check(&self) -> Result<()> {
        let channel = self.channel().await?;
        channel.close(200, "looked".into()).await.context("closing a channel")
    }
}

#[async_trait]
impl Copies for Rabbit {
    async fn remove(&self, consumer: &str, event: EventId) -> Result<()> {
        self.take(&dlq(consumer), &event.to_string()).await.map(drop)
    }
}
