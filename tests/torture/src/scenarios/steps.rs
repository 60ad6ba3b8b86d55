use super::{Load, UPKEEP_MS};
use crate::broker::Broker;
use crate::database::Database;
use crate::process::Process;
use crate::report::Outcome;
use crate::rig::{LEASE, Relays, Rig, Run};
use crate::worker::tripwire::{LANES_TAKEN, OF_CONSUMERS, OF_HANDLERS, STEPS, Tripwire};
use anyhow::Result;
use std::time::{Duration, Instant};

/// Every step comes by again and again, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(30);
/// But these: they belong to an orderly end.
const AT_THE_END: [&str; 2] = ["release", "forget"];

/// `kill -9` and SIGTERM exactly before and after each step of a relay, beside one that goes on.
pub async fn signals_at_steps(
    run: &Run,
    name: &str,
    database: Database,
    rounds: u64,
) -> Result<Outcome> {
    let load = Load::on(&database);
    let steps = every_step(&database);
    let mut rig = Rig::new(run, name, database).await?;
    rig.start_relays(1, &Relays::default())?;
    rig.start_writers(load.writers, &[load.args, &["--trouble"]].concat())?;
    for step in (0..rounds).flat_map(|_| steps.clone()) {
        signals_at(&mut rig, Who::Relay, step)?;
    }
    rig.finish().await
}

/// The same with consumers: the steps of a message's transaction, and those of the relay that works what landed.
pub async fn signals_at_steps_of_consumers(
    run: &Run,
    name: &str,
    database: Database,
    steps: &[&str],
) -> Result<Outcome> {
    let load = Load::on(&database);
    let mut rig = Rig::new(run, name, database).await?;
    rig.by_way_of(Broker::with_queues(run.seed).await?);
    rig.start_relays(1, &Relays::default())?;
    rig.start_consumers(1, &Relays::default())?;
    rig.start_writers(load.writers, &[load.args, &["--trouble"]].concat())?;
    for step in steps {
        signals_at(&mut rig, Who::Consumer, step)?;
    }
    rig.finish().await
}

/// Whose steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Relay,
    Consumer,
}

impl Who {
    fn moment(self, step: &str, before: bool) -> String {
        let moment = moment(step, before);
        match self {
            Self::Relay => moment,
            Self::Consumer => format!("of a consumer {moment}"),
        }
    }
}

fn signals_at(rig: &mut Rig, who: Who, step: &str) -> Result<()> {
    let mut tripped = |before, signal| tripped(rig, who, step, before, signal);
    // All four at once: most of the time is spent waiting for the step to come by.
    let mut killed = [tripped(true, "kill")?, tripped(false, "kill")?];
    let mut asked = [tripped(true, "term")?, tripped(false, "term")?];
    for (before, (killed, asked)) in
        [true, false].into_iter().zip(killed.iter_mut().zip(&mut asked))
    {
        let moment = who.moment(step, before);
        expect_kill(rig, killed, step, &moment);
        expect_end(rig, asked, step, &moment);
    }
    Ok(())
}

/// The steps that come by. Rows of an adopted table go to a broker, so there are none of handlers. And without an error no
/// lane is read again: that takes a handler whose session the server ends, which SQLite's cannot.
pub fn every_step(database: &Database) -> Vec<&'static str> {
    let handlers = database.adopted().is_none();
    let errors = handlers && matches!(database, Database::Postgres(_));
    let comes_by =
        |step: &&str| (handlers || !OF_HANDLERS.contains(step)) && (errors || *step != "load");
    STEPS.into_iter().filter(comes_by).collect()
}

/// The steps of a consumer that come by: it keeps up nothing, and begins no log.
pub fn every_step_of_consumers() -> Vec<&'static str> {
    let not = ["probe", "load", "upkeep"];
    STEPS.into_iter().filter(|step| !not.contains(step)).chain(OF_CONSUMERS).collect()
}

/// At which time a step comes by it gets its signal; some come by only once.
fn nth(rig: &mut Rig, step: &str) -> u64 {
    let often =
        ["beat", "page", "savepoint", "handle", "fence", "commit", "upkeep", "meet", "seal"];
    let comes_often = often.contains(&step);
    if comes_often { 1 + rig.below(4) } else { 1 }
}

