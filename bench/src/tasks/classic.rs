use super::counting::Seen;
use super::drains::Drains;
use super::held::Held;
use super::limit::Limit;
use super::rows::connect;
use super::{Outcome, Plan};
use crate::judge::Judge;
use anyhow::Result;
use std::time::Instant;
use tokio_postgres::{Client, Statement};

/// The events of the log in the table that most teams have, beside what is there.
pub(crate) const FILL: &str = "INSERT INTO classic (topic, key, headers, payload, created_at) SELECT topic, key, headers, payload, created_at FROM relevo.outbox ORDER BY seq";

/// Drained once; or, with a transaction open meanwhile, again and again for so many seconds. The same events come anew
/// before each, untimed: rows that are marked stay, as they do where events keep coming.
pub(super) async fn run(url: &str, plan: Plan, batch: i64, held_s: Option<u64>) -> Result<Outcome> {
    let mut relay = Classic::open(url, batch).await?;
    let Some(held_s) = held_s else { return relay.drain(plan).await };
    // What is held is in Relevo's log, and goes with its connection.
    let held = Held::open(url, plan, 1).await?;
    let mut drains = Drains::begin();
    drains.add(relay.drain(plan).await?);
    while drains.took().as_secs() < held_s {
        relay.client.batch_execute(FILL).await?;
        drains.add(relay.drain(plan).await?);
    }
    drop(held);
    Ok(drains.one_by_one())
}

/// Claims with `SKIP LOCKED`, hands over (to nobody), marks the whole batch with one UPDATE.
struct Classic {
    client: Client,
    claim: Statement,
    mark: Statement,
    batch: i64,
}

impl Classic {
    async fn open(url: &str, batch: i64) -> Result<Classic> {
        let client = connect(url).await?;
        let claim = client
            .prepare("SELECT id, topic, key, headers::text, payload, created_at FROM classic WHERE published_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED")
            .await?;
        let mark =
            client.prepare("UPDATE classic SET published_at = now() WHERE id = ANY($1)").await?;
        Ok(Classic { client, claim, mark, batch })
    }

    async fn drain(&mut self, plan: Plan) -> Result<Outcome> {
        let mut seen = Seen::new(Judge::new(plan.events, plan.keys), plan.events);
        let (start, limit, mut done) = (Instant::now(), Limit::of(plan.events), 0);
        while !seen.judge.is_complete() {
            limit.check(done)?;
            done += self.relay(&mut seen).await?;
            seen.note(done);
        }
        let mut outcome = Outcome::of(plan.events, start.elapsed());
        seen.judge.verdict()?;
        seen.tell(&mut outcome, start);
        Ok(outcome)
    }

    /// One batch; how many events it had.
    async fn relay(&mut self, seen: &mut Seen) -> Result<u64> {
        let tx = self.client.transaction().await?;
        let rows = tx.query(&self.claim, &[&self.batch]).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        rows.iter().for_each(|row| seen.judge.see(row.get(4)));
        tx.execute(&self.mark, &[&ids]).await?;
        tx.commit().await?;
        Ok(ids.len() as u64)
    }
}
