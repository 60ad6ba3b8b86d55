//! One suite for every store: what Relevo's engine relies on, as tests.
//!
//! A store's author writes a [`StoreHarness`] and one line:
//!
//! ```ignore
//! relevo_testkit::store_conformance!(my_store, MyHarness);
//! ```
//!
//! That makes a module `my_store` with a `#[test]` for each case, grouped as the way of an event is. The cases are
//! listed once, in [`store_cases!`](crate::store_cases); a new one runs against every store. A case is left out only
//! where the store's [`Capabilities`](relevo_core::outbox::Capabilities) say that it cannot apply, and that is printed; what
//! they say it cannot do is then shown, where that is possible, by the cases of [`store_no_cases!`](crate::store_no_cases).
//!
//! # Layout
//! - [`StoreHarness`], [`StoreUnderTest`], [`Writer`]: what a store's author provides
//! - `rig`, `hand`: what the cases are written with
//! - [`event`], [`outbox`], [`retention`], [`relay`], [`operators`], [`inbox`], [`dead_letters`], [`replay`],
//!   [`horizon`], [`why`]: the cases
//! - [`no`]: what a store declares that it cannot do, seen
//! - [`capability_table`]: what the shipped stores can do, for the documentation
//! - `teeth`: wrong stores that the suite must notice (only with the feature `mutants`)
//! - [`broker`]: the same for brokers

pub mod broker;
pub mod dead_letters;
pub mod event;
mod hand;
mod harness;
pub mod horizon;
pub mod inbox;
mod list;
pub mod no;
pub mod operators;
pub mod outbox;
pub mod relay;
pub mod replay;
pub mod retention;
mod rig;
mod run;
mod table;
#[cfg(feature = "mutants")]
mod teeth;
pub mod why;

pub use hand::{Hand, Read};
pub use harness::{StoreHarness, StoreUnderTest, Writer};
pub use rig::{Reader, Rig};
pub use run::{Need, run};
pub use table::{CAPABILITIES, Capability, capability_table};
#[cfg(feature = "mutants")]
pub use teeth::store_suite_has_teeth;
