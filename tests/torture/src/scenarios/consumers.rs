use super::Load;
use super::kills::kill_servers;
use super::network::lose_replies;
use crate::broker::Broker;
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{RECOVERY_LIMIT, Relays, Rig, Run};
use crate::worker::tripwire::Tripwire;
use anyhow::{Result, ensure};
use relevo_testkit::services::{Postgres, Proxy};
use std::time::{Duration, Instant};

/// Every so many kills one is measured, one more consumer sleeps for longer than its broker's patience, another is asked
/// to end, and a relay dies.
const MEASURE_EVERY: usize = 8;
const SLEEP_EVERY: usize = 6;
const ASK_EVERY: usize = 3;
const RELAY_EVERY: usize = 5;

/// Longer than the broker waits for a sign of life.
const ASLEEP: Duration = Duration::from_millis(1500);

/// From the log by a relay to a broker, and from there by consumers through their inbox back into the database. Consumers
/// are killed with messages in hand, at random moments and exactly at their steps, and sleep while others have their queues.
pub async fn consumers(run: &Run, name: &str, database: Database, kills: usize) -> Result<Outcome> {
    let load = Load::on(&database);
    let mut rig = Rig::new(run, name, database).await?;
    rig.by_way_of(Broker::with_queues(run.seed).await?);
    rig.start_relays(1, &Relays::default())?;
    rig.start_consumers(2, &Relays::default())?;
    rig.start_writers(load.writers, load.args)?;
    kill_at_steps(&mut rig).await?;
    let mut round = 0;
    while rig.figures.kills() < kills && round < 3 * kills {
        round += 1;
        let calm = rig.between(10, 200);
        rig.work(calm).await;
        if round.is_multiple_of(MEASURE_EVERY) {
            // A fleet at rest: in a storm of deaths those who should take over are themselves just starting.
            rig.settle().await?;
            let died = rig.kill_consumer(&by_turns(round))?;
            rig.measure_takeover(died).await?;
            continue;
        }
        rig.kill_consumer(&by_turns(round))?;
        if round.is_multiple_of(RELAY_EVERY) {
            rig.kill_relay(&Relays::default())?;
        }
        if round.is_multiple_of(ASK_EVERY) {
            rig.terminate_consumer(&by_turns(round + 1))?;
        }
        if round.is_multiple_of(SLEEP_EVERY) {
            sleep(&mut rig).await?;
        }
    }
    rig.expect_kills(kills);
    rig.finish().await
}

/// `kill -9` of the server with all its children while consumers have messages in hand.
pub async fn server_kills_under_consumers(
    run: &Run,
    name: &str,
    server: &Postgres,
    database: Database,
    kills: u64,
) -> Result<Outcome> {
    let mut rig = Rig::new(run, name, database).await?;
    rig.by_way_of(Broker::with_queues(run.seed).await?);
    (0..3).try_for_each(|turn| rig.start_consumers(1, &by_turns(turn)))?;
    kill_servers(rig, server, kills, &Relays::default()).await
}

/// Everything a network does, to consumers and their database; one of them has none of it. Their broker hears them all the
/// time: what a consumer has in hand stays there.
pub async fn network_under_consumers(
    run: &Run,
    name: &str,
    server: &Postgres,
    database: Database,
    rounds: u64,
) -> Result<Outcome> {
    let proxy = Proxy::start(server.address())?;
    let mut rig = Rig::new(run, name, database).await?;
    let far = |turn| Relays { url: Some(proxy.url(rig.database.url())), ..by_turns(turn) };
    let far = [far(0), far(1), far(2)];
    rig.by_way_of(Broker::with_queues(run.seed).await?);
    rig.start_relays(1, &Relays::default())?;
    rig.start_consumers(1, &Relays::default())?;
    far.iter().try_for_each(|far| rig.start_consumers(1, far))?;
    rig.start_writers(12, &["--pause-ms", "400"])?;
    for _ in 0..rounds {
        lose_replies(&mut rig, &proxy).await;
        for (fault, begin) in FAULTS {
            begin(&proxy);
            rig.figures.fault(fault);
            rig.work(ASLEEP).await;
            proxy.heal();
            proxy.cut();
            rig.measure_recovery(Instant::now()).await?;
        }
    }
    rig.finish().await
}

type Fault = (&'static str, fn(&Proxy));

/// What lasts for a while, and ends with connections that are cut.
const FAULTS: [Fault; 4] = [
    ("half-open connections of consumers", Proxy::half_open),
    ("server unreachable for consumers", Proxy::refuse),
    ("replies to consumers vanish", Proxy::lose_replies),
    ("every packet of consumers late", |proxy| proxy.delay(Duration::from_millis(20))),
];

/// Transactions of each driver, side by side. (SQLite has only one.)
fn by_turns(round: usize) -> Relays {
    Relays::default().arg("--driver", ["deadpool", "sqlx", "tokio"][round % 3])
}

/// Before and after the note in the inbox, the landing of what failed, and the commit that comes before the broker is told.
async fn kill_at_steps(rig: &mut Rig) -> Result<()> {
    for step in ["meet", "land", "commit"] {
        for before in [true, false] {
            let nth = 1 + rig.below(3);
            let trip = Tripwire { step: step.into(), before, nth, signal: "kill".into() };
            let how = Relays { trip: Some(trip.clone()), ..Relays::default() };
            let mut victim = rig.spawn_consumer(&how)?;
            ensure!(victim.wait_end(4 * RECOVERY_LIMIT), "no consumer came to {trip}");
            rig.figures.kill(victim.told().in_flight());
            rig.figures.fault(&format!("kill -9 of a consumer at {step}"));
        }
    }
    Ok(())
}

/// Its broker takes it for dead, and gives its queues to others, with what it has in hand.
async fn sleep(rig: &mut Rig) -> Result<()> {
    let victim = rig.below(rig.consumers.len() as u64) as usize;
    let consumer = &mut rig.consumers[victim];
    consumer.wait_until(RECOVERY_LIMIT, |told| told.in_flight() > 0);
    consumer.pause();
    rig.figures.fault("SIGSTOP of a consumer past its broker's patience");
    rig.work(ASLEEP).await;
    rig.consumers[victim].resume();
    rig.measure_recovery(Instant::now()).await
}
