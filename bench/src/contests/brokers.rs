use super::{Place, Size};
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results, Sample};
use crate::goal::{Goal, Unit};
use crate::tasks::{Plan, Task, With};
use anyhow::Result;
use relevo_testkit::services::unique_name;

pub(super) async fn nats(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    drain(arena, size, Place::nats(arena), 0.65).await
}

pub(super) async fn rabbitmq(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    // As slow as this broker is, a quarter of the events takes longer than all of them elsewhere.
    let size = Size { events: size.events / 4, ..size };
    let mut results = drain(arena, size, Place::quorum(arena), 0.90).await?;
    results.extend(drain(arena, size, Place::classic(arena), 0.90).await?);
    Ok(results)
}

pub(super) async fn kafka(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    drain(arena, size, Place::kafka(arena), 0.65).await
}

async fn drain(
    arena: &Arena,
    size: Size,
    place: Option<Place>,
    client_goal: f64,
) -> Result<Vec<Results>> {
    let Some(place) = place else { return Ok(Vec::new()) };
    arena.check_fairness(&place.fresh()).await?;
    let mut results = Vec::new();
    for plan in plans(size) {
        arena.main.seed(plan).await?;
        let name = format!("drain to {}, {} B, {} key(s)", place.name, plan.bytes, plan.keys);
        let (contenders, goals) = match plan.keys {
            1 => hot(&arena.main.url, plan, &place)?,
            _ => {
                let goals = vec![Some(Goal::AtLeast(0.90)), Some(Goal::AtLeast(client_goal))];
                (contenders(&arena.main.url, plan, &place), goals)
            }
        };
        let contest = Contest {
            name,
            contenders,
            readings: vec![
                Reading::rate(goals),
                Reading::own("memory at full rate", Unit::Megabytes, Sample::peak_mb, Some(48.0)),
            ],
        };
        results.push(contest.hold(arena, size.rounds).await?);
    }
    Ok(results)
}

fn plans(size: Size) -> Vec<Plan> {
    let many = |bytes: &usize| Plan { events: size.events, keys: size.keys, bytes: *bytes };
    let hot = Plan { events: size.events / 20, keys: 1, bytes: 256 };
    size.payloads().iter().map(many).chain([hot]).collect()
}

/// One hot key goes at the speed of one confirm after the other, on purpose, unless the adapter promises that a failure
/// fails later ones: so the pipe to reach is one that waits for each confirm too. The wide ones are told only.
fn hot(url: &str, plan: Plan, place: &Place) -> Result<(Vec<Contender>, Vec<Option<Goal>>)> {
    let (mut contenders, mut goals) = (contenders(url, plan, place), vec![None, None]);
    let publisher = place.fresh().publisher()?;
    if publisher.is_some_and(|publisher| !publisher.capabilities().failure_fails_later) {
        contenders.insert(1, pipe("bare pipe, one at a time", url, plan, place, Some(1)));
        goals.insert(0, Some(Goal::AtLeast(0.90)));
    }
    Ok((contenders, goals))
}

fn contenders(url: &str, plan: Plan, place: &Place) -> Vec<Contender> {
    let (log, ours, client) = (url.to_owned(), place.clone(), place.clone());
    vec![
        Contender::new("relevo", move |_| Task::Relay {
            url: log.clone(),
            plan,
            sink: ours.fresh(),
            subscription: unique_name("relay"),
            with: With::default(),
        }),
        pipe("bare pipe", url, plan, place, None),
        Contender::new("bare client", move |_| Task::Client { plan, sink: client.fresh() }),
    ]
}

/// With the same window as the adapter, or one of its own.
fn pipe(
    name: &'static str,
    url: &str,
    plan: Plan,
    place: &Place,
    window: Option<usize>,
) -> Contender {
    let (url, place) = (url.to_owned(), place.clone());
    Contender::new(name, move |_| Task::Pipe {
        url: url.clone(),
        plan,
        sink: place.fresh(),
        window,
    })
}
