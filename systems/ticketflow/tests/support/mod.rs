//! What the tests of the embedded and of the real system share.
#![allow(dead_code, reason = "each test takes what it needs")]

use relevo_testkit::eventually;
use ticketflow::database::Database;
use ticketflow::traffic::Journal;
use ticketflow::verify::{Arrived, Evidence, Verdict};

/// Waits until every effect is there, and weighs them.
pub async fn settled(
    journal: &Journal,
    database: &Database,
    mails: impl Fn() -> Vec<Arrived>,
) -> Verdict {
    let evidence = eventually("every change has its effects", async || {
        // Mails first: what is counted later can only be more.
        let arrived = mails();
        let evidence = Evidence::of(journal, database, arrived).await.expect("evidence");
        evidence.is_complete().then_some(evidence)
    });
    evidence.await.verdict()
}

/// Nothing lost, nothing twice, everything in its order.
pub fn assert_kept(verdict: &Verdict) {
    assert!(verdict.broken.is_empty(), "{:?} {:?}", verdict.broken, verdict.report);
}
