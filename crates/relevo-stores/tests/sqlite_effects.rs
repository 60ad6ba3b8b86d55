//! Effects done once: handlers with transactions of rusqlite and of sqlx, under a real relay.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod sqlite_support;

use relevo_core::dead_letters::{DeadFilter, DeadLetter, Operate};
use relevo_core::event::lane_of;
use relevo_core::inbox::{Answer, Failure, Settled};
use relevo_core::outbox::{MemberId, Store, Subscription};
use relevo_core::relay::RelayConfig;
use relevo_core::relay::run::{Destination, Running, start};
use relevo_core::retry::RetryPolicy;
use relevo_core::{Event, NewEvent};
use relevo_stores::sqlite::{SqliteOutbox, SqliteStore, SyncDirect, SyncHandler};
use rusqlite::Transaction;
use sqlite_support::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TABLE: &str =
    "CREATE TABLE effects (n INTEGER PRIMARY KEY, topic TEXT, key TEXT, payload TEXT)";

async fn relay(store: &SqliteStore, destination: Arc<dyn Destination>) -> Running {
    let mut config = RelayConfig::default();
    config.lease = Duration::from_secs(2);
    config.retry = RetryPolicy::ladder([Duration::from_millis(20)]);
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    start(shared, Subscription::new("s"), config, destination, MemberId("m".into())).await.unwrap()
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..1500 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 15 s: {what}");
}

async fn effects(scratch: &Scratch, n: i64) {
    until(&format!("{n} effects"), async || count(scratch, "effects") >= n).await;
}

/// Waits for so many dead letters, oldest first.
async fn dead(store: &SqliteStore, n: usize) -> Vec<DeadLetter> {
    let all = async || store.dead_letters(&DeadFilter::default(), None, 100).await.unwrap();
    until("dead letters", async || all().await.len() >= n).await;
    let mut letters = all().await;
    letters.reverse();
    letters
}

async fn publish_of_keys(store: &SqliteStore, n: usize) {
    for i in 0..n {
        let event = NewEvent::bytes("work", i.to_string()).key(format!("k{}", i % 7));
        store.publish_now(event).await.unwrap();
    }
}

/// Every payload of a key once, in the order it was published in.
fn each_once_in_order(scratch: &Scratch, n: usize) {
    let conn = scratch.connect();
    for key in 0..7 {
        let sql = "SELECT payload FROM effects WHERE topic = 'work' AND key = ?1 ORDER BY n";
        let mut statement = conn.prepare(sql).unwrap();
        let rows = statement.query_map([format!("k{key}")], |row| row.get::<_, String>(0)).unwrap();
        let found: Vec<usize> = rows.map(|row| row.unwrap().parse().unwrap()).collect();
        let expected: Vec<usize> = (0..n).filter(|i| i % 7 == key).collect();
        assert_eq!(found, expected, "key {key}");
    }
}

fn note(tx: &Transaction<'_>, event: &Event) -> rusqlite::Result<usize> {
    let payload = String::from_utf8_lossy(&event.payload).into_owned();
    tx.execute(
        "INSERT INTO effects (topic, key, payload) VALUES (?1, ?2, ?3)",
        (&event.topic, &event.key, payload),
    )
}

struct Books {
    outbox: SqliteOutbox,
    slow: bool,
    calls: Arc<AtomicUsize>,
}

impl Books {
    fn new(slow: bool) -> Self {
        Self { outbox: SqliteOutbox::default(), slow, calls: Arc::default() }
    }
}

impl SyncHandler for Books {
    fn handle(&self, event: &Event, tx: &Transaction<'_>) -> Answer {
        self.calls.fetch_add(1, Ordering::Relaxed);
        note(tx, event)?;
        match event.topic.as_str() {
            "chain" => drop(
                self.outbox
                    .publish_sync(tx, NewEvent::bytes("work", "0").key("k0").caused_by(event))?,
            ),
            "refuse" => return Err(Failure::for_good("never")),
            "skip" => return Ok(Settled::Skip("nothing to do".into())),
            "panic" => panic!("on purpose"),
            "endless" => {
                let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
                tx.query_row(sql, [], |row| row.get::<_, i64>(0))?;
            }
            "late" => std::thread::sleep(self.limit() + Duration::from_millis(50)),
            "commit" => {
                drop(tx.execute_batch("COMMIT; INSERT INTO effects (topic) VALUES ('outside')"))
            }
            _ => {}
        }
        Ok(Settled::Done)
    }

    fn slow(&self) -> bool {
        self.slow
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(300)
    }
}

