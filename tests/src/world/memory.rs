use super::effects::{DriverError, Effects, Said};
use super::{EffectRow, Scripted, Terms, World, consume_with};
use crate::script::Script;
use async_trait::async_trait;
use relevo_core::broker::Subscriber;
use relevo_core::dead_letters::Operate;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::inbox::{Consuming, Direct};
use relevo_core::outbox::{PublishIn, Store};
use relevo_core::relay::run::Destination;
use relevo_stores::memory::{MemoryOutbox, MemoryStore};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The store in memory, its own driver.
pub struct MemoryWorld(MemoryStore);

impl MemoryWorld {
    /// A fresh one.
    pub async fn fresh() -> Option<Self> {
        Some(Self(MemoryStore::new()))
    }
}

/// Numbers the rows of all tests: an effect's place is its number.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Effects for MemoryStore {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), DriverError> {
        let place = format!("{:020}", NEXT.fetch_add(1, Ordering::SeqCst));
        Ok(tx.put("effects", &place, &(row.event, &row.key, &row.payload)).await?)
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), DriverError> {
        MemoryOutbox::default().publish(tx, event).await?;
        Ok(())
    }

    async fn fail(_: &mut Self::Tx<'_>) -> Result<(), DriverError> {
        Err(Box::new(Said("a statement failed".into())))
    }
}

#[async_trait]
impl World for MemoryWorld {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    fn operate(&self) -> Arc<dyn Operate> {
        Arc::new(self.0.clone())
    }

    fn destination(&self, script: &Script) -> Arc<dyn Destination> {
        Arc::new(Direct::new(self.0.clone(), Scripted(script.clone())))
    }

    async fn consume(
        &self,
        name: &str,
        subscriber: Box<dyn Subscriber>,
        terms: Terms,
        script: &Script,
    ) -> Option<Consuming> {
        consume_with(self.store(), self.0.clone(), name, subscriber, terms, script).await
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Vec<EventId> {
        let mut tx = self.0.begin();
        let ids = self.0.outbox().publish_all(&mut tx, events).await;
        let ids = ids.unwrap_or_else(|error| panic!("{error}"));
        tx.commit().unwrap_or_else(|error| panic!("{error}"));
        ids
    }

    async fn effects(&self) -> Vec<EffectRow> {
        let places: Vec<String> =
            self.0.with(|db| db.rows("effects").map(|(place, _)| place.to_owned()).collect());
        let read = |place: &String| {
            let row = self.0.get::<(EventId, String, String)>("effects", place).ok().flatten();
            row.map(|(event, key, payload)| EffectRow { event, key, payload })
        };
        places.iter().filter_map(read).collect()
    }

    async fn another(&self) -> Box<dyn World> {
        Box::new(Self(self.0.clone()))
    }

    async fn open_transactions(&self) -> usize {
        self.0.with(|db| db.open_transactions())
    }
}
