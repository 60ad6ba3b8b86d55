//! The relay: subscriptions read the log in commit order and hand events on.
//!
//! [`Relay`] is the machine of one subscription in one process: inputs in, [`Action`]s out. It owns lanes under
//! leases, reads pages for lanes that stand in step, cuts [`Batch`]es, and learns from each what was recorded.
//! [`run`] is the shell that does what the actions say.

mod action;
#[cfg(test)]
mod answers_tests;
mod batch;
#[cfg(test)]
mod batch_tests;
mod config;
mod cursor;
#[cfg(test)]
mod cursor_tests;
mod lane;
#[cfg(test)]
mod lane_tests;
mod machine;
#[cfg(test)]
mod machine_tests;
#[cfg(test)]
mod ownership_tests;
mod reader;
#[cfg(test)]
mod reader_tests;
pub mod run;
#[cfg(test)]
mod upkeep_tests;

#[cfg(test)]
pub(crate) use batch_tests::{wave_of_keys, waves_of_one_key};

pub use action::{Action, Delivery, Input};
pub use batch::{Batch, Item};
pub use config::{AfterDead, CONCURRENCY, Order, RelayConfig};
pub use machine::{Counts, Relay};
