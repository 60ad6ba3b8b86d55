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

/// A connection that is made when it is needed, and again when it is lost: to whichever node answers.
pub struct Rabbit {
    nodes: Vec<String>,
    connection: Mutex<Option<Connection>>,
}

impl Rabbit {
    /// At this URL, which may name several nodes parted by commas; nothing is asked yet.
    pub fn at(url: &str) -> Self {
        Self { nodes: nodes(url), connection: Mutex::default() }
    }

    async fn connect(&self) -> Result<Connection> {
        let mut why = anyhow::anyhow!("the URL names no node");
        for node in &self.nodes {
            match Connection::connect(node, ConnectionProperties::default()).await {
                Ok(connection) => return Ok(connection),
                // The reason names no address: a URL carries a password.
                Err(error) => why = anyhow::anyhow!("no connection: {error}"),
            }
        }
        Err(why)
    }

    async fn channel(&self) -> Result<Channel> {
        let mut connection = self.connection.lock().await;
        if let Some(alive) = connection.as_ref().filter(|it| it.status().connected()) {
            return Ok(alive.create_channel().await?);
        }
        Ok(connection.insert(self.connect().await?).create_channel().await?)
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

/// `amqp://user@one,two:5673/vhost` as the URLs of its nodes.
fn nodes(url: &str) -> Vec<String> {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let end = url[begin..].find(['/', '?']).map_or(url.len(), |at| begin + at);
    let hosts = url[begin..end].rfind('@').map_or(begin, |at| begin + at + 1);
    let node = |host: &str| format!("{}{host}{}", &url[..hosts], &url[end..]);
    url[hosts..end].split(',').map(node).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_of_a_cluster_has_the_same_user_and_virtual_host() {
        assert_eq!(nodes("amqp://guest:guest@127.0.0.1"), ["amqp://guest:guest@127.0.0.1"]);
        assert_eq!(
            nodes("amqp://a:b%2C@one,two:5673,[::1]:5/%2f?heartbeat=5"),
            [
                "amqp://a:b%2C@one/%2f?heartbeat=5",
                "amqp://a:b%2C@two:5673/%2f?heartbeat=5",
                "amqp://a:b%2C@[::1]:5/%2f?heartbeat=5"
            ]
        );
        assert_eq!(nodes("amqp://one,two"), ["amqp://one", "amqp://two"]);
    }

    #[tokio::test]
    async fn the_first_node_that_answers_is_taken() {
        let silent = Rabbit::at("amqp://guest:s3cret@127.0.0.1:1,127.0.0.1:2");
        let error = silent.check().await.expect_err("nobody is there").to_string();
        assert!(error.starts_with("no connection") && !error.contains("s3cret"), "{error}");
    }
}
