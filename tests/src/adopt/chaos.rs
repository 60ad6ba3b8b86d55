//! What must hold while writers overlap and relays die.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a case that unwraps says what it expects, its name what it shows"
)]

use super::cases::{counts, insert};
use super::{Database, NAME, Sink, config, relay, smartedify};
use relevo_core::outbox::adopt::{AdoptedTable, DeadTable, Mapping, Role, Status, TableName};
use relevo_core::outbox::{MemberId, Store, Subscription};
use relevo_core::relay::run::Running;
use relevo_testkit::eventually;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A relay in a runtime of its own, so that it can end as a process does that is killed: nothing is given back.
struct Doomed(Option<tokio::runtime::Runtime>);

impl Doomed {
    fn start(store: Arc<dyn Store>, sink: &Arc<Sink>, member: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (sink, member) = (sink.clone(), MemberId(member.into()));
        runtime.spawn(async move {
            let destination = Arc::new(sink.destination());
            let running = relevo_core::relay::run::start(
                store,
                Subscription::new(NAME),
                config(),
                destination,
                member,
            );
            let _running = running.await.unwrap();
            std::future::pending::<()>().await;
        });
        Self(Some(runtime))
    }

    fn kill(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        self.kill();
    }
}

const KEYS: usize = 5;
const WRITERS: usize = 4;
const EACH: usize = 40;

/// A writer that locks its aggregate, counts on, and inserts; now and then it rolls back.
async fn write(db: Database, writer: usize) {
    let client = if db.is_postgres() { Some(db.client().await) } else { None };
    for n in 0..EACH {
        let key = format!("k-{}", (writer * 7 + n) % KEYS);
        let end = if n % 9 == 4 { "ROLLBACK" } else { "COMMIT" };
        let payload =
            if db.is_postgres() { "jsonb_build_object('n', n)" } else { "'{\"n\": ' || n || '}'" };
        let (begin, pause) = match db.is_postgres() {
            true => ("BEGIN", format!("SELECT pg_sleep(0.00{});", n % 7)),
            false => ("BEGIN IMMEDIATE", String::new()),
        };
        let sql = format!(
            "{begin}; UPDATE aggregate SET n = n + 1 WHERE key = '{key}'; {pause}
             INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             SELECT '{}', 'a', key, 'a.counted', {payload} FROM aggregate WHERE key = '{key}'; {pause} {end};",
            Uuid::now_v7()
        );
        match &client {
            Some(client) => client.batch_execute(&sql).await.unwrap(),
            None => db.run(&sql).await,
        }
    }
}

async fn aggregates(db: &Database) {
    db.run("CREATE TABLE aggregate (key text PRIMARY KEY, n int NOT NULL)").await;
    for key in 0..KEYS {
        db.run(&format!("INSERT INTO aggregate VALUES ('k-{key}', 0)")).await;
    }
}

/// Every number of every key came, and first came in order.
async fn judge(db: &Database, sink: &Sink) {
    let wanted = db.number("SELECT sum(n) FROM aggregate").await as usize;
    let seen = sink.wait_for(wanted).await;
    assert_eq!(seen.len(), wanted, "nothing was invented");
    let mut by_key: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for seen in seen {
        let json: serde_json::Value = serde_json::from_str(&seen.payload).unwrap();
        by_key.entry(seen.key).or_default().push(json["n"].as_i64().unwrap());
    }
    for (key, numbers) in by_key {
        let expected: Vec<i64> = (1..=numbers.len() as i64).collect();
        assert_eq!(numbers, expected, "{key} is out of order or lost some");
    }
}

pub async fn relays_that_die_lose_nothing_and_keep_the_order_of_every_key(db: Database) {
    let mapping = smartedify(&db).await;
    let (_, last) = relays_die(&db, mapping).await;
    let pending = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";
    counts(&db, pending, 0).await;
    last.stop(Duration::from_secs(60)).await.unwrap();
}

