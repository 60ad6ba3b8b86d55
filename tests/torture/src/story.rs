//! What processes tell the test: one line of text each, on their standard output.
//!
//! A line that was written survives the writer's death, because it lies in a pipe that the test holds. So the
//! journal knows what a killed process was about to commit, and which batches it had in hand.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write;
use std::str::FromStr;
use uuid::Uuid;

/// What a handler should do with an event; the last word of its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Takes effect.
    Plain,
    /// Takes effect and publishes a follower in the same transaction.
    Chain,
    /// Fails now and then before it takes effect.
    Flaky,
    /// Must end as a dead letter.
    Poison,
    /// Published by a handler.
    Follow,
}

impl Fate {
    const ALL: [Self; 5] = [Self::Plain, Self::Chain, Self::Flaky, Self::Poison, Self::Follow];

    /// The topic that carries it.
    pub fn topic(self) -> &'static str {
        match self {
            Self::Plain => "torture.plain",
            Self::Chain => "torture.chain",
            Self::Flaky => "torture.flaky",
            Self::Poison => "torture.poison",
            Self::Follow => "torture.follow",
        }
    }

    /// The fate a topic carries.
    pub fn of_topic(topic: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fate| fate.topic() == topic)
    }
}

/// An event as its publisher knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Its identity.
    pub id: Uuid,
    /// Its key.
    pub key: String,
    /// What is to become of it.
    pub fate: Fate,
    /// The key's version that its transaction made: versions of a key are in commit order, without gaps.
    pub version: i64,
    /// Its place among the events of its transaction.
    pub place: u32,
    /// True if the key was locked before the event was published: then the version is its order.
    pub locked: bool,
    /// When its publication began, on the machine's monotonic clock.
    pub begun_ns: u64,
}

/// A transaction that is about to commit (or to be rolled back on purpose).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Its row in the business table.
    pub tx: Uuid,
    /// How it locks, publishes and ends.
    pub shape: String,
    /// What it publishes.
    pub events: Vec<Published>,
    /// What it published and took back to a savepoint: these must never be seen.
    pub undone: Vec<Uuid>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// At work.
    Ready,
    /// Something said aloud at start-up.
    Note(String),
    /// A batch of so many events was handed over.
    Began(u64, usize),
    /// That batch came back: recorded, aborted, void or down.
    Ended(u64, String),
    /// A transaction is about to end.
    Intent(Intent),
    /// The server confirmed its commit, before this moment.
    Committed(Uuid, u64),
    /// It was certainly not committed.
    RolledBack(Uuid),
    /// Something that was meant to happen to it did.
    Met(String),
    /// Ended in good order.
    Stopped,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => write!(f, "ready"),
            Self::Note(text) => write!(f, "note {}", text.replace('\n', " ")),
            Self::Began(batch, events) => write!(f, "began {batch} {events}"),
            Self::Ended(batch, how) => write!(f, "ended {batch} {how}"),
            Self::Intent(intent) => {
                let json = serde_json::to_string(intent).map_err(|_| fmt::Error)?;
                write!(f, "intent {json}")
            }
            Self::Committed(tx, at_ns) => write!(f, "committed {tx} {at_ns}"),
            Self::RolledBack(tx) => write!(f, "rolledback {tx}"),
            Self::Met(what) => write!(f, "met {what}"),
            Self::Stopped => write!(f, "stopped"),
        }
    }
}

impl FromStr for Line {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let pair = || rest.split_once(' ').ok_or_else(|| anyhow::anyhow!("cut off: {line:?}"));
        Ok(match word {
            "ready" => Self::Ready,
            "note" => Self::Note(rest.to_owned()),
            "began" => {
                let (batch, events) = pair()?;
                Self::Began(batch.parse()?, events.parse()?)
            }
            "ended" => {
                let (batch, how) = pair()?;
                Self::Ended(batch.parse()?, how.to_owned())
            }
            "intent" => Self::Intent(serde_json::from_str(rest)?),
            "committed" => {
                let (tx, at_ns) = pair()?;
                Self::Committed(tx.parse()?, at_ns.parse()?)
            }
            "rolledback" => Self::RolledBack(rest.parse()?),
            "met" => Self::Met(rest.to_owned()),
            "stopped" => Self::Stopped,
            _ => anyhow::bail!("not a line of the story: {line:?}"),
        })
    }
}

/// Says a line. When it returns, the line outlives this process.
pub fn tell(line: &Line) {
    let mut out = std::io::stdout().lock();
    // Without a reader the test is over, and this process ends by its closed input.
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

/// The machine's monotonic clock, the same for all its processes.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_as_it_was_told() {
        let event = Published {
            id: Uuid::from_u128(7),
            key: "k 1".into(),
            fate: Fate::Flaky,
            version: 3,
            place: 1,
            locked: true,
            begun_ns: 99,
        };
        let intent = Intent {
            tx: Uuid::from_u128(1),
            events: vec![event],
            undone: vec![Uuid::nil()],
            shape: "held open".into(),
        };
        let lines = [
            Line::Ready,
            Line::Note("moved to another cluster".into()),
            Line::Began(3, 20),
            Line::Ended(3, "recorded".into()),
            Line::Intent(intent),
            Line::Committed(Uuid::from_u128(1), 5),
            Line::RolledBack(Uuid::from_u128(2)),
            Line::Met("an exhausted pool".into()),
            Line::Stopped,
        ];
        for line in lines {
            assert_eq!(line.to_string().parse::<Line>().unwrap(), line);
        }
    }
}
