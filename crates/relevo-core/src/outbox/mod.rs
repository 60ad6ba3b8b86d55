//! The append-only log, and the port through which the engine works any store.
//!
//! Event rows are never updated. Progress is a [`Position`] per subscription and lane; exceptions (parked
//! keys, dead letters, skips) are rows of their own; both change in one transaction, a [`LaneChange`].

pub mod adopt;
mod change;
mod moved;
mod note;
mod publish;
mod retention;
mod snapshot;
mod store;
mod tick;
mod window;

pub use change::{Death, EventRef, LaneChange, ParkKey, Skip};
pub use moved::{LEFT_OUT, Moved};
pub use note::{MemberNote, OpenBreaker};
pub use publish::PublishIn;
pub use retention::Retention;
pub use snapshot::{Snapshot, Xid};
pub use store::*;
pub use tick::{Tick, TickMaker, TickRef, TickReply, TickStep, tick_is_due};
pub use window::Window;
