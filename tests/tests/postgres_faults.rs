//! Connections that break under the relay and its handlers: nothing is lost and nothing takes effect twice.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_core::clock::Rng;
use relevo_core::dead_letters::{DeadFilter, Operate};
use relevo_core::event::{Event, lane_of};
use relevo_core::inbox::{Answer, Direct, Effect, Handler, Settled, TxDriver};
use relevo_core::outbox::{
    Beat, Claim, Death, EventRef, LaneChange, LaneId, LaneState, MemberId, PageRequest, Store,
    Subscription,
};
use relevo_core::relay::run::{Destination, start};
use relevo_core::{ErrorClass, Kind};
use relevo_stores::postgres::{Deadpool, Options, PostgresStore, SqlxPostgres, TokioPostgres};
use relevo_testkit::eventually;
use relevo_testkit::services::{self, Postgres, PostgresOptions, Proxy};
use relevo_tests::engine::run;
use relevo_tests::script::{Act, Script};
use relevo_tests::world::{
    EffectRow, PgHandlers, PostgresWorld, World, by_key, effects, event, quick, relay, relay_with,
    stop,
};
use sqlx::postgres::PgPoolOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const ALL: [PgHandlers; 3] = [PgHandlers::Sqlx, PgHandlers::TokioPostgres, PgHandlers::Deadpool];
const EVENTS: usize = 400;

/// A world whose store and handlers go through a proxy, for each driver; the test itself goes straight.
fn for_each_driver(test: impl AsyncFn(PostgresWorld, Proxy)) {
    for handlers in ALL {
        let Some(server) = services::require(Postgres::shared(15)) else { return };
        let direct = server.create_database().unwrap();
        let proxy = Proxy::start(server.address()).unwrap();
        run(async || {
            println!("handlers of {handlers:?}");
            let world = PostgresWorld::at(&direct, &proxy.url(&direct), handlers).await;
            test(world, proxy).await;
        });
    }
}

async fn publish_some(world: &PostgresWorld, from: usize, to: usize) {
    for n in (from..to).step_by(4) {
        world.publish((n..n + 4).map(|n| event(&format!("key-{}", n % 20), n)).collect()).await;
    }
}

fn assert_in_order(rows: &[EffectRow]) {
    for (key, payloads) in by_key(rows) {
        let order: Vec<usize> = payloads.iter().map(|payload| payload.parse().unwrap()).collect();
        assert!(order.is_sorted(), "{key}: {order:?}");
        assert_eq!(order.len(), EVENTS / 20, "{key}: {order:?}");
    }
}

async fn relay_in_small_batches(world: &PostgresWorld) -> relevo_core::relay::run::Running {
    let mut config = quick();
    config.batch = 3;
    relay_with(world, Subscription::new("s"), config, &Script::done(), "relay").await
}

#[test]
fn connections_cut_during_batches_lose_nothing_and_repeat_nothing() {
    for_each_driver(async |world, proxy| {
        let running = relay_in_small_batches(&world).await;
        let mut rng = Rng::seeded(7);
        for part in 0..20 {
            let from = part * EVENTS / 20;
            publish_some(&world, from, from + EVENTS / 20).await;
            tokio::time::sleep(Duration::from_millis(rng.below(40))).await;
            proxy.cut();
        }
        assert_in_order(&effects(&world, EVENTS).await);
        stop(running).await;
    });
}

#[test]
fn a_commit_whose_reply_is_lost_takes_effect_once() {
    for_each_driver(async |world, proxy| {
        let running = relay_in_small_batches(&world).await;
        for part in 0..10 {
            let from = part * EVENTS / 10;
            proxy.lose_reply_to("COMMIT");
            publish_some(&world, from, from + EVENTS / 10).await;
            let lost =
                tokio::time::timeout(Duration::from_secs(20), proxy.until_lost(part as u64 + 1));
            assert!(lost.await.is_ok(), "no commit's reply was lost in part {part}");
        }
        assert_in_order(&effects(&world, EVENTS).await);
        stop(running).await;
    });
}

