use super::Plan;
use super::message::TOPIC;
use super::rows::connect;
use crate::judge;
use anyhow::Result;
use tokio_postgres::Client;

/// A transaction that was opened before a run and stays open: with events of its own, a transaction id and a
/// snapshot, as a long import or a report has.
pub(crate) struct Held {
    client: Client,
}

impl Held {
    /// Its events come after those of the plan, in their keys.
    pub(crate) async fn open(url: &str, plan: Plan, late: u64) -> Result<Held> {
        let client = connect(url).await?;
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
        let insert = client
            .prepare("INSERT INTO relevo.outbox (topic, key, payload) VALUES ($1::text, $2::text, $3::bytea)")
            .await?;
        for n in plan.events..plan.events + late {
            let (key, number) = judge::nth(n, plan.keys);
            let payload = judge::payload(key, number, plan.bytes);
            client.execute(&insert, &[&TOPIC, &format!("key-{key}"), &payload.as_ref()]).await?;
        }
        Ok(Held { client })
    }

    pub(crate) async fn commit(self) -> Result<()> {
        Ok(self.client.batch_execute("COMMIT").await?)
    }
}
