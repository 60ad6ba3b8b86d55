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
    let relay = Relay::on(store.clone())
        .subscribe(Subscription::new("stock"), Direct::new(store.clone(), Stock))
        .start()
        .await?;

    for change in [10, -3, -2] {
        let mut tx = store.begin();
        store
            .outbox()
            .publish(&mut tx, NewEvent::json("stock.changed", &("apples", change))?.key("apples"))
            .await?;
        tx.commit()?;
    }
    let mut rolled_back = store.begin();
    store
        .outbox()
        .publish(
            &mut rolled_back,
            NewEvent::json("stock.changed", &("apples", 1000))?.key("apples"),
        )
        .await?;
    rolled_back.rollback();

    while store.get::<i64>("stock", "apples")? != Some(5) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await?;
    println!("apples in stock: {}", store.get::<i64>("stock", "apples")?.unwrap_or_default());
    Ok(())
}
