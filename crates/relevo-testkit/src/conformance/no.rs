//! What a store declares that it cannot do, seen: a "no" that is only convenient would fail here.

use super::Rig;
use async_trait::async_trait;
use relevo_core::event::{NewEvent, TopicFilter};
use relevo_core::outbox::{MemberId, Store, Subscription};
use relevo_core::relay::run::{Destination, start};
use relevo_core::relay::{Batch, Delivery, RelayConfig};
use relevo_core::{Error, Kind, Result};
use std::sync::Arc;
use std::time::Duration;

/// Longer than any store takes for a publication that nobody is in the way of. Nothing fails where it takes longer.
const MOMENT: Duration = Duration::from_millis(400);

fn event(key: &str) -> NewEvent {
    NewEvent::bytes("no.matter", "x").key(key)
}

/// Begins a transaction and publishes in it.
async fn publish(rig: &Rig, key: &str) -> Result<Box<dyn super::Writer>> {
    let mut writer = rig.begin().await?;
    writer.publish(vec![event(key)]).await?;
    Ok(writer)
}

/// No `concurrent_writers`: while one transaction has published, no other can, whichever key it is about.
pub async fn a_second_writer_waits_for_the_first(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let first = publish(rig, "one").await?;
    let second = tokio::time::timeout(MOMENT, publish(rig, "two")).await;
    assert!(
        !matches!(second, Ok(Ok(_))),
        "two transactions have published at the same time: declare concurrent_writers"
    );
    first.commit().await?;
    // The one that was in its way is gone.
    publish(rig, "two").await?.commit().await
}

/// No `doorbell`: there is none that a relay could wait for in vain.
pub async fn there_is_no_bell_to_wait_for(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    assert!(rig.store.doorbell().is_none(), "it has a doorbell: declare it");
    Ok(())
}

/// A handler as far as a relay asks before it begins.
struct Handler;

#[async_trait]
impl Destination for Handler {
    async fn deliver(&self, _store: &Arc<dyn Store>, _batch: Batch) -> Delivery {
        Delivery::Void(Error::new(Kind::NotSupported, "it is never handed anything"))
    }

    fn one_transaction(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "a handler".to_owned()
    }
}

/// No `direct_effects`: a handler that would record in its own transaction is refused, and nothing is left of it.
pub async fn a_handler_with_a_transaction_of_its_own_is_refused(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let (subscription, member) = (Subscription::new("direct"), MemberId("one".into()));
    let config = RelayConfig::default();
    let begun = start(rig.store.clone(), subscription, config, Arc::new(Handler), member).await;
    assert_eq!(begun.map(drop).map_err(|error| error.kind()), Err(Kind::NotSupported));
    assert!(rig.operate.status().await?.subscriptions.is_empty());
    Ok(())
}

/// No `own_log`: what one subscription did not want would be nobody's, so it is refused and not left behind.
pub async fn a_subscription_to_some_of_it_is_refused(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let some = Subscription::new("some").topics([TopicFilter::parse("a.*")?]);
    let refused = rig.store.subscribe(&some).await;
    assert_eq!(refused.map_err(|error| error.kind()), Err(Kind::NotSupported));
    Ok(())
}
