use super::member::Member;
use super::message::TOPIC;
use super::rows::connect;
use super::sink::Sink;
use super::{Outcome, Task};
use crate::judge;
use anyhow::{Result, ensure};
use deadpool_postgres::{Manager, Object, Pool};
use futures::future::try_join_all;
use relevo::postgres::PostgresOutbox;
use relevo::{NewEvent, PublishIn};
use serde::{Deserialize, Serialize};
use std::time::Instant;
use tokio_postgres::{Client, NoTls};

/// What a business transaction has beside its own two statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Extra {
    /// An event by the library, its statement prepared as those of the service are.
    Publish,
    /// The same, parsed and planned each time: what works behind every pooler.
    PublishUnprepared,
    /// One bare INSERT of the same bytes.
    Insert,
    /// The same, and a NOTIFY.
    InsertAndNotify,
    /// Nothing.
    Nothing,
}

/// A relay that is at work meanwhile, in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Beside {
    /// It hears of commits by its doorbell, a walsender.
    Doorbell,
    /// It polls.
    Polling,
}

/// Accounts that the transactions change: enough that they do not wait for each other.
pub(crate) const ACCOUNTS: i32 = 10_000;

/// Connections write side by side until all transactions are done.
pub(super) async fn run(
    url: &str,
    connections: usize,
    transactions: u64,
    bytes: usize,
    extra: Extra,
    beside: Option<(Beside, String)>,
) -> Result<Outcome> {
    let relay = match beside {
        Some((beside, subscription)) => {
            Some(Member::spawn(&relay(url, beside, subscription)).await?)
        }
        None => None,
    };
    let each = transactions.div_ceil(connections as u64);
    let written = Written::until_now(url).await?;
    let pool = pool(url, connections)?;
    let mut writers = Vec::new();
    for number in 0..connections {
        let client = pool.get().await?;
        let outbox = match extra {
            Extra::Publish => PostgresOutbox::new().prepared(),
            _ => PostgresOutbox::new(),
        };
        writers.push(Writer { client, outbox, number: number as u64, bytes, extra });
    }
    let start = Instant::now();
    try_join_all(writers.into_iter().map(|writer| tokio::spawn(writer.write(each))))
        .await?
        .into_iter()
        .collect::<Result<()>>()?;
    let mut outcome = Outcome::of(each * connections as u64, start.elapsed());
    written.verify(extra, outcome.events).await?;
    if let Some(relay) = relay {
        outcome.add_costs(&relay.stop().await?);
    }
    Ok(outcome)
}

fn pool(url: &str, connections: usize) -> Result<Pool> {
    let manager = Manager::new(url.parse()?, NoTls);
    Ok(Pool::builder(manager).max_size(connections).build()?)
}

fn relay(url: &str, beside: Beside, subscription: String) -> Task {
    Task::Member {
        url: url.to_owned(),
        sink: Sink::Null,
        subscription,
        lease_ms: None,
        doorbell: beside == Beside::Doorbell,
    }
}

/// What was there before, so that what is there afterwards can be counted.
struct Written {
    client: Client,
    /// The last number of each table.
    last: [i64; TABLES.len()],
}

/// Where rows of transactions go, and the number that each has there.
const TABLES: [(&str, &str); 3] = [("orders", "id"), ("relevo.outbox", "seq"), ("bare", "seq")];

impl Written {
    async fn until_now(url: &str) -> Result<Written> {
        let client = connect(url).await?;
        let mut last = [0; TABLES.len()];
        for ((table, number), last) in TABLES.iter().zip(&mut last) {
            let sql = format!("SELECT coalesce(max({number}), 0) FROM {table}");
            *last = client.query_one(&sql, &[]).await?.get(0);
        }
        Ok(Written { client, last })
    }

    /// Each transaction has left its order, and what it had beside that.
    async fn verify(&self, extra: Extra, transactions: u64) -> Result<()> {
        let wanted = match extra {
            Extra::Publish | Extra::PublishUnprepared => [1, 1, 0],
            Extra::Insert | Extra::InsertAndNotify => [1, 0, 1],
            Extra::Nothing => [1, 0, 0],
        };
        for (((table, number), last), rows) in TABLES.iter().zip(&self.last).zip(wanted) {
            let sql = format!("SELECT count(*) FROM {table} WHERE {number} > $1");
            let there: i64 = self.client.query_one(&sql, &[last]).await?.get(0);
            let wanted = transactions * rows;
            ensure!(there as u64 == wanted, "{there} new rows in {table}; {wanted} were written");
        }
        Ok(())
    }
}

const CHANGE: &str = "UPDATE account SET balance = balance + 1 WHERE id = $1";
const ORDER: &str = "INSERT INTO orders (account, amount) VALUES ($1, $2)";
const BARE: &str =
    "INSERT INTO bare (id, topic, key, headers, payload) VALUES ($1, $2, $3, $4, $5)";

/// A service's connection, from a pool that keeps prepared statements.
struct Writer {
    client: Object,
    outbox: PostgresOutbox,
    number: u64,
    bytes: usize,
    extra: Extra,
}

impl Writer {
    async fn write(mut self, transactions: u64) -> Result<()> {
        for n in 0..transactions {
            self.transaction(n).await?;
        }
        Ok(())
    }

    async fn transaction(&mut self, n: u64) -> Result<()> {
        let account = ((self.number * 7919 + n * 31) % ACCOUNTS as u64) as i32;
        let payload = judge::payload(account as u32, n, self.bytes);
        let key = format!("account-{account}");
        let mut tx = self.client.transaction().await?;
        tx.execute(&tx.prepare_cached(CHANGE).await?, &[&account]).await?;
        tx.execute(&tx.prepare_cached(ORDER).await?, &[&account, &(n as i64)]).await?;
        match self.extra {
            Extra::Nothing => {}
            Extra::Publish | Extra::PublishUnprepared => {
                self.outbox.publish(&mut tx, NewEvent::bytes(TOPIC, payload).key(key)).await?;
            }
            Extra::Insert | Extra::InsertAndNotify => {
                let id = relevo::EventId::fresh().0;
                let headers = serde_json::json!({});
                let insert = tx.prepare_cached(BARE).await?;
                tx.execute(&insert, &[&id, &TOPIC, &key, &headers, &payload.as_ref()]).await?;
                if self.extra == Extra::InsertAndNotify {
                    tx.batch_execute("NOTIFY bench").await?;
                }
            }
        }
        Ok(tx.commit().await?)
    }
}
