//! What is promised while nodes of a cluster die.

use super::BrokerCluster;
use crate::script::Script;
use crate::world::{
    EffectRow, PgHandlers, PostgresWorld, World, by_key, dead_letters, event, member, quick,
};
use relevo_core::event::{EventId, TopicFilter};
use relevo_core::outbox::Subscription;
use relevo_core::relay::RelayConfig;
use relevo_core::relay::run::{Running, start};
use relevo_core::retry::RetryPolicy;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So long anything may take: three servers and everybody else share two cores.
const PATIENCE: Duration = Duration::from_secs(300);
const KEYS: usize = 7;
const KILLS: usize = 2;
/// In this time a broker that is down is asked several times.
const PROBES: Duration = Duration::from_secs(5);

/// Events flow from the outbox through the cluster into effects. The node that leads the destination is killed, another
/// takes over, the dead one comes back, and the next leader is killed. At last two of three die: nobody can store anything
/// then, and no event pays for it.
///
/// # Panics
/// If an event is lost, has two effects, is overtaken by a later one of its key, or is parked or dead for want of a majority.
pub fn leaders_are_killed(cluster: Arc<dyn BrokerCluster>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    runtime.block_on(async {
        let Some(world) = PostgresWorld::fresh(15, PgHandlers::Sqlx).await else { return };
        count(&(Arc::new(world) as Arc<dyn World>), &cluster).await;
    });
}

/// What fails in an election is tried again until it is over.
fn config() -> RelayConfig {
    let mut config = quick();
    config.lease = Duration::from_secs(10);
    let (step, most) = (Duration::from_millis(200), Duration::from_secs(1));
    config.retry = RetryPolicy::linear(step, most).max_attempts(1_000_000);
    config
}

async fn count(world: &Arc<dyn World>, cluster: &Arc<dyn BrokerCluster>) {
    let topics = [TopicFilter::all()];
    let subscription = Subscription::new("to-the-cluster").topics(topics);
    let relaying =
        start(world.store(), subscription, config(), cluster.destination(), member("relay")).await;
    let relaying = relaying.unwrap_or_else(|error| panic!("the relay does not start: {error}"));
    let consuming =
        world.consume("counter", cluster.subscriber(), config().into(), &Script::done()).await;
    let consuming = consuming.unwrap_or_else(|| panic!("this world cannot consume"));
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write(world.clone(), stop.clone()));
    progress(world, 100).await;
    for _ in 0..KILLS {
        let victim = leader(cluster).await;
        cluster.kill9(victim);
        println!("node {victim} led and was killed");
        progress(world, 100).await;
        restart(cluster, victim).await;
        progress(world, 100).await;
    }
    without_majority(cluster, &relaying).await;
    progress(world, 100).await;
    stop.store(true, Ordering::SeqCst);
    let published = writing.await.unwrap_or_else(|error| panic!("writing failed: {error}"));
    all_effective(world, &published, &relaying).await;
    check(&published, &world.effects().await);
    assert!(dead_letters(&**world, 0).await.is_empty(), "nothing is given up");
    println!(
        "{} events, {KILLS} leaders killed: each had its effect once, in order",
        published.len()
    );
    for stopped in [consuming.stop(PATIENCE).await, relaying.stop(PATIENCE).await] {
        stopped.unwrap_or_else(|error| panic!("it does not stop: {error}"));
    }
}

/// Two nodes of three die while events come, and come back.
async fn without_majority(cluster: &Arc<dyn BrokerCluster>, relaying: &Running) {
    until("all is well", async || {
        let counts = relaying.counts();
        (counts.parked_keys == 0 && !counts.breaker_open).then_some(())
    })
    .await;
    let led = leader(cluster).await;
    let victims = [led, (led + 1) % 3];
    victims.iter().for_each(|victim| cluster.kill9(*victim));
    let killed = Instant::now();
    until("the breaker opens", async || relaying.counts().breaker_open.then_some(())).await;
    println!("two of three were killed; after {:?} the broker is down", killed.elapsed());
    tokio::time::sleep(PROBES).await;
    let counts = relaying.counts();
    assert!(counts.breaker_open && counts.parked_keys < 3, "two may be parked: {counts:?}");
    for victim in victims {
        restart(cluster, victim).await;
    }
}

/// Transactions of some events, one after the other, until told to stop.
async fn write(world: Arc<dyn World>, stop: Arc<AtomicBool>) -> Vec<EventId> {
    let mut published = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let next = published.len();
        let events = (next..next + 5).map(|n| event(&format!("k{}", n % KEYS), n)).collect();
        published.extend(world.publish(events).await);
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    published
}

fn check(published: &[EventId], effects: &[EffectRow]) {
    let effective: BTreeSet<EventId> = effects.iter().map(|row| row.event).collect();
    let lost = published.iter().filter(|id| !effective.contains(id)).count();
    assert_eq!((lost, effects.len()), (0, published.len()), "lost, and effects of the events");
    for (key, payloads) in by_key(effects) {
        let order: Vec<usize> = payloads.iter().filter_map(|text| text.parse().ok()).collect();
        let late = order.windows(2).find(|pair| pair[0] > pair[1]);
        assert_eq!(late, None, "{key}: overtaken");
    }
}

/// Waits until every event has its effect; if that never comes, it is told where they are.
async fn all_effective(world: &Arc<dyn World>, published: &[EventId], relaying: &Running) {
    let began = Instant::now();
    while number(world).await < published.len() {
        if began.elapsed() >= PATIENCE {
            let effective: BTreeSet<EventId> =
                world.effects().await.iter().map(|row| row.event).collect();
            let missing = published.iter().enumerate().filter(|(_, id)| !effective.contains(id));
            let missing: Vec<usize> = missing.map(|(number, _)| number).collect();
            panic!(
                "without an effect: {missing:?} of {}; {:?}",
                published.len(),
                relaying.counts()
            );
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn number(world: &Arc<dyn World>) -> usize {
    world.effects().await.len()
}

/// Waits for so many further effects.
async fn progress(world: &Arc<dyn World>, more: usize) {
    let wanted = number(world).await + more;
    until(&format!("{wanted} effects"), async || (number(world).await >= wanted).then_some(()))
        .await;
}

async fn leader(cluster: &Arc<dyn BrokerCluster>) -> usize {
    until("a leader", async || {
        let cluster = cluster.clone();
        tokio::task::spawn_blocking(move || cluster.leader()).await.ok()?.ok()
    })
    .await
}

async fn restart(cluster: &Arc<dyn BrokerCluster>, node: usize) {
    let cluster = cluster.clone();
    let restarted = tokio::task::spawn_blocking(move || cluster.restart(node)).await;
    let restarted = restarted.unwrap_or_else(|error| panic!("{error}"));
    restarted.unwrap_or_else(|error| panic!("node {node} does not come back: {error}"));
}

async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
