//! RabbitMQ is gone for minutes, not for a moment.

use crate::rig::{Process, Rig};
use crate::{PATIENT, all_is_well_after, changes, is_well, make_settled_queues};
use axum::http::StatusCode;
use std::time::{Duration, Instant};
use ticketflow::traffic::Traffic;

/// Longer than every pause that doubles: whoever waits for RabbitMQ waits as long as it ever will.
const OUTAGE: Duration = Duration::from_secs(130);

/// Does `/health` answer 503, because of RabbitMQ and of nothing else?
async fn names_rabbitmq(api: &Process) -> bool {
    let answer = api.client().get("/health").await.expect("it answers all the time");
    let report = answer.json().expect("JSON");
    let checks = report["checks"].as_array().expect("checks");
    let down: Vec<&str> = checks
        .iter()
        .filter(|it| it["status"] == "down")
        .map(|it| it["name"].as_str().expect("a name"))
        .collect();
    answer.status == StatusCode::SERVICE_UNAVAILABLE && down == ["RabbitMQ"]
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_down_for_minutes_loses_nothing_and_the_api_answers_all_the_time() {
    let Some(rig) = Rig::own().await else { return };
    make_settled_queues(&rig).await;
    let (api, worker) = (rig.api(), rig.worker("a", PATIENT));
    is_well(&api).await;
    // Slow: this test is long, and others run beside it.
    let traffic = Traffic::start(&api.client(), 4, 4);
    changes(&traffic, 8).await;
    rig.rabbit.kill9();
    let down = Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    while down.elapsed() < OUTAGE {
        let before = traffic.journal.changes();
        assert!(names_rabbitmq(&api).await, "after {:?}", down.elapsed());
        changes(&traffic, before + 1).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let waiting = r#"SELECT count(*) FROM "Outbox" WHERE "DispatchedAt" IS NULL"#;
    assert!(rig.count(waiting).await > 100, "what was accepted meanwhile waits");
    rig.rabbit.restart().expect("it comes back");
    all_is_well_after(traffic, 8, &rig).await;
    is_well(&api).await;
    is_well(&worker).await;
}
