//! The verdict: what happened, held against what was committed.

use crate::journal::{Committed, Truth};
use crate::story::Fate;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use uuid::Uuid;

/// One effect, with the identity of the attempt that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its place among all effects.
    pub at: i64,
    /// The event.
    pub id: Uuid,
    /// The event's key.
    pub key: String,
    /// The event whose handler published it, if a handler did.
    pub cause: Option<Uuid>,
    /// Which process, which attempt.
    pub attempt: String,
}

/// What an effect may be: in our own transaction once, elsewhere at least once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Exactly once, and handlers publish followers.
    Once,
    /// At least once; first copies in order.
    AtLeastOnce,
}

/// What was found. Every list is empty if the promises held.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// Events committed by writers.
    pub committed: usize,
    /// Effects seen, followers included.
    pub effects: usize,
    /// Copies beyond the first, where copies are allowed.
    pub copies: usize,
    /// Dead letters seen.
    pub dead: usize,
    /// Committed, and neither an effect nor a dead letter.
    pub missing: Vec<(Uuid, String)>,
    /// More than one effect.
    pub twice: Vec<String>,
    /// An effect without a commit.
    pub ghosts: Vec<String>,
    /// An effect that came after one it should have come before.
    pub out_of_order: Vec<String>,
    /// Dead letters that should not be, or events that should be dead letters and are not.
    pub dead_wrong: Vec<String>,
}

impl Verdict {
    /// Did every promise hold?
    pub fn is_clean(&self) -> bool {
        self.missing.is_empty()
            && self.twice.is_empty()
            && self.ghosts.is_empty()
            && self.out_of_order.is_empty()
            && self.dead_wrong.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} committed, {} effects, {} dead letters, {} copies; {} lost, {} twice, {} ghosts, {} out of order, {} dead letters wrong",
            self.committed,
            self.effects,
            self.dead,
            self.copies,
            self.missing.len(),
            self.twice.len(),
            self.ghosts.len(),
            self.out_of_order.len(),
            self.dead_wrong.len()
        )?;
        let missing = self.missing.iter().map(|(id, what)| format!("lost {id}: {what}"));
        let rest = [&self.twice, &self.ghosts, &self.out_of_order, &self.dead_wrong];
        for line in
            missing.take(10).chain(rest.iter().flat_map(|list| list.iter().take(10).cloned()))
        {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

/// Holds effects (in their order) and dead letters against the truth. Drain first: what is still under way is missing.
pub fn check(truth: &Truth, applied: &[Applied], dead: &[Uuid], promise: Promise) -> Verdict {
    let firsts = first_effects(applied);
    let mut verdict = Verdict {
        committed: truth.committed.len(),
        effects: applied.len(),
        dead: dead.len(),
        ..Verdict::default()
    };
    missing(truth, &firsts, dead, &mut verdict);
    repeated(applied, promise, &mut verdict);
    ghosts(truth, applied, &firsts, &mut verdict);
    order(truth, applied, &mut verdict);
    dead_letters(truth, &firsts, dead, &mut verdict);
    if promise == Promise::Once {
        followers(truth, applied, &firsts, &mut verdict);
    }
    verdict
}

fn first_effects(applied: &[Applied]) -> HashMap<Uuid, &Applied> {
    let mut firsts = HashMap::new();
    for effect in applied {
        firsts.entry(effect.id).or_insert(effect);
    }
    firsts
}

fn missing(truth: &Truth, firsts: &HashMap<Uuid, &Applied>, dead: &[Uuid], verdict: &mut Verdict) {
    let dead: HashSet<&Uuid> = dead.iter().collect();
    for (id, committed) in &truth.committed {
        if !firsts.contains_key(id) && !dead.contains(id) {
            let event = &committed.event;
            let what = format!("key {} version {} place {}", event.key, event.version, event.place);
            verdict.missing.push((*id, what));
        }
    }
}

fn repeated(applied: &[Applied], promise: Promise, verdict: &mut Verdict) {
    let mut attempts: BTreeMap<Uuid, Vec<&str>> = BTreeMap::new();
    for effect in applied {
        attempts.entry(effect.id).or_default().push(&effect.attempt);
    }
    for (id, attempts) in attempts.into_iter().filter(|(_, attempts)| attempts.len() > 1) {
        verdict.copies += attempts.len() - 1;
        if promise == Promise::Once {
            verdict.twice.push(format!("twice {id}: by {}", attempts.join(" and ")));
        }
    }
}

fn ghosts(
    truth: &Truth,
    applied: &[Applied],
    firsts: &HashMap<Uuid, &Applied>,
    verdict: &mut Verdict,
) {
    let known = |effect: &Applied| match effect.cause {
        None => truth.committed.contains_key(&effect.id),
        // A follower exists by the effect of its cause.
        Some(cause) => firsts.contains_key(&cause),
    };
    for effect in applied.iter().filter(|effect| !known(effect)) {
        let why = if truth.undone.contains(&effect.id) { "rolled back" } else { "never published" };
        verdict.ghosts.push(format!(
            "ghost {} of key {}: {why}; by {}",
            effect.id, effect.key, effect.attempt
        ));
    }
}

/// How far a key has come, from the first effects seen so far.
#[derive(Default)]
struct Progress {
    /// The highest place of an event whose key was locked before it was published.
    locked: (i64, u32),
    /// The latest moment at which the publication of any of them began.
    begun_ns: u64,
    /// The highest place of each version (a transaction) seen.
    places: HashMap<i64, u32>,
}

impl Progress {
    /// Why this event should have come earlier.
    fn overtaken(&self, committed: &Committed) -> Option<&'static str> {
        let event = &committed.event;
        if (event.version, event.place) < self.locked {
            return Some("a later version of its key, published under the key's lock, came first");
        }
        if committed.confirmed_ns.is_some_and(|confirmed| confirmed < self.begun_ns) {
            return Some("an event published after its commit came first");
        }
        if self.places.get(&event.version).is_some_and(|place| event.place < *place) {
            return Some("a later event of its own transaction came first");
        }
        None
    }

    fn pass(&mut self, committed: &Committed) {
        let event = &committed.event;
        self.begun_ns = self.begun_ns.max(event.begun_ns);
        if event.locked {
            self.locked = self.locked.max((event.version, event.place));
        }
        let place = self.places.entry(event.version).or_default();
        *place = (*place).max(event.place);
    }
}

