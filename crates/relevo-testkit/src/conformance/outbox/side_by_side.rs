//! Writers and readers side by side: late commits, long transactions, any interleaving, several processes.

use super::some_events;
use crate::conformance::rig::{ids, numbered};
use crate::conformance::{Rig, Writer};
use relevo_core::clock::Rng;
use relevo_core::event::EventId;
use relevo_core::outbox::{Row, Start, Subscription};
use relevo_core::{NewEvent, Result};
use std::collections::{BTreeMap, BTreeSet};

/// A transaction that commits after others with higher numbers is still read.
pub async fn a_late_commit_is_not_skipped(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut late = rig.begin().await?;
    let first = late.publish(vec![numbered("late", 1)]).await?;
    let second = rig.commit_one(numbered("early", 2)).await?;
    assert_eq!(ids(&reader.until(&[second], 10).await?), [second]);
    reader.record().await?;
    late.commit().await?;
    assert_eq!(ids(&reader.until(&first, 10).await?), first);
    assert!(reader.rest().await?.is_empty(), "and only once");
    Ok(())
}

/// A transaction that wrote something else first, and publishes and commits late, is read too.
pub async fn a_late_commit_between_the_pages_of_a_window_is_not_skipped(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut late = rig.begin().await?;
    let mut published = late.publish(vec![numbered("late", 1)]).await?;
    let early = rig.commit(some_events(5)).await?;
    let mut rows = Vec::new();
    while rows.is_empty() {
        rows.extend(reader.page(2).await?.rows);
    }
    late.commit().await?;
    published.extend(&early);
    rows.extend(reader.until(&published[..1], 2).await?);
    let read: BTreeSet<EventId> = rows.iter().map(|row| row.event.id).collect();
    assert_eq!(
        (read.len(), rows.len()),
        (published.len(), published.len()),
        "each comes once: {:?}",
        ids(&rows)
    );
    Ok(())
}

/// One open transaction delays its own events and nobody else's.
pub async fn a_long_open_transaction_holds_nobody_back(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut long = rig.begin().await?;
    let held = long.publish(some_events(3)).await?;
    for round in 0..6 {
        let others = rig.commit(some_events(4)).await?;
        assert_eq!(ids(&reader.until(&others, 3).await?), others, "round {round}");
        reader.record().await?;
    }
    long.commit().await?;
    assert_eq!(ids(&reader.until(&held, 10).await?), held);
    assert!(reader.rest().await?.is_empty());
    Ok(())
}

/// Whatever the order of begins, publishes, commits and roll-backs: every committed event comes once, and events of
/// a key whose transactions followed each other come in that order.
pub async fn in_any_interleaving_every_event_comes_once_and_keys_stay_in_order(
    rig: &Rig,
) -> Result<()> {
    rig.migrated().await?;
    for seed in 0..4 {
        Interleaving::new(rig, seed).run(60).await?;
    }
    Ok(())
}

/// What a transaction published: keys and numbers.
type Published = Vec<(String, usize)>;

/// A random schedule of transactions.
struct Interleaving<'r> {
    rig: &'r Rig,
    rng: Rng,
    seed: u64,
    most_open: usize,
    open: Vec<(Box<dyn Writer>, Published)>,
    /// A key with an open transaction: nobody else publishes it, as if its aggregate were locked.
    locked: BTreeSet<String>,
    committed: BTreeSet<usize>,
    next: usize,
    read: Vec<(String, usize)>,
}

impl<'r> Interleaving<'r> {
    fn new(rig: &'r Rig, seed: u64) -> Self {
        let most_open = if rig.store.capabilities().concurrent_writers { 6 } else { 1 };
        let (open, locked) = (Vec::new(), BTreeSet::new());
        Self {
            rig,
            rng: Rng::seeded(seed),
            seed,
            most_open,
            open,
            locked,
            committed: BTreeSet::new(),
            next: 0,
            read: Vec::new(),
        }
    }

