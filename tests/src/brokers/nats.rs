//! NATS JetStream: a stream of its own on a shared server for each case, reached through a proxy.

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use async_trait::async_trait;
use relevo_brokers::nats::{NatsConfig, NatsConsumer, NatsPublisher, NatsSubscriber};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Publisher, Subscriber};
use relevo_core::{Error, Kind, Result};
use relevo_testkit::PATIENCE;
use relevo_testkit::conformance::broker::{BrokerHarness, BrokerWorld, Consuming, Fault, Raw};
use relevo_testkit::services::{Nats, Proxy, require, unique_name};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const OVERSIZE: usize = 2 << 20;

/// A real NATS server.
pub struct NatsHarness;

#[async_trait]
impl BrokerHarness for NatsHarness {
    async fn fresh(&self, alone: bool) -> Option<Box<dyn BrokerWorld>> {
        let server = require(if alone { Nats::start().map(Arc::new) } else { Nats::shared() })?;
        let proxy = require(Proxy::start(server.address()))?;
        let world = World { server, proxy, name: unique_name("S") };
        for config in [world.stream(), world.graveyard()] {
            let made = world.make(config).await;
            made.unwrap_or_else(|error| panic!("no stream: {error}"));
        }
        Some(Box::new(world))
    }
}

struct World {
    server: Arc<Nats>,
    proxy: Proxy,
    name: String,
}

fn failed(why: impl Display) -> Error {
    Error::new(Kind::DestinationDown, why.to_string())
}

impl World {
    /// What is acknowledged leaves the stream, so that one that is full gets room.
    fn stream(&self) -> Config {
        Config {
            name: self.name.clone(),
            subjects: vec![format!("{}.>", self.name)],
            retention: RetentionPolicy::WorkQueue,
            ..Config::default()
        }
    }

    fn graveyard(&self) -> Config {
        let name = format!("{}_dead", self.name);
        Config { subjects: vec![format!("{name}.>")], name, ..Config::default() }
    }

    /// Past the proxy, as an operator does.
    async fn jetstream(&self) -> Result<Context> {
        let options = async_nats::ConnectOptions::with_user_and_password(
            "relevo".to_owned(),
            "relevo".to_owned(),
        );
        let client = options.connect(self.server.address().to_string()).await.map_err(failed)?;
        Ok(jetstream::new(client))
    }

    async fn make(&self, config: Config) -> Result<()> {
        self.jetstream().await?.create_stream(config).await.map(drop).map_err(failed)
    }

    fn config(&self) -> Result<NatsConfig> {
        let config = NatsConfig::to(&self.proxy.url(&self.server.url()))?;
        Ok(config.ack_timeout(Duration::from_secs(3)).connect_timeout(Duration::from_secs(3)))
    }
}

#[async_trait]
impl BrokerWorld for World {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn capabilities(&self) -> Capabilities {
        let consumer = NatsConsumer::new("S", "c");
        self.config().map_or_else(
            |_| Capabilities::default(),
            |config| NatsSubscriber::new(config, consumer).capabilities(),
        )
    }

    fn binding(&self) -> Binding {
        Binding::NATS
    }

    fn topic(&self) -> String {
        format!("{}.jobs.made", self.name)
    }

    fn unroutable(&self) -> String {
        format!("{}_nobody.cares", self.name)
    }

    fn oversize(&self) -> usize {
        OVERSIZE
    }

    fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        Ok(Arc::new(NatsPublisher::new(self.config()?)))
    }

    fn publisher_within(&self, messages: usize, bytes: usize) -> Result<Arc<dyn Publisher>> {
        let config = self.config()?.window(messages, bytes).ack_timeout(PATIENCE);
        Ok(Arc::new(NatsPublisher::new(config)))
    }

    fn publisher_waiting(&self, messages: usize, limit: Duration) -> Result<Arc<dyn Publisher>> {
        let config = self.config()?.window(messages, 16 << 20).ack_timeout(limit);
        Ok(Arc::new(NatsPublisher::new(config)))
    }

    fn subscriber(&self, consuming: Consuming) -> Result<Arc<dyn Subscriber>> {
        let consumer = NatsConsumer::new(self.name.as_str(), "worker")
            .window(consuming.max_unsettled, consuming.max_unsettled_bytes)
            .ack_wait(consuming.dead_after)
            // Silence is noticed when two of them, or three pings, are missing.
            .heartbeat(consuming.broker_dead_after.unwrap_or(Duration::from_secs(5)))
            .dead_letters(format!("{}_dead", self.name));
        Ok(Arc::new(NatsSubscriber::new(self.config()?, consumer)))
    }

    fn sent_bytes(&self) -> Option<u64> {
        Some(self.proxy.replied_bytes())
    }

    async fn stored(&self) -> Result<usize> {
        let stream = self.jetstream().await?.get_stream(&self.name).await.map_err(failed)?;
        Ok(stream.cached_info().state.messages as usize)
    }

    async fn put(&self, raw: Raw) -> Result<()> {
        put(&self.server, &self.topic(), raw).await.map_err(failed)
    }

    async fn dead(&self) -> Result<Vec<Raw>> {
        let stream = self.jetstream().await?.get_stream(&self.graveyard().name).await;
        let stream = stream.map_err(failed)?;
        let mut dead = Vec::new();
        for sequence in 1..=stream.cached_info().state.last_sequence {
            let letter = stream.get_raw_message(sequence).await.map_err(failed)?;
            let headers = letter.headers.iter().flat_map(|(name, values)| {
                values.iter().map(|value| (name.to_string(), value.as_str().as_bytes().to_vec()))
            });
            dead.push(Raw {
                message_id: None,
                key: None,
                headers: headers.collect(),
                payload: letter.payload.to_vec(),
            });
        }
        Ok(dead)
    }

    async fn bound(&self, messages: usize) -> Result<()> {
        let config =
            Config { max_messages: messages as i64, discard: DiscardPolicy::New, ..self.stream() };
        self.jetstream().await?.update_stream(config).await.map(drop).map_err(failed)
    }

    async fn delete(&self) -> Result<()> {
        self.jetstream().await?.delete_stream(&self.name).await.map(drop).map_err(failed)
    }

    async fn recreate(&self) -> Result<()> {
        self.make(self.stream()).await
    }

    async fn fault(&self, fault: Fault) -> Result<()> {
        super::spoil(&self.proxy, fault)
    }

    async fn restart(&self) -> Result<()> {
        let server = self.server.clone();
        let restarted = tokio::task::spawn_blocking(move || {
            server.kill9();
            server.restart()
        });
        restarted.await.map_err(failed)?.map_err(failed)
    }
}

/// Stores a message with headers of any bytes, which no client would send.
async fn put(server: &Nats, subject: &str, raw: Raw) -> std::io::Result<()> {
    let mut headers = b"NATS/1.0\r\n".to_vec();
    let id = raw.message_id.map(|id| ("Nats-Msg-Id".to_owned(), id.into_bytes()));
    for (name, value) in raw.headers.into_iter().chain(id) {
        headers.extend([name.as_bytes(), b": ", &value, b"\r\n"].concat());
    }
    headers.extend(b"\r\n");
    let (head, total) = (headers.len(), headers.len() + raw.payload.len());
    let connect = r#"CONNECT {"verbose":false,"headers":true,"user":"relevo","pass":"relevo"}"#;
    let begin =
        format!("{connect}\r\nSUB answer.put 1\r\nHPUB {subject} answer.put {head} {total}");
    let mut socket = BufReader::new(TcpStream::connect(server.address()).await?);
    let bytes = [begin.as_bytes(), b"\r\n", &headers, &raw.payload, b"\r\n"].concat();
    socket.write_all(&bytes).await?;
    let mut line = String::new();
    while !line.contains("\"seq\"") {
        line.clear();
        if socket.read_line(&mut line).await? == 0 || line.starts_with("-ERR") {
            return Err(std::io::Error::other(format!("not stored: {line}")));
        }
    }
    Ok(())
}