#[test]
fn a_server_out_of_reach_for_longer_than_the_lease_is_worked_on_when_it_is_back() {
    for_each_driver(async |world, proxy| {
        let running = relay_in_small_batches(&world).await;
        publish_some(&world, 0, EVENTS / 2).await;
        proxy.refuse();
        publish_some(&world, EVENTS / 2, EVENTS).await;
        // Longer than the lease of one second: that is what is tested.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        proxy.heal();
        assert_in_order(&effects(&world, EVENTS).await);
        stop(running).await;
    });
}

/// Runs, at its first call, a statement that takes longer than anybody is ready to wait.
#[derive(Clone, Default)]
struct SleepsOnce(Arc<AtomicUsize>);

impl SleepsOnce {
    /// What to run at this call.
    fn statement(&self) -> String {
        let seconds = if self.0.fetch_add(1, Ordering::SeqCst) == 0 { 3600 } else { 0 };
        format!("SELECT pg_sleep({seconds})")
    }
}

const LIMIT: Duration = Duration::from_millis(500);

impl Handler<Deadpool> for SleepsOnce {
    async fn handle(&self, _event: &Event, effect: &mut Effect<'_, Deadpool>) -> Answer {
        effect.tx().await?.batch_execute(&self.statement()).await?;
        Ok(Settled::Done)
    }

    fn limit(&self) -> Duration {
        LIMIT
    }
}

impl Handler<SqlxPostgres> for SleepsOnce {
    async fn handle(&self, _event: &Event, effect: &mut Effect<'_, SqlxPostgres>) -> Answer {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(self.statement()));
        sql.execute(&mut **effect.tx().await?).await?;
        Ok(Settled::Done)
    }

    fn limit(&self) -> Duration {
        LIMIT
    }
}

/// The connection is given back with its statement still running (or with nobody at its other end any more): whoever
/// got it next would wait behind that.
fn the_second_attempt_comes(
    destination: impl Fn(&PostgresStore, &str, SleepsOnce) -> Arc<dyn Destination>,
) {
    let Some(server) = services::require(Postgres::shared(15)) else { return };
    let url = server.create_database().unwrap();
    run(async || {
        let world = PostgresWorld::at(&url, &url, PgHandlers::Deadpool).await;
        world.publish(vec![event("key", 0)]).await;
        let mut options = Options::default();
        (options.connections, options.statement_limit) = (1, Duration::from_secs(3600));
        let store = PostgresStore::open(&url, options).unwrap();
        let handler = SleepsOnce::default();
        let to = destination(&store, &url, handler.clone());
        let (subscription, member) = (Subscription::new("s"), MemberId("relay".into()));
        let running = start(Arc::new(store), subscription, quick(), to, member).await.unwrap();
        eventually("the second attempt", async || {
            (handler.0.load(Ordering::SeqCst) == 2).then_some(())
        })
        .await;
        stop(running).await;
    });
}

#[test]
fn a_connection_on_which_a_handler_waited_in_vain_is_nobodys_next() {
    the_second_attempt_comes(|store, _, handler| {
        Arc::new(Direct::new(Deadpool::new(store.pool().clone()), handler))
    });
}

#[test]
fn nor_is_one_of_sqlx() {
    the_second_attempt_comes(|_, url, handler| {
        let patient =
            PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(3600));
        Arc::new(Direct::new(SqlxPostgres::new(patient.connect_lazy(url).unwrap()), handler))
    });
}

/// A database by its own address, and a proxy on the way to it.
fn behind_a_proxy(test: impl AsyncFn(&str, Proxy)) {
    let Some(server) = services::require(Postgres::shared(15)) else { return };
    let direct = server.create_database().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    run(async || test(&direct, proxy).await);
}

/// Waits for a connection for as long as anybody might.
fn patient_pool(url: &str, connections: u32) -> sqlx::PgPool {
    let patient = PgPoolOptions::new().acquire_timeout(Duration::from_secs(3600));
    patient.max_connections(connections).connect_lazy(url).unwrap()
}

async fn acquires(driver: &SqlxPostgres) {
    let next = tokio::time::timeout(Duration::from_secs(300), driver.acquire()).await;
    assert!(next.expect("waited for the dead").is_ok());
}

