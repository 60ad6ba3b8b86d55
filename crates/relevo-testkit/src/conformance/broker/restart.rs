//! The broker itself goes away and comes back.

use super::Rig;
use super::rig::{publish, settle_all};
use crate::eventually::{PATIENCE, eventually};
use relevo_core::broker::{Confirm, Received};
use relevo_core::event::{Event, EventId};
use relevo_core::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Publishing and consuming go on through it with the same publisher: every confirmed event is received.
pub async fn nothing_confirmed_is_lost_by_a_restart_while_counting(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    rig.store_in_the_end(&publisher, &rig.events(0..10)).await;
    let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let events: Vec<Event> = rig.events(10..100_000);
    let (publishing, stopped, hears) = (publisher.clone(), stop.clone(), heard.clone());
    let counting = tokio::spawn(async move {
        let mut confirmed: Vec<EventId> = Vec::new();
        let mut not = 0;
        for batch in events.chunks(20) {
            if stopped.load(Ordering::SeqCst) {
                break;
            }
            for (event, confirm) in batch.iter().zip(publish(&publishing, batch).await) {
                match confirm {
                    Confirm::Stored => {
                        confirmed.push(event.id);
                        hears.fetch_add(1, Ordering::SeqCst);
                    }
                    _ => not += 1,
                }
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        (confirmed, not)
    });
    let mut seen = BTreeSet::new();
    let mut consuming = Box::pin(consume(rig, &mut seen));
    let work = async {
        more_than(&heard, 100).await;
        rig.world.restart().await?;
        rig.store_in_the_end(&publisher, &rig.events(200_000..200_010)).await;
        more_than(&heard, heard.load(Ordering::SeqCst) + 100).await;
        stop.store(true, Ordering::SeqCst);
        counting.await.map_err(|error| Error::new(Kind::StoreFailed, error.to_string()))
    };
    let (confirmed, not) = tokio::select! {
        done = work => done?,
        _ = &mut consuming => return Err(Error::new(Kind::StoreFailed, "consuming never ends by itself")),
    };
    assert!(!confirmed.is_empty());
    let began = Instant::now();
    drop(tokio::time::timeout(Duration::from_secs(2), &mut consuming).await);
    drop(consuming);
    loop {
        let missing = confirmed.iter().filter(|id| !seen.contains(id)).count();
        if missing == 0 {
            println!("{} confirmed, {not} not, all received", confirmed.len());
            return Ok(());
        }
        assert!(began.elapsed() < PATIENCE * 2, "{missing} of {} never came", confirmed.len());
        drop(tokio::time::timeout(Duration::from_secs(2), consume(rig, &mut seen)).await);
    }
}

/// Counting goes on.
async fn more_than(heard: &AtomicUsize, count: usize) {
    eventually("more is confirmed", async || (heard.load(Ordering::SeqCst) > count).then_some(()))
        .await;
}

/// Receives and settles, with a new receiver whenever one ends; never returns.
async fn consume(rig: &Rig, seen: &mut BTreeSet<EventId>) {
    loop {
        let Ok(mut receiver) = rig.receiver(50).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        while let Ok(received) = receiver.next(50).await {
            let Received::Messages { messages, .. } = received else { continue };
            seen.extend(messages.iter().map(|message| rig.read(message).event.id));
            if settle_all(&mut receiver, &messages).await.is_err() {
                break;
            }
        }
    }
}
