use super::Outcome;
use super::member;
use super::rows::connect;
use crate::arena::queries;
use crate::cost;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Taking lanes, hanging up the bell and the first looks are over by then.
const SETTLE: Duration = Duration::from_secs(2);

/// A relay with nothing to do: what it asks and uses.
pub(super) async fn run(url: &str, name: &str, time: Duration, doorbell: bool) -> Result<Outcome> {
    let relay = member::start(url, &super::Sink::Null, name, None, doorbell).await?;
    tokio::time::sleep(SETTLE).await;
    let client = connect(url).await?;
    let (start, cpu, before) = (Instant::now(), cost::own_cpu(), queries(&client).await?);
    tokio::time::sleep(time).await;
    let asked = queries(&client).await? - before;
    let took = start.elapsed();
    let mut outcome = Outcome::of(0, took);
    let a_second = |amount: f64| amount / took.as_secs_f64();
    outcome.values.insert("queries".into(), a_second(asked as f64));
    outcome.values.insert("cpu".into(), a_second(cost::own_cpu() - cpu) * 100.0);
    outcome.values.insert("rss_mb".into(), cost::rss_mb("self", "VmRSS")?);
    relay.stop().await?;
    Ok(outcome)
}
