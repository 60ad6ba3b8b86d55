//! TicketFlow on PostgreSQL, RabbitMQ and a mail server, each a real process, with everything broken that can be.

#[path = "../common/mod.rs"]
mod common;
mod dispatcher;
mod figures;
mod ladder;
mod load;
mod mails;
mod outage;
mod processed;
mod rig;
mod smtp;
mod tickets;
mod topology_command;

use axum::http::{Method, StatusCode};
use chrono::{Datelike, Months, TimeDelta};
use common::ticket;
use lapin::BasicProperties;
use relevo::rabbitmq::RabbitMqConfig;
use relevo_testkit::eventually;
use rig::{Process, Rig};
use std::collections::BTreeSet;
use std::time::Duration;
use ticketflow::clock::Clock;
use ticketflow::ticket::{NewTicket, Status, Ticket};
use ticketflow::tickets::Tickets;
use ticketflow::traffic::{Journal, Traffic};
use ticketflow::verify::{Evidence, Verdict};
use ticketflow::{retention, topology};

const PATIENT: &str = "0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3,1,1,1,1,1,1,1,1,1,1,5,5,5,5,5,5,5,5,5,5";

/// Nothing lost, nothing twice, everything in its order.
fn assert_kept(verdict: &Verdict) {
    assert!(verdict.broken.is_empty(), "{:?} {:?}", verdict.broken, verdict.report);
}

/// Waits until every effect is there, and weighs them.
async fn settled(journal: &Journal, rig: &Rig) -> Verdict {
    let evidence = eventually("every change has its effects", async || {
        let mails = rig.mails().await;
        let evidence = Evidence::of(journal, &rig.database, mails).await.expect("evidence");
        evidence.is_complete().then_some(evidence)
    });
    evidence.await.verdict()
}

/// People go on for so many changes, and stop: every request had its answer, and nothing had to be given up.
async fn all_is_well_after(traffic: Traffic, more: u64, rig: &Rig) -> Verdict {
    let before = traffic.journal.changes();
    changes(&traffic, before + more).await;
    let journal = traffic.stop().await;
    assert_eq!(journal.unclear(), 0, "every request had its answer");
    let verdict = settled(&journal, rig).await;
    assert_kept(&verdict);
    assert_eq!(verdict.report.dead, 0, "nothing lasted longer than the retries do");
    verdict
}

async fn changes(traffic: &Traffic, n: u64) {
    eventually("traffic", async || (traffic.journal.changes() >= n).then_some(())).await;
}

async fn open_ticket(api: &Process) -> Ticket {
    api.client().create(&ticket()).await.expect("a ticket")
}

async fn is_well(process: &Process) {
    eventually("it is well", async || {
        let answer = process.client().get("/health").await.ok()?;
        (answer.status == StatusCode::OK).then_some(())
    })
    .await;
}

/// Makes exchange and queues, as every process does by itself a moment after it has started.
async fn make_queues(rig: &Rig) {
    let config = RabbitMqConfig::to(&rig.rabbit_url).expect("a URL");
    topology::apply(&config).await.expect("its topology");
}

