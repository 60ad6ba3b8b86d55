use super::rows::connect;
use super::{Outcome, Plan};
use anyhow::{Result, ensure};
use futures::TryStreamExt;
use std::pin::pin;
use std::time::Instant;

/// All rows of the log, as the database writes them out fastest.
pub(super) async fn run(url: &str, plan: Plan) -> Result<Outcome> {
    let client = connect(url).await?;
    let start = Instant::now();
    let sql = "COPY (SELECT seq, in_lane, id, topic, key, headers, payload, created_at FROM relevo.outbox ORDER BY seq) TO STDOUT (FORMAT binary)";
    let mut stream = pin!(client.copy_out(sql).await?);
    let (mut bytes, mut messages) = (0, 0);
    while let Some(chunk) = stream.try_next().await? {
        bytes += chunk.len();
        messages += 1;
    }
    let took = start.elapsed();
    // The protocol has a message for each row; the format has a trailer, which is one more.
    ensure!(messages == plan.events + 1, "{messages} messages are not {} rows", plan.events);
    ensure!(bytes > plan.events as usize * plan.bytes, "{bytes} bytes are too few");
    Ok(Outcome::of(plan.events, took))
}
