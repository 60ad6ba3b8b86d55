//! A relay that is dropped instead of stopped leaves nothing running.

#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo::memory::MemoryStore;
use relevo::{Answer, Direct, Effect, Event, Handler, Relay, Settled, Subscription};
use std::time::{Duration, Instant};

struct Nothing;

impl Handler<MemoryStore> for Nothing {
    async fn handle(&self, _: &Event, _: &mut Effect<'_, MemoryStore>) -> Answer {
        Ok(Settled::Done)
    }
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test]
async fn a_relay_that_is_dropped_leaves_no_task_behind() {
    let before = tasks();
    let store = MemoryStore::new();
    let direct = Direct::new(store.clone(), Nothing);
    let running = Relay::on(store).subscribe(Subscription::new("s"), direct).start().await.unwrap();
    assert!(tasks() > before);
    drop(running);
    let begun = Instant::now();
    while tasks() > before {
        assert!(begun.elapsed() < Duration::from_secs(120), "{} tasks still run", tasks() - before);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
