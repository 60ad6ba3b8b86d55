use super::Size;
use super::drain::{classic, relay};
use crate::arena::{Arena, Log};
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results, Sample};
use crate::goal::{Goal, Unit};
use crate::tasks::{Plan, Sink, Task, With};
use anyhow::Result;
use relevo_testkit::services::unique_name;

/// Names of backlogs, for tables and the picture; the first is compared with the others.
const BACKLOGS: [&str; 4] =
    ["the whole backlog", "a tenth of it", "a hundredth of it", "a small backlog"];

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let mut results = vec![backlog(arena, size).await?];
    results.push(history(arena, size).await?);
    results.push(held(arena, size).await?);
    results.push(poisoned(arena, size).await?);
    Ok(results)
}

/// Cost per event, by how many wait. Each size has a database of its own, so that contenders can take turns.
async fn backlog(arena: &Arena, size: Size) -> Result<Results> {
    let (small, large) = size.backlog;
    let sizes = [large, large / 10, large / 100, small];
    let mut contenders = Vec::new();
    let mut logs = Vec::new();
    for (name, events) in BACKLOGS.into_iter().zip(sizes) {
        let plan = Plan { events: events.max(small), keys: size.keys, bytes: 256 };
        let log = arena.another_log().await?;
        log.seed(plan).await?;
        // A small one is over before a clock can tell: so often that all take about as long.
        let again = ((size.events / plan.events) as u32).min(20);
        let (url, with) = (log.url.clone(), With { again, ..With::default() });
        contenders.push(Contender::new(name, move |_| relay(&url, plan, with)));
        logs.push(log);
    }
    let goal = Some(Goal::AtMost(1.10));
    let cost = |goals| Reading {
        name: "cost, once at work",
        unit: Unit::MicrosPerEvent,
        of: Sample::steady_micros,
        goals,
    };
    let contest = Contest {
        name: format!("{large} events waiting, against fewer"),
        contenders,
        readings: vec![cost(vec![None, None, None, goal])],
    };
    contest.hold(arena, size.rounds.min(3)).await
}

/// Cost per event with a long history that every cursor is past, and without.
async fn history(arena: &Arena, size: Size) -> Result<Results> {
    let plan = Plan { events: size.events, keys: size.keys, bytes: 256 };
    let (old, new) = (arena.another_log().await?, arena.another_log().await?);
    old.seed(Plan { events: size.history, ..plan }).await?;
    let rounds = size.rounds.min(3);
    let past = after_all_there_is(&old, plan, rounds).await?;
    let none = after_all_there_is(&new, plan, rounds).await?;
    let goals = vec![None, Some(Goal::AtMost(1.05))];
    let contest = Contest {
        name: format!("{} events of history, against none", size.history),
        contenders: vec![
            Contender::new("a long history", move |round| past[round].clone()),
            Contender::new("none", move |round| none[round].clone()),
        ],
        readings: vec![Reading {
            name: "cost, once at work",
            unit: Unit::MicrosPerEvent,
            of: Sample::steady_micros,
            goals,
        }],
    };
    contest.hold(arena, rounds).await
}

/// A subscription for each round, all of which begin after what is there now, and then the events for them.
async fn after_all_there_is(log: &Log, plan: Plan, rounds: usize) -> Result<Vec<Task>> {
    let mut tasks = Vec::new();
    for _ in 0..rounds {
        let subscription = unique_name("history");
        log.subscribe_now(&subscription).await?;
        let (url, with) = (log.url.clone(), With::default());
        tasks.push(Task::Relay { url, plan, sink: Sink::Null, subscription, with });
    }
    log.add(plan).await?;
    Ok(tasks)
}

/// A transaction is open for minutes, and its events come late; the classic relay under the same. The log is drained
/// again and again meanwhile: what decays is seen in the last drain.
async fn held(arena: &Arena, size: Size) -> Result<Results> {
    let plan = Plan { events: size.events / 2, keys: size.keys, bytes: 256 };
    arena.main.seed(plan).await?;
    let url = || arena.main.url.clone();
    let late = (plan.events / 100).clamp(1, 1000);
    let (ours, clean, marked, marked_too) = (url(), url(), url(), url());
    let with = With { late, held_s: size.held_s, ..With::default() };
    let several = With { again: 4, ..With::default() };
    let contest = Contest {
        name: format!("a transaction held open for {} s, {late} late events in it", size.held_s),
        contenders: vec![
            Contender::new("relevo, held", move |_| relay(&ours, plan, with)),
            Contender::new("relevo, clean", move |_| relay(&clean, plan, several)),
            Contender::new("SKIP LOCKED, held", move |_| classic(&marked, plan, Some(size.held_s))),
            Contender::new("SKIP LOCKED, clean", move |_| classic(&marked_too, plan, None)),
        ],
        readings: held_readings(),
    };
    contest.hold(arena, size.rounds.min(2)).await
}

/// A clean run has one rate, which stands for its first drain and its last.
fn held_readings() -> Vec<Reading> {
    let rate = |name, of, goals| Reading { name, unit: Unit::EventsPerSecond, of, goals };
    let goals = vec![None, Some(Goal::AtLeast(0.95)), None, None];
    vec![
        rate("rate of the last drain", |s| one_rate(s, "last_rate"), goals),
        rate("rate of the first drain", |s| one_rate(s, "first_rate"), Vec::new()),
        Reading::own("the first rate, of the last", Unit::Times, slower, None),
        Reading::own("late events, after their commit", Unit::Millis, |s| s.value("late_ms"), None),
    ]
}

fn one_rate(sample: &Sample, name: &str) -> f64 {
    let rate = sample.value(name);
    if rate.is_nan() { sample.rate() } else { rate }
}

fn slower(sample: &Sample) -> f64 {
    sample.value("first_rate") / sample.value("last_rate")
}

async fn poisoned(arena: &Arena, size: Size) -> Result<Results> {
    let plan = Plan { events: size.events, keys: size.keys, bytes: 256 };
    arena.main.seed(plan).await?;
    let (ours, clean) = (arena.main.url.clone(), arena.main.url.clone());
    let with = With { poisoned: true, ..With::default() };
    let contest = Contest {
        name: format!("one of {} keys is poisoned", plan.keys),
        contenders: vec![
            Contender::new("relevo, poisoned", move |_| relay(&ours, plan, with)),
            Contender::new("relevo, clean", move |_| relay(&clean, plan, With::default())),
        ],
        readings: vec![Reading::rate([Some(Goal::AtLeast(0.95))])],
    };
    contest.hold(arena, size.rounds).await
}
