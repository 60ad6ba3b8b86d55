//! The log: what committed is read, in order, once; what did not commit is never read.

use super::rig::{ids, numbered};
use super::{Rig, Writer};
use crate::{PATIENCE, eventually};
use relevo_core::clock::Rng;
use relevo_core::event::{EventId, lane_of};
use relevo_core::limits::LANES;
use relevo_core::outbox::{PageRequest, Position, Row, Start, Subscription};
use relevo_core::{NewEvent, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

fn some_events(n: usize) -> Vec<NewEvent> {
    (0..n).map(|n| numbered(&format!("key-{}", n % 7), n)).collect()
}

/// What committed is read.
pub async fn a_committed_event_is_read(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    assert_eq!(ids(&reader.until(&[id], 10).await?), [id]);
    assert!(reader.rest().await?.is_empty(), "it is read once");
    Ok(())
}

/// What rolled back is never read.
pub async fn a_rolled_back_event_is_never_read(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut writer = rig.begin().await?;
    writer.publish(some_events(3)).await?;
    writer.roll_back().await?;
    assert!(reader.rest().await?.is_empty());
    Ok(())
}

/// A transaction that is dropped without a word leaves nothing.
pub async fn an_event_of_a_transaction_that_was_dropped_is_never_read(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut writer = rig.begin().await?;
    writer.publish(some_events(3)).await?;
    drop(writer);
    assert!(reader.rest().await?.is_empty());
    Ok(())
}

/// Nothing is read before its commit.
pub async fn an_event_is_not_read_before_its_transaction_commits(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut writer = rig.begin().await?;
    let published = writer.publish(some_events(2)).await?;
    for _ in 0..5 {
        assert!(reader.page(10).await?.rows.is_empty());
    }
    writer.commit().await?;
    assert_eq!(ids(&reader.until(&published, 10).await?), published);
    Ok(())
}

/// Within a window rows come by `seq`, which is the order of publication within a transaction.
pub async fn events_of_a_transaction_come_in_the_order_of_their_publication(
    rig: &Rig,
) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut writer = rig.begin().await?;
    let mut published = writer.publish(some_events(20)).await?;
    published.extend(writer.publish(some_events(1)).await?);
    published.extend(writer.publish(some_events(5)).await?);
    writer.commit().await?;
    assert_eq!(ids(&reader.until(&published, 100).await?), published);
    Ok(())
}

/// Pages of any size add up to the log.
pub async fn pages_of_any_size_bring_every_event_once(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let mut published = rig.commit(some_events(11)).await?;
    published.extend(rig.commit(some_events(12)).await?);
    for size in [1, 2, 3, 7, 22, 23, 24, 1000] {
        let mut reader = rig.reader(&format!("pages-of-{size}")).await?;
        let rows = reader.until(&published, size).await?;
        assert_eq!(ids(&rows), published, "pages of {size}");
        assert!(
            reader.page(size).await?.rows.is_empty(),
            "nothing comes twice with pages of {size}"
        );
    }
    Ok(())
}

/// A page stops after so many bytes, and brings at least one row however large.
pub async fn a_page_is_bounded_by_bytes_and_brings_at_least_one_row(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let published =
        rig.commit((0..6).map(|_| NewEvent::bytes("large", vec![7; 1000])).collect()).await?;
    let (mut rows, mut pages) = (Vec::new(), 0);
    while rows.len() < published.len() {
        let page = reader.page_of(1000, 1500).await?;
        if page.to.is_some() && reader.position.to.is_some() {
            assert!(
                (1..=2).contains(&page.rows.len()),
                "{} rows of 1000 bytes in 1500",
                page.rows.len()
            );
        }
        pages += 1;
        rows.extend(page.rows);
        assert!(pages < 1000, "pages make progress");
    }
    assert_eq!(ids(&rows), published);
    Ok(())
}

/// Lanes that had no row in a page stand where the page ended, and miss nothing later.
pub async fn lanes_without_rows_end_where_the_others_end(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let first = rig.commit((0..5).map(|n| numbered("one-key", n)).collect()).await?;
    reader.until(&first, 2).await?;
    reader.record().await?;
    let other = (0..)
        .map(|n| format!("other-{n}"))
        .find(|key| lane_of(key) != lane_of("one-key"))
        .unwrap_or_default();
    let second = rig.commit(vec![numbered(&other, 1), numbered("one-key", 6)]).await?;
    assert_eq!(ids(&reader.until(&second, 100).await?), second);
    Ok(())
}

/// A page has rows of the asked lanes only.
pub async fn a_page_brings_only_the_lanes_asked_for(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let start = reader.position;
    let published = rig.commit((0..40).map(|n| numbered(&format!("key-{n}"), n)).collect()).await?;
    let rows = reader.until(&published, 100).await?;
    let lanes = vec![rows[0].lane, rows[1].lane];
    let mut position = start;
    let mut found = Vec::new();
    while position != reader.position {
        let page = rig
            .store
            .read_page(&PageRequest {
                position,
                lanes: lanes.clone(),
                max_rows: 1,
                max_bytes: 1 << 30,
            })
            .await?;
        assert!(page.end > position, "a page moves on: {page:?}");
        position = page.end;
        found.extend(page.rows);
    }
    let wanted: Vec<Row> = rows.into_iter().filter(|row| lanes.contains(&row.lane)).collect();
    assert_eq!(ids(&found), ids(&wanted));
    Ok(())
}

