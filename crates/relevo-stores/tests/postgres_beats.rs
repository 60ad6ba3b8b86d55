//! Signs of life get through when handlers hold every connection of the pool.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::event::Event;
use relevo_core::inbox::{Answer, Direct, Effect, Handler, Settled};
use relevo_core::outbox::{MemberId, Subscription};
use relevo_core::relay::RelayConfig;
use relevo_core::relay::run::{self, Running};
use relevo_stores::postgres::{Deadpool, Options, PostgresStore};
use relevo_testkit::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(2);

/// Holds its connection for longer than the lease.
struct Slow {
    begun: Arc<AtomicUsize>,
    hold: Duration,
}

impl Handler<Deadpool> for Slow {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, Deadpool>) -> Answer {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let tx = effect.tx().await?;
        let id = event.id.to_string();
        tx.execute("INSERT INTO effect (id) VALUES ($1)", &[&id]).await?;
        tokio::time::sleep(self.hold).await;
        Ok(Settled::Done)
    }
}

async fn relay(url: &str, member: &str, connections: usize, begun: &Arc<AtomicUsize>) -> Running {
    let handler = Slow { begun: begun.clone(), hold: LEASE * 2 };
    relay_with(url, member, connections, handler).await
}

/// Works as many lanes at once as it has connections for handlers.
async fn relay_with(url: &str, member: &str, connections: usize, handler: Slow) -> Running {
    let mut options = Options::default();
    options.connections = connections;
    let store = PostgresStore::open(url, options).unwrap();
    let driver = Deadpool::new(store.pool().clone());
    let mut config = RelayConfig::default();
    config.lease = LEASE;
    config.batch = 1;
    config.concurrency = Some(connections);
    // It holds its transaction for longer than the lease, and idles.
    let destination = Arc::new(Direct::new(driver, handler).idle_limit(LEASE * 8));
    let member = MemberId(member.into());
    run::start(Arc::new(store), Subscription::new("s"), config, destination, member).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_hold_every_connection_longer_than_the_lease_keep_their_lanes() {
    for connections in [1, 2] {
        let Some(rig) = rig().await else { return };
        let mut client = connect(&rig.url).await;
        client.batch_execute("CREATE TABLE effect (id text)").await.unwrap();
        let begun = Arc::new(AtomicUsize::new(0));
        let busy = relay(&rig.url, "busy", connections, &begun).await;
        eventually("all lanes", async || (busy.counts().lanes == 64).then_some(())).await;
        for n in 0..connections {
            publish(&mut client, event("a", &format!("key-{n}"))).await;
        }
        eventually("every connection is held", async || {
            (begun.load(Ordering::SeqCst) == connections).then_some(())
        })
        .await;
        // Another process, which would take what seems to be nobody's.
        let heir = relay(&rig.url, "heir", 4, &begun).await;
        let sql = "SELECT count(*) FROM effect";
        eventually("every effect", async || {
            let done: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
            (done == connections as i64).then_some(())
        })
        .await;
        assert_eq!(
            begun.load(Ordering::SeqCst),
            connections,
            "nobody else took the lane meanwhile"
        );
        for running in [busy, heir] {
            running.stop(Duration::from_secs(20)).await.unwrap();
        }
    }
}

/// Connections that clients have to this database, this one aside.
async fn sessions(client: &tokio_postgres::Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_at_work_has_no_more_sessions_than_its_pool_and_those_for_signs_of_life() {
    const POOL: usize = 3;
    const EVENTS: usize = 120;
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    client.batch_execute("CREATE TABLE effect (id text)").await.unwrap();
    for n in 0..EVENTS {
        publish(&mut client, event("a", &format!("key-{n}"))).await;
    }
    let others = sessions(&client).await;
    let begun = Arc::new(AtomicUsize::new(0));
    let handler = Slow { begun: begun.clone(), hold: Duration::from_millis(10) };
    let running = relay_with(&rig.url, "busy", POOL, handler).await;
    let mut most = 0;
    eventually("every effect", async || {
        most = most.max(sessions(&client).await - others);
        let done: i64 = client.query_one("SELECT count(*) FROM effect", &[]).await.unwrap().get(0);
        (done == EVENTS as i64).then_some(())
    })
    .await;
    running.stop(Duration::from_secs(20)).await.unwrap();
    let pool = POOL as i64;
    assert!((pool..=pool + 2).contains(&most), "{most} sessions of a pool of {pool}");
}