/// Connections that idled in the pool when the network went: each is found out in a moment, not by somebody's patience.
#[test]
fn half_open_connections_that_idle_in_a_pool_of_sqlx_are_not_waited_for_one_after_another() {
    behind_a_proxy(async |direct, proxy| {
        let pool = patient_pool(&proxy.url(direct), 2);
        let driver = SqlxPostgres::new(pool.clone());
        let two = (driver.acquire().await.unwrap(), driver.acquire().await.unwrap());
        drop(two);
        eventually("both idle", async || (pool.num_idle() == 2).then_some(())).await;
        proxy.forget();
        acquires(&driver).await;
    });
}

#[test]
fn a_half_open_connection_that_is_given_back_does_not_keep_its_place_in_a_pool_of_sqlx() {
    behind_a_proxy(async |direct, proxy| {
        let driver = SqlxPostgres::new(patient_pool(&proxy.url(direct), 1));
        let only = driver.acquire().await.unwrap();
        proxy.forget();
        drop(only);
        acquires(&driver).await;
    });
}

#[test]
fn a_sign_of_life_that_is_not_answered_makes_all_idle_connections_anew() {
    behind_a_proxy(async |direct, proxy| {
        let mut options = Options::default();
        options.statement_limit = Duration::from_secs(10);
        let store = PostgresStore::open(&proxy.url(direct), options).unwrap();
        PostgresStore::connect(direct).await.unwrap().migrate().await.unwrap();
        let (subscription, member) = (Subscription::new("s"), MemberId("relay".into()));
        store.subscribe(&subscription).await.unwrap();
        store.forget_member("s", &member).await.unwrap();
        proxy.forget();
        let unanswered = store.forget_member("s", &member).await.unwrap_err();
        assert_eq!(unanswered.kind(), Kind::Timeout);
        store.subscribe(&subscription).await.expect("it does not wait on what idled meanwhile");
    });
}

/// A store behind a proxy that would wait for an answer for ever, on few connections.
async fn endlessly_patient_store(direct: &str, proxy: &Proxy) -> PostgresStore {
    let mut options = Options::default();
    (options.connections, options.statement_limit) = (2, Duration::from_secs(3600));
    PostgresStore::connect(direct).await.unwrap().migrate().await.unwrap();
    PostgresStore::open(&proxy.url(direct), options).unwrap()
}

/// Somebody whose patience ends before the store's.
async fn gives_up<T>(after: Duration, answer: impl Future<Output = T>) {
    assert!(tokio::time::timeout(after, answer).await.is_err(), "it was answered");
}

async fn is_answered<T>(answer: impl Future<Output = relevo_core::Result<T>>) -> T {
    let answer = tokio::time::timeout(Duration::from_secs(60), answer).await;
    answer.expect("it waits on what another gave up").unwrap()
}

#[test]
fn a_connection_on_which_a_statement_was_given_up_is_nobodys_next() {
    behind_a_proxy(async |direct, proxy| {
        let store = endlessly_patient_store(direct, &proxy).await;
        let (lane, member) = (LaneId { subscription: "s".into(), lane: 3 }, MemberId("m".into()));
        // One of the pool, and one of those that are kept for signs of life.
        store.read_parked(&lane, "key", 1).await.unwrap();
        store.forget_member("s", &member).await.unwrap();
        proxy.forget();
        gives_up(LIMIT, store.read_parked(&lane, "key", 1)).await;
        is_answered(store.read_parked(&lane, "key", 1)).await;
        gives_up(LIMIT, store.forget_member("s", &member)).await;
        is_answered(store.forget_member("s", &member)).await;
    });
}

#[test]
fn whoever_gives_up_after_seconds_of_silence_makes_all_idle_connections_anew() {
    behind_a_proxy(async |direct, proxy| {
        let store = endlessly_patient_store(direct, &proxy).await;
        let (subscription, member) = (Subscription::new("s"), MemberId("relay".into()));
        store.subscribe(&subscription).await.unwrap();
        store.forget_member("s", &member).await.unwrap();
        proxy.forget();
        gives_up(Duration::from_secs(2), store.forget_member("s", &member)).await;
        is_answered(store.subscribe(&subscription)).await;
    });
}

