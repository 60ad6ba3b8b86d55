use super::Size;
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results, Sample};
use crate::goal::{Goal, Unit};
use crate::tasks::{Plan, Sink, Task, With};
use anyhow::Result;
use relevo_testkit::services::unique_name;

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let mut results = Vec::new();
    for bytes in size.payloads() {
        let plan = Plan { events: size.events, keys: size.keys, bytes: *bytes };
        arena.main.seed(plan).await?;
        let contest = Contest {
            name: format!("drain to nobody, {bytes} B, {} keys", plan.keys),
            contenders: contenders(&arena.main.url, plan),
            readings: vec![
                Reading::rate([Some(Goal::AtLeast(0.35)), None]),
                Reading::own("dead tuples", Unit::PerEvent, Sample::dead_per_event, Some(0.01)),
            ],
        };
        results.push(contest.hold(arena, size.rounds).await?);
    }
    Ok(results)
}

fn contenders(url: &str, plan: Plan) -> Vec<Contender> {
    let url = || url.to_owned();
    let (ours, copied, marked) = (url(), url(), url());
    vec![
        Contender::new("relevo", move |_| relay(&ours, plan, With::default())),
        Contender::new("COPY TO, binary", move |_| Task::Copy { url: copied.clone(), plan }),
        Contender::new("SKIP LOCKED + UPDATE", move |_| classic(&marked, plan, None)),
    ]
}

/// Relevo to nobody.
pub(super) fn relay(url: &str, plan: Plan, with: With) -> Task {
    let (url, subscription) = (url.to_owned(), unique_name("null"));
    Task::Relay { url, plan, sink: Sink::Null, subscription, with }
}

pub(super) fn classic(url: &str, plan: Plan, held_s: Option<u64>) -> Task {
    Task::Classic { url: url.to_owned(), plan, batch: 1000, held_s }
}
