//! What a store declares that it cannot do, seen: a "no" that is only convenient would fail here.

use super::Rig;
use relevo_core::event::{NewEvent, TopicFilter};
use relevo_core::outbox::Subscription;
use relevo_core::{Kind, Result};
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

/// No `own_log`: what one subscription did not want would be nobody's, so it is refused and not left behind.
pub async fn a_subscription_to_some_of_it_is_refused(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let some = Subscription::new("some").topics([TopicFilter::parse("a.*")?]);
    let refused = rig.store.subscribe(&some).await;
    assert_eq!(refused.map_err(|error| error.kind()), Err(Kind::NotSupported));
    Ok(())
}