async fn books(scratch: &Scratch, slow: bool) -> (SqliteStore, Running) {
    let store = scratch.store().await;
    scratch.connect().execute_batch(TABLE).unwrap();
    let destination = Arc::new(SyncDirect::new(&store, Books::new(slow)).unwrap());
    let running = relay(&store, destination).await;
    (store, running)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_handlers_effects_happen_once_and_in_order() {
    let scratch = Scratch::new();
    let (store, running) = books(&scratch, false).await;
    publish_of_keys(&store, 200).await;
    effects(&scratch, 200).await;
    running.stop(Duration::from_secs(5)).await.unwrap();
    each_once_in_order(&scratch, 200);
    assert_eq!(count(&scratch, "effects"), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_synchronous_handler_publishes_commits_with_its_effect() {
    let scratch = Scratch::new();
    let (store, running) = books(&scratch, false).await;
    store.publish_now(event("chain", "c")).await.unwrap();
    effects(&scratch, 2).await;
    running.stop(Duration::from_secs(5)).await.unwrap();
    each_once_in_order(&scratch, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_handler_that_fails_panics_or_runs_late_harms_only_its_own_attempt() {
    for slow in [false, true] {
        let scratch = Scratch::new();
        let store = scratch.store().await;
        scratch.connect().execute_batch(TABLE).unwrap();
        for (topic, key) in [
            ("refuse", "a"),
            ("skip", "b"),
            ("panic", "c"),
            ("endless", "d"),
            ("late", "e"),
            ("commit", "f"),
        ] {
            store.publish_now(event(topic, key)).await.unwrap();
        }
        publish_of_keys(&store, 30).await;
        let destination = Arc::new(SyncDirect::new(&store, Books::new(slow)).unwrap());
        let running = relay(&store, destination).await;
        effects(&scratch, 30).await;
        let letters = dead(&store, 5).await;
        running.stop(Duration::from_secs(5)).await.unwrap();
        each_once_in_order(&scratch, 30);
        assert_eq!(count(&scratch, "effects"), 30, "nothing of the others stays");
        let error = |topic: &str| {
            letters.iter().find(|letter| letter.event.topic == topic).unwrap().error.clone()
        };
        assert_eq!(error("refuse"), "never");
        assert!(
            error("panic").starts_with("R0027") && error("panic").contains("on purpose"),
            "{}",
            error("panic")
        );
        assert!(error("endless").starts_with("R0026"), "{}", error("endless"));
        assert!(error("late").starts_with("R0026"), "{}", error("late"));
        assert!(error("commit").starts_with("R0035"), "{}", error("commit"));
        assert_eq!(count(&scratch, "relevo_skip"), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_in_a_shared_transaction_costs_a_second_call_of_those_before_it_alone() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    scratch.connect().execute_batch(TABLE).unwrap();
    // One batch is of one lane.
    let lane = lane_of("k0");
    let keys: Vec<_> =
        (1..).map(|n| format!("k{n}")).filter(|key| lane_of(key) == lane).take(2).collect();
    for (topic, key) in [("before", "k0"), ("refuse", &keys[0]), ("after", &keys[1])] {
        store.publish_now(event(topic, key)).await.unwrap();
    }
    let books = Books::new(false);
    let calls = books.calls.clone();
    let running = relay(&store, Arc::new(SyncDirect::new(&store, books).unwrap())).await;
    effects(&scratch, 2).await;
    dead(&store, 1).await;
    running.stop(Duration::from_secs(5)).await.unwrap();
    assert_eq!((count(&scratch, "effects"), calls.load(Ordering::Relaxed)), (2, 4));
}

/// Reads, lets somebody else write, then writes: the snapshot it read is no longer the newest.
struct ReadsFirst {
    path: std::path::PathBuf,
    calls: Arc<AtomicUsize>,
}

impl SyncHandler for ReadsFirst {
    fn handle(&self, event: &Event, tx: &Transaction<'_>) -> Answer {
        tx.query_row("SELECT count(*) FROM effects", [], |row| row.get::<_, i64>(0))?;
        if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
            let other = rusqlite::Connection::open(&self.path)?;
            other.execute("INSERT INTO effects (topic) VALUES ('other')", [])?;
        }
        note(tx, event)?;
        Ok(Settled::Done)
    }

    fn slow(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_handler_holds_nothing_before_its_first_write_and_is_called_again_after_a_conflict()
{
    let scratch = Scratch::new();
    let store = scratch.store().await;
    scratch.connect().execute_batch(TABLE).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = ReadsFirst { path: scratch.path("log.db"), calls: calls.clone() };
    let running = relay(&store, Arc::new(SyncDirect::new(&store, handler).unwrap())).await;
    store.publish_now(event("work", "k")).await.unwrap();
    effects(&scratch, 2).await;
    running.stop(Duration::from_secs(5)).await.unwrap();
    assert_eq!((count(&scratch, "effects"), calls.load(Ordering::Relaxed)), (2, 2));
    assert_eq!(count(&scratch, "relevo_parked_key"), 0, "a conflict is not the event's fault");
}

#[cfg(feature = "sqlx")]
mod with_sqlx {
    use super::*;
    use relevo_core::inbox::{Direct, Effect, Handler};
    use relevo_core::outbox::PublishIn;
    use relevo_stores::sqlite::SqlxSqlite;
    use sqlx::sqlite::SqlitePoolOptions;
    use std::sync::atomic::AtomicI64;

    struct AsyncBooks {
        swallow: bool,
    }

    impl Handler<SqlxSqlite> for AsyncBooks {
        async fn handle(&self, event: &Event, effect: &mut Effect<'_, SqlxSqlite>) -> Answer {
            let tx = effect.tx().await?;
            let payload = String::from_utf8_lossy(&event.payload).into_owned();
            let query =
                sqlx::query("INSERT INTO effects (topic, key, payload) VALUES (?1, ?2, ?3)");
            let query = query.bind(event.topic.clone()).bind(event.key.clone()).bind(payload);
            let written = query.execute(&mut **tx).await;
            if !self.swallow {
                written?;
            }
            match event.topic.as_str() {
                "chain" => drop(
                    SqliteOutbox::default()
                        .publish(tx, NewEvent::bytes("work", "0").key("k0"))
                        .await?,
                ),
                "refuse" => return Err(Failure::for_good("never")),
                "panic" => panic!("on purpose"),
                "hang" => std::future::pending().await,
                _ => {}
            }
            Ok(Settled::Done)
        }

        fn limit(&self) -> Duration {
            Duration::from_millis(300)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_asynchronous_handlers_effects_happen_once_and_in_order() {
        let scratch = Scratch::new();
        let store = scratch.store().await;
        scratch.connect().execute_batch(TABLE).unwrap();
        let pool = sqlx::SqlitePool::connect(&scratch.url()).await.unwrap();
        publish_of_keys(&store, 100).await;
        let destination = Direct::new(SqlxSqlite::new(pool.clone()), AsyncBooks { swallow: false });
        let running = relay(&store, Arc::new(destination)).await;
        effects(&scratch, 100).await;
        each_once_in_order(&scratch, 100);
        running.stop(Duration::from_secs(5)).await.unwrap();
        pool.close().await;
        assert_eq!(count(&scratch, "effects"), 100);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_hung_handler_is_rolled_back_at_its_limit_and_publishers_go_on_meanwhile() {
        let scratch = Scratch::new();
        let store = scratch.store().await;
        scratch.connect().execute_batch(TABLE).unwrap();
        for (topic, key) in [("refuse", "a"), ("panic", "c"), ("hang", "d")] {
            store.publish_now(event(topic, key)).await.unwrap();
        }
        let pool = sqlx::SqlitePool::connect(&scratch.url()).await.unwrap();
        let destination = Direct::new(SqlxSqlite::new(pool.clone()), AsyncBooks { swallow: false });
        let running = relay(&store, Arc::new(destination)).await;
        publish_of_keys(&store, 30).await;
        effects(&scratch, 30).await;
        let letters = dead(&store, 3).await;
        running.stop(Duration::from_secs(5)).await.unwrap();
        pool.close().await;
        each_once_in_order(&scratch, 30);
        assert_eq!(count(&scratch, "effects"), 30);
        let error = |topic: &str| {
            letters.iter().find(|letter| letter.event.topic == topic).unwrap().error.clone()
        };
        assert!(error("hang").starts_with("R0026") && error("panic").starts_with("R0027"));
    }

    /// On a full disk SQLite ends the whole transaction by itself. A handler that swallows that error and
    /// answers done must not make its event, or those before it in the batch, count as delivered.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_transaction_that_sqlite_ended_is_never_recorded_as_delivered() {
        let scratch = Scratch::new();
        let store = scratch.store().await;
        let conn = scratch.connect();
        conn.execute_batch(TABLE).unwrap();
        for n in 0..6 {
            let size = if n == 3 { 300_000 } else { 10 };
            store.publish_now(NewEvent::bytes("work", vec![b'x'; size]).key("k")).await.unwrap();
        }
        let pages: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        let room = Arc::new(AtomicI64::new(pages + 10));
        let limit = room.clone();
        let pool = SqlitePoolOptions::new().after_connect(move |conn, _| {
            let sql = format!("PRAGMA max_page_count = {}", limit.load(Ordering::Relaxed));
            Box::pin(async move {
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(conn).await.map(drop)
            })
        });
        let pool = pool.connect(&scratch.url()).await.unwrap();
        let destination = Direct::new(SqlxSqlite::new(pool.clone()), AsyncBooks { swallow: true });
        let running = relay(&store, Arc::new(destination)).await;
        effects(&scratch, 3).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(count(&scratch, "effects"), 3, "those before the one that does not fit");
        room.store(1_000_000, Ordering::Relaxed);
        effects(&scratch, 6).await;
        running.stop(Duration::from_secs(5)).await.unwrap();
        pool.close().await;
        assert_eq!(count(&scratch, "effects"), 6, "each once, now that there is room");
    }
}
