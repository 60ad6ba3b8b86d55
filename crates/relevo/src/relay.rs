use relevo_core::Result;
use relevo_core::outbox::{MemberId, Retention, Store, Subscription};
use relevo_core::relay::RelayConfig;
use relevo_core::relay::run::{self, Destination, Running};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

const UPKEEP_EVERY: Duration = Duration::from_secs(60);

/// Works subscriptions inside this process.
///
/// Several processes may run the same subscriptions on one store: they share the lanes, and when one dies
/// the others take over within the lease.
pub struct Relay {
    store: Arc<dyn Store>,
    member: MemberId,
    retention: Retention,
    subscriptions: Vec<(Subscription, RelayConfig, Arc<dyn Destination>)>,
}

impl Relay {
    /// A relay on `store`.
    pub fn on(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            member: member_name(),
            retention: Retention::default(),
            subscriptions: Vec::new(),
        }
    }

    /// Names this process, as `relevo status` shows it. The name must differ between processes.
    pub fn named(mut self, member: &str) -> Self {
        self.member = MemberId(member.into());
        self
    }

    /// Keeps events and dead letters for other times than the defaults.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Works a subscription with the default limits.
    pub fn subscribe(self, subscription: Subscription, destination: impl Destination) -> Self {
        self.subscribe_with(subscription, RelayConfig::default(), destination)
    }

    /// Works a subscription with limits of your own (topics come from the subscription).
    pub fn subscribe_with(
        mut self,
        subscription: Subscription,
        config: RelayConfig,
        destination: impl Destination,
    ) -> Self {
        let subscription = if subscription.destination == "handler" {
            subscription.destination(destination.describe())
        } else {
            subscription
        };
        self.subscriptions.push((subscription, config, Arc::new(destination)));
        self
    }

    /// Probes the store and starts. What a probe finds that cannot work is an error; what is worth knowing is logged.
    pub async fn start(self) -> Result<RunningRelay> {
        let probe = self.store.probe().await?;
        tracing::info!(server = probe.server, waking = probe.waking, "relay starts");
        for note in &probe.notes {
            tracing::warn!(note, "found at start-up");
        }
        let mut running = Vec::new();
        for (subscription, config, destination) in self.subscriptions {
            let name = subscription.name.clone();
            let member = self.member.clone();
            running.push((
                name,
                run::start(self.store.clone(), subscription, config, destination, member).await?,
            ));
        }
        let upkeep = UpkeepTask(tokio::spawn(upkeep(self.store, self.retention)));
        Ok(RunningRelay { running, upkeep })
    }
}

/// Subscriptions at work. Dropped without [`RunningRelay::stop`], it ends as well, without anybody waiting for it: what
/// is under way is finished in the background and the lanes are given back, as long as the runtime lives.
#[derive(Debug)]
pub struct RunningRelay {
    running: Vec<(Arc<str>, Running)>,
    upkeep: UpkeepTask,
}

/// Upkeep that ends with its owner.
#[derive(Debug)]
struct UpkeepTask(JoinHandle<()>);

impl Drop for UpkeepTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RunningRelay {
    /// Each subscription at work, by name.
    pub fn subscriptions(&self) -> impl Iterator<Item = (&str, &Running)> {
        self.running.iter().map(|(name, running)| (&**name, running))
    }

    /// Finishes what is under way (30 s at most), gives the lanes back, ends.
    pub async fn stop(self) -> Result<()> {
        self.stop_within(Duration::from_secs(30)).await
    }

    /// [`Self::stop`] with another limit. Past it the leases run out by themselves; nothing is lost.
    pub async fn stop_within(self, drain: Duration) -> Result<()> {
        drop(self.upkeep);
        let stops = self.running.into_iter().map(|(_, running)| tokio::spawn(running.stop(drain)));
        let mut result = Ok(());
        for stop in stops.collect::<Vec<_>>() {
            let stopped = stop.await.unwrap_or_else(|join| {
                Err(relevo_core::Error::new(
                    relevo_core::Kind::StoreFailed,
                    format!("stopping failed: {join}"),
                ))
            });
            result = result.and(stopped);
        }
        result
    }
}

async fn upkeep(store: Arc<dyn Store>, retention: Retention) {
    loop {
        match store.upkeep(&retention).await {
            Ok(done) => done.warnings.iter().for_each(|warning| tracing::warn!(warning, "upkeep")),
            Err(error) => tracing::warn!(%error, "upkeep failed; trying again in a minute"),
        }
        tokio::time::sleep(UPKEEP_EVERY).await;
    }
}

fn member_name() -> MemberId {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "process".into());
    let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
    MemberId(format!("{host}-{}-{:06x}", std::process::id(), random & 0xff_ffff).into())
}
