//! What is promised while nodes of a cluster die.

use super::BrokerCluster;
use crate::script::Script;
use crate::world::{EffectRow, PgHandlers, PostgresWorld, World, by_key, event, member, quick};
use relevo_core::event::{EventId, TopicFilter};
use relevo_core::outbox::Subscription;
use relevo_core::relay::RelayConfig;
use relevo_core::relay::run::start;
use relevo_core::retry::RetryPolicy;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So long anything may take: three servers and everybody else share two cores.
const PATIENCE: Duration = Duration::from_secs(300);
const KEYS: usize = 7;
const KILLS: usize = 2;

/// Events flow from the outbox through the cluster into effects. The node that leads the destination is killed, another
/// takes over, the dead one comes back, and the next leader is killed.
///
/// # Panics
/// If an event is lost, has two effects, or is overtaken by a later one of its key.
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
    stop.store(true, Ordering::SeqCst);
    let published = writing.await.unwrap_or_else(|error| panic!("writing failed: {error}"));
    until("every event has its effect", async || {
        (number(world).await >= published.len()).then_some(())
    })
    .await;
    check(&published, &world.effects().await);
    println!(
        "{} events, {KILLS} leaders killed: each had its effect once, in order",
        published.len()
    );
    for stopped in [consuming.stop(PATIENCE).await, relaying.stop(PATIENCE).await] {
        stopped.unwrap_or_else(|error| panic!("it does not stop: {error}"));
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
