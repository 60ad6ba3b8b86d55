use super::sink::Sink;
use super::{Outcome, Plan};
use crate::judge;
use anyhow::Result;
use std::time::Instant;

/// What every event of the bench is about.
pub(crate) const TOPIC: &str = "bench.made";

/// Publishes as fast as the client can.
pub(super) async fn run(plan: Plan, sink: Sink) -> Result<Outcome> {
    let mut bare = sink.connect().await?;
    let start = Instant::now();
    for n in 0..plan.events {
        let (key, number) = judge::nth(n, plan.keys);
        bare.publish(TOPIC, judge::payload(key, number, plan.bytes)).await?;
    }
    bare.confirmed().await?;
    Ok(Outcome::of(plan.events, start.elapsed()))
}
