//! The first SIGTERM or SIGINT asks for an orderly end, the second ends at once.

use relevo_core::{Error, Kind, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ended by a signal before everything was in order, as shells write it (128 + SIGINT).
pub(super) const AT_ONCE: u8 = 130;

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on.
    pub(super) fn listen() -> Result<Self> {
        let on = |kind| {
            signal(kind).map_err(|e| {
                Error::new(Kind::NotSupported, format!("signals cannot be heard: {e}"))
            })
        };
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and names it.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
