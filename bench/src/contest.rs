//! Contenders take turns, round after round.

use crate::arena::Arena;
use crate::figure::{Reading, Results, Sample, Turns};
use crate::tasks::Task;
use anyhow::{Context, Result};

/// Who takes part.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// The turn: what to do for round n.
    pub(crate) turn: Box<dyn Fn(usize) -> Task + Send + Sync>,
}

impl Contender {
    pub(crate) fn new(
        name: &'static str,
        turn: impl Fn(usize) -> Task + Send + Sync + 'static,
    ) -> Contender {
        Contender { name, turn: Box::new(turn) }
    }
}

/// The first contender is ours; it is compared with each of the others.
pub(crate) struct Contest {
    pub(crate) name: String,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) readings: Vec<Reading>,
}

impl Contest {
    /// Rounds in turn: whatever else the machine does meanwhile falls on all of them. What comes of it is in the file of
    /// figures when this returns.
    pub(crate) async fn hold(self, arena: &Arena, rounds: usize) -> Result<Results> {
        let fresh =
            |contender: &Contender| Turns { name: contender.name.to_owned(), samples: Vec::new() };
        let mut turns: Vec<Turns> = self.contenders.iter().map(fresh).collect();
        for round in 0..rounds {
            for (contender, turns) in self.contenders.iter().zip(&mut turns) {
                let what = || format!("{}: {}, round {}", self.name, contender.name, round + 1);
                let task = (contender.turn)(round);
                let sample = take_turn(arena, &task).await.with_context(what)?;
                eprintln!("{:<64} {}", what(), self.shown(&sample));
                turns.samples.push(sample);
            }
        }
        let results = Results::of(self.name, turns, &self.readings);
        arena.keep(&results, rounds)?;
        Ok(results)
    }

    fn shown(&self, sample: &Sample) -> String {
        let shown = |reading: &Reading| {
            let value = reading.unit.show((reading.of)(sample));
            format!("{:>12} {} {}", value, reading.unit.label(), reading.name)
        };
        self.readings.iter().map(shown).collect::<Vec<_>>().join(", ")
    }
}

async fn take_turn(arena: &Arena, task: &Task) -> Result<Sample> {
    arena.prepare(task).await?;
    let before = arena.meter(task).await?;
    let outcome = task.in_a_process().await?;
    let after = arena.meter(task).await?;
    arena.verify(task).await?;
    Ok(Sample {
        outcome,
        cpu_database_s: after.cpu_database_s - before.cpu_database_s,
        cpu_broker_s: after.cpu_broker_s - before.cpu_broker_s,
        wal_bytes: after.wal_bytes - before.wal_bytes,
        dead_tuples: after.dead_tuples - before.dead_tuples,
        queries: after.queries - before.queries,
    })
}
