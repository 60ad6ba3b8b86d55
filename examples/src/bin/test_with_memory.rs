//! Testing a handler without any database: the memory store is a full citizen.
//! `cargo run -p relevo-examples --bin test_with_memory`

use anyhow::Result;
use relevo::memory::MemoryStore;
use relevo::{
    Answer, Direct, Effect, Event, Handler, NewEvent, PublishIn, Relay, Settled, Subscription,
};
use std::time::Duration;

struct Stock;
impl Handler<MemoryStore> for Stock {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, MemoryStore>) -> Answer {
        let (item, change): (String, i64) = event.json()?;
        let tx = effect.tx().await?;
        let before: i64 = tx.get("stock", &item)?.unwrap_or(0);
        tx.put("stock", &item, &(before + change)).await?;
        Ok(Settled::Done)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();
    let stock = Direct::new(store.clone(), Stock);
    let relay =
        Relay::on(store.clone()).subscribe(Subscription::new("stock"), stock).start().await?;
    for (change, commits) in [(10, true), (-3, true), (1000, false), (-2, true)] {
        let mut tx = store.begin();
        let event = NewEvent::json("stock.changed", &("apples", change))?.key("apples");
        store.outbox().publish(&mut tx, event).await?;
        if commits { tx.commit()? } else { tx.rollback() }
    }
    while store.get::<i64>("stock", "apples")? != Some(5) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await?;
    println!("apples in stock: {}", store.get::<i64>("stock", "apples")?.unwrap_or_default());
    Ok(())
}
