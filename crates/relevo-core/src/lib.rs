//! Contracts and decisions of Relevo, without any driver.
//!
//! # Layout: the way of an event
//!
//! 1. [`event`]: what travels.
//! 2. [`outbox`]: the append-only log written in the caller's transaction, and the port every store implements.
//! 3. [`relay`]: the state machines that read the log in commit order and hand events on.
//! 4. [`broker`]: where events go when they leave the database.
//! 5. [`inbox`]: handlers whose effect happens once, in the transaction that moves the cursor.
//! 6. [`dead_letters`]: what failed for good, with its reason, and how it comes back.
//!
//! Beside the way: [`flow`] (leases, breaker, pacing), [`retry`], [`limits`], [`clock`], [`telemetry`], [`error`].
//!
//! Everything that decides is deterministic: inputs in, actions out, no clock, no randomness, no socket.
//! The thin shells around it live in [`relay::run`], [`inbox::direct`] and [`inbox::consume`].

pub mod broker;
pub mod clock;
pub mod dead_letters;
pub mod error;
pub mod event;
pub mod flow;
pub mod inbox;
pub mod limits;
pub mod outbox;
pub mod relay;
pub mod retry;
pub mod telemetry;

#[cfg(feature = "mutants")]
pub mod mutants;

/// True when a deliberately wrong variant is switched on; always false in shipped builds,
/// where the compiler removes the branch.
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:ident) => {
        $crate::no_mutant()
    };
}
#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::active($crate::mutants::Mutant::$name)
    };
}
pub(crate) use mutant;

/// False, said by a call: a plain `false` inside conditions would look like a mistake to the linter.
#[doc(hidden)]
#[inline(always)]
pub const fn no_mutant() -> bool {
    false
}

pub use error::{Error, ErrorClass, Kind, Result};
pub use event::{Event, EventId, Headers, NewEvent};
