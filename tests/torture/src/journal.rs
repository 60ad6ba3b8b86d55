//! The test's own record of what was committed, kept apart from the system under test.

use crate::story::{Intent, Line, Published};
use std::collections::{BTreeMap, HashMap, HashSet};
use uuid::Uuid;

/// An event that is known to be committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// As its publisher told it.
    pub event: Published,
    /// When its commit was confirmed; `None` if only its traces tell that it happened.
    pub confirmed_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Committed(u64),
    RolledBack,
}

/// What the writers told.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    transactions: HashMap<Uuid, (Intent, End)>,
}

/// What was committed, after every unknown end was settled.
#[derive(Debug, Default)]
pub struct Truth {
    /// Every committed event.
    pub committed: HashMap<Uuid, Committed>,
    /// Events that must never be seen: rolled back as a whole or to a savepoint.
    pub undone: HashSet<Uuid>,
    /// How many transactions left it open whether they committed.
    pub unknown_commits: usize,
}

impl Journal {
    /// Takes in a line of a writer; others are passed over.
    pub fn hear(&mut self, line: &Line) {
        match line {
            Line::Intent(intent) => {
                self.transactions.insert(intent.tx, (intent.clone(), End::Open));
            }
            Line::Committed(tx, at_ns) => self.end(*tx, End::Committed(*at_ns)),
            Line::RolledBack(tx) => self.end(*tx, End::RolledBack),
            _ => {}
        }
    }

    fn end(&mut self, tx: Uuid, end: End) {
        if let Some(transaction) = self.transactions.get_mut(&tx) {
            transaction.1 = end;
        }
    }

    /// Transactions whose end is not known: their writer was killed or lost its connection.
    pub fn unknown(&self) -> Vec<Uuid> {
        let open = self.transactions.iter().filter(|(_, (_, end))| *end == End::Open);
        open.map(|(tx, _)| *tx).collect()
    }

    /// Were all of these told of?
    pub fn knows(&self, found: &HashSet<Uuid>) -> bool {
        found.iter().all(|tx| self.transactions.contains_key(tx))
    }

    /// How many transactions were told of.
    pub fn len(&self) -> usize {
        self.transactions.len()
    }

    /// How many transactions of each shape came to their end.
    pub fn shapes(&self) -> BTreeMap<&str, u64> {
        let mut shapes = BTreeMap::new();
        let ended = self.transactions.values().filter(|(_, end)| *end != End::Open);
        for (intent, _) in ended.filter(|(intent, _)| !intent.shape.is_empty()) {
            *shapes.entry(intent.shape.as_str()).or_default() += 1;
        }
        shapes
    }

    /// True if nothing was told of yet.
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// The journal of a copy of the database: which transactions the copy has, only their rows tell.
    pub fn as_inherited(mut self) -> Self {
        for (_, end) in self.transactions.values_mut() {
            *end = End::Open;
        }
        self
    }

    /// Events of transactions that may have been committed once, and of which a copy of the database knows nothing: what
    /// was sent of them meanwhile is no ghost.
    pub fn lost_with(&self, found: &HashSet<Uuid>) -> HashSet<Uuid> {
        let lost = self
            .transactions
            .values()
            .filter(|(intent, end)| *end != End::RolledBack && !found.contains(&intent.tx));
        lost.flat_map(|(intent, _)| intent.events.iter().map(|event| event.id)).collect()
    }

    /// Settles what was committed. `found` says whether the business row of a transaction is there.
    pub fn settle(&self, found: &HashSet<Uuid>) -> Truth {
        let mut truth = Truth { unknown_commits: self.unknown().len(), ..Truth::default() };
        for (intent, end) in self.transactions.values() {
            let confirmed_ns = match end {
                End::Committed(at_ns) => Some(*at_ns),
                End::Open if found.contains(&intent.tx) => None,
                _ => {
                    truth.undone.extend(intent.events.iter().map(|event| event.id));
                    truth.undone.extend(&intent.undone);
                    continue;
                }
            };
            truth.undone.extend(&intent.undone);
            for event in &intent.events {
                let committed = Committed { event: event.clone(), confirmed_ns };
                truth.committed.insert(event.id, committed);
            }
        }
        truth
    }

    /// Transactions that were confirmed and of which the database knows nothing: the server lost them.
    pub fn confirmed_but_missing(&self, found: &HashSet<Uuid>) -> Vec<Uuid> {
        let confirmed = |end: &End| matches!(end, End::Committed(_));
        let missing = |tx: &Uuid, end: &End| confirmed(end) && !found.contains(tx);
        let lost = self.transactions.iter().filter(|(tx, (_, end))| missing(tx, end));
        lost.map(|(tx, _)| *tx).collect()
    }
}

impl Truth {
    /// Committed events by key, in the order of their versions.
    pub fn by_key(&self) -> BTreeMap<&str, Vec<&Committed>> {
        let mut keys: BTreeMap<&str, Vec<&Committed>> = BTreeMap::new();
        for committed in self.committed.values() {
            keys.entry(&committed.event.key).or_default().push(committed);
        }
        for events in keys.values_mut() {
            events.sort_by_key(|committed| (committed.event.version, committed.event.place));
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Fate;

    fn intent(tx: u128, id: u128) -> Intent {
        let event = Published {
            id: Uuid::from_u128(id),
            key: "k".into(),
            fate: Fate::Plain,
            version: 1,
            place: 0,
            locked: true,
            begun_ns: 0,
        };
        Intent {
            shape: String::new(),
            tx: Uuid::from_u128(tx),
            events: vec![event],
            undone: vec![Uuid::from_u128(id + 100)],
        }
    }

    #[test]
    fn an_unknown_commit_is_settled_by_the_business_table() {
        let mut journal = Journal::default();
        for tx in 1..=4 {
            journal.hear(&Line::Intent(intent(tx, tx * 10)));
        }
        journal.hear(&Line::Committed(Uuid::from_u128(1), 5));
        journal.hear(&Line::RolledBack(Uuid::from_u128(2)));
        let truth = journal.settle(&HashSet::from([Uuid::from_u128(1), Uuid::from_u128(3)]));
        let mut committed: Vec<u128> = truth.committed.keys().map(Uuid::as_u128).collect();
        committed.sort_unstable();
        assert_eq!(committed, [10, 30]);
        assert_eq!(truth.unknown_commits, 2);
        let never = |id: u128| truth.undone.contains(&Uuid::from_u128(id));
        assert!(never(20) && never(40) && never(110) && never(130) && !never(30));
    }

    #[test]
    fn what_was_rolled_back_is_not_excused_by_what_a_copy_lacks() {
        let mut journal = Journal::default();
        for tx in 1..=4 {
            journal.hear(&Line::Intent(intent(tx, tx * 10)));
        }
        journal.hear(&Line::Committed(Uuid::from_u128(1), 5));
        journal.hear(&Line::RolledBack(Uuid::from_u128(2)));
        journal.hear(&Line::Committed(Uuid::from_u128(3), 6));
        let lost = journal.lost_with(&HashSet::from([Uuid::from_u128(3)]));
        assert_eq!(lost, [10, 40].map(Uuid::from_u128).into());
    }
}
