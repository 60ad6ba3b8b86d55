//! What arrives, how much of it at once, and what becomes of it.
//!
//! # Layout
//! - `arrive`: everything, in order
//! - `limits`: how much is unsettled at once
//! - `settle`: done, again, or dead
//! - `interrupted`: settled, and not waited for
//! - `share`: several receivers

mod arrive;
mod interrupted;
mod limits;
mod settle;
mod share;

pub use arrive::*;
pub use interrupted::*;
pub use limits::*;
pub use settle::*;
pub use share::*;

use super::Rig;
use relevo_core::broker::Incoming;
use relevo_core::event::EventId;

fn id_of(rig: &Rig, message: &Incoming) -> EventId {
    rig.read(message).event.id
}
