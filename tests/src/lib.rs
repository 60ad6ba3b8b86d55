//! What the tests of this package share.
//!
//! # Layout
//! - [`adopt`]: outbox tables of somebody else's, relayed in place
//! - [`alone`]: one test in a process of its own
//! - [`stores`]: harnesses that bring each store before the conformance suite
//! - [`writer`]: an application's transaction, of each driver
//! - [`world`]: a store with handlers of one driver, and the table their effects go to
//! - [`script`]: what a handler under test does
//! - [`broker`]: a broker that answers as it is told
//! - [`brokers`]: harnesses that bring each broker before the conformance suite
//! - [`cluster`]: clusters of each broker whose nodes are killed
//! - [`consume`]: consuming from a broker with effects done once, as cases for every world
//! - [`once`]: consuming from every broker with effects done once, as cases for every broker
//! - [`engine`]: the whole engine with real handlers, as cases for every world

pub mod adopt;
pub mod alone;
pub mod broker;
pub mod brokers;
pub mod cluster;
pub mod consume;
pub mod engine;
pub mod once;
pub mod script;
pub mod stores;
pub mod world;
pub mod writer;