fn order(truth: &Truth, applied: &[Applied], verdict: &mut Verdict) {
    let mut seen = HashSet::new();
    let mut keys: HashMap<&str, Progress> = HashMap::new();
    for effect in applied.iter().filter(|effect| effect.cause.is_none()) {
        let Some(committed) = truth.committed.get(&effect.id).filter(|_| seen.insert(effect.id))
        else {
            continue;
        };
        let progress = keys.entry(&committed.event.key).or_default();
        if let Some(why) = progress.overtaken(committed) {
            let event = &committed.event;
            verdict.out_of_order.push(format!(
                "out of order {} of key {} version {} place {}: {why}; by {}",
                event.id, event.key, event.version, event.place, effect.attempt
            ));
        }
        progress.pass(committed);
    }
}

fn dead_letters(
    truth: &Truth,
    firsts: &HashMap<Uuid, &Applied>,
    dead: &[Uuid],
    verdict: &mut Verdict,
) {
    let mut seen = HashSet::new();
    for id in dead {
        let fate = truth.committed.get(id).map(|committed| committed.event.fate);
        if fate != Some(Fate::Poison) {
            verdict.dead_wrong.push(format!("dead letter {id} should not be one ({fate:?})"));
        } else if !seen.insert(id) {
            verdict.dead_wrong.push(format!("dead letter {id} is there twice"));
        }
    }
    let poison =
        truth.committed.iter().filter(|(_, committed)| committed.event.fate == Fate::Poison);
    for (id, _) in poison.filter(|(id, _)| firsts.contains_key(id)) {
        verdict.dead_wrong.push(format!("{id} had an effect and should be a dead letter"));
    }
}