/// What commits while a window is paged belongs to the next one.
pub async fn a_window_stays_frozen_while_it_is_paged(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut other = rig.reader("other").await?;
    let first = rig.commit(some_events(6)).await?;
    let mut rows = Vec::new();
    while rows.is_empty() {
        rows.extend(reader.page(2).await?.rows);
    }
    let window = reader.position.to;
    let second = rig.commit(some_events(4)).await?;
    // Another reader goes beyond: where the log has ticks, there is a newer one now.
    other.until(&second, 100).await?;
    while reader.position.to.is_some() {
        rows.extend(reader.page(2).await?.rows);
    }
    assert_eq!(ids(&rows), first, "the window ends with what it began with");
    assert_eq!(window, Some(reader.position.from), "and leads where it led from its first page on");
    assert_eq!(ids(&reader.until(&second, 2).await?), second);
    Ok(())
}

/// A cursor in the middle of a window is enough to go on from, for whoever takes the lane.
pub async fn a_position_in_the_middle_of_a_window_resumes_there(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("all", "k").await?;
    let published = rig.commit((0..6).map(|n| numbered("k", n)).collect()).await?;
    let reads = hand.read(6).await?;
    let mut change = hand.change();
    change.after = reads[2].after;
    hand.record(change).await?;
    rig.commit_one(numbered("k", 7)).await?;
    let mut heir = rig.hand("all", "k").await?;
    assert_eq!(heir.position, reads[2].after);
    let rest: Vec<EventId> = heir.read(4).await?.into_iter().map(|read| read.at.id).collect();
    assert_eq!(rest[..3], published[3..], "the rest of the window first");
    Ok(())
}

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

/// Each subscription reads the whole log at its own pace.
pub async fn two_subscriptions_have_their_own_cursors(rig: &Rig) -> Result<()> {
    let mut one = rig.migrated().await?.reader("one").await?;
    let mut two = rig.reader("two").await?;
    let first = rig.commit(some_events(5)).await?;
    assert_eq!(ids(&one.until(&first, 100).await?), first);
    one.record().await?;
    let second = rig.commit(some_events(3)).await?;
    let both: Vec<EventId> = first.into_iter().chain(second.iter().copied()).collect();
    assert_eq!(ids(&two.until(&both, 2).await?), both);
    assert_eq!(ids(&one.until(&second, 2).await?), second);
    Ok(())
}

/// A subscription from the beginning gets what was there before it.
pub async fn a_subscription_from_the_beginning_gets_everything(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let published = rig.commit(some_events(5)).await?;
    let mut reader = rig.reader_of(Subscription::new("late-comer").start(Start::Beginning)).await?;
    assert_eq!(ids(&reader.until(&published, 100).await?), published);
    Ok(())
}

/// A subscription from now gets what commits from now on and nothing before.
pub async fn a_subscription_from_now_gets_only_what_commits_from_now_on(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    rig.commit(some_events(5)).await?;
    let mut reader = rig.reader_of(Subscription::new("from-now").start(Start::Now)).await?;
    let later = rig.commit(some_events(3)).await?;
    assert_eq!(ids(&reader.until(&later, 100).await?), later);
    Ok(())
}

/// What was open when a subscription started now, and commits later, belongs to it.
pub async fn a_transaction_open_at_a_start_from_now_is_not_missed(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let mut open = rig.begin().await?;
    let published = open.publish(some_events(2)).await?;
    rig.commit(some_events(2)).await?;
    let mut reader = rig.reader_of(Subscription::new("from-now").start(Start::Now)).await?;
    open.commit().await?;
    assert_eq!(ids(&reader.until(&published, 100).await?), published);
    Ok(())
}

/// A subscription from a time never starts too late.
pub async fn a_subscription_from_a_time_misses_nothing_that_committed_after_it(
    rig: &Rig,
) -> Result<()> {
    let mut other = rig.migrated().await?.reader("makes-ticks").await?;
    let before = rig.commit(some_events(2)).await?;
    other.until(&before, 100).await?;
    rig.let_time_pass().await;
    let time = chrono::Utc::now();
    rig.let_time_pass().await;
    let after = rig.commit(some_events(3)).await?;
    other.until(&after, 100).await?;
    let mut reader =
        rig.reader_of(Subscription::new("from-a-time").start(Start::Time(time))).await?;
    let rows = ids(&reader.until(&after, 100).await?);
    assert!(rows.ends_with(&after), "{rows:?}");
    let long_ago = time - chrono::Duration::days(365);
    let mut reader =
        rig.reader_of(Subscription::new("from-long-ago").start(Start::Time(long_ago))).await?;
    let all: Vec<EventId> = before.into_iter().chain(after).collect();
    assert_eq!(ids(&reader.until(&all, 100).await?), all);
    Ok(())
}

