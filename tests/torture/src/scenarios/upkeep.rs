use super::{Load, UPKEEP_MS};
use crate::database::Database;
use crate::process::Told;
use crate::report::Outcome;
use crate::rig::{RECOVERY_LIMIT, Relays, Rig, Run};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// A process that was asked to end in the middle of upkeep has ended within this.
const END_LIMIT: Duration = Duration::from_secs(30);

/// All that everybody has had is dropped at once, all the time, by two relays: `kill -9` and SIGTERM in the middle of it,
/// by turns, beside transactions that stay open while what came after them goes.
pub async fn upkeep(run: &Run, name: &str, database: Database, signals: u64) -> Result<Outcome> {
    let load = Load::on(&database);
    let held: &[&str] = match database {
        Database::Postgres(_) => &["--hold-ms", "700"],
        // Whoever holds a transaction open keeps upkeep waiting, and everybody else.
        Database::Sqlite(_) => &[],
    };
    let mut rig = Rig::new(run, name, database.in_small_segments()).await?;
    let how = Relays::default().arg("--upkeep-ms", UPKEEP_MS);
    rig.start_relays(2, &how)?;
    rig.start_writers(load.writers, &[load.args, held, &["--trouble"]].concat())?;
    for round in 0..signals {
        // A round of upkeep is short on a fast disk, and a process that is asked to end often comes to the end of one first.
        let mut attempts = 0;
        while !ends_in_the_middle(&mut rig, &how, round.is_multiple_of(2))? {
            attempts += 1;
            ensure!(attempts < 50, "no signal hits upkeep");
        }
    }
    rig.measure_recovery(Instant::now()).await?;
    rig.end_writers().await?;
    rig.come_to_rest().await?;
    becomes_short(&mut rig).await?;
    rig.finish().await
}

/// Kills a relay, or asks it to end, and starts another in its place. True if its upkeep was under way.
fn ends_in_the_middle(rig: &mut Rig, how: &Relays, kill: bool) -> Result<bool> {
    let victim = rig.below(rig.relays.len() as u64) as usize;
    let (calm, moment) = (rig.between(100, 700), Duration::from_micros(rig.below(4000)));
    std::thread::sleep(calm);
    let next = rig.spawn_relay(how)?;
    let mut relay = std::mem::replace(&mut rig.relays[victim], next);
    ensure!(relay.wait_until(RECOVERY_LIMIT, Told::in_upkeep), "{} keeps nothing up", relay.name);
    std::thread::sleep(moment);
    let signal = match kill {
        true => {
            let in_flight = relay.kill();
            rig.figures.kill(in_flight);
            "kill -9"
        }
        false => {
            if let Err(error) = relay.terminate(END_LIMIT) {
                rig.problem(format!("{error:#}"));
            }
            "SIGTERM"
        }
    };
    let cut_short = relay.told().in_upkeep();
    let moment = if cut_short { "in the middle of upkeep" } else { "after a round of upkeep" };
    rig.figures.fault(&format!("{signal} {moment}"));
    Ok(cut_short)
}

/// Upkeep that nobody interrupts leaves little more than the newest segment.
async fn becomes_short(rig: &mut Rig) -> Result<()> {
    let deadline = Instant::now() + RECOVERY_LIMIT;
    loop {
        let (rows, drawn) = rig.database.log_length().await?;
        if rows < drawn / 2 {
            return Ok(());
        }
        if Instant::now() > deadline {
            rig.problem(format!("upkeep leaves {rows} of {drawn} rows, and all have had them"));
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
