//! The API on PostgreSQL: what it does on SQLite, in a process of its own.

use crate::common::clocks::{self, Clocks};
use crate::common::{Place, requests};
use crate::rig::Rig;
use crate::{PATIENT, assert_kept, settled};
use ticketflow::traffic::Journal;

/// Runs a case there.
async fn on_postgres(case: impl AsyncFn(&Place<'_>)) {
    let Some(rig) = Rig::shared().await else { return };
    let api = rig.api();
    case(&Place { client: api.client(), database: &rig.database }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_and_its_event_commit_together_or_not_at_all() {
    on_postgres(requests::one_transaction).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_is_a_problem_that_says_what_is_wrong() {
    on_postgres(requests::refusals).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_shown_as_its_last_change_has_made_it() {
    on_postgres(requests::changes_are_shown).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_every_ticket_once_newest_first() {
    on_postgres(requests::pages).await;
}

/// Two processes of the API's write beside those with clocks of the test's, and dispatch what all of them wrote.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_clocks_say_a_tickets_changes_are_told_in_their_order() {
    let Some(rig) = Rig::shared().await else { return };
    let clocks = Clocks::on(&rig.database);
    let ticket = clocks.write_in_turn().await;
    let (one, two, _worker) = (rig.api(), rig.api(), rig.worker("a", PATIENT));
    clocks.write_at_once(ticket, [one.client(), two.client()]).await;
    let verdict = settled(&Journal::default(), &rig).await;
    assert_kept(&verdict);
    assert_eq!(verdict.report.committed, clocks::CHANGES);
    clocks::assert_times_rise_with_versions(&rig.database).await;
}
