//! What a run came through: faults, boundaries in states, and the interesting situations that must occur.

use std::collections::{BTreeMap, BTreeSet};

/// Situations that a campaign must reach *sometimes*: a simulator that never gets there proves nothing about them.
pub const SOMETIMES: &[&str] = &[
    "a late row was read",
    "a tick was thrown away by a conflict",
    "a stale record was refused",
    "a commit of unknown outcome was found applied",
    "a commit of unknown outcome was found not applied",
    "a statement was carried out after its client had given up",
    "a process died with work in flight",
    "a lane was taken over with work in flight",
    "a zombie came back after its lease",
    "a zombie's publish reached the broker",
    "a batch was rolled back and redone one by one",
    "a key was parked and drained",
    "a key was held for an operator and went on",
    "an event died",
    "a dead letter was replayed during live traffic",
    "a dead letter was edited and its copy delivered",
    "a replay was cancelled",
    "a process died while a replay was under way",
    "what a dead process had under way of a replay came to an end",
    "an event was skipped",
    "all skips were counted by whoever noted them",
    "all dead letters were counted by whoever wrote them",
    "the broker went down with events waiting",
    "a message was stored and its confirm lost",
    "a message was stored twice",
    "a subscription was paused and resumed",
    "a subscription was rewound",
    "a row was dropped by retention",
    "a ref outlived its row in the log",
    "lanes were rebalanced to a member that joined",
    "a transaction stayed open past a window",
    "a savepoint was rolled back before a commit",
    "a deadlock ended a transaction",
    "the database died with transactions open",
    "an asynchronous commit was lost in a crash of the database",
    "a handler's effect was lost in a crash of the database",
    "an effect that a crash had taken back was done again",
    "the inbox refused a second copy",
    "a message landed because it failed",
    "a message landed behind another of its key",
    "a message came while its key waited in the consumer's log",
    "two consumers met a message at the same time",
    "a message was new to one consumer and known to another",
    "a source was taken away with messages in hand",
    "a source was paused, and waited",
    "a consumer died with messages in hand",
    "the database was moved to another cluster",
    "a process stopped in good order",
    "a row was dropped by retention while a zombie was about",
    "a subscription was rewound twice before it read again",
    "other keys went on beside a key that is held",
    "a lane with too many parked keys stopped",
    "an event overtook another of its key where order does not matter",
    "a batch stopped between two waves, for its owner's lease might have ended",
    "a batch whose turn came too late was not handed over",
    "an answer came after its lane had another owner",
    "a lane stayed its owner's through a call longer than the lease",
    "everything else came to rest while a call hung",
    "all retries were counted by whoever noted them",
];

/// Faults that a campaign must inject *sometimes*: one that vanished from the schedule would leave everything green.
const FAULTS: &[&str] = &[
    "answered late",
    "broker down",
    "broker refuses",
    "broker stores twice",
    "carried out late",
    "clock jump",
    "confirm lost",
    "conflict",
    "connection to the broker cut",
    "crash",
    "database crash",
    "database moved",
    "hangs",
    "pause",
    "reply lost",
    "request lost",
    "session cut",
    "stop",
    "turn late",
];

/// What one run (or many together) came through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Injected faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Statements of processes and consumers, by name.
    pub boundaries: BTreeMap<&'static str, u64>,
    /// Boundary, fault and state of the world in which it struck.
    pub pairs: BTreeSet<(&'static str, &'static str, u8)>,
    /// Situations reached.
    pub reached: BTreeMap<&'static str, u64>,
    /// Statements carried out.
    pub statements: u64,
    /// Events committed, and deliveries (effects and stored copies).
    pub committed: u64,
    /// Effects and stored copies.
    pub delivered: u64,
    /// Simulated time.
    pub micros: u64,
    /// A running digest of the run, to tell whether two runs were the same.
    pub digest: u64,
}

impl Seen {
    /// A fault struck at a boundary.
    pub fn fault(&mut self, kind: &'static str, boundary: &'static str, state: u8) {
        debug_assert!(FAULTS.contains(&kind), "{kind} is not in the list");
        *self.faults.entry(kind).or_default() += 1;
        self.pairs.insert((boundary, kind, state));
    }

    /// A process or consumer came past a boundary.
    pub fn boundary(&mut self, name: &'static str) {
        *self.boundaries.entry(name).or_default() += 1;
    }

    /// An interesting situation was reached.
    pub fn sometimes(&mut self, what: &'static str) {
        debug_assert!(SOMETIMES.contains(&what), "{what} is not in the list");
        *self.reached.entry(what).or_default() += 1;
    }

    /// Mixes something into the digest.
    pub fn mix(&mut self, value: u64) {
        self.digest = (self.digest.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    /// Mixes a text into the digest.
    pub fn mix_text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.mix(u64::from(byte)));
    }

    /// How many faults in all.
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        for (kind, n) in &other.faults {
            *self.faults.entry(kind).or_default() += n;
        }
        for (name, n) in &other.boundaries {
            *self.boundaries.entry(name).or_default() += n;
        }
        for (what, n) in &other.reached {
            *self.reached.entry(what).or_default() += n;
        }
        self.pairs.extend(other.pairs.iter().copied());
        self.statements += other.statements;
        self.committed += other.committed;
        self.delivered += other.delivered;
        self.micros += other.micros;
    }

    /// Boundaries that were passed, but at which nobody ever died.
    pub fn never_died_at(&self) -> Vec<&'static str> {
        let died: BTreeSet<&str> =
            self.pairs.iter().filter(|(_, kind, _)| *kind == "crash").map(|pair| pair.0).collect();
        self.boundaries.keys().copied().filter(|name| !died.contains(name)).collect()
    }

    /// Faults of the list that never struck.
    pub fn never_struck(&self) -> Vec<&'static str> {
        FAULTS.iter().copied().filter(|kind| !self.faults.contains_key(kind)).collect()
    }

    /// What so many seeds should have come through and did not.
    pub fn missed(&self, seeds: u64) -> Vec<String> {
        let mut missed = Vec::new();
        if seeds >= 1_000 {
            missed.extend(self.never().iter().map(|what| format!("never reached: {what}")));
            missed.extend(self.never_struck().iter().map(|kind| format!("never struck: {kind}")));
        }
        if seeds >= 20_000 {
            let survived = self.never_died_at();
            missed.extend(survived.iter().map(|at| format!("nobody ever died at: {at}")));
        }
        missed
    }

    /// Situations of the list that were never reached.
    pub fn never(&self) -> Vec<&'static str> {
        SOMETIMES.iter().copied().filter(|what| !self.reached.contains_key(what)).collect()
    }
}
