use super::rows::connect;
use super::{Outcome, Plan};
use crate::judge::Judge;
use anyhow::Result;
use std::time::Instant;

/// Claims with `SKIP LOCKED`, hands over (to nobody), marks the whole batch with one UPDATE.
pub(super) async fn run(url: &str, plan: Plan, batch: i64) -> Result<Outcome> {
    let mut client = connect(url).await?;
    let claim = client
        .prepare("SELECT id, topic, key, headers::text, payload, created_at FROM classic WHERE published_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED")
        .await?;
    let mark = client.prepare("UPDATE classic SET published_at = now() WHERE id = ANY($1)").await?;
    let mut judge = Judge::new(plan.events, plan.keys);
    let start = Instant::now();
    while !judge.is_complete() {
        let tx = client.transaction().await?;
        let rows = tx.query(&claim, &[&batch]).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        rows.iter().for_each(|row| judge.see(row.get(4)));
        tx.execute(&mark, &[&ids]).await?;
        tx.commit().await?;
    }
    let took = start.elapsed();
    judge.verdict()?;
    Ok(Outcome::of(plan.events, took))
}
