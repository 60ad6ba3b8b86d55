use super::drain::relay;
use super::{Place, Size};
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results};
use crate::goal::{Goal, Unit};
use crate::tasks::{Plan, Task, With};
use anyhow::Result;
use relevo_testkit::services::unique_name;

/// Lanes are 64 by design (docs/decisions/0003); how many of them are worked at once is what can be chosen.
const CONCURRENCY: [(&str, usize); 4] = [
    ("8 batches under way", 8),
    ("1 batch under way", 1),
    ("16 batches under way", 16),
    ("64 batches under way", 64),
];

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let plan = Plan { events: size.events, keys: size.keys, bytes: 256 };
    arena.main.seed(plan).await?;
    let mut results = vec![concurrency(arena, size, plan).await?];
    if let Some(place) = Place::nats(arena) {
        results.push(processes(arena, size, plan, &place).await?);
        results.push(take_over(arena, size, &place).await?);
    }
    Ok(results)
}

async fn concurrency(arena: &Arena, size: Size, plan: Plan) -> Result<Results> {
    let contender = |(name, concurrency): (&'static str, usize)| {
        let url = arena.main.url.clone();
        let with = With { concurrency: Some(concurrency), ..With::default() };
        Contender::new(name, move |_| relay(&url, plan, with))
    };
    let contest = Contest {
        name: "drain to nobody by so many lanes at once".into(),
        contenders: CONCURRENCY.into_iter().map(contender).collect(),
        readings: vec![Reading::rate([None, None, None])],
    };
    contest.hold(arena, size.rounds).await
}

async fn processes(arena: &Arena, size: Size, plan: Plan, place: &Place) -> Result<Results> {
    let contender = |name, members| {
        let (url, place) = (arena.main.url.clone(), place.clone());
        Contender::new(name, move |_| Task::Fleet {
            url: url.clone(),
            plan,
            sink: place.fresh(),
            subscription: unique_name("fleet"),
            members,
        })
    };
    let contest = Contest {
        name: format!("drain to {} by several processes", place.name),
        contenders: vec![
            contender("1 process", 1),
            contender("2 processes", 2),
            contender("4 processes", 4),
        ],
        readings: vec![Reading::rate([None, None])],
    };
    contest.hold(arena, size.rounds).await
}

/// Events come all the time; one of two processes is killed when both have lanes, and they come for two leases and two
/// seconds more at least.
async fn take_over(arena: &Arena, size: Size, place: &Place) -> Result<Results> {
    let (lease_ms, rate) = (size.lease_ms, 100.0);
    let seconds = 3.0 * lease_ms as f64 / 1e3 + 2.0;
    let plan = Plan { events: (seconds * rate) as u64, keys: 100, bytes: 256 };
    let (url, place) = (arena.main.url.clone(), place.clone());
    let contest = Contest {
        name: format!("kill -9 of one of two processes, lease {} s", lease_ms as f64 / 1e3),
        contenders: vec![Contender::new("relevo", move |_| Task::TakeOver {
            url: url.clone(),
            plan,
            sink: place.fresh(),
            subscription: unique_name("heir"),
            lease_ms,
            rate,
        })],
        readings: vec![Reading {
            name: "until all has arrived",
            unit: Unit::Seconds,
            of: |sample| sample.value("take_over_s"),
            goals: vec![Some(Goal::AtMostValue(lease_ms as f64 / 1e3 + 2.0))],
        }],
    };
    contest.hold(arena, size.rounds.min(3)).await
}
