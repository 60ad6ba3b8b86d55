//! Direct effects on PostgreSQL, with every driver: the effect, the cursor and what is published commit together.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::Kind;
use relevo_core::event::{Event, NewEvent};
use relevo_core::inbox::{Answer, Direct, Effect, Failure, Handler, Settled, TxDriver};
use relevo_core::outbox::{MemberId, Position, PublishIn, Store, Subscription};
use relevo_core::relay::{RelayConfig, run};
use relevo_core::retry::RetryPolicy;
use relevo_stores::postgres::{Deadpool, PostgresOutbox, PostgresStore, TokioPostgres};
use relevo_testkit::eventually;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

const INSERT: &str = "INSERT INTO effect (id) VALUES ($1)";

/// A handler that writes its row, publishes `done`, and fails for good if the topic says so; once per driver.
macro_rules! ledger {
    ($name:ident, $driver:ty, $tx:ident, $id:ident, $write:expr) => {
        struct $name;
        impl Handler<$driver> for $name {
            async fn handle(&self, event: &Event, effect: &mut Effect<'_, $driver>) -> Answer {
                let $tx = effect.tx().await?;
                let $id = event.id.to_string();
                $write?;
                match event.topic.as_str() {
                    "bad" => return Err(Failure::for_good("no such order")),
                    "done" => {}
                    _ => {
                        let done = NewEvent::bytes("done", "").key("done").caused_by(event);
                        PostgresOutbox::new().publish($tx, done).await?;
                    }
                }
                Ok(Settled::Done)
            }
        }
    };
}
ledger!(ByDeadpool, Deadpool, tx, id, tx.execute(INSERT, &[&id]).await);
ledger!(ByTokio, TokioPostgres, tx, id, tx.execute(INSERT, &[&id]).await);

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {sql}"), &[]).await.unwrap().get(0)
}

