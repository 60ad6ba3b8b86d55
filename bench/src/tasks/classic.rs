use super::counting::{Seen, steady_rate};
use super::held::Held;
use super::rows::connect;
use super::{Outcome, Plan};
use crate::judge::Judge;
use anyhow::Result;
use std::time::Instant;

/// Claims with `SKIP LOCKED`, hands over (to nobody), marks the whole batch with one UPDATE.
pub(super) async fn run(url: &str, plan: Plan, batch: i64, held: bool) -> Result<Outcome> {
    let held = match held {
        true => Some(Held::open(url, plan, 1).await?),
        false => None,
    };
    let mut client = connect(url).await?;
    let claim = client
        .prepare("SELECT id, topic, key, headers::text, payload, created_at FROM classic WHERE published_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED")
        .await?;
    let mark = client.prepare("UPDATE classic SET published_at = now() WHERE id = ANY($1)").await?;
    let mut seen = Seen::new(Judge::new(plan.events, plan.keys), plan.events);
    let (start, mut done) = (Instant::now(), 0);
    while !seen.judge.is_complete() {
        let tx = client.transaction().await?;
        let rows = tx.query(&claim, &[&batch]).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        rows.iter().for_each(|row| seen.judge.see(row.get(4)));
        tx.execute(&mark, &[&ids]).await?;
        tx.commit().await?;
        done += ids.len() as u64;
        seen.note(done);
    }
    let mut outcome = Outcome::of(plan.events, start.elapsed());
    // What is held is in Relevo's log, and goes with its connection.
    drop(held);
    seen.judge.verdict()?;
    outcome.values.insert("steady_rate".into(), steady_rate(&seen.progress));
    outcome.curves.insert("progress".into(), seen.progress);
    Ok(outcome)
}