/// For tests that kill RabbitMQ: a kill within a second of declaring a quorum queue loses what the queue has confirmed; see
/// docs/brokers.md.
async fn make_settled_queues(rig: &Rig) {
    make_queues(rig).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_killed_under_load_loses_nothing_and_tickets_are_accepted_meanwhile() {
    let Some(rig) = Rig::own().await else { return };
    make_settled_queues(&rig).await;
    let (api, worker) = (rig.api(), rig.worker("a", PATIENT));
    is_well(&api).await;
    let traffic = Traffic::start(&api.client(), 8, 40);
    changes(&traffic, 30).await;
    rig.rabbit.kill9();
    let sick = eventually("health says so", async || {
        let answer = api.client().get("/health").await.expect("an answer");
        (answer.status == StatusCode::SERVICE_UNAVAILABLE).then_some(answer)
    })
    .await;
    let report = sick.json().expect("JSON");
    let part = |name: &str| {
        let checks = report["checks"].as_array().expect("checks");
        checks.iter().find(|it| it["name"] == name).expect("a part")["status"].clone()
    };
    assert_eq!((part("RabbitMQ"), part("PostgreSQL")), ("down".into(), "up".into()), "{report}");
    let before = traffic.journal.changes();
    changes(&traffic, before + 20).await;
    rig.rabbit.restart().expect("it comes back");
    all_is_well_after(traffic, 20, &rig).await;
    is_well(&api).await;
    is_well(&worker).await;
    api.terminate();
    worker.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_smtps_ok_and_its_commit_mails_again_under_the_same_message_id() {
    let Some(rig) = Rig::shared().await else { return };
    let (api, mut worker) = (rig.api(), rig.worker("first", PATIENT));
    is_well(&worker).await;
    // The effect's commit cannot come while this is held; looking is allowed.
    let mut connection = rig.database.connect().await.expect("a connection");
    connection
        .batch(r#"BEGIN; LOCK TABLE "ProcessedEvents" IN EXCLUSIVE MODE"#)
        .await
        .expect("locked");
    let ticket = open_ticket(&api).await;
    let mails = || rig.smtp.mails().expect("a Maildir");
    eventually("the mail", async || (!mails().is_empty()).then_some(())).await;
    worker.kill9();
    connection.batch("ROLLBACK").await.expect("free");
    let _second = rig.worker("second", PATIENT);
    let done = r#"SELECT count(*) FROM "ProcessedEvents""#;
    eventually("both are noted", async || (rig.count(done).await == 2).then_some(())).await;
    let journal = Journal::default();
    let verdict = settled(&journal, &rig).await;
    assert_kept(&verdict);
    assert_eq!((verdict.report.committed, verdict.report.duplicates_seen), (1, 1));
    let ids: BTreeSet<String> = rig.mails().await.into_iter().map(|mail| mail.message_id).collect();
    assert_eq!((mails().len(), ids.len()), (2, 1), "ticket {}", ticket.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_dispatchers_and_two_workers_killed_in_turn_do_everything_once_and_in_order() {
    let Some(rig) = Rig::shared().await else { return };
    let (one, mut two) = (rig.api(), rig.api());
    let (mut a, mut b) = (rig.worker("a", PATIENT), rig.worker("b", PATIENT));
    is_well(&one).await;
    let traffic = Traffic::start(&one.client(), 8, 60);
    changes(&traffic, 30).await;
    a.kill9();
    changes(&traffic, 60).await;
    let a = rig.worker("a", PATIENT);
    two.kill9();
    changes(&traffic, 100).await;
    let two = rig.api();
    b.kill9();
    changes(&traffic, 150).await;
    let journal = traffic.stop().await;
    assert_eq!(journal.unclear(), 0);
    let verdict = settled(&journal, &rig).await;
    assert_kept(&verdict);
    assert_eq!(verdict.report.dead, 0);
    let beats = r#"SELECT count(*) FROM "Heartbeats" WHERE "LastMessageAt" IS NOT NULL"#;
    eventually("a heartbeat with a message", async || (rig.count(beats).await > 0).then_some(()))
        .await;
    drop((a, two));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dead_letter_queues_hold_exactly_what_failed_until_it_is_replayed() {
    let Some(rig) = Rig::shared().await else { return };
    make_queues(&rig).await;
    let (api, worker) = (rig.api(), rig.worker("a", "0.2,0.2,0.2"));
    is_well(&api).await;
    is_well(&worker).await;
    let nobody = NewTicket { requester: "nobody@refused.invalid".into(), ..ticket() };
    let refused = api.client().correlation("c-17").create(&nobody).await.expect("a ticket");
    api.client().assign(refused.id, "ben@example.org").await.expect("assigned");
    let fine = open_ticket(&api).await;
    api.client().change_status(fine.id, Status::InProgress).await.expect("changed");
    let own_id = BasicProperties::default().with_message_id("not-json".into());
    rig.put("notifications", own_id, b"no JSON at all").await;
    rig.put("metrics", BasicProperties::default(), b"{\"no\": \"id\"}").await;
    let letters = eventually("three dead letters", async || {
        let letters = worker.client().get("/admin/dead-letters").await.ok()?.json().ok()?;
        let letters = letters.as_array()?.clone();
        let queued = (
            api.figure("mq_dlq_total", "\"notifications.dlq\"").await?,
            api.figure("mq_dlq_total", "\"metrics.dlq\"").await?,
        );
        (letters.len() == 3 && queued == (2.0, 1.0)).then_some(letters)
    })
    .await;
    let verdict = settled(&Journal::default(), &rig).await;
    assert_kept(&verdict);
    assert_eq!((verdict.report.committed, verdict.report.dead), (4, 1));
    // Replayed, it fails again, is a new letter, and its copy in the queue is the new one's.
    let letter = letters.iter().find(|it| it["ticketId"] == refused.id.to_string().as_str());
    let letter = letter.expect("the refused one");
    assert_eq!(letter["attempts"], 1, "a refusal for good is not tried again");
    assert_eq!(letter["class"], "permanent");
    let path = format!("/admin/dead-letters/{}/replay", letter["number"]);
    let answer = worker.client().ask(Method::POST, &path, Vec::new()).await.expect("an answer");
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
    let numbers = r#"SELECT count(*) FROM "DlqPublished""#;
    eventually("it died again", async || (rig.count(numbers).await == 4).then_some(())).await;
    worker.terminate();
    let (mails, numbers) = (rig.drain("notifications.dlq").await, rig.drain("metrics.dlq").await);
    assert_eq!((mails.len(), numbers.len()), (2, 1), "{mails:?} {numbers:?}");
    let of_ticket = |(headers, _): &&(std::collections::BTreeMap<String, String>, Vec<u8>)| {
        headers.get("cloudEvents_subject") == Some(&refused.id.to_string())
    };
    let (headers, _) = mails.iter().find(of_ticket).expect("the refused one");
    assert_eq!(headers["x-event-id"], letter["eventId"].as_str().expect("an id"));
    assert_eq!(headers["x-correlation-id"], "c-17");
    assert_eq!(headers["x-relevo-original-topic"], "ticket.created");
    assert!(headers["x-relevo-last-error"].contains("no such mailbox"), "{headers:?}");
    assert!(mails.iter().any(|(_, body)| body == b"no JSON at all"), "its bytes are as they came");
}

/// An event that no queue wants: marked as nobody's, seen by the alert on dead letters, and an operator's to replay.
#[tokio::test(flavor = "multi_thread")]
async fn what_rabbitmq_refuses_for_good_is_counted_and_can_be_replayed() {
    let Some(rig) = Rig::shared().await else { return };
    make_queues(&rig).await;
    let api = rig.api();
    is_well(&api).await;
    let mut connection = rig.database.connect().await.expect("a connection");
    let astray = r#"INSERT INTO "Outbox" ("Id", "Type", "PayloadJson", "CorrelationId", "OccurredAt")
        VALUES (gen_random_uuid(), 'nobody.wants.it', '{"ticketId": "t-1"}', 'c-1', now())"#;
    connection.batch(astray).await.expect("a row");
    let counted = async |letters: f64| {
        let dead = async || api.figure("mq_dlq_total", "\"outbox\"").await;
        eventually("what the gauge says", async || dead().await.filter(|dead| *dead == letters))
            .await
    };
    counted(1.0).await;
    let letters = api.client().get("/admin/dead-letters").await.expect("an answer");
    let letters = letters.json().expect("JSON");
    assert_eq!(letters[0]["consumer"], "outbox", "{letters}");
    rig.overhear("tickets", "overheard").await;
    let path = format!("/admin/dead-letters/{}/replay", letters[0]["number"]);
    let answer = api.client().ask(Method::POST, &path, Vec::new()).await.expect("an answer");
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
    counted(0.0).await;
    eventually("its message", async || rig.drain("overheard").await.pop()).await;
}

/// Whoever binds a queue of their own gets each change under its key, with the headers that the document names.
#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_published_under_its_routing_key_with_both_headers() {
    let Some(rig) = Rig::shared().await else { return };
    make_queues(&rig).await;
    rig.overhear("tickets", "overheard").await;
    let api = rig.api();
    let client = api.client().correlation("c-17");
    let ticket = client.create(&ticket()).await.expect("a ticket");
    client.change_status(ticket.id, Status::InProgress).await.expect("changed");
    client.assign(ticket.id, "ben@example.org").await.expect("assigned");
    let pending = r#"SELECT count(*) FROM "Outbox" WHERE "DispatchedAt" IS NULL"#;
    eventually("all are marked", async || (rig.count(pending).await == 0).then_some(())).await;
    let rows = rig.outbox_rows().await;
    let told: Vec<(String, String, String)> = rig
        .drain("overheard")
        .await
        .into_iter()
        .map(|(headers, _)| {
            let header = |name: &str| headers.get(name).cloned().unwrap_or_default();
            (header("routing key"), header("x-event-id"), header("x-correlation-id"))
        })
        .collect();
    let wanted = ["ticket.created", "ticket.status.changed", "ticket.assigned"];
    assert_eq!(told.iter().map(|it| it.0.as_str()).collect::<Vec<_>>(), wanted);
    assert_eq!(told.iter().map(|it| it.1.clone()).collect::<Vec<_>>(), rows);
    assert!(told.iter().all(|it| it.2 == "c-17"), "{told:?}");
    let columns = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'Outbox'";
    assert_eq!(rig.count(columns).await, 6, "the documented ones, and no other");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_partitioned_by_date_is_relayed_as_well() {
    let Some(rig) = Rig::partitioned().await else { return };
    let month = |ahead: u32| month(&Clock::default(), ahead);
    assert_eq!(rig.partitions().await, [month(0), month(1), "Outbox_default".into()]);
    let (api, _worker) = (rig.api(), rig.worker("a", PATIENT));
    let ticket = open_ticket(&api).await;
    api.client().change_status(ticket.id, Status::Closed).await.expect("changed");
    assert_kept(&settled(&Journal::default(), &rig).await);
    assert_eq!(rig.count(r#"SELECT count(*) FROM "Outbox""#).await, 2);
    let elsewhere = r#"SELECT count(*) FROM "Outbox_default""#;
    assert_eq!(rig.count(elsewhere).await, 0, "this month has its own partition");
    let pending = r#"SELECT count(*) FROM "Outbox" WHERE "DispatchedAt" IS NULL"#;
    eventually("both are marked", async || (rig.count(pending).await == 0).then_some(())).await;
}

/// The partition of a month so far ahead.
fn month(clock: &Clock, ahead: u32) -> String {
    let month = clock.now().date_naive().with_day(1).expect("a day") + Months::new(ahead);
    month.format("Outbox_%Y_%m").to_string()
}

/// By a clock that tests set forward, on a table of a partition a month.
#[tokio::test(flavor = "multi_thread")]
async fn a_month_later_what_was_dispatched_is_gone_and_then_its_partition_but_not_what_waits() {
    let Some(rig) = Rig::partitioned().await else { return };
    let clock = Clock::default();
    let sweep = async || {
        retention::partitions(&rig.database, &clock).await.expect("partitions");
        retention::sweep(&rig.database, &clock).await.expect("swept")
    };
    let (api, worker) = (rig.api(), rig.worker("a", PATIENT));
    let ticket = open_ticket(&api).await;
    api.client().change_status(ticket.id, Status::InProgress).await.expect("changed");
    let done = r#"SELECT count(*) FROM "ProcessedEvents""#;
    eventually("both effects of both", async || (rig.count(done).await == 4).then_some(())).await;
    let pending = r#"SELECT count(*) FROM "Outbox" WHERE "DispatchedAt" IS NULL"#;
    eventually("both are marked", async || (rig.count(pending).await == 0).then_some(())).await;
    api.terminate();
    worker.terminate();
    let (tickets, closed) = (Tickets::new(rig.database.clone(), clock.clone()), Status::Closed);
    tickets.change_status(ticket.id, closed, "c".into()).await.expect("nobody dispatches it");
    let of_today = clock.now().format("Outbox_%Y_%m").to_string();
    for _ in 0..30 {
        assert_eq!(sweep().await, retention::Swept::default(), "thirty days are not over");
        clock.advance(TimeDelta::days(1));
    }
    let swept = sweep().await;
    assert_eq!((swept.outbox, swept.processed), (2, 0), "{swept:?}");

    clock.advance(retention::PROCESSED_KEPT - retention::KEPT);
    let swept = sweep().await;
    assert!(swept.partitions > 0, "months of which nothing is left: {swept:?}");
    assert_eq!(swept.processed, 4, "{swept:?}");
    assert_eq!(rig.count(pending).await, 1, "what waits stays, however old");
    assert!(rig.partitions().await.contains(&of_today), "{:?}", rig.partitions().await);

    let api = rig.api();
    eventually("it is marked", async || (rig.count(pending).await == 0).then_some(())).await;
    api.terminate();
    let swept = sweep().await;
    assert_eq!(swept.outbox, 1, "{swept:?}");
    let months = [month(&clock, 0), month(&clock, 1), "Outbox_default".into()];
    assert_eq!(rig.partitions().await, months);
}

/// The job of the API does it, at its start and every hour: nobody calls it here.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_takes_away_what_is_older_than_a_month_by_itself() {
    let Some(rig) = Rig::shared().await else { return };
    let old = r#"INSERT INTO "Outbox" ("Id", "Type", "PayloadJson", "CorrelationId", "OccurredAt", "DispatchedAt")
        SELECT gen_random_uuid(), 'ticket.created', '{}', 'c', now() - days * interval '1 day', now() - days * interval '1 day'
        FROM unnest(ARRAY[29, 31, 189, 191]) AS days;
        INSERT INTO "ProcessedEvents" SELECT 'metrics', o."Id", o."DispatchedAt" FROM "Outbox" o"#;
    rig.say(old).await;
    let _api = rig.api();
    let rows = r#"SELECT count(*) FROM "Outbox""#;
    eventually("three of four rows go", async || (rig.count(rows).await == 1).then_some(())).await;
    let notes = r#"SELECT count(*) FROM "ProcessedEvents""#;
    eventually("one of four notes goes", async || (rig.count(notes).await == 3).then_some(()))
        .await;
    let known = r#"SELECT count(*) FROM "ProcessedEvents" WHERE "ProcessedAt" > now() - interval '190 days'"#;
    assert_eq!(rig.count(known).await, 3, "all but the one of 191 days");
    let young =
        r#"SELECT count(*) FROM "Outbox" WHERE "DispatchedAt" > now() - interval '30 days'"#;
    assert_eq!(rig.count(young).await, 1, "the one of 29 days");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_that_an_alert_reads_is_shown() {
    let Some(rig) = Rig::shared().await else { return };
    let (api, _worker) = (rig.api(), rig.worker("a", PATIENT));
    is_well(&api).await;
    open_ticket(&api).await;
    let rules = include_str!("../../alerts/ticketflow.rules.yml");
    for name in ["outbox_pending_total", "mq_dlq_total", "outbox_dispatch_latency_ms_bucket"] {
        assert!(rules.contains(name), "no alert reads {name}");
        eventually(name, async || {
            let answer = api.client().get("/metrics").await.expect("an answer");
            String::from_utf8_lossy(&answer.body).contains(&format!("\n{name}")).then_some(())
        })
        .await;
    }
    let shown = api.client().get("/metrics").await.expect("an answer");
    let shown = String::from_utf8_lossy(&shown.body).into_owned();
    assert!(shown.contains("# TYPE outbox_pending_total gauge"), "{shown}");
    assert!(shown.contains("# TYPE mq_dlq_total gauge"), "{shown}");
}