/// Good events leave one effect each and one event each; a bad one leaves a dead letter and nothing else.
async fn effects_happen_once<D: TxDriver, H: Handler<D>>(rig: Rig, driver: D, handler: H) {
    let mut client = connect(&rig.url).await;
    client.batch_execute("CREATE TABLE effect (id text)").await.unwrap();
    let mut config = RelayConfig::default();
    config.retry = RetryPolicy::ladder([Duration::from_millis(10)]);
    let destination = Arc::new(Direct::new(driver, handler));
    let shared: Arc<dyn Store> = Arc::new(rig.store.clone());
    let running =
        run::start(shared, Subscription::new("ledger"), config, destination, MemberId("me".into()))
            .await
            .unwrap();
    for n in 0..40 {
        let topic = if n % 10 == 3 { "bad" } else { "good" };
        publish(&mut client, event(topic, &format!("key-{}", n % 7))).await;
    }
    let watch = connect(&rig.url).await;
    // 36 good ones and the 36 events that they published.
    eventually("every effect", async || (count(&watch, "effect").await >= 72).then_some(())).await;
    running.stop(Duration::from_secs(5)).await.unwrap();
    assert_eq!(count(&client, "effect").await, 72, "each once");
    assert_eq!(count(&client, "(SELECT DISTINCT id FROM effect) e").await, 72);
    assert_eq!(count(&client, "relevo.dead_letter WHERE topic = 'bad'").await, 4);
    assert_eq!(count(&client, "relevo.parked_key").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_deadpool_effects_happen_once() {
    let Some(rig) = rig().await else { return };
    let driver = Deadpool::new(rig.store.pool().clone());
    effects_happen_once(rig, driver, ByDeadpool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tokio_postgres_effects_happen_once() {
    let Some(rig) = rig().await else { return };
    let driver = TokioPostgres::new(rig.store.pool().clone());
    effects_happen_once(rig, driver, ByTokio).await;
}

#[cfg(feature = "sqlx")]
mod by_sqlx {
    use super::*;
    use relevo_stores::postgres::SqlxPostgres;
    use sqlx::PgPool;

    ledger!(BySqlx, SqlxPostgres, tx, id, sqlx::query(INSERT).bind(id).execute(&mut **tx).await);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn with_sqlx_effects_happen_once() {
        let Some(rig) = rig().await else { return };
        let driver = SqlxPostgres::new(PgPool::connect(&rig.url).await.unwrap());
        effects_happen_once(rig, driver, BySqlx).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_begin_that_is_cancelled_leaves_no_transaction_behind() {
        let Some(rig) = rig().await else { return };
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(1)
            .connect(&rig.url)
            .await
            .unwrap();
        let driver = SqlxPostgres::new(pool.clone());
        sqlx::query("CREATE TABLE effect (id text)").execute(&pool).await.unwrap();
        for n in 0..60u64 {
            let mut conn = driver.acquire().await.unwrap();
            let limit = Duration::from_micros(n * 20);
            if let Ok(tx) =
                tokio::time::timeout(limit, driver.begin(&mut conn, Duration::from_secs(5))).await
            {
                drop(tx.unwrap());
            }
            drop(conn);
            sqlx::query(INSERT).bind(n.to_string()).execute(&pool).await.unwrap();
        }
        let client = connect(&rig.url).await;
        assert_eq!(count(&client, "effect").await, 60, "what answered Ok is there");
    }
}

/// One event of key `k`, owned by `me`, with the change that records it.
async fn one(store: &PostgresStore, url: &str) -> (Owner, relevo_core::outbox::LaneChange) {
    let owner = Owner::of(store, "s", "me").await;
    let mut client = connect(url).await;
    client.batch_execute("CREATE TABLE effect (id text)").await.unwrap();
    publish(&mut client, event("a", "k")).await;
    let page = page(store, Position::default()).await;
    let change = owner.change(store, "k", page.end).await;
    (owner, change)
}

#[tokio::test]
async fn a_stale_owner_s_effect_is_rolled_back_with_its_cursor() {
    let Some(rig) = rig().await else { return };
    let (_, change) = one(&rig.store, &rig.url).await;
    let driver = Deadpool::new(rig.store.pool().clone());
    let mut conn = driver.acquire().await.unwrap();
    let mut tx = driver.begin(&mut conn, Duration::from_secs(5)).await.unwrap();
    tx.execute(INSERT, &[&"stale"]).await.unwrap();
    Owner::take(&rig.store, "s", "other").await;
    assert_eq!(Deadpool::record(&mut tx, &change).await.unwrap_err().kind(), Kind::Stale);
    // A commit of what failed is a rollback.
    drop(Deadpool::commit(tx).await);
    let client = connect(&rig.url).await;
    assert_eq!(count(&client, "effect").await, 0);
}

#[tokio::test]
async fn a_failed_event_is_undone_and_the_rest_of_its_batch_stays() {
    let Some(rig) = rig().await else { return };
    let (_, change) = one(&rig.store, &rig.url).await;
    let driver = TokioPostgres::new(rig.store.pool().clone());
    let mut conn = driver.acquire().await.unwrap();
    let mut tx = driver.begin(&mut conn, Duration::from_secs(5)).await.unwrap();
    for (id, fails) in [("1", false), ("2", true), ("3", false)] {
        TokioPostgres::savepoint(&mut tx).await.unwrap();
        tx.execute(INSERT, &[&id]).await.unwrap();
        if fails {
            assert!(tx.execute("SELECT 1 / 0", &[]).await.is_err());
            TokioPostgres::undo(&mut tx).await.unwrap();
        }
    }
    TokioPostgres::record(&mut tx, &change).await.unwrap();
    TokioPostgres::commit(tx).await.unwrap();
    let client = connect(&rig.url).await;
    assert_eq!(count(&client, "effect WHERE id IN ('1', '3')").await, 2);
    assert_eq!(count(&client, "effect").await, 2);
}

#[tokio::test]
async fn a_session_that_idles_in_its_transaction_is_ended() {
    let Some(rig) = rig().await else { return };
    let (_, change) = one(&rig.store, &rig.url).await;
    let driver = Deadpool::new(rig.store.pool().clone());
    let mut conn = driver.acquire().await.unwrap();
    let mut tx = driver.begin(&mut conn, Duration::from_millis(50)).await.unwrap();
    tx.execute(INSERT, &[&"idle"]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let error = Deadpool::record(&mut tx, &change).await.unwrap_err();
    assert!(matches!(error.kind(), Kind::TransactionConflict | Kind::Unreachable), "{error}");
    drop(tx);
    let client = connect(&rig.url).await;
    assert_eq!(count(&client, "effect").await, 0);
}

/// Does by the event's topic what the database refuses only at the very end.
struct Careless;
impl Handler<Deadpool> for Careless {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, Deadpool>) -> Answer {
        let tx = effect.tx().await?;
        tx.execute(INSERT, &[&event.id.to_string()]).await?;
        match event.topic.as_str() {
            // Checked at COMMIT.
            "deferred" => {
                tx.execute("INSERT INTO child (parent) VALUES (4711)", &[]).await.map(drop)?
            }
            // The transaction is broken from here on, and the handler does not say so.
            "swallows" => drop(tx.execute("SELECT 1 / 0", &[]).await),
            // The server ends a session that idles for longer than the limit below.
            "idles" => tokio::time::sleep(Duration::from_millis(1500)).await,
            _ => {}
        }
        Ok(Settled::Done)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_database_refuses_at_the_end_fails_its_own_event_and_no_other() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let tables = "CREATE TABLE effect (id text); CREATE TABLE parent (id int PRIMARY KEY);
                  CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)";
    client.batch_execute(tables).await.unwrap();
    for topic in ["good", "deferred", "good", "swallows", "good", "idles", "good"] {
        publish(&mut client, event(topic, &format!("key of {topic}"))).await;
    }
    let mut config = RelayConfig::default();
    config.retry = RetryPolicy::ladder([Duration::from_millis(10)]);
    let driver = Deadpool::new(rig.store.pool().clone());
    let destination = Direct::new(driver, Careless).idle_limit(Duration::from_millis(500));
    let shared: Arc<dyn Store> = Arc::new(rig.store.clone());
    let name = Subscription::new("careless");
    let running = run::start(shared, name, config, Arc::new(destination), MemberId("me".into()))
        .await
        .unwrap();
    let watch = connect(&rig.url).await;
    eventually("three dead letters", async || {
        (count(&watch, "relevo.dead_letter").await == 3).then_some(())
    })
    .await;
    eventually("every good effect", async || (count(&watch, "effect").await == 4).then_some(()))
        .await;
    running.stop(Duration::from_secs(5)).await.unwrap();
    assert_eq!(count(&watch, "effect").await, 4, "and nothing of what was refused");
}
