//! What Relevo's inbox does not know any more, `ProcessedEvents` does.

use crate::rig::Rig;
use crate::{PATIENT, is_well, make_queues, open_ticket};
use relevo_testkit::eventually;
use ticketflow::ticket::Status;
use ticketflow::verify::Change;

/// Rows of the first event, one for each consumer.
const MET: &str = r#"SELECT count(*) FROM relevo.inbox
    WHERE id = (SELECT "Id"::text FROM "Outbox" ORDER BY "OccurredAt" LIMIT 1)"#;
const FORGET_MEETING: &str = r#"WITH gone AS (DELETE FROM relevo.inbox
    WHERE id = (SELECT "Id"::text FROM "Outbox" ORDER BY "OccurredAt" LIMIT 1) RETURNING 1) SELECT count(*) FROM gone"#;
const FORGET_PROCESSING: &str = r#"WITH gone AS (DELETE FROM "ProcessedEvents"
    WHERE "EventId" = (SELECT "Id" FROM "Outbox" ORDER BY "OccurredAt" LIMIT 1) RETURNING 1) SELECT count(*) FROM gone"#;

const PROCESSED: &str = r#"SELECT count(*) FROM "ProcessedEvents""#;
const COUNTED: &str = r#"SELECT count(*) FROM "TicketActivity""#;
const OPENED: &str = r#"SELECT "Value" FROM "TicketMetrics" WHERE "Metric" = 'events' AND "Label" = 'ticket.created'"#;

/// The inbox absorbs copies before the handlers see them; here it has forgotten, and the document's table has not.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_the_inbox_does_not_know_is_in_processed_events() {
    let Some(rig) = Rig::shared().await else { return };
    make_queues(&rig).await;
    rig.overhear("tickets", "overheard").await;
    let (api, _worker) = (rig.api(), rig.worker("a", PATIENT));
    is_well(&api).await;
    let until = async |what: &str, sql: &'static str, rows: i64| {
        eventually(what, async || (rig.count(sql).await == rows).then_some(())).await;
    };
    let mailed =
        async || -> Vec<Change> { rig.mails().await.into_iter().map(|mail| mail.change).collect() };
    let ticket = open_ticket(&api).await;
    until("both effects", PROCESSED, 2).await;

    assert_eq!(rig.count(FORGET_MEETING).await, 2, "both consumers had met it");
    rig.send_again("tickets", "overheard").await;
    until("both meet it again", MET, 2).await;
    // It follows the copy, being of the same ticket: what becomes of the copy has become of it by then.
    api.client().change_status(ticket.id, Status::Closed).await.expect("changed");
    until("both effects of what follows", PROCESSED, 4).await;
    assert_eq!(mailed().await, [(ticket.id, 1), (ticket.id, 2)], "no second mail");
    assert_eq!((rig.count(COUNTED).await, rig.count(OPENED).await), (2, 1), "no second number");

    // Without its rows there it has both effects again: nothing else held the copy back.
    assert_eq!(rig.count(FORGET_MEETING).await, 2);
    assert_eq!(rig.count(FORGET_PROCESSING).await, 2, "a row for each consumer");
    rig.send_again("tickets", "overheard").await;
    until("both effects, again", PROCESSED, 4).await;
    assert_eq!(mailed().await, [(ticket.id, 1), (ticket.id, 2), (ticket.id, 1)]);
    assert_eq!((rig.count(COUNTED).await, rig.count(OPENED).await), (3, 2));
}
