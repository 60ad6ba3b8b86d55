//! Where events go: through Relevo's adapter, or through the bare client with the same window.

use anyhow::{Context, Result, ensure};
use async_nats::jetstream;
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use relevo::broker::Publisher;
use relevo_brokers::nats::{NatsConfig, NatsPublisher};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use serde::{Deserialize, Serialize};
use std::future::{Future, IntoFuture};
use std::pin::Pin;

/// The window of both: Relevo's default.
const WINDOW: usize = 1000;

/// Where events go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sink {
    /// Nowhere.
    Null,
    /// A stream of this name; subjects begin with it.
    Nats { url: String, stream: String },
    /// An exchange of this name with one queue of the same name behind it.
    RabbitMq { url: String, name: String, quorum: bool },
}

impl Sink {
    /// Relevo's own adapter.
    pub(crate) fn publisher(&self) -> Result<Option<Box<dyn Publisher>>> {
        Ok(match self {
            Sink::Null => None,
            Sink::Nats { url, stream } => {
                let config = NatsConfig::to(url)?.subject_prefix(stream.as_str());
                Some(Box::new(NatsPublisher::new(config)))
            }
            Sink::RabbitMq { url, name, .. } => {
                let config = RabbitMqConfig::to(url)?.exchange(name.as_str());
                Some(Box::new(RabbitMqPublisher::new(config)))
            }
        })
    }

    /// The bare client.
    pub(crate) async fn connect(&self) -> Result<Bare> {
        let client = match self {
            Sink::Null => Client::Null,
            Sink::Nats { url, stream } => {
                let client = connect_nats(url).await?;
                Client::Nats(jetstream::new(client), stream.clone())
            }
            Sink::RabbitMq { url, name, .. } => {
                let connection = Connection::connect(url, ConnectionProperties::default()).await?;
                let channel = connection.create_channel().await?;
                channel.confirm_select(ConfirmSelectOptions::default()).await?;
                Client::RabbitMq(connection, channel, name.clone())
            }
        };
        Ok(Bare { client, unconfirmed: FuturesUnordered::new() })
    }
}

/// The client does not take user and password from a URL.
pub(crate) async fn connect_nats(url: &str) -> Result<async_nats::Client> {
    let (user, host) = url.trim_start_matches("nats://").split_once('@').context("no user")?;
    let (user, password) = user.split_once(':').context("no password")?;
    let options = async_nats::ConnectOptions::with_user_and_password(user.into(), password.into());
    Ok(options.connect(host).await?)
}

type Confirming = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

enum Client {
    Null,
    Nats(jetstream::Context, String),
    /// The connection lives as long as its channel is used.
    RabbitMq(#[allow(dead_code, reason = "kept open")] Connection, lapin::Channel, String),
}

/// A client with a window of unconfirmed messages.
pub(crate) struct Bare {
    client: Client,
    unconfirmed: FuturesUnordered<Confirming>,
}

impl Bare {
    /// Sends; waits only while the window is full.
    pub(crate) async fn publish(&mut self, topic: &str, payload: Bytes) -> Result<()> {
        let confirming: Confirming = match &self.client {
            Client::Null => return Ok(()),
            Client::Nats(jetstream, stream) => {
                let ack = jetstream.publish(format!("{stream}.{topic}"), payload).await?;
                Box::pin(async move { Ok(ack.into_future().await.map(drop)?) })
            }
            Client::RabbitMq(_, channel, exchange) => {
                let properties = BasicProperties::default().with_delivery_mode(2);
                let options = BasicPublishOptions { mandatory: true, ..Default::default() };
                let confirm = channel
                    .basic_publish(
                        exchange.as_str().into(),
                        topic.into(),
                        options,
                        &payload,
                        properties,
                    )
                    .await?;
                Box::pin(async move {
                    let confirm = confirm.await?;
                    ensure!(matches!(confirm, Confirmation::Ack(None)), "not stored: {confirm:?}");
                    Ok(())
                })
            }
        };
        self.unconfirmed.push(confirming);
        if self.unconfirmed.len() >= WINDOW {
            self.unconfirmed.next().await.context("the window is empty")??;
        }
        Ok(())
    }

    /// Waits until everything is confirmed.
    pub(crate) async fn confirmed(&mut self) -> Result<()> {
        while let Some(confirm) = self.unconfirmed.next().await {
            confirm?;
        }
        Ok(())
    }
}