/// A task that is aborted in the middle of a handler's transaction drops it, and its connection, as they are.
async fn the_next_one_begins_at_once(driver: impl TxDriver, proxy: &Proxy) {
    let idle_limit = Duration::from_secs(8);
    let mut conn = driver.acquire().await.unwrap();
    let tx = driver.begin(&mut conn, idle_limit).await.unwrap();
    proxy.forget();
    abandons(tx, &driver).await;
    drop(conn);
    let mut next = is_answered(driver.acquire()).await;
    is_answered(driver.begin(&mut next, idle_limit)).await;
}

async fn abandons<D: TxDriver>(mut tx: D::Tx<'_>, _: &D) {
    gives_up(LIMIT, D::savepoint(&mut tx)).await;
}

#[test]
fn a_connection_on_which_a_handlers_statement_was_given_up_is_nobodys_next() {
    behind_a_proxy(async |direct, proxy| {
        let mut options = Options::default();
        options.connections = 1;
        let store = PostgresStore::open(&proxy.url(direct), options).unwrap();
        the_next_one_begins_at_once(Deadpool::new(store.pool().clone()), &proxy).await;
        the_next_one_begins_at_once(TokioPostgres::new(store.pool().clone()), &proxy).await;
        let pool = patient_pool(&proxy.url(direct), 1);
        the_next_one_begins_at_once(SqlxPostgres::new(pool), &proxy).await;
    });
}

/// Nothing is under way when the network goes, and the relay is asked to end: only its goodbye is not heard.
#[test]
fn a_relay_that_owes_nothing_ends_in_good_order_though_its_goodbye_is_not_heard() {
    for_each_driver(async |world, proxy| {
        let running = relay_in_small_batches(&world).await;
        publish_some(&world, 0, EVENTS / 2).await;
        effects(&world, EVENTS / 2).await;
        eventually("nothing is under way", async || {
            let counts = running.counts();
            (counts.lanes == 64 && !counts.due).then_some(())
        })
        .await;
        proxy.half_open();
        running.stop(Duration::from_secs(3)).await.expect("all that it did is recorded");
        proxy.heal();
        let heir =
            relay_with(&world, Subscription::new("s"), quick(), &Script::done(), "heir").await;
        publish_some(&world, EVENTS / 2, EVENTS).await;
        assert_in_order(&effects(&world, EVENTS).await);
        stop(heir).await;
    });
}

#[test]
fn a_relay_that_is_asked_to_end_with_a_batch_in_hand_says_so_when_it_cannot() {
    behind_a_proxy(async |direct, proxy| {
        let world = PostgresWorld::at(direct, &proxy.url(direct), PgHandlers::Deadpool).await;
        let script = Script::new(|_, _| Act::Hang);
        let running = relay(&world, "s", &script).await;
        let ids = world.publish(vec![event("key", 0)]).await;
        eventually("it is in hand", async || (script.attempts(ids[0]) == 1).then_some(())).await;
        proxy.half_open();
        let ended = running.stop(Duration::from_secs(3)).await.unwrap_err();
        assert_eq!(ended.kind(), Kind::Timeout, "{ended}");
    });
}

/// Handlers that do not wait for the disk, on a server that writes late.
fn on_a_server_that_writes_late(case: impl AsyncFnOnce(PostgresWorld, Postgres)) {
    let late = PostgresOptions::new(15).durable().setting("wal_writer_delay", "10s");
    let Some(server) = services::require(Postgres::start_with(&late)) else { return };
    let url = server.create_database().unwrap();
    let hasty = format!("{url}?options=-c%20synchronous_commit%3Doff");
    run(async || {
        let world = PostgresWorld::at(&url, &hasty, PgHandlers::Deadpool).await;
        case(world, server).await;
    });
}

