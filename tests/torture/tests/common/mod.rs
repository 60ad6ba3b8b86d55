//! What the torture tests share. Each may use only a part of it.
#![allow(dead_code)]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_torture::rig::{RECOVERY_LIMIT, Run};
use tokio::sync::{Mutex, MutexGuard};

/// One scenario at a time: they measure, and they need the machine.
pub(crate) async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// A run of the program built beside the tests. `RELEVO_TORTURE_SEED` is added to its seed.
pub(crate) fn run(seed: u64) -> Run {
    let base = number("RELEVO_TORTURE_SEED").unwrap_or(0);
    let program = env!("CARGO_BIN_EXE_relevo-torture").into();
    // How fast a take-over is, only a machine with nothing else to do can tell: campaigns and benchmarks measure it.
    Run { program, seed: base + seed, takeover_limit: RECOVERY_LIMIT }
}

/// How many kills: the figure given, or `RELEVO_TORTURE_KILLS` percent of it.
pub(crate) fn kills(by_default: usize) -> usize {
    let percent = number("RELEVO_TORTURE_KILLS").unwrap_or(100) as usize;
    (by_default * percent / 100).max(1)
}

/// How long: the figure given, or `RELEVO_TORTURE_SECONDS` instead.
pub(crate) fn seconds(by_default: u64) -> std::time::Duration {
    std::time::Duration::from_secs(number("RELEVO_TORTURE_SECONDS").unwrap_or(by_default))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// A server for scenarios that leave it whole; those of one test binary share it.
pub(crate) fn server(major: u16) -> Option<std::sync::Arc<relevo_testkit::services::Postgres>> {
    use relevo_testkit::services::{self, Postgres, ServiceError};
    type Slot = std::sync::OnceLock<Result<std::sync::Arc<Postgres>, ServiceError>>;
    static SLOTS: [Slot; 2] = [Slot::new(), Slot::new()];
    let slot = &SLOTS[usize::from(major == 18)];
    let start = || relevo_torture::scenarios::server(major).map(std::sync::Arc::new);
    services::require(slot.get_or_init(start).clone())
}
