use super::sink::Sink;
use super::{Outcome, Plan};
use crate::judge::Judge;
use anyhow::Result;
use async_trait::async_trait;
use relevo::broker::{Capabilities, Confirm, Publisher, ToBroker};
use relevo::postgres::PostgresStore;
use relevo::{Event, Relay, Subscription};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// Relevo with the settings it comes with.
pub(super) async fn run(url: &str, plan: Plan, sink: Sink, name: &str) -> Result<Outcome> {
    let store = PostgresStore::connect(url).await?;
    let (stored, mut progress) = watch::channel(0);
    let judge = Arc::new(Mutex::new(Judge::new(plan.events, plan.keys)));
    let counting = Counting { inner: sink.publisher()?, stored, judge: judge.clone() };
    let start = Instant::now();
    let relay = Relay::on(store)
        .subscribe(Subscription::new(name), ToBroker::new(counting))
        .start()
        .await?;
    progress.wait_for(|stored| *stored >= plan.events).await?;
    let took = start.elapsed();
    relay.stop().await?;
    judge.lock().unwrap_or_else(PoisonError::into_inner).verdict()?;
    Ok(Outcome::of(plan.events, took))
}

/// Counts what a publisher was confirmed, and looks at its order.
struct Counting {
    /// Without one, everything is confirmed at once.
    inner: Option<Box<dyn Publisher>>,
    stored: watch::Sender<u64>,
    judge: Arc<Mutex<Judge>>,
}

#[async_trait]
impl Publisher for Counting {
    fn name(&self) -> &'static str {
        self.inner.as_ref().map_or("null", |inner| inner.name())
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.as_ref().map_or_else(Capabilities::default, |inner| inner.capabilities())
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let confirms = match &self.inner {
            Some(inner) => inner.publish(events).await,
            None => events.iter().map(|_| Confirm::Stored).collect(),
        };
        let mut judge = self.judge.lock().unwrap_or_else(PoisonError::into_inner);
        let confirmed = events.iter().zip(&confirms).filter(|(_, c)| **c == Confirm::Stored);
        let count = confirmed.map(|(event, _)| judge.see(&event.payload)).count();
        self.stored.send_modify(|stored| *stored += count as u64);
        confirms
    }

    async fn close(&self) {
        if let Some(inner) = &self.inner {
            inner.close().await;
        }
    }
}
