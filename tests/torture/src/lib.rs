//! Torture: real processes and real servers, broken in every way that can be had on one machine.
//!
//! # Layout
//! - [`story`]: what processes tell the test
//! - [`worker`], [`writer`]: the processes
//! - [`journal`], [`check`]: what was committed, and the verdict
//! - [`adopted`]: an outbox table of somebody else's, in place of the log
//! - [`rig`], [`process`], [`broker`], [`database`]: one run
//! - [`scenarios`]: what is done to it
//! - [`report`], [`campaign`]: figures, and all of it for hours

pub mod adopted;
pub mod broker;
pub mod campaign;
pub mod check;
pub mod database;
pub mod journal;
pub mod process;
pub mod report;
pub mod rig;
pub mod scenarios;
pub mod story;
pub mod worker;
pub mod writer;
