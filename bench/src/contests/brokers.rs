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
        // One hot key runs at the speed of one confirm after the other, on purpose.
        let goals = match plan.keys {
            1 => [None, None],
            _ => [Some(Goal::AtLeast(0.90)), Some(Goal::AtLeast(client_goal))],
        };
        let contest = Contest {
            name: format!("drain to {}, {} B, {} key(s)", place.name, plan.bytes, plan.keys),
            contenders: contenders(&arena.main.url, plan, &place),
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

fn contenders(url: &str, plan: Plan, place: &Place) -> Vec<Contender> {
    let (log, log_too) = (url.to_owned(), url.to_owned());
    let (ours, pipe, client) = (place.clone(), place.clone(), place.clone());
    vec![
        Contender::new("relevo", move |_| Task::Relay {
            url: log.clone(),
            plan,
            sink: ours.fresh(),
            subscription: unique_name("relay"),
            with: With::default(),
        }),
        Contender::new("bare pipe", move |_| Task::Pipe {
            url: log_too.clone(),
            plan,
            sink: pipe.fresh(),
        }),
        Contender::new("bare client", move |_| Task::Client { plan, sink: client.fresh() }),
    ]
}
