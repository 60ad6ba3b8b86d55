use super::{Place, Size};
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results};
use crate::goal::{Goal, Unit};
use crate::tasks::{Carrier, Plan, Task};
use anyhow::{Context, Result};
use relevo_testkit::services::unique_name;

/// A multiple of every number of writers, so that each key is one writer's.
const KEYS: u32 = 1000;
const SLOW: f64 = 100.0;

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    arena.main.seed(Plan { events: 0, keys: 1, bytes: 0 }).await?;
    let brokers = [Place::nats(arena), Place::quorum(arena), Place::kafka(arena)];
    let mut results = Vec::new();
    for place in brokers.into_iter().flatten().chain([Place::handlers()]) {
        let full = full_rate(arena, size, &place).await?;
        let median = full.figures.first().and_then(|figure| figure.series.first());
        let half = median.context("no rate was measured")?.median / 2.0;
        results.push(full);
        results.push(paced(arena, size, &place, SLOW, "100 events/s").await?);
        results.push(paced(arena, size, &place, half, "half of full rate").await?);
    }
    Ok(results)
}

/// How fast writers, relay and receiver are when all of them go as fast as they can, on this machine, at this moment.
async fn full_rate(arena: &Arena, size: Size, place: &Place) -> Result<Results> {
    let plan = Plan { events: size.events / 5, keys: KEYS, bytes: 256 };
    let contest = Contest {
        name: format!("commit to arrival, {}, full rate", place.name),
        contenders: vec![contender(arena, place, "relevo", plan, Carrier::Relevo, None)],
        readings: vec![Reading::rate([])],
    };
    contest.hold(arena, size.rounds.min(3)).await
}

async fn paced(arena: &Arena, size: Size, place: &Place, rate: f64, name: &str) -> Result<Results> {
    let events = (rate * size.paced_s as f64).ceil() as u64;
    // A distribution's tail needs events; at a high rate a part of the time is enough.
    let plan = Plan { events: events.min(size.events), keys: KEYS, bytes: 256 };
    let near = Some(Goal::Within { times: 2.0, plus_ms: 3.0 });
    let reading =
        |name, of, goal| Reading { name, unit: Unit::Millis, of, goals: vec![None, goal] };
    let contest = Contest {
        name: format!("commit to arrival, {}, {name}", place.name),
        contenders: vec![
            contender(arena, place, "relevo", plan, Carrier::Relevo, Some(rate)),
            contender(arena, place, bare(place), plan, Carrier::Bare, Some(rate)),
        ],
        readings: vec![
            reading("p50", |sample| sample.value("p50"), near),
            reading("p99", |sample| sample.value("p99"), near),
            reading("p99.9", |sample| sample.value("p99.9"), None),
        ],
    };
    contest.hold(arena, size.rounds.min(3)).await
}

fn bare(place: &Place) -> &'static str {
    if place.url.is_empty() { "one commit, then another" } else { "one commit, one confirm" }
}

fn contender(
    arena: &Arena,
    place: &Place,
    name: &'static str,
    plan: Plan,
    carrier: Carrier,
    rate: Option<f64>,
) -> Contender {
    let (url, place) = (arena.main.url.clone(), place.clone());
    Contender::new(name, move |_| Task::Latency {
        url: url.clone(),
        plan,
        sink: place.fresh(),
        carrier,
        rate,
        subscription: unique_name("latency"),
    })
}
