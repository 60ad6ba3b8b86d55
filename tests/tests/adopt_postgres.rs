//! What only a server with many writers can do to an adopted table.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_core::EventId;
use relevo_core::dead_letters::{Answer, Operate, Why};
use relevo_core::outbox::Subscription;
use relevo_core::outbox::adopt::{Adopt, KeyOrder, Mapping, Preset, Role, TableName, event_id};
use relevo_stores::postgres::PostgresStore;
use relevo_testkit::eventually;
use relevo_testkit::services::{PostgresOptions, Proxy};
use relevo_tests::adopt::cases::{counts, insert};
use relevo_tests::adopt::why::{of_row, sign_life};
use relevo_tests::adopt::{Database, Kind, Sink, Work, relay, smartedify};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

async fn database() -> Option<Database> {
    Database::fresh(Kind::Postgres(15)).await
}

/// Two writers of one key: the one that began first inserts last, after the other committed.
async fn overtaken(db: &Database) -> [Uuid; 2] {
    let [first, second] = [Uuid::now_v7(), Uuid::now_v7()];
    let slow = db.client().await;
    slow.batch_execute("BEGIN; SELECT now();").await.unwrap();
    db.run(&insert(first, "k", r#"{"n": 1}"#)).await;
    slow.batch_execute(&format!("{} COMMIT;", insert(second, "k", r#"{"n": 2}"#))).await.unwrap();
    [first, second]
}

/// Both of them, relayed by this mapping.
async fn keeps_the_order(db: &Database, mapping: Mapping) {
    let wanted = overtaken(db).await.map(|id| id.to_string());
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    assert!(work.table.capabilities().key_order);
    let ids: Vec<String> = work.sink.wait_for(2).await.into_iter().map(|seen| seen.id).collect();
    assert_eq!(ids, wanted);
    work.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_tells_the_order_that_a_time_gets_wrong() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    keeps_the_order(&db, mapping).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_without_one_says_that_it_does_not_know_the_order() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await.without(Role::Sequence);
    let wanted = overtaken(&db).await.map(|id| id.to_string());
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    assert!(!work.table.capabilities().key_order, "it is declared");
    let ids: Vec<String> = work.sink.wait_for(2).await.into_iter().map(|seen| seen.id).collect();
    assert_eq!(
        ids,
        [wanted[1].clone(), wanted[0].clone()],
        "now() is the transaction's start: this is what it is worth"
    );
    work.end().await;
}

/// On a server that keeps the time of every commit.
async fn keeping_commit_times() -> Option<Database> {
    Database::on(&PostgresOptions::new(15).setting("track_commit_timestamp", "on")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_sequence_the_time_of_the_commit_tells_the_order_where_the_server_keeps_it() {
    let Some(db) = keeping_commit_times().await else { return };
    let mapping = smartedify(&db).await.without(Role::Sequence);
    keeps_the_order(&db, mapping).await;
}

/// Two rows of one key, one after the other.
async fn two_rows(db: &Database) -> [Uuid; 2] {
    let ids = [Uuid::now_v7(), Uuid::now_v7()];
    for id in ids {
        db.run(&insert(id, "k", "{}")).await;
    }
    ids
}

/// What came of them, with what the store says its order stands on.
async fn relayed(db: &Database, mapping: Mapping) -> (Vec<Uuid>, String) {
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    let notes = work.table.probe().await.unwrap().notes;
    let order = notes.iter().find_map(|note| note.strip_prefix("order: ")).unwrap().to_owned();
    let seen = work.sink.wait_for(2).await;
    work.end().await;
    (seen.iter().map(|seen| seen.id.parse().unwrap()).collect(), order)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_the_time_of_the_commit_a_row_that_its_owner_changes_comes_later_and_it_was_said() {
    let Some(db) = keeping_commit_times().await else { return };
    let mapping = smartedify(&db).await.without(Role::Sequence);
    let [first, second] = two_rows(&db).await;
    db.run(&format!("UPDATE outbox_events SET payload = '[]' WHERE id = '{first}'")).await;
    let (came, order) = relayed(&db, mapping).await;
    assert_eq!(came, [second, first], "this is what it is worth");
    let stands_on = "is not set back and rows stay as they were inserted until they are claimed";
    assert!(order.ends_with(stands_on), "{order}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_keeps_the_place_of_a_row_that_its_owner_changes() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    let [first, second] = two_rows(&db).await;
    db.run(&format!("UPDATE outbox_events SET payload = '[]' WHERE id = '{first}'")).await;
    assert_eq!(relayed(&db, mapping).await.0, [first, second]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_that_goes_down_turns_nothing_round() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    db.run(
        "ALTER SEQUENCE outbox_events_position_seq INCREMENT -1 MINVALUE -9 MAXVALUE 9 RESTART 9",
    )
    .await;
    let (came, order) = (two_rows(&db).await, relayed(&db, mapping).await);
    assert_eq!(order.0, came);
    assert!(order.1.starts_with("APPROXIMATE"), "{order:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_holds_keeps_its_key_back_and_no_other() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    let ids: Vec<Uuid> = (0..3).map(|_| Uuid::now_v7()).collect();
    let rows = [("k", 0), ("k", 1), ("other", 2)];
    for (key, n) in rows {
        db.run(&insert(ids[n], key, &format!(r#"{{"n": {n}}}"#))).await;
    }
    let holder = db.client().await;
    let hold = format!("BEGIN; SELECT 1 FROM outbox_events WHERE id = '{}' FOR UPDATE;", ids[0]);
    holder.batch_execute(&hold).await.unwrap();
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    work.sink.wait_for(1).await;
    counts(&db, "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL", 1).await;
    assert_eq!(work.sink.stored()[0].id, ids[2].to_string());
    holder.batch_execute("COMMIT").await.unwrap();
    let seen: Vec<String> = work.sink.wait_for(3).await.into_iter().map(|seen| seen.id).collect();
    assert_eq!(seen[1..], [ids[0].to_string(), ids[1].to_string()]);
    work.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_holds_names_the_session_and_what_follows_of_its_key_names_the_row() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    let ids: Vec<Uuid> = (0..3).map(|_| Uuid::now_v7()).collect();
    for (key, n) in [("k", 0), ("k", 1)] {
        db.run(&insert(ids[n], key, &format!(r#"{{"n": {n}}}"#))).await;
    }
    let holder = db.client().await;
    let hold = format!(
        "SET application_name = 'payroll'; BEGIN; SELECT 1 FROM outbox_events WHERE id = '{}' FOR UPDATE;",
        ids[0]
    );
    holder.batch_execute(&hold).await.unwrap();
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    db.run(&insert(ids[2], "other", "{}")).await;
    work.sink.wait_for(1).await;
    let why = of_row(&work.operate, ids[0]).await;
    let Why::RowLocked { by } = &why else { panic!("{why:?}") };
    assert_eq!((by.len(), by[0].application.as_str()), (1, "payroll"), "{why:?}");
    assert_eq!(of_row(&work.operate, ids[1]).await, Why::BehindRow { row: ids[0].to_string() });
    holder.batch_execute("COMMIT").await.unwrap();
    work.sink.wait_for(3).await;
    work.end().await;
}

/// The table with a relay that signs life and looks at nothing.
async fn watched(db: &Database, mapping: Mapping) -> Arc<dyn Operate> {
    let (table, operate) = db.adopt("events", mapping).await.unwrap();
    table.subscribe(&Subscription::new("events")).await.unwrap();
    sign_life(&table, "{}").await;
    operate
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_more_held_rows_than_are_looked_at_there_are_more_than_were_counted() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    db.run(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         SELECT gen_random_uuid(), 'tenant', 'held', 'governance.changed', '{}' FROM generate_series(1, 1500)",
    )
    .await;
    let holder = db.client().await;
    holder.batch_execute("BEGIN; SELECT 1 FROM outbox_events FOR UPDATE;").await.unwrap();
    let free = Uuid::now_v7();
    db.run(&insert(free, "free", "{}")).await;
    let operate = watched(&db, mapping).await;
    let why = of_row(&operate, free).await;
    assert!(matches!(why, Why::Unclaimed { before: 999, more: true, .. }), "{why:?}");
    holder.batch_execute("COMMIT").await.unwrap();
    let why = of_row(&operate, free).await;
    assert!(matches!(why, Why::Unclaimed { before: 1500, more: false, .. }), "{why:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_keeps_no_row_that_is_never_changed() {
    let Some(db) = database().await else { return };
    let id = Uuid::now_v7();
    db.run(&format!(
        "CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL,
             type text NOT NULL, payload jsonb);
         INSERT INTO outboxevent VALUES ('{id}', 'order', 'o-1', 'OrderPlaced', '{{}}')"
    ))
    .await;
    let holder = db.client().await;
    holder.batch_execute("BEGIN; SELECT 1 FROM outboxevent FOR UPDATE;").await.unwrap();
    let mapping = Preset::Debezium.mapping(TableName::parse("outboxevent").unwrap());
    let why = of_row(&watched(&db, mapping).await, id).await;
    assert!(matches!(why, Why::Unclaimed { before: 0, more: false, .. }), "{why:?}");
    holder.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_a_user_may_not_read_does_not_keep_other_events_from_being_answered_for() {
    let Some(db) = database().await else { return };
    db.run("CREATE SCHEMA hidden; CREATE TABLE hidden.msgs (no int PRIMARY KEY, body text, sent timestamptz); INSERT INTO hidden.msgs VALUES (1, 'x')").await;
    let mapping = Mapping::new(TableName::parse("hidden.msgs").unwrap())
        .with(Role::Id, "no")
        .with(Role::Payload, "body")
        .with(Role::PublishedAt, "sent")
        .topic("msgs");
    db.adopt("events", mapping).await.unwrap();
    let role = format!("r{}", Uuid::new_v4().simple());
    db.run(&format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'word'; GRANT ALL ON SCHEMA relevo TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA relevo TO {role};"
    ))
    .await;
    let (before, after) = db.url.split_once("://").unwrap();
    let (_, host) = after.split_once('@').unwrap();
    let store = PostgresStore::connect(&format!("{before}://{role}:word@{host}")).await.unwrap();
    // First not even the schema may be used, then only the table not be read, at last all may be seen.
    for grant in [String::new(), format!("GRANT USAGE ON SCHEMA hidden TO {role}")] {
        db.run(&grant).await;
        for event in [EventId::fresh(), event_id("events", "1")] {
            let answer = store.why(event).await.unwrap();
            assert!(matches!(answer, Answer::Unknown { .. }), "{grant}: {answer:?}");
        }
        assert!(store.why_row("1").await.unwrap().is_none(), "{grant}");
    }
    db.run(&format!("GRANT SELECT ON hidden.msgs TO {role}")).await;
    let (_, answer) = store.why_row("1").await.unwrap().unwrap();
    assert!(matches!(answer, Answer::InTable { why: Why::NotRelayed, .. }), "{answer:?}");
    db.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_inside_an_open_transaction_is_unknown_and_its_session_is_named() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    let (_, operate) = db.adopt("events", mapping).await.unwrap();
    let (id, writer) = (Uuid::now_v7(), db.client().await);
    let begin = format!("SET application_name = 'payroll'; BEGIN; {}", insert(id, "k", "{}"));
    writer.batch_execute(&begin).await.unwrap();
    let answer = operate.why(EventId(id)).await.unwrap();
    let Answer::Unknown { suspects, .. } = &answer else { panic!("{answer:?}") };
    assert_eq!((suspects.len(), suspects[0].application.as_str()), (1, "payroll"), "{answer:?}");
    writer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(of_row(&operate, id).await, Why::NotRelayed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_tells_the_order_only_if_it_goes_up_number_by_number() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    let store = PostgresStore::connect(&db.url).await.unwrap();
    for (setting, note) in [
        ("CACHE 20", "(ALTER SEQUENCE ... CACHE 1)"),
        ("CACHE 1 INCREMENT -1 MINVALUE -9", "(ALTER SEQUENCE ... INCREMENT 1)"),
        ("INCREMENT 1 CYCLE", "or one that begins again"),
    ] {
        db.run(&format!("ALTER SEQUENCE outbox_events_position_seq {setting}")).await;
        let verdict = store.judge_mapping(&mapping).await.unwrap();
        assert!(matches!(verdict.order, KeyOrder::Approximate { .. }), "{setting}: {verdict:?}");
        assert!(verdict.notes.iter().any(|it| it.contains(note)), "{setting}: {verdict:?}");
    }
    db.run("ALTER SEQUENCE outbox_events_position_seq NO CYCLE INCREMENT 3").await;
    let verdict = store.judge_mapping(&mapping).await.unwrap();
    assert_eq!(verdict.order, KeyOrder::Sequence { column: "position".into() });
    assert_eq!(verdict.notes, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_or_computed_of_a_sequences_numbers_has_another_order() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    db.run(
        r#"CREATE SEQUENCE "it's one"; ALTER TABLE outbox_events
             ADD plain bigint DEFAULT nextval('"it''s one"'), ADD written text DEFAULT nextval('"it''s one"'),
             ADD cast_to text DEFAULT nextval('"it''s one"')::text, ADD computed bigint DEFAULT -nextval('"it''s one"')"#,
    )
    .await;
    let store = PostgresStore::connect(&db.url).await.unwrap();
    for (column, sound) in
        [("plain", true), ("written", false), ("cast_to", false), ("computed", false)]
    {
        let mapping = mapping.clone().with(Role::Sequence, column);
        let verdict = store.judge_mapping(&mapping).await.unwrap();
        assert_eq!(verdict.order.is_sound(), sound, "{column}: {verdict:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_makes_an_id_unique_only_if_it_is_of_the_id_alone() {
    let Some(db) = database().await else { return };
    db.run("CREATE TABLE msgs (tenant text, no bigint, body text, sent timestamptz)").await;
    let mapping = Mapping::new(TableName::parse("msgs").unwrap())
        .with(Role::Id, "no")
        .with(Role::Payload, "body")
        .with(Role::PublishedAt, "sent")
        .topic("msgs");
    let store = PostgresStore::connect(&db.url).await.unwrap();
    for (index, problem) in [
        ("(tenant) INCLUDE (no)", Some("no unique index has its column \"no\"")),
        ("(tenant, no)", Some("its column \"no\" is unique only together with others")),
        ("(no) WHERE sent IS NULL", Some("its column \"no\" is unique only together with others")),
        ("(no) INCLUDE (tenant)", None),
    ] {
        db.run(&format!("CREATE UNIQUE INDEX ON msgs {index}")).await;
        let problems = store.judge_mapping(&mapping).await.unwrap().problems;
        assert_eq!(problems.len(), usize::from(problem.is_some()), "{index}: {problems:?}");
        let told = problem.is_none_or(|problem| problems[0].starts_with(problem));
        assert!(told, "{index}: {problems:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_may_not_mark_is_told_so_before_anything_is_claimed() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    let role = format!("r{}", Uuid::new_v4().simple());
    db.run(&format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'word'; GRANT ALL ON SCHEMA relevo TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA relevo TO {role};
         GRANT SELECT ON outbox_events, outbox_events_dlq TO {role};"
    ))
    .await;
    let (before, after) = db.url.split_once("://").unwrap();
    let (_, host) = after.split_once('@').unwrap();
    let store = PostgresStore::connect(&format!("{before}://{role}:word@{host}")).await.unwrap();
    let lacks = async |what: &str| {
        let error = store.adopt("x", mapping.clone()).await.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    lacks("lacks UPDATE, INSERT, DELETE: ").await;
    db.run(&format!("GRANT ALL ON outbox_events TO {role}")).await;
    let missing = "INSERT, DELETE ON \"public\".\"outbox_events_dlq\"";
    lacks(&format!("lacks INSERT, DELETE: GRANT {missing}")).await;
    db.run(&format!("GRANT {missing} TO {role}")).await;
    store.adopt("x", mapping).await.unwrap();
    db.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// Each claim takes its rows from the front of an index: what waits behind them is not read for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_a_large_backlog_does_not_read_all_of_it() {
    const ROWS: usize = 6000;
    const READ: &str =
        "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'outbox_events'";
    const FETCHED: &str =
        "SELECT idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'outbox_events'";
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    let index = "CREATE INDEX \"outbox_events_pending\" ON \"public\".\"outbox_events\" (\"position\") WHERE \"published_at\" IS NULL";
    let store = PostgresStore::connect(&db.url).await.unwrap();
    let verdict = store.judge_mapping(&mapping).await.unwrap();
    assert_eq!(verdict.missing_indices, [index], "the documented one has another order");
    db.run(index).await;
    assert!(store.judge_mapping(&mapping).await.unwrap().missing_indices.is_empty());
    db.run(&format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         SELECT gen_random_uuid(), 'tenant', n % 100, 'governance.changed', '{{}}' FROM generate_series(1, {ROWS}) n"
    ))
    .await;
    let before = db.number(READ).await;
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    work.sink.wait_for(ROWS).await;
    work.end().await;
    for _ in 0..600 {
        if db.number(FETCHED).await >= ROWS as i64 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(db.number(FETCHED).await >= ROWS as i64, "the server has not told its figures");
    let read = db.number(READ).await - before;
    assert!(read < ROWS as i64, "{read} rows were read one after another for {ROWS}");
}

/// What the planner knows of a table was true before its backlog came: an index of what is pending had next to nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_claims_find_their_rows_by_their_ids_however_much_waits() {
    const ROWS: usize = 6000;
    const FETCHED: &str =
        "SELECT idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'outbox_events'";
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    let rows = |published: &str| {
        format!(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, published_at)
             SELECT gen_random_uuid(), 'tenant', n % 100, 'governance.changed', '{{}}', {published}
               FROM generate_series(1, {ROWS}) n"
        )
    };
    db.run(
        "CREATE INDEX outbox_events_pending ON outbox_events (position) WHERE published_at IS NULL",
    )
    .await;
    db.run(&format!("{}; ANALYZE outbox_events", rows("now()"))).await;
    db.run(&rows("NULL")).await;
    let store = PostgresStore::connect(&db.url).await.unwrap();
    let table = store.adopt("events", mapping).await.unwrap().claim_rows(50);
    let sink = Arc::new(Sink::new());
    let running = relay(Arc::new(table), &sink, "one").await;
    sink.wait_for(ROWS).await;
    running.stop(Duration::from_secs(60)).await.unwrap();
    let mut fetched = 0;
    for _ in 0..600 {
        fetched = db.number(FETCHED).await;
        if fetched >= ROWS as i64 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(fetched >= ROWS as i64, "the server has not told its figures");
    assert!(fetched < 40 * ROWS as i64, "{fetched} rows were fetched for {ROWS}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_rows_than_a_claim_takes_may_be_held_without_stopping_the_others() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    db.run(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         SELECT gen_random_uuid(), 'tenant', 'held', 'governance.changed', '{}' FROM generate_series(1, 1500)",
    )
    .await;
    let holder = db.client().await;
    holder.batch_execute("BEGIN; SELECT 1 FROM outbox_events FOR UPDATE;").await.unwrap();
    let free = Uuid::now_v7();
    db.run(&insert(free, "free", "{}")).await;
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    assert_eq!(work.sink.wait_for(1).await[0].id, free.to_string());
    holder.batch_execute("COMMIT").await.unwrap();
    work.sink.wait_for(1501).await;
    work.end().await;
}

/// Where a server listens.
fn address(url: &str) -> SocketAddr {
    let config: tokio_postgres::Config = url.parse().unwrap();
    SocketAddr::from(([127, 0, 0, 1], config.get_ports()[0]))
}

/// The machine of whoever claims vanishes between two statements: nobody tells the server, and one claims at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_vanishes_in_the_middle_of_a_claim_does_not_keep_the_others_from_claiming() {
    let Some(db) = database().await else { return };
    let mapping = smartedify(&db).await;
    let proxy = Proxy::start(address(&db.url)).unwrap();
    let mut far = db.clone();
    far.url = proxy.url(&db.url);
    let vanished = Work::begin(far, mapping.clone(), Sink::new()).await;
    // Slow enough to be met between two statements.
    proxy.delay(Duration::from_millis(200));
    let in_a_claim = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND state = 'idle in transaction' AND query LIKE '%FROM relevo.adopted%FOR UPDATE SKIP LOCKED'";
    eventually("a claim", async || (db.number(in_a_claim).await > 0).then_some(())).await;
    proxy.half_open();
    let id = Uuid::now_v7();
    db.run(&insert(id, "k", "{}")).await;
    let (table, _) = db.adopt("events", mapping).await.unwrap();
    let sink = Arc::new(Sink::new());
    let running = relay(table, &sink, "two").await;
    assert_eq!(sink.wait_for(1).await[0].id, id.to_string());
    running.stop(Duration::from_secs(60)).await.unwrap();
    proxy.heal();
    proxy.cut();
    vanished.end().await;
}
