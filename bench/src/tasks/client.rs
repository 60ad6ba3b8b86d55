use super::bare::Bare;
use super::message::Message;
use super::sink::Sink;
use super::{Outcome, Plan};
use anyhow::Result;
use std::time::Instant;

/// Publishes as fast as the client can.
pub(super) async fn run(plan: Plan, sink: &Sink) -> Result<Outcome> {
    let mut bare = Bare::connect(sink).await?;
    let start = Instant::now();
    for n in 0..plan.events {
        bare.publish(&Message::nth(n, plan.keys, plan.bytes)).await?;
    }
    bare.confirmed().await?;
    Ok(Outcome::of(plan.events, start.elapsed()))
}
