//! What fails is tried down to the end of the ladder, and holds up its ticket and no other.

use crate::common::ticket;
use crate::rig::Rig;
use crate::{assert_kept, is_well, make_queues, open_ticket, settled};
use relevo_testkit::eventually;
use std::iter;
use ticketflow::ticket::NewTicket;
use ticketflow::traffic::Journal;
use ticketflow::verify::Change;

/// A second for each of the document's minutes.
const RETRIES: &str = "1,5,15";
const PAUSES: [f64; 3] = [1.0, 5.0, 15.0];

const DEAD: &str = "SELECT count(*) FROM relevo.dead_letter";

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_after_every_pause_is_one_dead_letter_and_only_its_ticket_waits_for_that() {
    let Some(rig) = Rig::shared().await else { return };
    make_queues(&rig).await;
    let (api, worker) = (rig.api(), rig.worker("a", RETRIES));
    is_well(&api).await;
    is_well(&worker).await;
    let later = NewTicket { requester: "ana@later.invalid".into(), ..ticket() };
    let failing = api.client().correlation("c-17").create(&later).await.expect("a ticket");
    api.client().assign(failing.id, "ben@example.org").await.expect("assigned");
    let attempts = || rig.smtp.put_off().expect("their times");
    eventually("an attempt", async || (!attempts().is_empty()).then_some(())).await;

    let fine = open_ticket(&api).await;
    let mailed =
        async || -> Vec<Change> { rig.mails().await.into_iter().map(|mail| mail.change).collect() };
    eventually("the other ticket's mail", async || mailed().await.pop()).await;
    assert_eq!(mailed().await, [(fine.id, 1)]);
    assert!(attempts().len() < 4 && rig.count(DEAD).await == 0, "{:?}", attempts());

    eventually("the same ticket's next mail", async || {
        let mails = mailed().await;
        // Looked at afterwards: a death that is not there now was not there before the mail.
        let is_dead = rig.count(DEAD).await == 1;
        assert!(mails.len() == 1 || is_dead, "it came before what it has to follow: {mails:?}");
        (mails.len() == 2).then_some(())
    })
    .await;
    let attempts = attempts();
    assert_eq!(attempts.len(), 4, "the first, and one after each pause: {attempts:?}");
    let pauses = iter::zip(&attempts, &attempts[1..]).map(|(one, next)| next - one);
    assert!(iter::zip(pauses, PAUSES).all(|(it, wanted)| it >= wanted), "{attempts:?}");
    let verdict = settled(&Journal::default(), &rig).await;
    assert_kept(&verdict);
    assert_eq!((verdict.report.committed, verdict.report.dead), (3, 1));
    assert_eq!(mailed().await, [(fine.id, 1), (failing.id, 2)]);

    let copies = eventually("its copy", async || {
        api.figure("mq_dlq_total", "\"notifications.dlq\"").await.filter(|copies| *copies > 0.0)
    })
    .await;
    let letters = worker.client().get("/admin/dead-letters").await.expect("an answer");
    let letters = letters.json().expect("JSON");
    assert_eq!((letters[0]["attempts"].as_i64(), copies), (Some(4), 1.0), "{letters}");
    worker.terminate();
    let (mails, numbers) = (rig.drain("notifications.dlq").await, rig.drain("metrics.dlq").await);
    assert_eq!((mails.len(), numbers.len()), (1, 0), "{mails:?} {numbers:?}");
    let (headers, body) = &mails[0];
    assert_eq!(headers["x-event-id"], rig.outbox_rows().await[0]);
    assert_eq!(headers["x-correlation-id"], "c-17");
    assert_eq!(headers["x-relevo-original-topic"], "ticket.created");
    let told: serde_json::Value = serde_json::from_slice(body).expect("JSON");
    assert_eq!(told["ticketId"], failing.id.to_string());
}
