use super::{Place, Size};
use crate::arena::{self, Arena, Log};
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results, Sample};
use crate::goal::{Goal, Unit};
use crate::tasks::{Carrier, Peer, Plan, Task, With};
use anyhow::Result;
use relevo_testkit::services::unique_name;
use std::path::PathBuf;

const SERVER: &str = "Debezium Server";
/// Variables that `cargo xtask bench peers` sets.
const DEBEZIUM: &str = "RELEVO_DEBEZIUM";
const JAVA: &str = "RELEVO_JAVA_21";

/// A multiple of every number of writers, so that each key is one writer's.
const KEYS: u32 = 1000;

/// Relevo, Debezium, and Relevo on Debezium's table, to the same NATS. Without Debezium the others still meet.
pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let Some(place) = Place::nats(arena) else { return Ok(Vec::new()) };
    let debezium = debezium();
    match &debezium {
        Some((folder, _)) => arena.has(SERVER, arena::debezium(folder)),
        None => {
            arena.lacks(
                SERVER,
                format!("{SERVER}: {DEBEZIUM} and {JAVA} do not name it and a Java 21"),
            );
        }
    }
    let log = arena.another_log().await?;
    log.make_peer_table().await?;
    let plan = Plan { events: size.peer_events, keys: KEYS, bytes: 256 };
    log.seed(plan).await?;
    let mut results = vec![drain(arena, size, &place, &log, plan, &debezium).await?];
    results.push(paced(arena, size, &place, &log, &debezium).await?);
    Ok(results)
}

fn debezium() -> Option<(PathBuf, PathBuf)> {
    let place = |name| std::env::var_os(name).map(PathBuf::from).filter(|place| place.exists());
    Some((place(DEBEZIUM)?, place(JAVA)?))
}

async fn drain(
    arena: &Arena,
    size: Size,
    place: &Place,
    log: &Log,
    plan: Plan,
    debezium: &Option<(PathBuf, PathBuf)>,
) -> Result<Results> {
    let (url, ours) = (log.url.clone(), place.clone());
    let mut contenders = vec![
        Contender::new("relevo", move |_| Task::Relay {
            url: url.clone(),
            plan,
            sink: ours.fresh(),
            subscription: unique_name("peer"),
            with: With::default(),
        }),
        adopted(place, log, plan, None),
    ];
    contenders.extend(debezium.as_ref().map(|peer| server(place, log, plan, None, peer)));
    let value = |name, unit, of, goals| Reading { name, unit, of, goals };
    let contest = Contest {
        name: format!("peers: drain to {}, 256 B", place.name),
        contenders,
        readings: vec![
            Reading::rate([None, Some(Goal::AtLeast(8.0))]),
            value("memory", Unit::Megabytes, memory, vec![None, None, Some(Goal::AtMost(0.1))]),
            value("until the first message", Unit::Seconds, |s| s.value("start_s"), Vec::new()),
        ],
    };
    contest.hold(arena, size.rounds.min(3)).await
}

fn memory(sample: &Sample) -> f64 {
    let told = sample.value("memory_mb");
    if told.is_nan() { sample.peak_mb() } else { told }
}

async fn paced(
    arena: &Arena,
    size: Size,
    place: &Place,
    log: &Log,
    debezium: &Option<(PathBuf, PathBuf)>,
) -> Result<Results> {
    let rate = 100.0;
    let plan = Plan { events: (rate * size.paced_s as f64) as u64, keys: KEYS, bytes: 256 };
    let mut contenders =
        vec![own_log(place, log, plan, rate), adopted(place, log, plan, Some(rate))];
    contenders.extend(debezium.as_ref().map(|peer| server(place, log, plan, Some(rate), peer)));
    let millis = |name, of| Reading { name, unit: Unit::Millis, of, goals: Vec::new() };
    let contest = Contest {
        name: format!("peers: commit to arrival, {}, 100 events/s", place.name),
        contenders,
        readings: vec![
            millis("p50", |sample| sample.value("p50")),
            millis("p99", |sample| sample.value("p99")),
        ],
    };
    contest.hold(arena, size.rounds.min(3)).await
}

/// Relevo's own log, which writers publish to, at a rate.
fn own_log(place: &Place, log: &Log, plan: Plan, rate: f64) -> Contender {
    let (url, place) = (log.url.clone(), place.clone());
    Contender::new("relevo", move |_| Task::Latency {
        url: url.clone(),
        plan,
        sink: place.fresh(),
        carrier: Carrier::Relevo,
        rate: Some(rate),
        subscription: unique_name("peer"),
    })
}

fn adopted(place: &Place, log: &Log, plan: Plan, rate: Option<f64>) -> Contender {
    let (url, place) = (log.url.clone(), place.clone());
    Contender::new("relevo, adopted table", move |_| Task::Peer {
        url: url.clone(),
        plan,
        sink: place.fresh(),
        peer: Peer::Adopted { name: unique_name("adopted") },
        rate,
    })
}

fn server(
    place: &Place,
    log: &Log,
    plan: Plan,
    rate: Option<f64>,
    (folder, java): &(PathBuf, PathBuf),
) -> Contender {
    let (url, place, folder, java) = (log.url.clone(), place.clone(), folder.clone(), java.clone());
    Contender::new(SERVER, move |_| Task::Peer {
        url: url.clone(),
        plan,
        sink: place.fresh(),
        peer: Peer::Debezium {
            folder: folder.clone(),
            java: java.clone(),
            slot: unique_name("dbz"),
        },
        rate,
    })
}
