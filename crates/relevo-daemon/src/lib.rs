//! The `relevo` binary: a relay beside any service, and the tools to look after it.
//!
//! # Layout
//!
//! - [`broker`]: from a URL to a destination, and to what must be there
//! - [`cli`]: every command, its help, its output and its exit code
//! - [`config`]: `relevo.toml`, read strictly
//! - [`store`]: from a URL to an open store
//! - [`run`]: the daemon
//! - `logging`: what the log never shows
//! - `demo`: a shop floor of events and two systems, with everything that can go wrong

pub mod broker;
pub mod cli;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
mod logging;
pub mod run;
pub mod store;