/// What was open at that time and committed after it comes.
pub async fn a_transaction_open_at_the_time_of_a_start_is_not_missed(rig: &Rig) -> Result<()> {
    let mut other = rig.migrated().await?.reader("makes-ticks").await?;
    let mut open = rig.begin().await?;
    let published = open.publish(some_events(2)).await?;
    let beside = rig.commit(some_events(1)).await?;
    other.until(&beside, 100).await?;
    rig.let_time_pass().await;
    let time = chrono::Utc::now();
    rig.let_time_pass().await;
    open.commit().await?;
    other.until(&published, 100).await?;
    let mut reader =
        rig.reader_of(Subscription::new("from-a-time").start(Start::Time(time))).await?;
    let rows = ids(&reader.until(&published, 100).await?);
    assert!(published.iter().all(|id| rows.contains(id)));
    Ok(())
}

/// Every lane of a new subscription stands at its start.
pub async fn a_new_subscription_has_a_cursor_for_every_lane(rig: &Rig) -> Result<()> {
    let reader = rig.migrated().await?.reader("all").await?;
    assert_eq!(reader.recorded.len(), usize::from(LANES));
    assert_eq!(reader.position, Position::default(), "the beginning is the same on every store");
    Ok(())
}

/// A look at the log sees what committed, in order, and delivers nothing.
pub async fn a_peek_shows_what_committed_and_delivers_nothing(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let published = rig.commit(some_events(5)).await?;
    let mut open = rig.begin().await?;
    open.publish(some_events(1)).await?;
    let all = rig.operate.peek(0, 100).await?;
    assert_eq!(all.iter().map(|(_, event)| event.id).collect::<Vec<_>>(), published);
    let after = all[2].0;
    let two = rig.operate.peek(after, 1).await?;
    assert_eq!(two.iter().map(|(_, event)| event.id).collect::<Vec<_>>(), published[3..4]);
    open.roll_back().await?;
    let mut reader = rig.reader("all").await?;
    assert_eq!(ids(&reader.until(&published, 100).await?), published);
    Ok(())
}

/// A commit rings.
pub async fn a_commit_rings_the_doorbell(rig: &Rig) -> Result<()> {
    let Some(mut bell) = rig.migrated().await?.store.doorbell() else {
        panic!("a store that declares a doorbell has one")
    };
    // The bell may first have to be hung up.
    eventually("the first ring", async || {
        rig.commit_one(numbered("k", 1)).await.ok()?;
        tokio::time::timeout(Duration::from_millis(200), bell.changed()).await.ok()?.ok()
    })
    .await;
    for n in 0..5 {
        bell.mark_unchanged();
        rig.commit_one(numbered("k", n)).await?;
        let rung = tokio::time::timeout(PATIENCE, bell.changed()).await;
        assert!(rung.is_ok(), "commit {n} rang no bell");
    }
    Ok(())
}

/// Migrating what is migrated applies nothing.
pub async fn migrating_twice_applies_nothing_the_second_time(rig: &Rig) -> Result<()> {
    rig.operate.migrate().await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    assert!(rig.operate.migrate().await?.is_empty());
    assert_eq!(ids(&rig.reader("all").await?.until(&[id], 10).await?), [id]);
    Ok(())
}

/// Several processes that start at once migrate once.
pub async fn processes_that_start_at_once_migrate_once(rig: &Rig) -> Result<()> {
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (_, operate) = rig.under_test.another().await?;
        tasks.push(tokio::spawn(async move { operate.migrate().await }));
    }
    let mut applied: Vec<String> = Vec::new();
    for task in tasks {
        applied.extend(task.await.unwrap_or_else(|error| panic!("a migration panicked: {error}"))?);
    }
    let once: BTreeSet<&String> = applied.iter().collect();
    assert_eq!(once.len(), applied.len(), "each migration was applied by one of them: {applied:?}");
    let id = rig.commit_one(numbered("k", 1)).await?;
    assert_eq!(ids(&rig.reader("all").await?.until(&[id], 10).await?), [id]);
    Ok(())
}

/// A second process sees the same log.
pub async fn another_process_reads_the_same_log(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let published = rig.commit(some_events(3)).await?;
    reader.until(&published, 100).await?;
    let (store, operate) = rig.under_test.another().await?;
    store.probe().await?;
    let request = PageRequest {
        position: Position::default(),
        lanes: (0..LANES).collect(),
        max_rows: 100,
        max_bytes: 1 << 30,
    };
    assert_eq!(ids(&store.read_page(&request).await?.rows), published);
    assert_eq!(operate.status().await?.subscriptions.len(), 1);
    Ok(())
}

/// A probe says what it found.
pub async fn a_probe_names_the_server_and_the_schema(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let probe = rig.store.probe().await?;
    assert!(!probe.server.is_empty() && !probe.waking.is_empty() && probe.schema > 0, "{probe:?}");
    Ok(())
}