pub async fn relays_that_die_lose_nothing_and_keep_the_order_where_rows_must_not_be_changed(
    db: Database,
) {
    let mut mapping = smartedify(&db).await;
    mapping.columns.retain(|role, _| !role.is_mark());
    mapping.dead_letters = None;
    assert!(!mapping.changes_rows());
    never(&db).await;
    let (table, last) = relays_die(&db, mapping).await;
    eventually("nothing pending", async || {
        (table.pending().await.unwrap().rows == 0).then_some(())
    })
    .await;
    last.stop(Duration::from_secs(60)).await.unwrap();
    assert_eq!(table.pending().await.unwrap().rows, 0, "it stays so");
    let written = db.number("SELECT sum(n) FROM aggregate").await;
    let untouched = "SELECT count(*) FROM outbox_events
                      WHERE published_at IS NULL AND retry_count = 0 AND last_error IS NULL";
    assert_eq!(db.number("SELECT count(*) FROM outbox_events").await, written);
    assert_eq!(db.number(untouched).await, written);
}

/// Whoever changes or deletes a row fails.
async fn never(db: &Database) {
    db.run(match db.is_postgres() {
        true => {
            "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'never'; END $$;
             CREATE TRIGGER never BEFORE UPDATE OR DELETE ON outbox_events FOR EACH STATEMENT EXECUTE FUNCTION never()"
        }
        false => {
            "CREATE TRIGGER never BEFORE UPDATE ON outbox_events BEGIN SELECT RAISE(ABORT, 'never'); END;
             CREATE TRIGGER neither BEFORE DELETE ON outbox_events BEGIN SELECT RAISE(ABORT, 'never'); END"
        }
    })
    .await;
}

