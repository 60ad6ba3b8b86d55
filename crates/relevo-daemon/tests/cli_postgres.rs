//! The same commands on PostgreSQL, and what only a server can refuse.

// Helpers unwrap as tests do: a panic says what was expected and where.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "shared with the tests on SQLite, which use all of it")]
#[path = "cli/support.rs"]
mod support;

use relevo_testkit::services::Postgres;
use serde_json::Value;
use std::sync::Arc;
use support::{Ended, Scratch, block_on, end};
use tokio_postgres::{Client, NoTls};

struct Database {
    scratch: Scratch,
    server: Arc<Postgres>,
    url: String,
}

impl Database {
    fn new() -> Self {
        let server = Postgres::shared(15).unwrap();
        let url = server.create_database().unwrap();
        Self { scratch: Scratch::empty(), server, url }
    }

    fn migrated() -> Self {
        let database = Self::new();
        database.ok(&["migrate"]);
        database
    }

    fn run(&self, args: &[&str]) -> Ended {
        end(self.scratch.command(args).env("RELEVO_STORE", &self.url))
    }

    fn ok(&self, args: &[&str]) -> String {
        let ended = self.run(args);
        assert_eq!(ended.code, 0, "relevo {args:?}\n{}{}", ended.out, ended.err);
        ended.out
    }

    fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.ok(&args)).unwrap()
    }

    fn refused(&self, code: &str, url: &str) {
        let ended = end(self.scratch.command(&["status"]).env("RELEVO_STORE", url));
        assert_eq!(ended.code, 3, "{}{}", ended.out, ended.err);
        assert!(ended.err.starts_with(&format!("error {code} (postgres)")), "{}", ended.err);
        assert!(!ended.err.contains("s3cret"), "{}", ended.err);
    }

    async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

#[test]
fn the_same_commands_work_on_postgresql() {
    let database = Database::new();
    assert!(database.ok(&["migrate"]).contains("the schema is ready"));
    assert!(database.ok(&["migrate"]).contains("up to date"));
    let id = database
        .ok(&["publish", "order.placed", r#"{"total": 12.50}"#, "--key", "order-1"])
        .trim()
        .to_owned();
    let event = database.json(&["tail"]);
    assert_eq!((event["id"].as_str(), event["key"].as_str()), (Some(id.as_str()), Some("order-1")));
    database.ok(&["subscriptions", "add", "billing"]);
    database.ok(&["subscriptions", "add", "tickets", "--topic", "ticket.*"]);
    let why = database.json(&["why", &id]);
    let states: Vec<&str> = why["subscriptions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["state"].as_str().unwrap())
        .collect();
    assert!(states.contains(&"filtered_out"), "{why}");
    database.ok(&["subscriptions", "pause", "billing", "--reason", "audit"]);
    assert!(database.ok(&["why", &id]).contains("paused by ana"));
    database.ok(&["subscriptions", "resume", "billing"]);
    database.ok(&["subscriptions", "rewind", "billing", "--to", "now", "--yes"]);
    assert!(database.json(&["status"])["subscriptions"].as_array().unwrap().len() == 2);
    database.ok(&["subscriptions", "remove", "tickets", "--yes"]);
    assert!(database.ok(&["dead-letters", "list"]).contains("no dead letters"));
}

#[test]
fn retention_names_who_holds_the_log_and_makes_segments_when_applied() {
    let database = Database::migrated();
    database.ok(&["publish", "order.placed", "1", "--key", "order-1"]);
    assert!(database.ok(&["retention"]).contains("nobody subscribes"));
    database.ok(&["subscriptions", "add", "audit"]);
    let plan = database.json(&["retention"]);
    let audit = &plan["holders"][0];
    assert_eq!(
        (audit["subscription"].as_str(), audit["events"].as_i64()),
        (Some("audit"), Some(1))
    );
    assert_eq!(audit["state"], "nobody works it");
    assert!(audit["bytes"].as_i64().unwrap() > 0, "{plan}");
    let applied = database.json(&["retention", "--apply"]);
    assert_eq!(applied["applied"]["rows_dropped"], 0, "{applied}");
    assert_eq!(database.json(&["tail"])["key"], "order-1", "what nobody had stays");
}

#[test]
fn doctor_names_the_problem_and_ends_with_a_code_of_its_own() {
    // The servers of the tests trade safety for speed, which is exactly what doctor must find.
    let database = Database::migrated();
    let ended = database.run(&["doctor"]);
    assert_eq!(ended.code, 1, "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("PROBLEM") && ended.out.contains("fsync"), "{}", ended.out);
    assert!(ended.out.contains("1 problem to mend"), "{}", ended.out);
}

#[test]
fn an_event_inside_an_open_transaction_is_looked_for_among_the_sessions() {
    let database = Database::migrated();
    let id = "01990f6a-7d3c-7b53-9f0e-3f6f6f5f2a11";
    block_on(async {
        let mut client = database.client().await;
        let open = client.transaction().await.unwrap();
        open.batch_execute(
            "SET application_name = 'shop'; SELECT relevo.publish('order.placed', 'order-1', '{}')",
        )
        .await
        .unwrap();
        let ended = database.run(&["why", id]);
        assert_eq!(ended.code, 4, "{}", ended.err);
        assert!(
            ended.out.contains("open transactions:") && ended.out.contains("(shop), open for"),
            "{}",
            ended.out
        );
        open.rollback().await.unwrap();
    });
    let ended = database.run(&["why", id]);
    assert!(ended.out.contains("never published here"), "{}", ended.out);
}

#[test]
fn what_the_server_refuses_is_told_by_its_code() {
    let database = Database::new();
    let address = database.server.address();
    database.refused("R0003", &format!("postgres://postgres:s3cret-wrong@{address}/postgres"));
    database.refused("R0003", &format!("postgres://nobody_there:s3cret@{address}/postgres"));
    database.refused("R0007", &database.url);
    database.refused("R0002", "postgres://ana:s3cret@127.0.0.1:1/shop");
}

#[test]
fn what_migrate_prints_is_what_it_does() {
    let database = Database::new();
    let sql = database.ok(&["migrate", "--print"]);
    let roles = "DO $$ BEGIN CREATE ROLE relevo_writer NOLOGIN; CREATE ROLE relevo_relay NOLOGIN; \
                 EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    block_on(async {
        let client = database.client().await;
        client.batch_execute(roles).await.unwrap();
        client.batch_execute(&sql).await.unwrap();
    });
    assert!(database.ok(&["migrate"]).contains("up to date"));
    database.ok(&["publish", "a", "1"]);
}
