use super::bare::Bare;
use super::rows;
use super::sink::Sink;
use super::{Outcome, Plan};
use anyhow::{Result, ensure};
use std::time::Instant;

/// Reads ahead with one cursor and publishes with the bare client.
pub(super) async fn run(
    url: &str,
    plan: Plan,
    sink: &Sink,
    window: Option<usize>,
) -> Result<Outcome> {
    let mut bare = Bare::connect(sink).await?;
    if let Some(window) = window {
        bare = bare.with_window(window);
    }
    let start = Instant::now();
    let mut pages = rows::read(url).await?;
    let mut sent = 0;
    while let Some(page) = pages.recv().await {
        for row in page? {
            bare.publish(&row.message).await?;
            sent += 1;
        }
    }
    bare.confirmed().await?;
    let took = start.elapsed();
    ensure!(sent == plan.events, "the log has {sent} events, not {}", plan.events);
    Ok(Outcome::of(sent, took))
}
