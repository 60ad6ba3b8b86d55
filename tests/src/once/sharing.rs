use super::{Both, end};
use crate::script::Script;
use crate::world::{EffectRow, by_key, effects};
use relevo_core::Result;
use relevo_core::event::{Event, EventId};
use relevo_core::inbox::Consuming;
use relevo_testkit::eventually;
use std::collections::{BTreeSet, VecDeque};

const KEYS: usize = 8;
const EVENTS: usize = 400;

/// Each event has one effect.
pub(super) fn assert_once(rows: &[EffectRow], sent: &[Event]) {
    let distinct: BTreeSet<EventId> = rows.iter().map(|row| row.event).collect();
    assert_eq!(distinct, sent.iter().map(|event| event.id).collect(), "lost, or another's");
    assert_eq!(rows.len(), sent.len(), "an effect twice");
}

/// Each event has one effect, and those of a key are in its order.
pub(super) fn assert_once_and_in_order(rows: &[EffectRow], sent: &[Event]) {
    assert_once(rows, sent);
    for (key, payloads) in by_key(rows) {
        let numbers: Vec<usize> = payloads.iter().filter_map(|text| text.parse().ok()).collect();
        assert!(numbers.is_sorted() && numbers.len() == payloads.len(), "{key}: {payloads:?}");
    }
}

/// Some leave in good order, some die; there are up to three at once, and the work goes on all the time.
pub async fn consumers_that_come_and_go_do_everything_once_and_in_order(
    both: &Both<'_>,
) -> Result<()> {
    let subscriber = both.exclusive()?;
    let events: Vec<_> = (0..EVENTS).map(|n| both.event(&format!("k{}", n % KEYS), n)).collect();
    let script = Script::done();
    let coming_and_going = async {
        let mut at_work: VecDeque<Consuming> = VecDeque::new();
        for round in 0..8 {
            at_work.push_back(both.consume(subscriber.clone(), &script).await);
            grown(both, 20).await;
            if at_work.len() == 3 {
                leave(at_work.pop_front(), round % 2 == 0).await;
            }
        }
        at_work
    };
    let ((), at_work) = tokio::join!(both.store(&events), coming_and_going);
    let rows = effects(&*both.world, EVENTS).await;
    assert_once_and_in_order(&rows, &events);
    for consuming in at_work {
        end(consuming).await;
    }
    assert_eq!(both.world.effects().await.len(), EVENTS, "an effect twice");
    Ok(())
}

async fn leave(consuming: Option<Consuming>, in_good_order: bool) {
    match consuming {
        Some(consuming) if in_good_order => end(consuming).await,
        // As a process that dies does.
        consuming => drop(consuming),
    }
}

/// So many more effects, or all of them.
async fn grown(both: &Both<'_>, more: usize) {
    let before = both.world.effects().await.len();
    let enough = (before + more).min(EVENTS);
    eventually("more effects", async || (both.world.effects().await.len() >= enough).then_some(()))
        .await;
}