fn tripped(rig: &mut Rig, who: Who, step: &str, before: bool, signal: &str) -> Result<Process> {
    let nth = nth(rig, step);
    let trip = Some(Tripwire { step: step.into(), before, nth, signal: signal.into() });
    let how = Relays { trip, ..Relays::default() };
    let how = match step {
        // A lane is read again only after an error: here, of a session that idled for a moment.
        "load" => how.arg("--idle-limit-ms", 1),
        "upkeep" => how.arg("--upkeep-ms", UPKEEP_MS),
        _ => how,
    };
    match who {
        Who::Relay => rig.spawn_relay(&how),
        Who::Consumer => rig.spawn_consumer(&how),
    }
}

fn moment(step: &str, before: bool) -> String {
    format!("{} {step}", if before { "before" } else { "after" })
}

/// Waits until the wire has ended it; what comes only at an orderly end is asked for.
fn ends_at(relay: &mut Process, step: &str) -> bool {
    if AT_THE_END.contains(&step) {
        has_lanes(relay);
        relay.ask_to_end();
    }
    relay.wait_end(PATIENCE)
}

fn expect_kill(rig: &mut Rig, relay: &mut Process, step: &str, moment: &str) {
    if !ends_at(relay, step) || relay.told().stopped {
        rig.problem(format!("no kill {moment}: the step was not reached"));
    } else {
        rig.figures.fault(&format!("kill -9 {moment}"));
        let in_flight = relay.told().in_flight();
        rig.figures.kill(in_flight);
    }
}

fn expect_end(rig: &mut Rig, relay: &mut Process, step: &str, moment: &str) {
    if !ends_at(relay, step) {
        rig.problem(format!("no SIGTERM {moment}: the step was not reached"));
        relay.ask_to_end();
    }
    match relay.ended_well(END_LIMIT) {
        Ok(()) => rig.figures.fault(&format!("SIGTERM {moment}")),
        Err(error) => rig.problem(format!("SIGTERM {moment}: {error:#}")),
    }
}

/// A relay that falls asleep exactly before or after a step and wakes when others have its lanes.
pub async fn zombies_at_steps(
    run: &Run,
    name: &str,
    database: Database,
    steps: &[&str],
) -> Result<Outcome> {
    let load = Load::on(&database);
    let mut rig = Rig::new(run, name, database).await?;
    rig.start_relays(1, &Relays::default())?;
    rig.start_writers(load.writers, &[load.args, &["--trouble"]].concat())?;
    for step in steps {
        for before in [true, false] {
            let relay = sleepy(&mut rig, step, before)?;
            sleep_past_the_lease(&mut rig, relay, step, before).await?;
        }
    }
    rig.finish().await
}

fn sleepy(rig: &mut Rig, step: &str, before: bool) -> Result<Process> {
    let nth = nth(rig, step);
    let trip = Some(Tripwire { step: step.into(), before, nth, signal: "stop".into() });
    // The server must not end the sleeper's transaction: the fence alone has to hold.
    let idle_limit_ms = if step == "load" { 1 } else { 60_000 };
    let how = Relays { trip, ..Relays::default() }.arg("--idle-limit-ms", idle_limit_ms);
    let how = if step == "upkeep" { how.arg("--upkeep-ms", UPKEEP_MS) } else { how };
    rig.spawn_relay(&how)
}

async fn sleep_past_the_lease(
    rig: &mut Rig,
    mut relay: Process,
    step: &str,
    before: bool,
) -> Result<()> {
    let moment = moment(step, before);
    if AT_THE_END.contains(&step) {
        has_lanes(&relay);
        relay.ask_to_end();
    }
    if relay.wait_paused(PATIENCE) {
        let asleep = Instant::now();
        rig.figures.fault(&format!("SIGSTOP {moment}"));
        // What it told before it slept may still be on its way through the pipe.
        tokio::time::sleep(LEASE / 2).await;
        // Its open transactions hold the rows of their lanes; all others are at work again, under other owners.
        let held = relay.told().batches();
        rig.measure_takeover_but(held, asleep).await?;
        rig.work((LEASE + LEASE / 2).saturating_sub(asleep.elapsed())).await;
    } else {
        rig.problem(format!("no pause {moment}: the step was not reached"));
    }
    relay.resume();
    relay.ask_to_end();
    if let Err(error) = relay.ended_well(END_LIMIT) {
        rig.problem(format!("woken {moment}: {error:#}"));
    }
    Ok(())
}

/// Waits until a worker has lanes to give back. (A consumer is handed messages before it has any.)
fn has_lanes(worker: &Process) {
    worker.wait_until(PATIENCE, |told| told.met.contains_key(LANES_TAKEN));
}
