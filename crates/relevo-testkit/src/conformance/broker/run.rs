use super::{BrokerHarness, Rig};
use relevo_core::broker::Capabilities;
use relevo_core::{Error, Kind, Result};
use std::io::Write;
use std::time::Duration;

/// A case that is not over by then hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// What a case needs of an adapter.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// The capability's name.
    pub name: &'static str,
    /// Does the adapter declare it?
    pub met: fn(&Capabilities) -> bool,
}

/// Runs one case in a fresh world of the harness. Cases of the group `restart` get a broker of their own.
///
/// # Panics
/// If the case fails: that is what a test does.
pub fn run<H: BrokerHarness>(
    harness: &H,
    group: &str,
    case: &str,
    needs: &[Need],
    work: impl AsyncFnOnce(&Rig) -> Result<()>,
) {
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => panic!("no runtime: {error}"),
        };
    let result = runtime.block_on(async {
        let Some(world) = harness.fresh(group == "restart").await else { return Ok(()) };
        let can = world.capabilities();
        if let Some(need) = needs.iter().find(|need| !(need.met)(&can)) {
            say_skipped(world.name(), group, case, need.name);
            return Ok(());
        }
        let late = |_| Error::new(Kind::Timeout, format!("not over within {LIMIT:?}"));
        let rig = Rig::new(world);
        tokio::time::timeout(LIMIT, work(&rig)).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    });
    // What a failed case left running must not keep the others waiting.
    runtime.shutdown_timeout(Duration::from_secs(5));
    if let Err(error) = result {
        panic!("{group}::{case}: {error} {error:?}");
    }
}

/// Straight to the terminal: what the test harness captures of a passing test is never seen.
pub(super) fn say_skipped(adapter: &str, group: &str, case: &str, need: &str) {
    let line = format!("SKIPPED: {group}::{case} on {adapter}, which declares no {need}\n");
    if let Err(error) = std::io::stderr().write_all(line.as_bytes()) {
        panic!("the skip of {case} cannot be printed: {error}");
    }
}
