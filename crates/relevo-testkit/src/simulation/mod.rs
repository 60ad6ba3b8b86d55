//! A seeded simulator: the very machines that production runs, over a simulated database, broker, clock and network.
//!
//! A seed decides everything: who writes what, who works where, which statement is lost, late or the last one of its
//! process. [`run_alone`] runs one seed; [`Campaign`] runs many on several threads, some of them twice, and adds up what was
//! seen. The same seed gives the same run, so a failure is repeated by its number.
//!
//! # Layout
//! - `options`: what a seed decides before the run; `bias`: what some seeds look at closely; `plan`: what handlers and brokers do with each event
//! - `sim`: the scheduler; `process`: the relay's machines with their shells; `intake`: the consumer's; `chaos`: what
//!   goes wrong; `late`: what takes its time
//! - `world`, `statements`, `inbox`, `broker`: what is outside the programs; `haste`: commits that a crash takes back from
//!   handlers; `client`, `receiver`: how programs reach
//!   it, step by step
//! - `writers`: writers and operators beside the relays
//! - `trace`, `describe`: a readable account of a seed; `campaign`, `command`: many seeds; `kills`: every mutant until
//!   it is dead
//! - `journal`, `landings`: what really happened, apart from all tables; `judge`: what it holds each delivery against;
//!   `told`: what publishers heard; `invariant`, `check`: what must hold; `counters`: what production counted; `seen`: what
//!   was reached

/// True when a deliberately wrong variant is switched on; always false without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:ident) => {
        relevo_core::no_mutant()
    };
}
#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:ident) => {
        relevo_core::mutants::active(relevo_core::mutants::Mutant::$name)
    };
}

mod bias;
mod broker;
mod call;
mod campaign;
mod chaos;
mod check;
mod client;
mod command;
mod counters;
mod describe;
mod haste;
mod inbox;
mod intake;
mod invariant;
mod journal;
mod judge;
#[cfg(feature = "mutants")]
mod kills;
mod landings;
mod late;
mod options;
mod plan;
mod process;
mod receiver;
mod seen;
mod sim;
mod statements;
mod told;
mod trace;
mod world;
mod writers;

pub use campaign::{Campaign, Failure, Report};
pub use command::command;
pub use invariant::{Invariant, Violation};
pub use options::Options;
pub use seen::{SOMETIMES, Seen};
pub use sim::{Outcome, run_alone};