/// Writers, and relays that die beside each other; then one that lives, judged once everything came.
async fn relays_die(db: &Database, mapping: Mapping) -> (Arc<dyn AdoptedTable>, Running) {
    aggregates(db).await;
    // Some events are refused once: their keys are parked when a relay dies.
    let sink = Arc::new(Sink::answering(|event, attempt| {
        let hash = event.id.0.as_bytes()[15];
        if hash % 16 == 0 && attempt == 1 {
            let class = relevo_core::ErrorClass::Transient;
            return relevo_core::broker::Confirm::Refused {
                class,
                error: "not yet".into(),
                after: None,
            };
        }
        relevo_core::broker::Confirm::Stored
    }));
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write(db.clone(), writer))).collect();
    let mut doomed = Vec::new();
    for (n, enough) in [10, 40, 80].into_iter().enumerate() {
        let (table, _) = db.adopt(NAME, mapping.clone()).await.unwrap();
        doomed.push(Doomed::start(table, &sink, &format!("doomed-{n}")));
        sink.wait_for(enough.min(WRITERS * EACH / 4)).await;
        // The one before dies while this one works beside it.
        if n > 0 {
            doomed[n - 1].kill();
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    doomed[2].kill();
    let (table, _) = db.adopt(NAME, mapping).await.unwrap();
    let last = relay(table.clone(), &sink, "last").await;
    judge(db, &sink).await;
    (table, last)
}

pub async fn a_claim_that_outlives_its_owner_comes_back(db: Database) {
    let mapping = smartedify(&db).await;
    // It never answers: whoever publishes to it holds its lanes and its claims.
    let hole = Arc::new(Sink::answering(|_, _| {
        std::thread::sleep(Duration::from_millis(50));
        relevo_core::broker::Confirm::Down { error: "nobody is there".into() }
    }));
    let (table, _) = db.adopt(NAME, mapping.clone()).await.unwrap();
    let mut doomed = Doomed::start(table, &hole, "doomed");
    for n in 0..10 {
        db.run(&insert(Uuid::now_v7(), &format!("k-{}", n % 3), &format!(r#"{{"n": {n}}}"#))).await;
    }
    let claims = if db.is_postgres() { "relevo.claim" } else { "relevo_claim" };
    counts(&db, &format!("SELECT count(*) FROM {claims}"), 10).await;
    doomed.kill();
    let sink = Arc::new(Sink::new());
    let (table, _) = db.adopt(NAME, mapping).await.unwrap();
    let running = relay(table, &sink, "heir").await;
    sink.wait_for(10).await;
    counts(&db, "SELECT count(*) FROM outbox_events WHERE published_at IS NULL", 0).await;
    running.stop(Duration::from_secs(60)).await.unwrap();
}

/// A table with names and states nobody would guess, drawn from a seed.
fn strange(db: &Database, seed: u64) -> (String, Mapping) {
    let word = |role: &str| {
        format!("{role}\" {{}}{}'é;--", (seed.wrapping_mul(31) ^ role.len() as u64) % 997)
    };
    let q = |role: &str| format!("\"{}\"", word(role).replace('"', "\"\""));
    let (time, serial) = match db.is_postgres() {
        true => ("timestamp", "bigserial PRIMARY KEY"),
        false => ("integer", "integer PRIMARY KEY AUTOINCREMENT"),
    };
    let columns = format!(
        "{} bigint, {} text NOT NULL, {} text, {} {}, {} text NOT NULL DEFAULT '{}', {} smallint, {} {time}, {} varchar(10), {} {time}",
        q("key"),
        q("topic"),
        q("body"),
        q("head"),
        if db.is_postgres() { "json" } else { "text" },
        q("state"),
        word("new").replace('\'', "''"),
        q("tries"),
        q("next"),
        q("cause"),
        q("done"),
    );
    let sql = format!(
        "CREATE TABLE {table} ({id} {serial}, {columns});
         CREATE TABLE {dead} ({id} bigint PRIMARY KEY, {columns}, {died} {time} NOT NULL)",
        table = q("t"),
        dead = q("dead"),
        id = q("id"),
        died = q("died"),
    );
    let name = |role: &str| TableName { schema: None, table: word(role) };
    let mut mapping = Mapping::new(name("t"));
    mapping.columns = [
        (Role::Id, "id"),
        (Role::Key, "key"),
        (Role::Topic, "topic"),
        (Role::Payload, "body"),
        (Role::Headers, "head"),
        (Role::Attempts, "tries"),
        (Role::NextAttemptAt, "next"),
        (Role::Error, "cause"),
        (Role::PublishedAt, "done"),
        (Role::Sequence, "id"),
    ]
    .map(|(role, column)| (role, word(column)))
    .into();
    let dead = DeadTable::new(name("dead")).with(Role::ErrorAt, word("died"));
    let status = Status::new(word("state"), [word("new")], word("gone"));
    (sql, mapping.topic_prefix("strange.").status(status).dead_letters(dead))
}

pub async fn a_table_of_strange_names_is_relayed_by_its_mapping_alone(db: Database) {
    for seed in 1..=3 {
        let (sql, mapping) = strange(&db, seed);
        db.run(&sql).await;
        let quoted =
            |role: Role| relevo_core::outbox::adopt::quoted_name(mapping.column(role).unwrap());
        let (table, columns) = (
            mapping.table.sql(),
            [Role::Key, Role::Topic, Role::Payload, Role::Headers].map(quoted),
        );
        let rows: Vec<String> = (0..60)
            .map(|n| {
                format!(
                    "({}, 'a.b', '{}', '{{\"h\": \"{n}\"}}')",
                    n % 7,
                    if n % 20 == 3 { "bad" } else { "good" }
                )
            })
            .collect();
        let (table_store, _) = db.adopt(&format!("strange-{seed}"), mapping.clone()).await.unwrap();
        let sink = Arc::new(Sink::refusing("bad", None));
        let name = format!("strange-{seed}");
        let (destination, member) = (Arc::new(sink.destination()), MemberId("m".into()));
        let running = relevo_core::relay::run::start(
            table_store,
            Subscription::new(&*name),
            config(),
            destination,
            member,
        )
        .await
        .unwrap();
        db.run(&format!("INSERT INTO {table} ({}) VALUES {}", columns.join(", "), rows.join(", ")))
            .await;
        let seen = sink.wait_for(57).await;
        assert!(seen.iter().all(|seen| seen.topic == "strange.a.b"));
        let number = |seen: &super::Seen| -> i64 {
            let json: serde_json::Value = serde_json::from_str(&seen.headers).unwrap();
            json["h"].as_str().unwrap().parse().unwrap()
        };
        for key in 0..7 {
            let of_key: Vec<i64> =
                seen.iter().filter(|seen| seen.key == key.to_string()).map(number).collect();
            assert!(of_key.is_sorted(), "{key}: {of_key:?}");
        }
        let dead = mapping.dead_letters.as_ref().unwrap().table.sql();
        counts(&db, &format!("SELECT count(*) FROM {dead}"), 3).await;
        counts(
            &db,
            &format!("SELECT count(*) FROM {table} WHERE {} IS NULL", quoted(Role::PublishedAt)),
            0,
        )
        .await;
        running.stop(Duration::from_secs(60)).await.unwrap();
    }
}
