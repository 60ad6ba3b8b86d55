//! A stream of NATS that others fill.

use super::limit::Limit;
use super::sink::{Sink, connect_nats};
use super::{Outcome, Plan};
use anyhow::{Result, bail};
use async_nats::jetstream;
use std::time::{Duration, Instant};

/// How often the stream is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Until all events are there: from a tenth of them to the last, if that tenth is seen, by when everybody is at work.
/// How long the first one took is told on its own.
pub(super) async fn filled(plan: Plan, sink: &Sink, start: Instant) -> Result<Outcome> {
    let Sink::Nats { url, stream } = sink else { bail!("only for NATS") };
    let mut stream = jetstream::new(connect_nats(url).await?).get_stream(stream).await?;
    let (mut first, mut tenth) = (None, None);
    let stored = async || {
        let stored = stream.info().await?.state.messages;
        if stored > 0 {
            first.get_or_insert_with(|| start.elapsed().as_secs_f64());
        }
        if (plan.events / 10..plan.events).contains(&stored) {
            tenth.get_or_insert_with(|| (Instant::now(), stored));
        }
        Ok(stored)
    };
    Limit::of(plan.events).look(LOOK, stored).await?;
    let (began, before) = tenth.unwrap_or((start, 0));
    let mut outcome = Outcome::of(plan.events - before, began.elapsed());
    outcome.values.extend(first.map(|seconds| ("start_s".to_owned(), seconds)));
    Ok(outcome)
}
