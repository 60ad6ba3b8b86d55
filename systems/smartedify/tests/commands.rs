//! The commands of the binary, and what they are told by the environment.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use common::outbox::{Told, on_both, quick, refused, relay};
use common::{Kind, Place, Process, number, run, until};
use relevo::ErrorClass;
use relevo::broker::Confirm;
use smartedify::broker::{At, Broker};
use smartedify::db::Sql;
use smartedify::downstream::direct::Direct;
use smartedify::outbox::Outbox;
use smartedify::outbox::choice::choose;
use smartedify::tenants::Tenants;
use std::process::{Command, Output};

on_both! {
    dead_letters_are_shown_and_sent_again_by_class_or_all,
    a_clean_up_by_hand_takes_what_is_older_than_its_retention,
    migrating_twice_applies_everything_once,
    a_start_with_another_broker_is_refused_while_events_wait,
}

/// Runs a command on the databases of a place.
fn smartedify(place: &Place, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smartedify"));
    command.args(words).env("DATABASE_URL", &place.service).env("RUST_LOG", "warn");
    command.env("DOWNSTREAM_DATABASE_URL", &place.downstream).output().unwrap()
}

/// What a command printed; it must have succeeded.
fn said(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

async fn dead_letters_are_shown_and_sent_again_by_class_or_all(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let broker = Told::new(|event, attempt| match (&*event.topic, attempt) {
        ("user.added", 1) => refused(ErrorClass::Permanent),
        ("tenant.updated", 1) => refused(ErrorClass::Poison),
        _ => Confirm::Stored,
    });
    let (_, relay) = relay(&place, &quick(), broker).await;
    let tenant = tenants.create("Mirador").await.unwrap().tenant_id;
    let user = tenants.add_user(&tenant, "ana@example.org", "owner").await.unwrap().event_id;
    let name = tenants.rename(&tenant, "Alameda").await.unwrap().event_id;
    until("dead", 2, || place.dead()).await;

    let shown = said(smartedify(&place, &["dlq"]));
    let lines: Vec<serde_json::Value> =
        shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut dead: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| (line["id"].as_str().unwrap(), line["error_class"].as_str().unwrap()))
        .collect();
    dead.sort_unstable_by_key(|(_, class)| *class);
    assert_eq!(dead, [(&*user, "permanent"), (&*name, "poison")]);
    assert!(lines.iter().all(|line| line["last_error"] == "503 from the broker"), "{shown}");

    let none = smartedify(&place, &["reprocess", "--class", "transient"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    assert_eq!(String::from_utf8_lossy(&none.stdout), "0 to be sent again by the relay\n");
    for wrong in
        [&["reprocess"][..], &["reprocess", "--class", "odd"], &["reprocess", "--event", "1"]]
    {
        assert_eq!(smartedify(&place, wrong).status.code(), Some(2), "{wrong:?}");
    }
    let one = "1 to be sent again by the relay\n";
    assert_eq!(said(smartedify(&place, &["reprocess", "--class", "poison"])), one);
    until("published", 2, || place.published()).await;
    assert_eq!(place.dead().await, 1);
    assert_eq!(said(smartedify(&place, &["reprocess", "--all"])), one);
    until("published", 3, || place.published()).await;
    assert_eq!(place.dead().await, 0);
    assert_eq!(said(smartedify(&place, &["dlq"])), "");
    relay.stop().await.unwrap();
}

/// So many days ago.
macro_rules! ago {
    ($update:literal, $days:literal) => {
        Sql::each(
            concat!($update, " = now() - interval '", $days, " days'"),
            concat!($update, " = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-", $days, " days')"),
        )
    };
}

async fn a_clean_up_by_hand_takes_what_is_older_than_its_retention(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let (_, relay) = relay(&place, &quick(), Direct::to(place.directory.clone())).await;
    tenants.create("Mirador").await.unwrap();
    until("published", 1, || place.published()).await;
    relay.stop().await.unwrap();
    let dead = Sql::both("INSERT INTO outbox_events_dlq SELECT * FROM outbox_events");
    run(&place.db, dead, &[]).await;
    let told = |published, dead, ids| {
        format!(
            "{published} published events and {dead} dead letters are gone\n\
             {ids} ids of processed events are forgotten\n"
        )
    };
    for (days, then) in [
        (ago!("UPDATE outbox_events SET published_at", "29"), told(0, 0, 0)),
        (ago!("UPDATE outbox_events SET published_at", "31"), told(1, 0, 0)),
        (ago!("UPDATE outbox_events_dlq SET last_error_at", "89"), told(0, 0, 0)),
        (ago!("UPDATE outbox_events_dlq SET last_error_at", "91"), told(0, 1, 0)),
    ] {
        assert_eq!(run(&place.db, days, &[]).await, 1);
        assert_eq!(said(smartedify(&place, &["cleanup"])), then);
    }
    let ids = ago!("UPDATE processed_event_ids SET processed_at", "100");
    assert_eq!(run(&place.directory, ids, &[]).await, 1);
    assert_eq!(said(smartedify(&place, &["cleanup"])), told(0, 0, 0));
    // An event that is a dead letter for 90 days could come again.
    let short = smartedify(&place, &["cleanup", "--processed-retention-days", "96"]);
    assert!(!short.status.success(), "{short:?}");
    assert!(String::from_utf8_lossy(&short.stderr).contains("come again for 97 days"), "{short:?}");
    let enough = ["cleanup", "--processed-retention-days", "97"];
    assert_eq!(said(smartedify(&place, &enough)), told(0, 0, 1));
}

async fn migrating_twice_applies_everything_once(place: Place) {
    let again = Sql::both("DROP TABLE smartedify_migrations");
    run(&place.db, again, &[]).await;
    let applied = said(smartedify(&place, &["migrate"]));
    assert_eq!(
        applied.lines().filter(|line| line.starts_with("applied 000")).count(),
        4,
        "{applied}"
    );
    let (partitioned, told) = match place.service.starts_with("postgres") {
        true => ("p", "nothing to apply\noutbox_events is partitioned by month\n"),
        false => ("-", "nothing to apply\nSQLite has no partitions\n"),
    };
    for _ in 0..2 {
        assert_eq!(said(smartedify(&place, &["migrate", "--partition"])), told);
    }
    let kind = Sql::each(
        "SELECT relkind::text FROM pg_class WHERE oid = 'outbox_events'::regclass",
        "SELECT '-'",
    );
    let kinds: Vec<(String,)> = place.db.rows(&kind, &[]).await.unwrap();
    assert_eq!(kinds[0].0, partitioned);
}

async fn a_start_with_another_broker_is_refused_while_events_wait(place: Place) {
    let outbox = Outbox::adopt(&place.service).await.unwrap();
    let nats = Broker::at(At::Nats("nats://127.0.0.1:1".into()));
    choose(&place.db, &outbox, &nats).await.unwrap();
    Tenants::on(place.db.clone()).create("Mirador").await.unwrap();
    for command in
        [&["relay", "--metrics-listen", "127.0.0.1:0"], &["serve", "--listen", "127.0.0.1:0"]]
    {
        let kafka = ["--broker", "kafka", "--broker-url", "kafka://127.0.0.1:1"];
        let refused = smartedify(&place, &[&command[..], &kafka[..]].concat());
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(why.contains("goes to nats:smartedify and 1 of its events are pending"), "{why}");
        assert!(why.contains("then start with kafka:smartedify"), "{why}");
    }
    let chosen = Sql::both("SELECT count(*) FROM outbox_broker WHERE broker = 'nats:smartedify'");
    assert_eq!(number(&place.db, chosen).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_has_the_token_of_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let temporary = folder.path().display().to_string();
    let demo =
        Process::start("demo", &[("SMARTEDIFY_ADMIN_TOKEN", "choose"), ("TMPDIR", &temporary)]);
    assert!(demo.said.contains("open on loopback only"), "{}", demo.said);
    let client = demo.client();
    let path = "/admin/outbox/dlq";
    assert_eq!(client.get(path).await.unwrap().status, 401);
    assert_eq!(client.clone().with_token("wrong").get(path).await.unwrap().status, 401);
    assert_eq!(client.with_token("choose").get(path).await.unwrap().status, 200);
    let demo = Process::start("demo", &[("SMARTEDIFY_ADMIN_TOKEN", ""), ("TMPDIR", &temporary)]);
    assert_eq!(demo.client().with_token("").get(path).await.unwrap().status, 403);
}
