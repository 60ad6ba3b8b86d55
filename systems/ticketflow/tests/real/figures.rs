//! What `/metrics` says is so: numbers that a test knows from elsewhere.

use crate::rig::Rig;
use crate::{is_well, make_queues, open_ticket};
use relevo_testkit::eventually;
use std::time::Instant;

/// RabbitMQ is nowhere, so everything waits.
#[tokio::test(flavor = "multi_thread")]
async fn outbox_pending_total_is_how_many_rows_wait() {
    let Some(mut rig) = Rig::shared().await else { return };
    rig.rabbit_url = "amqp://guest:guest@127.0.0.1:1".into();
    rig.say(
        r#"INSERT INTO "Outbox" ("Id", "Type", "PayloadJson", "CorrelationId", "OccurredAt", "DispatchedAt")
        SELECT gen_random_uuid(), 'ticket.created', '{}', 'c', now(), now() FROM generate_series(1, 5)"#,
    )
    .await;
    let api = rig.api();
    for rows in [0.0, 7.0, 110.0] {
        while rig.count(r#"SELECT count(*) FROM "Outbox""#).await < 5 + rows as i64 {
            open_ticket(&api).await;
        }
        eventually("what waits, and nothing of what was dispatched", async || {
            (api.figure("outbox_pending_total", "").await? == rows).then_some(())
        })
        .await;
    }
}

/// An event of a minute ago: 60,000 ms, and what it took since.
#[tokio::test(flavor = "multi_thread")]
async fn outbox_dispatch_latency_is_in_milliseconds_from_occurred_at_to_the_confirm() {
    let Some(rig) = Rig::shared().await else { return };
    make_queues(&rig).await;
    let api = rig.api();
    is_well(&api).await;
    let began = Instant::now();
    rig.say(
        r#"INSERT INTO "Outbox" ("Id", "Type", "PayloadJson", "CorrelationId", "OccurredAt")
        VALUES (gen_random_uuid(), 'ticket.created', '{"ticketId": "t-1"}', 'c', now() - interval '60 seconds')"#,
    )
    .await;
    let figure = async |what: &str, label: &str| {
        api.figure(&format!("outbox_dispatch_latency_ms_{what}"), label).await
    };
    eventually("it is measured", async || (figure("count", "").await? == 1.0).then_some(())).await;
    let took = began.elapsed().as_secs_f64() * 1000.0;
    let sum = figure("sum", "").await.expect("a sum");
    assert!((60_000.0..=60_000.0 + took).contains(&sum), "{sum} ms after {took} ms");
    assert_eq!(figure("bucket", r#"le="30000""#).await, Some(0.0));
    assert_eq!(figure("bucket", r#"le="600000""#).await, Some(1.0));
}
