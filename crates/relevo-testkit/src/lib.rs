//! What tests of Relevo, and of services that use it, stand on.
//!
//! # Layout
//! - [`conformance`]: one suite for every store, one line per store.
//! - [`eventually`]: waiting for what others bring about.
//! - [`services`]: real servers as child processes on free ports of 127.0.0.1, and a proxy that
//!   cuts, delays and loses what passes through it. No Docker needed.
//! - [`simulation`]: the engine's own machines over a simulated world, seed by seed.

pub mod conformance;
mod eventually;
pub mod services;
pub mod simulation;

pub use eventually::{PATIENCE, eventually};
