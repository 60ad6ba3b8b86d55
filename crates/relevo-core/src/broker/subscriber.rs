use super::Capabilities;
use super::cloudevents::Binding;
use super::incoming::{Incoming, Source};
use crate::error::Result;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// Names a message between its arrival and its settlement, within one [`Receiver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// What becomes of a message at its broker.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Settle {
    /// Worked on, or stored elsewhere: the broker may forget it.
    Done,
    /// Deliver it again, not before this long.
    RetryAfter(Duration),
    /// Put it where the broker keeps what failed for good, with its bytes, headers and this reason.
    Dead {
        /// Why.
        reason: String,
    },
}

/// Headers that a message gets when a receiver puts it away for good ([`Settle::Dead`]); its own stay as they were.
pub mod dead_header {
    /// Why.
    pub const REASON: &str = "x-relevo-last-error";
    /// The queue, stream or topic it was consumed from.
    pub const FROM: &str = "x-relevo-original-destination";
    /// The routing key, subject or topic it was published with.
    pub const TOPIC: &str = "x-relevo-original-topic";
    /// How often it had been delivered.
    pub const ATTEMPTS: &str = "x-relevo-attempts";
}

/// What a receiver has to say.
#[derive(Debug)]
#[non_exhaustive]
pub enum Received {
    /// Messages of one source, in its order.
    Messages {
        /// Where they come from.
        source: Source,
        /// At least one.
        messages: Vec<Incoming>,
    },
    /// A source was taken away (a rebalance, a closed queue): what is not settled yet comes again, to its next
    /// consumer. Settling it here does nothing.
    Revoked(Source),
}

/// Consumes from a broker.
#[async_trait]
pub trait Subscriber: Send + Sync + 'static {
    /// The adapter's name.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// How its protocol writes CloudEvents attributes.
    fn binding(&self) -> Binding;

    /// Connects and begins to receive.
    async fn open(&self) -> Result<Box<dyn Receiver>>;
}

/// A subscriber of any kind, owned or shared by several consumers.
macro_rules! behind_a_pointer {
    ($($pointer:ident)*) => {$(
        #[async_trait]
        impl Subscriber for $pointer<dyn Subscriber> {
            fn name(&self) -> &'static str {
                (**self).name()
            }

            fn capabilities(&self) -> Capabilities {
                (**self).capabilities()
            }

            fn binding(&self) -> Binding {
                (**self).binding()
            }

            async fn open(&self) -> Result<Box<dyn Receiver>> {
                (**self).open().await
            }
        }
    )*};
}

behind_a_pointer!(Box Arc);

/// Messages in, each settled once, in any order; acknowledging is always last.
///
/// # Contract
/// - At most as many messages, and bytes of them, are unsettled as the adapter's configuration says; then nothing more
///   comes until some are settled: memory stays bounded. A message larger than that comes alone. Where the broker
///   counts messages only, a receiver that holds too many bytes ends, and the next one holds fewer messages.
/// - An error of [`Receiver::next`] or [`Receiver::settle`] ends this receiver: open another. What was not settled
///   comes again.
/// - Settling a tag twice, or one of a revoked source, does nothing.
/// - A revoked source is no longer paused: if it comes back, so do its messages.
#[async_trait]
pub trait Receiver: Send {
    /// What comes next: waits until there is something. At most `max` messages. Dropping the future loses nothing.
    async fn next(&mut self, max: usize) -> Result<Received>;

    /// Settles messages. When it returns, the broker has been told (not necessarily: has answered). Dropping the future
    /// is allowed: each message is then settled as it was to be, or may be settled again, or comes again.
    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()>;

    /// Nothing more of `source` until it is resumed; its messages wait at the broker.
    async fn pause(&mut self, source: &Source) -> Result<()>;

    /// Goes on with `source`.
    async fn resume(&mut self, source: &Source) -> Result<()>;

    /// Ends: what is unsettled goes back to the broker at once. It comes to an end within seconds, also if nothing
    /// answers any more; what could not be given back then comes again when the broker notices.
    async fn close(self: Box<Self>) -> Result<()>;
}