/// Every effect of a chain event has exactly one follower, and followers of a key come in the order of their causes.
fn followers(
    truth: &Truth,
    applied: &[Applied],
    firsts: &HashMap<Uuid, &Applied>,
    verdict: &mut Verdict,
) {
    let mut of_cause: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    let mut last: HashMap<&str, i64> = HashMap::new();
    for effect in applied {
        let Some(cause) = effect.cause else { continue };
        of_cause.entry(cause).or_default().push(effect.id);
        let Some(caused_at) = firsts.get(&cause).map(|first| first.at) else { continue };
        let last = last.entry(&effect.key).or_insert(caused_at);
        if caused_at < *last {
            verdict.out_of_order.push(format!("out of order: follower {} of {cause}", effect.id));
        }
        *last = (*last).max(caused_at);
    }
    for (id, committed) in &truth.committed {
        if committed.event.fate != Fate::Chain || !firsts.contains_key(id) {
            continue;
        }
        let followers = of_cause.get(id).map_or(&[][..], Vec::as_slice);
        let distinct: HashSet<&Uuid> = followers.iter().collect();
        match distinct.len() {
            0 => verdict.missing.push((*id, "its follower".into())),
            1 => {}
            _ => verdict.twice.push(format!("twice: {id} has followers {followers:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Published;

    fn committed(id: u128, fate: Fate, version: i64, locked: bool, times: (u64, u64)) -> Committed {
        let event = Published {
            id: Uuid::from_u128(id),
            key: "k".into(),
            fate,
            version,
            place: 0,
            locked,
            begun_ns: times.0,
        };
        Committed { event, confirmed_ns: Some(times.1) }
    }

    /// Three plain events of one key, a chain, a poisoned one; times as in a system at rest.
    fn truth() -> Truth {
        let fates = [Fate::Plain, Fate::Plain, Fate::Plain, Fate::Chain, Fate::Poison];
        let events = fates.into_iter().enumerate().map(|(index, fate)| {
            let n = index as u64 + 1;
            committed(u128::from(n), fate, n as i64, true, (n * 10, n * 10 + 5))
        });
        let committed = events.map(|committed| (committed.event.id, committed)).collect();
        Truth { committed, undone: HashSet::from([Uuid::from_u128(66)]), unknown_commits: 0 }
    }

    fn applied(ids: &[(u128, Option<u128>)]) -> Vec<Applied> {
        let effect = |(at, (id, cause)): (usize, &(u128, Option<u128>))| Applied {
            at: at as i64,
            id: Uuid::from_u128(*id),
            key: "k".into(),
            cause: cause.map(Uuid::from_u128),
            attempt: format!("worker-1/{at}"),
        };
        ids.iter().enumerate().map(effect).collect()
    }

    const ALL: [(u128, Option<u128>); 5] =
        [(1, None), (2, None), (3, None), (4, None), (44, Some(4))];

    fn verdict(ids: &[(u128, Option<u128>)], dead: &[u128]) -> Verdict {
        let dead: Vec<Uuid> = dead.iter().copied().map(Uuid::from_u128).collect();
        check(&truth(), &applied(ids), &dead, Promise::Once)
    }

    #[test]
    fn a_run_that_kept_every_promise_is_clean() {
        let verdict = verdict(&ALL, &[5]);
        assert!(verdict.is_clean(), "{verdict}");
    }

    #[test]
    fn an_event_without_effect_is_lost() {
        let verdict = verdict(&[ALL[0], ALL[2], ALL[3], ALL[4]], &[5]);
        assert_eq!(verdict.missing.len(), 1);
    }

    #[test]
    fn an_event_with_two_effects_is_seen_with_both_attempts() {
        let verdict = verdict(&[ALL[0], ALL[0], ALL[1], ALL[2], ALL[3], ALL[4]], &[5]);
        assert!(verdict.twice[0].contains("worker-1/0 and worker-1/1"), "{verdict}");
    }

    #[test]
    fn an_effect_of_something_rolled_back_or_unheard_of_is_a_ghost() {
        let mut ids = ALL.to_vec();
        ids.extend([(66, None), (67, None), (68, Some(99))]);
        assert_eq!(verdict(&ids, &[5]).ghosts.len(), 3);
    }

    #[test]
    fn an_event_that_overtakes_its_key_is_out_of_order() {
        let verdict = verdict(&[ALL[1], ALL[0], ALL[2], ALL[3], ALL[4]], &[5]);
        assert_eq!(verdict.out_of_order.len(), 1, "{verdict}");
    }

    #[test]
    fn truly_concurrent_publishers_may_come_in_any_order() {
        let both = |second_begins: u64| {
            let one = committed(1, Fate::Plain, 1, false, (10, 30));
            let two = committed(2, Fate::Plain, 2, false, (second_begins, 40));
            let committed = [one, two].into_iter().map(|c| (c.event.id, c)).collect();
            let truth = Truth { committed, ..Truth::default() };
            check(&truth, &applied(&[(2, None), (1, None)]), &[], Promise::Once)
        };
        assert!(both(20).is_clean());
        assert_eq!(both(31).out_of_order.len(), 1);
    }

    #[test]
    fn dead_letters_are_exactly_the_poisoned_events() {
        assert_eq!(verdict(&ALL, &[]).missing.len(), 1);
        assert_eq!(verdict(&ALL, &[5, 5]).dead_wrong.len(), 1);
        assert_eq!(verdict(&ALL, &[5, 1]).dead_wrong.len(), 1);
        let mut ids = ALL.to_vec();
        ids.push((5, None));
        assert_eq!(verdict(&ids, &[5]).dead_wrong.len(), 1);
    }

    #[test]
    fn a_follower_is_published_once_and_not_forgotten() {
        assert_eq!(verdict(&ALL[..4], &[5]).missing.len(), 1);
        let mut ids = ALL.to_vec();
        ids.push((45, Some(4)));
        assert_eq!(verdict(&ids, &[5]).twice.len(), 1);
    }

    #[test]
    fn copies_are_counted_where_they_are_allowed() {
        let dead = [Uuid::from_u128(5)];
        let ids = [ALL[0], ALL[1], ALL[0], ALL[2], ALL[3]];
        let verdict = check(&truth(), &applied(&ids), &dead, Promise::AtLeastOnce);
        assert!(verdict.is_clean(), "{verdict}");
        assert_eq!(verdict.copies, 1);
    }
}
