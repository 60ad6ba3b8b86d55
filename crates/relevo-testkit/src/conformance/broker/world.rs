use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Publisher, Subscriber};
use std::sync::Arc;
use std::time::Duration;

/// Makes worlds for the suite.
#[async_trait]
pub trait BrokerHarness: Send + Sync + 'static {
    /// A fresh destination (a queue, a stream, a topic) that nobody else uses. With `alone` its broker is nobody
    /// else's either: it will be restarted. `None` if the server is missing and may be: the harness has said so aloud.
    async fn fresh(&self, alone: bool) -> Option<Box<dyn BrokerWorld>>;
}

/// One fresh destination at a broker.
#[async_trait]
pub trait BrokerWorld: Send + Sync {
    /// The adapter's name.
    fn name(&self) -> &'static str;

    /// What the adapter can do.
    fn capabilities(&self) -> Capabilities;

    /// How the adapter writes CloudEvents attributes.
    fn binding(&self) -> Binding;

    /// The adapter's connections mend themselves, and find out what became of what was under way: a lost answer is
    /// asked for again, a receiver keeps what it holds.
    fn mends_itself(&self) -> bool {
        false
    }

    /// A topic that leads to the destination.
    fn topic(&self) -> String;

    /// A topic that leads nowhere, where the adapter declares `refuses_unroutable`.
    fn unroutable(&self) -> String;

    /// A payload of so many bytes is over the limit.
    fn oversize(&self) -> usize;

    /// A publisher with a connection of its own.
    fn publisher(&self) -> Result<Arc<dyn Publisher>>;

    /// The same, with at most so many messages and bytes unconfirmed, which waits for confirms longer than any case
    /// takes. A message that is larger goes alone.
    fn publisher_within(&self, messages: usize, bytes: usize) -> Result<Arc<dyn Publisher>>;

    /// The same with at most so many messages, which waits for a confirm for so long, where the adapter declares
    /// `windowed`.
    fn publisher_waiting(&self, _messages: usize, _limit: Duration) -> Result<Arc<dyn Publisher>> {
        self.publisher()
    }

    /// A subscriber to the destination, where the adapter declares `consumes`.
    fn subscriber(&self, consuming: Consuming) -> Result<Arc<dyn Subscriber>>;

    /// A subscriber whose receivers have several sources, and topics that lead to all of these by the events' keys,
    /// where the adapter declares `several_sources`.
    async fn several_sources(
        &self,
        consuming: Consuming,
    ) -> Result<(Arc<dyn Subscriber>, Vec<String>)> {
        Ok((self.subscriber(consuming)?, vec![self.topic()]))
    }

    /// How many bytes the broker has sent to all connections so far; `None` if there is nothing between it and the
    /// adapter where they could be counted.
    fn sent_bytes(&self) -> Option<u64> {
        None
    }

    /// A receiver is sent as much again as it may hold, before anybody takes it.
    fn reads_ahead(&self) -> bool {
        false
    }

    /// How many messages the destination stores, asked of the broker itself. Nobody consumes meanwhile.
    async fn stored(&self) -> Result<usize>;

    /// How many of them its consumers have not settled, asked of the broker itself. Nobody consumes meanwhile.
    async fn unsettled(&self) -> Result<usize> {
        // Where what is settled leaves the destination.
        self.stored().await
    }

    /// Stores a message as a program without Relevo would.
    async fn put(&self, raw: Raw) -> Result<()>;

    /// Everything that was put away as dead so far.
    async fn dead(&self) -> Result<Vec<Raw>>;

    /// Makes the destination so small that it holds no more than `messages`, where the adapter declares
    /// `refuses_when_full`.
    async fn bound(&self, messages: usize) -> Result<()>;

    /// Deletes the destination with what it stores.
    async fn delete(&self) -> Result<()>;

    /// Makes it anew.
    async fn recreate(&self) -> Result<()>;

    /// From now on the way between the adapter and the broker is like this. [`Fault::None`] heals it; connections
    /// that suffered may have to be made anew. An error if an answer that was to be lost was never asked for.
    async fn fault(&self, fault: Fault) -> Result<()>;

    /// Restarts the broker; when it returns, it answers again. Called only on a broker that is nobody else's.
    async fn restart(&self) -> Result<()>;
}

/// How a case consumes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Consuming {
    /// Most unsettled messages.
    pub max_unsettled: usize,
    /// Most bytes of them; a larger message comes alone.
    pub max_unsettled_bytes: usize,
    /// One consumer at a time for each source, where the adapter declares `exclusive_sources`.
    pub exclusive: bool,
    /// A consumer that is silent for so long is taken for dead, where the broker does that by time: what it holds goes
    /// to others.
    pub dead_after: Duration,
    /// A broker that is silent for about so long is taken for dead, where that can be told; as the adapter has it if
    /// nothing is said.
    pub broker_dead_after: Option<Duration>,
    /// What is to come again later waits at the broker, where the adapter declares `delays_at_broker`.
    pub delays_at_broker: bool,
}

impl Consuming {
    /// At most so many unsettled messages; consumers share the destination.
    pub fn at_most(max_unsettled: usize) -> Self {
        let dead_after = Duration::from_secs(6);
        Self {
            max_unsettled,
            max_unsettled_bytes: 64 << 20,
            exclusive: false,
            dead_after,
            broker_dead_after: None,
            delays_at_broker: false,
        }
    }

    /// At most so many bytes of them.
    pub fn bytes(mut self, max_unsettled_bytes: usize) -> Self {
        self.max_unsettled_bytes = max_unsettled_bytes;
        self
    }

    /// Silence means death only after so long.
    pub fn dead_after(mut self, silence: Duration) -> Self {
        self.dead_after = silence;
        self
    }

    /// The broker's silence means its death after about so long.
    pub fn broker_dead_after(mut self, silence: Duration) -> Self {
        self.broker_dead_after = Some(silence);
        self
    }

    /// What is to come again later waits at the broker.
    pub fn delays_at_broker(mut self) -> Self {
        self.delays_at_broker = true;
        self
    }

    /// One consumer at a time.
    pub fn exclusively(mut self) -> Self {
        self.exclusive = true;
        self
    }
}

/// What is wrong on the way between adapter and broker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing.
    None,
    /// Every connection breaks at this moment; new ones work.
    Cut,
    /// The broker cannot be reached.
    Unreachable,
    /// Nothing comes through, and nobody says so.
    Silence,
    /// Every connection of this moment falls silent for ever, and nobody says so; new ones work.
    Forgotten,
    /// The next message with this text in it reaches the broker; its answer does not come back, and the connection
    /// breaks.
    LosesAnswerTo(String),
    /// Everything reaches the broker, and nothing it answers comes back.
    WithholdsAnswers,
    /// Everything reaches the broker; what it answers waits, and comes back when this ends.
    HoldsAnswers,
}

/// A message as any program may send it: header values need not be text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Raw {
    /// The broker's own id of it, where it has a place for that.
    pub message_id: Option<String>,
    /// The broker's own key of it, where it has a place for that (Kafka).
    pub key: Option<Vec<u8>>,
    /// Header names and values.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The bytes.
    pub payload: Vec<u8>,
}

impl Raw {
    /// A message of bytes.
    pub fn new(payload: impl Into<Vec<u8>>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    /// With a header.
    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// With the broker's own key.
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The value of a header, as text.
    pub fn text(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    }
}
