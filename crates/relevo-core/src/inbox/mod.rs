//! Effects done once: a handler's writes, the cursor, and whatever it publishes commit together.
//!
//! A [`Handler`] is given an event and an [`Effect`], which opens a transaction of the driver the user chose
//! ([`TxDriver`]). [`Direct`] is the destination that works batches through a handler; [`consume`] brings it what
//! comes from a broker.

mod caution;
pub mod consume;
pub mod direct;
mod effect;
mod outcome;

pub use caution::Caution;
pub use consume::{Consumer, Consuming, Meet, Met};
pub use direct::Direct;
pub use effect::{Effect, TxDriver};
pub use outcome::{Answer, Failure, Outcome, Settled};

use crate::event::Event;
use std::future::Future;
use std::time::Duration;

/// Works on events of a subscription, with transactions of driver `D`.
///
/// Called once per attempt; for one key never twice at the same time and never out of order. If it returns
/// `Ok`, its writes commit together with the cursor, or the attempt did not happen. If it fails, panics, is
/// cancelled or runs past its limit, its writes are rolled back.
pub trait Handler<D: TxDriver>: Send + Sync + 'static {
    /// Works on one event. `effect.tx()` gives the transaction.
    fn handle(
        &self,
        event: &Event,
        effect: &mut Effect<'_, D>,
    ) -> impl Future<Output = Answer> + Send;

    /// A slow handler gets a transaction of its own, begun at its first use: slow work before that holds nothing.
    fn slow(&self) -> bool {
        false
    }

    /// How long one attempt may take.
    fn limit(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// What was answered before the event came into the log; that attempt counts, and is not made again.
    #[doc(hidden)]
    fn answered_before(&self, _event: &Event) -> Option<Outcome> {
        None
    }
}
