use super::landing::assert_all_settled;
use super::{Both, end};
use crate::script::Script;
use crate::world::effects;
use relevo_core::Result;
use relevo_core::event::EventId;
use relevo_testkit::conformance::broker::Fault;
use std::collections::BTreeSet;

const WAVES: usize = 4;
const WAVE: usize = 15;

/// As after crashes of publishers and of connections: everything again, the latest first.
pub async fn copies_and_stragglers_take_effect_once(both: &Both<'_>) -> Result<()> {
    let consuming = both.consume(both.subscriber()?, &Script::done()).await;
    let mut sent = Vec::new();
    for wave in 0..WAVES {
        let numbers = wave * WAVE..(wave + 1) * WAVE;
        let events: Vec<_> = numbers.map(|n| both.event(&format!("k{}", n % 5), n)).collect();
        both.store(&events).await;
        sent.extend(events);
        both.broker.fault(Fault::Cut).await?;
        let again: Vec<_> = sent.iter().rev().step_by(2).cloned().collect();
        both.store(&again).await;
    }
    let rows = effects(&*both.world, sent.len()).await;
    let last = both.event("last", "last");
    both.store(std::slice::from_ref(&last)).await;
    sent.push(last);
    let rows_then = effects(&*both.world, sent.len()).await;
    assert_eq!(rows_then[..rows.len()], rows[..], "what was there is as it was");
    let distinct: BTreeSet<EventId> = rows_then.iter().map(|row| row.event).collect();
    assert_eq!(distinct, sent.iter().map(|event| event.id).collect());
    // Copies may lie behind what came last, at another source.
    assert_all_settled(both).await;
    end(consuming).await;
    assert_eq!(both.world.effects().await.len(), sent.len(), "an effect twice");
    Ok(())
}