/// The n-th event takes effect, and the server crashes. How many effects it has afterwards, and how often this one was
/// tried by then.
async fn crashes_behind(
    n: usize,
    world: &PostgresWorld,
    server: &Postgres,
    script: &Script,
) -> (usize, usize) {
    let ids = world.publish(vec![event("key", n)]).await;
    effects(world, n).await;
    server.kill9();
    server.restart().unwrap();
    let there = world.effects().await.len();
    (there, script.attempts(ids[0]))
}

/// What a crash takes back of an effect, it takes back of the cursor too, and that is noticed without any further event.
/// Whatever else waits for the disk just then may take the effect along: then it is the next event's turn.
#[test]
fn what_a_crash_took_back_from_a_handler_is_done_again() {
    on_a_server_that_writes_late(async |world, server| {
        let script = Script::done();
        let running = relay(&world, "s", &script).await;
        let mut n = 1;
        while crashes_behind(n, &world, &server, &script).await == (n, 1) {
            n += 1;
            assert!(n <= 20, "the server never takes anything back");
        }
        effects(&world, n).await;
        stop(running).await;
    });
}

#[test]
fn what_was_done_of_a_parked_key_is_not_taken_back() {
    on_a_server_that_writes_late(async |world, server| {
        let script = Script::new(|_, attempt| match attempt {
            1 => Act::Fail("once"),
            _ => Act::Done,
        });
        let running = relay(&world, "s", &script).await;
        assert_eq!(crashes_behind(1, &world, &server, &script).await, (1, 2));
        stop(running).await;
    });
}

/// The store's own sessions do not wait for the disk either; whatever the case did last, the server dies right after it.
fn committed_by_a_hasty_store(
    case: impl AsyncFnOnce(&dyn Store),
    stands: impl AsyncFnOnce(&dyn World),
) {
    on_a_server_that_writes_late(async |world, server| {
        world.publish(vec![event("key", 0)]).await;
        let store = world.store();
        store.subscribe(&Subscription::new("s")).await.unwrap();
        case(&*store).await;
        server.kill9();
        server.restart().unwrap();
        stands(&*world.another().await).await;
    });
}

const FRESH: i64 = 4711;

/// One lane, and the token that it had.
async fn take(store: &dyn Store, lane: u16) -> LaneState {
    let member = MemberId("relay".into());
    let beat = Beat { subscription: "s".into(), member: member.clone(), note: "{}".into() };
    let fleet = store.beat(&beat).await.unwrap();
    let seen = fleet.leases.iter().find(|lease| lease.lane == lane).unwrap().token;
    let claim = Claim { lane, seen, fresh: FRESH };
    store.take_lanes("s", &[claim], &member, 10).await.unwrap().remove(0).1
}

async fn owned(store: &dyn Store, lane: u16) -> Option<LaneState> {
    let lane = LaneId { subscription: "s".into(), lane };
    store.load_lane(&lane, FRESH, 10).await.unwrap()
}

/// Otherwise two owners would believe in one lane: the next one might be given the token that was taken back.
#[test]
fn a_take_over_is_not_taken_back() {
    let lane = lane_of("key");
    committed_by_a_hasty_store(
        async |store| drop(take(store, lane).await),
        async |world| assert!(owned(&*world.store(), lane).await.is_some(), "the old token again"),
    );
}

async fn records_a_death(store: &dyn Store) {
    let lane = LaneId { subscription: "s".into(), lane: lane_of("key") };
    let before = take(store, lane.lane).await.position;
    let request =
        PageRequest { position: before, lanes: vec![lane.lane], max_rows: 10, max_bytes: 1 << 20 };
    let page = store.read_page(&request).await.unwrap();
    let (row, to) = (&page.rows[0], page.to.unwrap());
    let at = EventRef { key: row.event.order_key(), to, seq: row.seq, id: row.event.id };
    let mut change = LaneChange::moving(lane, FRESH, before, page.end);
    let (class, error) = (ErrorClass::Poison, "no such order".into());
    change.deaths.push(Death { event: at, attempts: 1, class, error });
    store.record(&[change]).await.unwrap();
}

#[test]
fn a_dead_letter_is_not_taken_back() {
    committed_by_a_hasty_store(records_a_death, async |world| {
        let letters = world.operate().dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
        assert_eq!(letters.len(), 1, "the event would be tried again");
    });
}
