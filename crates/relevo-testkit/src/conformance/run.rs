use super::{Rig, StoreHarness};
use relevo_core::outbox::Capabilities;
use relevo_core::{Error, Kind, Result};
use std::io::Write;
use std::time::Duration;

/// A case that is not over by then hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// What a case needs of a store, beyond what every store must do.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// The capability's name.
    pub name: &'static str,
    /// Does the store declare it?
    pub met: fn(&Capabilities) -> bool,
    /// Whoever can do what the case shows to be impossible has nothing left out.
    quiet: bool,
}

impl Need {
    /// A case for stores that declare this.
    pub fn of(name: &'static str, met: fn(&Capabilities) -> bool) -> Self {
        Self { name, met, quiet: false }
    }

    /// A case for stores that declare that they lack this.
    pub fn lack(name: &'static str, met: fn(&Capabilities) -> bool) -> Self {
        Self { name, met, quiet: true }
    }
}

/// Runs one case against a fresh store of the harness.
///
/// # Panics
/// If the case fails: that is what a test does.
pub fn run<H: StoreHarness>(
    harness: &H,
    case: &str,
    need: Option<Need>,
    work: impl AsyncFnOnce(&Rig) -> Result<()>,
) {
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => panic!("no runtime: {error}"),
        };
    let result = runtime.block_on(async {
        let Some(under_test) = harness.fresh().await else { return Ok(()) };
        let store = under_test.store();
        if let Some(need) = need.filter(|need| !(need.met)(&store.capabilities())) {
            if !need.quiet {
                say_skipped(store.name(), case, need.name);
            }
            return Ok(());
        }
        let late = |_| Error::new(Kind::Timeout, format!("not over within {LIMIT:?}"));
        let rig = Rig::new(under_test);
        tokio::time::timeout(LIMIT, work(&rig)).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    });
    // What a failed case left running must not keep the others waiting.
    runtime.shutdown_timeout(Duration::from_secs(5));
    if let Err(error) = result {
        panic!("{case}: {error} {error:?}");
    }
}

/// Straight to the terminal: what the test harness captures of a passing test is never seen.
fn say_skipped(store: &str, case: &str, need: &str) {
    let line = format!("SKIPPED: {case} on {store}, which declares no {need}\n");
    if let Err(error) = std::io::stderr().write_all(line.as_bytes()) {
        panic!("the skip of {case} cannot be printed: {error}");
    }
}
