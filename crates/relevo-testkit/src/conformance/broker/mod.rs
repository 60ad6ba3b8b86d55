//! One suite for every broker: what a publisher and a receiver must do, as tests.
//!
//! An adapter's author writes a [`BrokerHarness`] and one line:
//!
//! ```ignore
//! relevo_testkit::broker_conformance!(my_broker, MyHarness);
//! ```
//!
//! That makes a module `my_broker` with a `#[test]` for each case of [`broker_cases!`](crate::broker_cases). A case is
//! left out only where the adapter's [`Capabilities`](relevo_core::broker::Capabilities) say that it cannot apply, and
//! that is printed.
//!
//! # Layout
//! - [`BrokerHarness`], [`BrokerWorld`]: what an adapter's author provides
//! - `rig`: what the cases are written with
//! - [`publish`], [`consume`], [`headers`], [`faults`], [`restart`]: the cases
//! - [`broker_capability_table`]: what the shipped adapters can do, for the documentation

pub mod consume;
pub mod faults;
pub mod headers;
mod list;
pub mod publish;
pub mod restart;
mod rig;
mod run;
mod table;
mod world;

pub use rig::Rig;
pub use run::{Need, run};
pub use table::{BROKER_CAPABILITIES, BrokerCapability, broker_capability_table};
pub use world::{BrokerHarness, BrokerWorld, Consuming, Fault, Raw};
