//! TicketFlow in one process on one file, with everything broken that can be.

#[path = "../common/mod.rs"]
mod common;
mod document;
mod effects;
mod limits;
mod world;

use axum::http::{Method, StatusCode};
use chrono::TimeDelta;
use common::clocks::{self, Clocks};
use common::requests::{self, assert_problem};
use relevo_testkit::{PATIENCE, eventually};
use std::time::Duration;
use ticketflow::database::ProcessedKey;
use ticketflow::embedded::{self, Options};
use ticketflow::retention;
use ticketflow::ticket::Status;
use ticketflow::traffic::Journal;
use world::{TOKEN, World};

#[tokio::test(flavor = "multi_thread")]
async fn whatever_breaks_every_change_is_mailed_and_counted_once_and_in_order() {
    let mut world = World::with(|options| {
        // Longer than anything is down here.
        options.retries = vec![Duration::from_millis(100); 50];
    })
    .await;
    let traffic = world.embedded.traffic(8, 80);
    let some = |n: u64| {
        let journal = traffic.journal.clone();
        async move { eventually("traffic", async || (journal.changes() >= n).then_some(())).await }
    };
    some(20).await;
    world.embedded.mailbox.set_down(true);
    some(60).await;
    world.embedded.mailbox.set_down(false);
    world.embedded.stop_dispatcher().await.expect("it stops");
    some(100).await;
    assert!(
        world.embedded.pending().await.expect("counted") > 0,
        "tickets are accepted all the same"
    );
    world.embedded.start_dispatcher().await.expect("it starts");
    world.embedded.drop_worker();
    some(140).await;
    world.embedded.start_worker().await.expect("it starts");
    some(160).await;
    let journal = traffic.stop().await;
    let verdict = world.embedded.verdict(&journal, PATIENCE).await.expect("a verdict");
    assert!(verdict.broken.is_empty(), "{:?} {:?}", verdict.broken, verdict.report);
    assert_eq!(journal.unclear(), 0);
    assert!(world.embedded.mailbox.refused() > 0, "it was down while there was something to send");
    assert_eq!(verdict.report.dead, 0);
    // The mark follows the confirm: it shares a transaction with those of other lanes.
    eventually("all are marked", async || {
        (world.embedded.pending().await.expect("counted") == 0).then_some(())
    })
    .await;
    world.embedded.stop().await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn processed_events_keyed_by_the_event_alone_lose_effects_and_the_proof_notices() {
    let world = World::with(|it| it.processed_key = ProcessedKey::EventAlone).await;
    let traffic = world.embedded.traffic(4, 40);
    let journal = traffic.journal.clone();
    eventually("traffic", async || (journal.changes() >= 20).then_some(())).await;
    let journal = traffic.stop().await;
    let sql = r#"SELECT count(*) FROM "ProcessedEvents""#;
    let committed = journal.changes() as i64;
    eventually("each event once", async || (world.count(sql).await == committed).then_some(()))
        .await;
    // Both consumers are done with everything: nothing waits for them in the log.
    eventually("nothing waits", async || {
        let status = world.database().operate().status().await.expect("a status");
        status.subscriptions.iter().all(|it| it.backlog == 0).then_some(())
    })
    .await;
    let verdict = world.embedded.verdict(&journal, Duration::ZERO).await.expect("a verdict");
    assert!(verdict.report.lost > 0, "{:?}", verdict.report);
    assert!(!verdict.broken.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_for_good_is_a_dead_letter_that_only_an_operator_may_replay() {
    let world = World::new().await;
    world.embedded.mailbox.set_down(true);
    let ticket = world.open_ticket().await;
    let operator = world.client.clone().token(TOKEN);
    let letters = eventually("a dead letter", async || {
        let letters = operator.get("/admin/dead-letters").await.expect("an answer").json().ok()?;
        (!letters.as_array()?.is_empty()).then_some(letters)
    })
    .await;
    let letter = &letters[0];
    assert_eq!(letter["attempts"], 4, "the first, and one after each delay");
    assert_eq!(
        (letter["consumer"].as_str(), letter["ticketId"].as_str()),
        (Some("notifications"), Some(ticket.id.to_string().as_str()))
    );
    let path = format!("/admin/dead-letters/{}/replay", letter["number"]);
    for (client, status) in [
        (world.client.clone(), StatusCode::UNAUTHORIZED),
        (world.client.clone().token("open says me"), StatusCode::UNAUTHORIZED),
    ] {
        let answer = client.ask(Method::POST, &path, Vec::new()).await.expect("an answer");
        assert_problem(&answer, status);
    }
    let no_number = operator.ask(Method::POST, "/admin/dead-letters/x/replay", Vec::new()).await;
    assert_problem(&no_number.expect("an answer"), StatusCode::BAD_REQUEST);
    world.embedded.mailbox.set_down(false);
    let answer = operator.ask(Method::POST, &path, Vec::new()).await.expect("an answer");
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    eventually("its mail", async || (world.mails().len() == 1).then_some(())).await;
    assert_problem(
        &operator.ask(Method::POST, &path, Vec::new()).await.expect("an answer"),
        StatusCode::NOT_FOUND,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_in_the_environment_nobody_is_an_operator() {
    let world = World::with(|options| options.admin_token = None).await;
    let answer =
        world.client.clone().token("").get("/admin/dead-letters").await.expect("an answer");
    assert_problem(&answer, StatusCode::FORBIDDEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_open_api_is_for_this_machine_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = Options::in_folder(folder.path());
    options.listen = "0.0.0.0:0".parse().expect("an address");
    let refused = embedded::start(options).await.err().expect("it is refused").to_string();
    assert!(refused.contains("this machine only"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_month_later_only_what_was_dispatched_is_gone() {
    let mut world = World::new().await;
    let ticket = world.open_ticket().await;
    world.client.change_status(ticket.id, Status::InProgress).await.expect("changed");
    let done = r#"SELECT count(*) FROM "ProcessedEvents""#;
    eventually("both effects of both", async || (world.count(done).await == 4).then_some(())).await;
    let dispatched = r#"SELECT count(*) FROM "Outbox" WHERE "DispatchedAt" IS NOT NULL"#;
    eventually("both marked", async || (world.count(dispatched).await == 2).then_some(())).await;
    world.embedded.stop_dispatcher().await.expect("it stops");
    world.client.change_status(ticket.id, Status::Closed).await.expect("changed");
    for _ in 0..30 {
        let swept = retention::sweep(world.database(), &world.clock).await.expect("swept");
        assert_eq!(swept, retention::Swept::default(), "thirty days are not over");
        world.clock.advance(TimeDelta::days(1));
    }
    let swept = retention::sweep(world.database(), &world.clock).await.expect("swept");
    assert_eq!((swept.outbox, swept.processed), (2, 0), "what was processed is known for longer");
    world.clock.advance(retention::PROCESSED_KEPT - retention::KEPT);
    let swept = retention::sweep(world.database(), &world.clock).await.expect("swept");
    assert_eq!((swept.outbox, swept.processed), (0, 4));
    assert_eq!(
        world.embedded.pending().await.expect("counted"),
        1,
        "what waits stays, however old"
    );
    world.embedded.start_dispatcher().await.expect("it starts");
    eventually("its mail", async || (world.mails().len() == 3).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_signs_life_with_the_time_of_its_last_message() {
    let world = World::with(|options| options.heartbeat = Duration::from_millis(50)).await;
    let idle = r#"SELECT count(*) FROM "Heartbeats" WHERE "Worker" = 'embedded' AND "LastMessageAt" IS NULL"#;
    eventually("a heartbeat before any message", async || {
        (world.count(idle).await == 1).then_some(())
    })
    .await;
    world.open_ticket().await;
    eventually("its mail", async || (world.mails().len() == 1).then_some(())).await;
    let told = r#"SELECT count(*) FROM "Heartbeats" WHERE "Worker" = 'embedded' AND "LastMessageAt" <= "BeatAt""#;
    eventually("the next one has its time", async || (world.count(told).await == 1).then_some(()))
        .await;
    let page = world.client.get("/metrics").await.expect("an answer");
    let page = String::from_utf8_lossy(&page.body).into_owned();
    for name in ["worker_heartbeat_timestamp_seconds", "worker_last_message_timestamp_seconds"] {
        let line = page.lines().find(|line| line.starts_with(name)).expect(name);
        let seconds: f64 = line.rsplit(' ').next().and_then(|it| it.parse().ok()).expect(name);
        let age = chrono::Utc::now().timestamp() as f64 - seconds;
        assert!(age.abs() < 60.0, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_and_its_event_commit_together_or_not_at_all() {
    requests::one_transaction(&World::new().await.place()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outbox_has_the_documented_columns_and_no_other() {
    let world = World::new().await;
    let all = r#"SELECT count(*) FROM pragma_table_info('Outbox')"#;
    let documented = r#"SELECT count(*) FROM pragma_table_info('Outbox')
        WHERE name IN ('Id', 'Type', 'PayloadJson', 'CorrelationId', 'OccurredAt', 'DispatchedAt')"#;
    assert_eq!((world.count(all).await, world.count(documented).await), (6, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_is_a_problem_that_says_what_is_wrong() {
    requests::refusals(&World::new().await.place()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_shown_as_its_last_change_has_made_it() {
    requests::changes_are_shown(&World::new().await.place()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_every_ticket_once_newest_first() {
    requests::pages(&World::new().await.place()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_clocks_say_a_tickets_changes_are_told_in_their_order() {
    let mut world = World::new().await;
    world.embedded.stop_dispatcher().await.expect("it stops");
    let clocks = Clocks::on(world.database());
    let ticket = clocks.write_in_turn().await;
    world.embedded.start_dispatcher().await.expect("it starts");
    clocks.write_at_once(ticket, [world.client.clone(), world.client.clone()]).await;
    let verdict = world.embedded.verdict(&Journal::default(), PATIENCE).await.expect("a verdict");
    assert!(verdict.broken.is_empty(), "{:?} {:?}", verdict.broken, verdict.report);
    assert_eq!(verdict.report.committed, clocks::CHANGES);
    clocks::assert_times_rise_with_versions(world.database()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correlation_id_is_the_callers_or_made_up() {
    let mut world = World::new().await;
    world.open_ticket().await;
    world.client = world.client.clone().correlation("c-17");
    world.open_ticket().await;
    let given = r#"SELECT count(*) FROM "Outbox" WHERE "CorrelationId" = 'c-17'"#;
    let made_up = r#"SELECT count(*) FROM "Outbox" WHERE length("CorrelationId") = 36"#;
    assert_eq!((world.count(given).await, world.count(made_up).await), (1, 1));
}

#[test]
fn the_documented_numbers_are_the_defaults() {
    let seconds = ticketflow::worker::RETRIES.map(|delay| delay.as_secs());
    assert_eq!(seconds, [60, 300, 900]);
    assert_eq!(ticketflow::worker::EVERY, Duration::from_secs(30));
    assert_eq!(ticketflow::dispatcher::INTERVAL, Duration::from_millis(500));
    assert_eq!(ticketflow::dispatcher::BATCH, 100);
    assert_eq!(retention::KEPT, TimeDelta::days(30));
    assert_eq!(retention::PROCESSED_KEPT, TimeDelta::days(190));
    assert_eq!(retention::EVERY, Duration::from_secs(3600));
    for (command, parts) in [
        ("worker", vec!["RETRY_DELAYS_S", "[default: 60,300,900]", "[default: 30]", "SMTP_URL"]),
        ("worker", vec!["SMTP_LIMIT_S", "[default: 20]"]),
        ("api", vec!["OUTBOX_DISPATCH_INTERVAL_MS", "[default: 500]"]),
    ] {
        let help = std::process::Command::new(env!("CARGO_BIN_EXE_ticketflow"))
            .args([command, "--help"])
            .output()
            .expect("it runs");
        let help = String::from_utf8_lossy(&help.stdout);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts {
            assert!(help.contains(part), "{part} is not in {help}");
        }
    }
}
