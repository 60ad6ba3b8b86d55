//! A bare cursor over the log: pages by `seq`, read ahead while the one before is worked on.

use super::message::Message;
use anyhow::Result;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_postgres::{Client, NoTls};

const PAGE: i64 = 5_000;
/// Pages read ahead.
const AHEAD: usize = 2;

pub(crate) struct Row {
    pub(crate) seq: i64,
    pub(crate) message: Message,
}

pub(crate) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Pages of the whole log, as they are read.
pub(crate) type Pages = mpsc::Receiver<Result<Vec<Row>>>;

pub(crate) async fn read(url: &str) -> Result<Pages> {
    let client = connect(url).await?;
    // The same columns that Relevo reads.
    let sql = "SELECT seq, in_lane, id, topic, key, headers::text, payload, created_at FROM relevo.outbox WHERE seq > $1 ORDER BY seq LIMIT $2";
    let statement = client.prepare(sql).await?;
    let (pages, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let mut at = 0i64;
        loop {
            let page = client.query(&statement, &[&at, &PAGE]).await;
            let page: Result<Vec<Row>> =
                page.map(|rows| rows.iter().map(row).collect()).map_err(anyhow::Error::from);
            let last = page.as_ref().ok().map(|page| page.last().map(|row| row.seq));
            let end = last == Some(None);
            if end || pages.send(page).await.is_err() {
                return;
            }
            match last.flatten() {
                Some(last) => at = last,
                None => return,
            }
        }
    });
    Ok(receiver)
}

/// The bench's events have keys and no headers of their own.
fn row(row: &tokio_postgres::Row) -> Row {
    Row {
        seq: row.get(0),
        message: Message {
            id: row.get(2),
            topic: row.get(3),
            key: row.get(4),
            payload: Bytes::copy_from_slice(row.get::<_, &[u8]>(6)),
            created_at: row.get(7),
        },
    }
}
