//! Consuming from a broker with effects done once: an order that arrives twice is billed once, one that cannot be billed
//! becomes a dead letter, and the broker is told only after the commit.
//! `cargo run -p relevo-examples --bin consume_once -- billing.db` needs no server;
//! with `RABBITMQ_URL=amqp://guest:guest@127.0.0.1/%2F` the messages go through RabbitMQ.

use anyhow::Result;
use relevo::broker::{Confirm, Foreign, Publisher, Subscriber, Take, Topology};
use relevo::memory_broker::{MemoryBroker, QueueConfig};
use relevo::rabbitmq::topology::{RabbitMqAdmin, RabbitMqTopology};
use relevo::rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSubscriber};
use relevo::sqlite::{SqliteOutbox, SqliteStore, SqlxSqlite};
use relevo::{
    Answer, Consumer, DeadFilter, Effect, Event, Failure, Handler, MemberId, NewEvent, Operate,
    PublishIn, Settled, TopicFilter,
};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use std::sync::Arc;
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Order {
    id: String,
    amount: i64,
}

struct Billing {
    outbox: SqliteOutbox,
}

impl Handler<SqlxSqlite> for Billing {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, SqlxSqlite>) -> Answer {
        let order: Order = event.json()?;
        if order.amount == 0 {
            return Err(Failure::for_good("nothing to bill"));
        }
        let tx = effect.tx().await?;
        let invoice = sqlx::query("INSERT INTO invoices VALUES (?, ?)");
        invoice.bind(&order.id).bind(order.amount).execute(&mut **tx).await?;
        let billed = NewEvent::json("order.billed", &order)?.key(&order.id).caused_by(event);
        self.outbox.publish(tx, billed).await?;
        Ok(Settled::Done)
    }
}

type Ends = (Box<dyn Publisher>, Box<dyn Subscriber>);

/// A broker inside this process.
fn in_process() -> Result<Ends> {
    let broker = MemoryBroker::new();
    broker.declare("orders", vec![TopicFilter::parse("order.#")?], QueueConfig::default());
    Ok((Box::new(broker.publisher()), Box::new(broker.subscriber("orders"))))
}

/// A queue at RabbitMQ, made if it is not there.
async fn rabbitmq(url: &str) -> Result<Ends> {
    let wanted: RabbitMqTopology = serde_json::from_value(serde_json::json!({
        "exchanges": {"events": {}},
        "queues": {"orders": {"bind": {"events": ["order.#"]}, "single_active_consumer": true}},
    }))?;
    let config = RabbitMqConfig::to(url)?.exchange("events");
    RabbitMqAdmin::new(config.clone(), &wanted).apply(false).await?;
    let subscriber = RabbitMqSubscriber::new(config.clone(), "orders").prefetch(50);
    Ok((Box::new(RabbitMqPublisher::new(config)), Box::new(subscriber)))
}

/// Orders of a program that knows nothing of CloudEvents.
fn old_shop() -> Foreign {
    let mut mapping = Foreign::default();
    mapping.id = vec![Take::Json("/order/number".into()), Take::MessageId];
    mapping.source = vec![Take::Fixed("old-shop".into())];
    mapping.key = vec![Take::Json("/order/number".into())];
    mapping
}

/// What another service's relay would do. The first order is sent twice, as after a lost answer.
async fn orders(publisher: &dyn Publisher) -> Result<()> {
    let order = |id: &str, amount| {
        let order = Order { id: id.to_owned(), amount };
        anyhow::Ok(NewEvent::json("order.placed", &order)?.key(id))
    };
    let (first, free, second) = (order("o-1", 20)?, order("o-2", 0)?, order("o-3", 5)?);
    for event in [first.clone(), first, free, second] {
        let event = Event::stored(event, std::time::SystemTime::now().into());
        let confirms = publisher.publish(&[&event]).await;
        anyhow::ensure!(confirms == [Confirm::Stored], "{confirms:?}");
    }
    Ok(())
}

async fn count(pool: &SqlitePool) -> Result<i64> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM invoices").fetch_one(pool).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "billing.db".into());
    let pool = SqlitePool::connect(&format!("sqlite:{file}?mode=rwc")).await?;
    let table = "CREATE TABLE IF NOT EXISTS invoices (order_id TEXT, amount INTEGER)";
    sqlx::raw_sql(table).execute(&pool).await?;
    let store = SqliteStore::open(&file)?;
    store.migrate().await?;
    let (publisher, subscriber) = match std::env::var("RABBITMQ_URL") {
        Ok(url) => rabbitmq(&url).await?,
        Err(_) => in_process()?,
    };

    let billing = Billing { outbox: store.outbox() };
    let consumer = Consumer::new("billing", subscriber, SqlxSqlite::new(pool.clone()), billing);
    let consumer = consumer.foreign(old_shop());
    let consuming = consumer.start(Arc::new(store.clone()), MemberId("billing-1".into())).await?;
    orders(&*publisher).await?;

    let dead = DeadFilter::default();
    while count(&pool).await? < 2 || store.dead_letters(&dead, None, 10).await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    consuming.stop(Duration::from_secs(30)).await?;
    publisher.close().await;
    println!("invoices: {}", count(&pool).await?);
    for letter in store.dead_letters(&dead, None, 10).await? {
        println!("dead letter: {}, {}", letter.event.topic, letter.error);
    }
    Ok(())
}