    async fn run(mut self, steps: usize) -> Result<()> {
        let start = Subscription::new(format!("seed-{}", self.seed)).start(Start::Now);
        let mut reader = self.rig.reader_of(start).await?;
        for _ in 0..steps {
            match self.rng.below(5) {
                0 | 1 if self.open.len() < self.most_open => self.begin().await?,
                2 | 3 if !self.open.is_empty() => self.end().await?,
                _ => {
                    let size = 1 + self.rng.below(4) as usize;
                    let rows = reader.page(size).await?.rows;
                    self.take(rows);
                }
            }
        }
        while !self.open.is_empty() {
            self.end().await?;
        }
        let rows = reader.rest().await?;
        self.take(rows);
        self.check();
        Ok(())
    }

    async fn begin(&mut self) -> Result<()> {
        let mut writer = self.rig.begin().await?;
        let mut published = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let key = format!("s{}-{}", self.seed, self.rng.below(8));
            if self.locked.insert(key.clone()) || published.iter().any(|(mine, _)| *mine == key) {
                writer.publish(vec![numbered(&key, self.next)]).await?;
                published.push((key, self.next));
                self.next += 1;
            }
        }
        self.open.push((writer, published));
        Ok(())
    }

    async fn end(&mut self) -> Result<()> {
        let which = self.rng.below(self.open.len() as u64) as usize;
        let (writer, published) = self.open.swap_remove(which);
        if self.rng.below(4) == 0 {
            writer.roll_back().await?;
        } else {
            writer.commit().await?;
            self.committed.extend(published.iter().map(|(_, n)| n));
        }
        self.locked.retain(|key| published.iter().all(|(mine, _)| mine != key));
        Ok(())
    }

    fn take(&mut self, rows: Vec<Row>) {
        let number =
            |row: &Row| String::from_utf8_lossy(&row.event.payload).parse().unwrap_or(usize::MAX);
        self.read.extend(rows.iter().map(|row| (row.event.order_key(), number(row))));
    }

    fn check(&self) {
        let read: BTreeSet<usize> = self.read.iter().map(|(_, n)| *n).collect();
        assert_eq!(read, self.committed, "seed {}: what committed is what came", self.seed);
        assert_eq!(read.len(), self.read.len(), "seed {}: nothing came twice", self.seed);
        let mut last: BTreeMap<&str, usize> = BTreeMap::new();
        for (key, n) in &self.read {
            let before = last.insert(key, *n);
            assert!(
                before.is_none_or(|before| before < *n),
                "seed {}: {key}: {n} came after {before:?}",
                self.seed
            );
        }
    }
}

/// Readers of several processes, who all make ticks where the log has any, and writers, all at the same time.
pub async fn readers_of_several_processes_at_once_miss_nothing(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let mut readers =
        [rig.reader("one").await?, rig.reader("two").await?, rig.reader("three").await?];
    for reader in &mut readers {
        reader.store = rig.under_test.another().await?.0;
    }
    let write = async |writer: usize| -> Result<Vec<EventId>> {
        let mut published = Vec::new();
        for n in 0..25 {
            published.extend(rig.commit(vec![numbered(&format!("w{writer}"), n)]).await?);
        }
        Ok(published)
    };
    let last = NewEvent::bytes("the.last", "");
    let end = last.id;
    let writers = async || -> Result<BTreeSet<EventId>> {
        let (one, two, three) = tokio::try_join!(write(1), write(2), write(3))?;
        let published =
            one.into_iter().chain(two).chain(three).chain(rig.commit(vec![last]).await?);
        Ok(published.collect())
    };
    let [one, two, three] = &mut readers;
    let ends = [end];
    let (published, one, two, three) = tokio::try_join!(
        writers(),
        one.until(&ends, 7),
        two.until(&ends, 7),
        three.until(&ends, 1000)
    )?;
    for rows in [one, two, three] {
        let read: BTreeSet<EventId> = rows.iter().map(|row| row.event.id).collect();
        assert_eq!(read, published, "what committed is what came");
        assert_eq!(rows.len(), published.len(), "once");
        for writer in ["w1", "w2", "w3"] {
            let mine = rows.iter().filter(|row| row.event.key.as_deref() == Some(writer));
            let order: Vec<String> =
                mine.map(|row| String::from_utf8_lossy(&row.event.payload).into_owned()).collect();
            assert_eq!(
                order,
                (0..25).map(|n: usize| n.to_string()).collect::<Vec<_>>(),
                "{writer}"
            );
        }
    }
    Ok(())
}
