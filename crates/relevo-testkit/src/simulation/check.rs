//! The checks: some while it runs, the rest when all is at rest.

use super::counters::{Counters, DIED, RETRIED, SKIPPED};
use super::invariant::Invariant;
use super::journal::{Delivered, End, Journal, Published};
use super::judge::wants;
use super::late;
use super::options::{Micros, SECOND};
use super::process::Unit;
use super::sim::{Owner, Sim};
use super::world::World;
use relevo_core::clock::Instant;
use relevo_core::dead_letters::DeadState;
use relevo_core::event::{Event, EventId, lane_of};
use relevo_core::relay::{Action, Batch, Counts, RelayConfig};
use relevo_stores::memory::DeadRow;
use std::collections::{BTreeMap, BTreeSet};

/// After the faults stopped all must be at rest within this time: thirty seconds, and what the longest pauses of
/// breaker and retry add to it.
pub(super) const RECOVERY: Micros = 65 * SECOND;

/// Lanes in step are read together: one page for those in front and one for stragglers, however many lanes there are.
const PAGES_AT_ONCE: usize = 2;

/// No payload in the log of a run has more bytes.
const LARGEST: usize = 16;

/// What a machine may hold and do.
pub(super) fn machine(sim: &mut Sim, number: usize, unit: usize, actions: &[Action]) {
    if actions.is_empty() {
        return;
    }
    let options = sim.world.options.clone();
    let config = &options.subscriptions[unit].config;
    let process = &sim.processes[number];
    let now = process.clock(sim.world.now);
    let at = &process.units[unit];
    let counts = at.relay.counts(now);
    let hands_over = actions.iter().any(|action| matches!(action, Action::Deliver(_)));
    let current = is_current(at, now, config);
    let broken = too_much_in_memory(&counts, config)
        .or_else(|| too_much_at_once(at, actions, config))
        .or_else(|| too_large(actions, config))
        .map(|text| (Invariant::Bounded, text))
        .or_else(|| {
            let text = format!("process {number} hands over though its lease may have ended");
            (hands_over && !current).then_some((Invariant::Fencing, text))
        });
    if counts.stopped > 0 {
        sim.world.seen.sometimes("a lane with too many parked keys stopped");
    }
    if let Some((invariant, text)) = broken {
        sim.world.journal.broken(invariant, text);
    }
}

/// Was the last sign of life sent so lately that nobody else may have the lanes?
fn is_current(at: &Unit, now: Instant, config: &RelayConfig) -> bool {
    at.last_good.is_some_and(|sent| now.since(sent) < config.lease)
}

/// A wave sets out for the broker: its lane must not be another's by now.
pub(super) fn wave(sim: &mut Sim, owner: Owner) {
    let Owner::Unit { process: number, unit, .. } = owner else { return };
    let process = &sim.processes[number];
    let now = process.clock(sim.world.now);
    let config = &sim.world.options.subscriptions[unit].config;
    if process.units.get(unit).is_some_and(|at| !is_current(at, now, config)) {
        let text = format!("process {number} sends a wave though its lease may have ended");
        sim.world.journal.broken(Invariant::Fencing, text);
    }
}

/// Pages are read while batches are under way, and what the destination did not take comes back.
fn too_much_in_memory(counts: &Counts, config: &RelayConfig) -> Option<String> {
    let most = counts.lanes * config.lane_queue.div_ceil(2)
        + 2 * config.page_rows
        + config.batches_at_once() * config.batch;
    // Beside slow lanes those with nothing to do are read for, a batch's share of a page at a time.
    let page = config.page_bytes + LARGEST;
    let most_bytes = config.queue_bytes
        + (2 * PAGES_AT_ONCE + 1) * page
        + config.batches_at_once() * (config.batch_bytes.max(LARGEST) + LARGEST);
    if counts.queued > most {
        Some(format!("{} events in memory, {most} at most", counts.queued))
    } else if counts.queued_bytes > most_bytes {
        Some(format!("{} bytes in memory, {most_bytes} at most", counts.queued_bytes))
    } else if counts.queued_stopped > 0 {
        Some(format!("{} events in memory of lanes that stopped", counts.queued_stopped))
    } else {
        None
    }
}

fn too_much_at_once(at: &Unit, actions: &[Action], config: &RelayConfig) -> Option<String> {
    let deliveries = actions.iter().filter(|action| matches!(action, Action::Deliver(_))).count();
    let pages = actions.iter().filter(|action| matches!(action, Action::ReadPage { .. })).count();
    if at.delivering + deliveries > config.batches_at_once() {
        Some(format!("more than {} batches under way", config.batches_at_once()))
    } else if at.reading + pages > PAGES_AT_ONCE {
        let pages = at.reading + pages;
        Some(format!("{pages} pages are read at once, {PAGES_AT_ONCE} at most whatever the lanes"))
    } else {
        None
    }
}

fn too_large(actions: &[Action], config: &RelayConfig) -> Option<String> {
    let drained = 50;
    let sizes = actions.iter().map(|action| match action {
        Action::Deliver(batch) => batch.len(),
        _ => 0,
    });
    let biggest = sizes.max().unwrap_or(0);
    if biggest > config.batch.max(drained) {
        Some(format!("a batch of {biggest} events"))
    } else if actions.iter().any(|action| is_too_heavy(action, config)) {
        Some(format!("a batch of several events has more than {} bytes", config.batch_bytes))
    } else {
        None
    }
}

/// A large event goes alone; several have no more bytes together than a batch may have.
fn is_too_heavy(action: &Action, config: &RelayConfig) -> bool {
    let Action::Deliver(batch) = action else { return false };
    let bytes = |batch: &Batch| -> usize {
        (0..batch.len()).map(|index| batch.event(index).payload.len()).sum()
    };
    batch.len() > 1 && bytes(batch) > config.batch_bytes
}

/// Nothing is awaited, parked, asked for or under way.
pub(super) fn at_rest(sim: &Sim) -> bool {
    let world = &sim.world;
    let writers = sim.tasks.values().any(|task| task.owner == Owner::Beside);
    let parked =
        world.options.subscriptions.iter().any(|s| world.db.parked(s.name).next().is_some());
    let asked = world.db.requests().any(|(_, row)| !row.done && !row.cancelled);
    !writers
        && world.journal.open == 0
        && !parked
        && !asked
        && world.sessions.is_empty()
        && world.broker_idle()
}

/// Once the storm is over and everything else has come to an end, a call that hangs is answered, and a person archives what
/// holds a key. A call that hangs holds back its lane and no other; a held key its own events and no others, unless more
/// keys of its lane are held than the lane may have parked.
pub(super) fn help(sim: &mut Sim) {
    let hung = late::hung_lane(sim);
    let world = &mut sim.world;
    let held = held_keys(world);
    if held.is_empty() && hung.is_none() {
        return;
    }
    let stopped = stopped_lanes(world, &held);
    let waits = |subscriber: usize, key: &str| {
        let lane = (subscriber, lane_of(key));
        held.contains(&(subscriber, key)) || stopped.contains(&lane) || hung == Some(lane)
    };
    let beside = |(id, event): (&EventId, &Published)| {
        event.at.iter().enumerate().filter(|(_, delivered)| delivered.awaited).any(|(index, at)| {
            !keys_of(&world.journal, *id, event, at).iter().any(|key| waits(index, key))
        })
    };
    if world.journal.events.iter().any(beside) {
        if !held.is_empty() {
            world.seen.sometimes("other keys went on beside a key that is held");
        }
        return;
    }
    if hung.is_some() {
        world.seen.sometimes("everything else came to rest while a call hung");
        return late::hangs_no_longer(sim);
    }
    if world.archive_all().is_err() {
        world.journal.broken(Invariant::Recovery, "archiving dead letters failed".into());
    }
}

/// The keys under which it waits for a subscriber: its own, or, without one in a consumer's log, the ids it landed with.
fn keys_of(journal: &Journal, id: EventId, event: &Published, at: &Delivered) -> Vec<String> {
    if !at.landed || event.key != id.to_string() {
        return vec![event.key.clone()];
    }
    let landed = journal.originals.iter().filter(|(_, original)| **original == id);
    landed.map(|(landed, _)| landed.to_string()).collect()
}

fn held_keys(world: &World) -> BTreeSet<(usize, &str)> {
    let parked = world.options.subscriptions.iter().flat_map(|s| world.db.parked(s.name));
    let held = parked.filter(|(_, _, row)| row.due.is_none());
    held.map(|(lane, key, _)| (world.journal.subscriber(&lane.subscription), key)).collect()
}

/// Lanes of which more keys are held than may be parked: nobody but a person lets them go on.
fn stopped_lanes(world: &World, held: &BTreeSet<(usize, &str)>) -> BTreeSet<(usize, u16)> {
    let mut keys: BTreeMap<(usize, u16), usize> = BTreeMap::new();
    for (subscriber, key) in held {
        *keys.entry((*subscriber, lane_of(key))).or_default() += 1;
    }
    let most = |subscriber: usize| world.options.subscriptions[subscriber].config.max_parked_keys;
    keys.retain(|(subscriber, _), keys| *keys > most(*subscriber));
    keys.into_keys().collect()
}

/// It took too long: something is lost, or something is stuck.
pub(super) fn not_recovered(sim: &mut Sim) {
    let world = &mut sim.world;
    let awaited = world.journal.events.iter().find_map(|(id, event)| {
        let subscriber = event.at.iter().position(|delivered| delivered.awaited)?;
        Some((*id, subscriber, event.payload.clone(), event.at[subscriber].clone()))
    });
    let Some((id, subscriber, payload, delivered)) = awaited else {
        let text =
            format!("no rest: {} sessions open, parked {:?}", world.sessions.len(), parked(world));
        return world.journal.broken(Invariant::Recovery, text);
    };
    let why = world.db.why(id);
    let text = format!(
        "{:?} ({id}) never reached {}: {why:?}; {delivered:?}",
        String::from_utf8_lossy(&payload),
        world.journal.subscribers[subscriber].name
    );
    let skipped = delivered.skip_answers > 0;
    let told = format!("{why:?}");
    let gone = !["Waits", "Lane", "Parked"].iter().any(|stands| told.contains(stands));
    let invariant = match (skipped, gone) {
        (true, _) => Invariant::NoSilentSkip,
        (_, true) => Invariant::NoLoss,
        _ => Invariant::Recovery,
    };
    world.journal.broken(invariant, text);
}

fn parked(world: &World) -> Vec<String> {
    let all = world.options.subscriptions.iter().flat_map(|s| world.db.parked(s.name));
    all.map(|(lane, key, row)| format!("{}/{key}: {row:?}", lane.subscription)).collect()
}

/// The tables must say what the journal says, and so must the counters.
pub(super) fn at_the_end(world: &mut World, counters: &Counters, asleep: bool) {
    if world.journal.violation.is_some() {
        return;
    }
    let contradiction =
        find_contradiction(world).or_else(|| counters_differ(world, counters, asleep));
    if let Some((invariant, text)) = contradiction {
        world.journal.broken(invariant, text);
    }
    let deliveries = world.journal.events.values().flat_map(|event| &event.at);
    let (mut redone, mut brought_to_an_end) = (false, false);
    for at in deliveries {
        redone |= at.taken_back > 0 && at.end == End::Applied;
        brought_to_an_end |= at.replay_orphaned && at.replays > 0 && !at.awaited;
    }
    if redone {
        world.seen.sometimes("an effect that a crash had taken back was done again");
    }
    if world.journal.overtakers > 0 {
        world.seen.sometimes("an event overtook another of its key where order does not matter");
    }
    if brought_to_an_end {
        world.seen.sometimes("what a dead process had under way of a replay came to an end");
    }
}

fn find_contradiction(world: &World) -> Option<(Invariant, String)> {
    // Without a parked key nobody would ever try what waits behind it.
    let mut refs = world.options.subscriptions.iter().flat_map(|s| world.db.waiting(s.name));
    if let Some((key, row)) = refs.next() {
        let text = format!("{} waits behind {key}, which is not parked", row.id);
        return Some((Invariant::DeadLetters, text));
    }
    for (id, event) in &world.journal.events {
        for (index, subscriber) in world.journal.subscribers.iter().enumerate() {
            let delivered = &event.at[index];
            let expected = is_expected(world, index, event);
            if expected && !delivered.optional && delivered.end == End::None {
                return Some((
                    Invariant::NoLoss,
                    format!("{id} never reached {}", subscriber.name),
                ));
            }
            if let Some(found) = tables_differ(world, index, *id, event) {
                return Some(found);
            }
        }
    }
    None
}

/// Must the event have come to an end at this subscriber?
fn is_expected(world: &World, index: usize, event: &Published) -> bool {
    let (subscriber, delivered) = (&world.journal.subscribers[index], &event.at[index]);
    if event.only_for == Some(index) {
        // An edited copy is a dead letter until the lane's owner puts it back, and an operator may take it out before.
        return delivered.replays > 0;
    }
    match subscriber.behind {
        true => delivered.handed_on.is_some(),
        false => event.committed_at.is_some() && wants(subscriber, event, index),
    }
}

fn tables_differ(
    world: &World,
    index: usize,
    id: EventId,
    event: &Published,
) -> Option<(Invariant, String)> {
    let subscriber = &world.journal.subscribers[index];
    let delivered = &event.at[index];
    if subscriber.once {
        let rows = world
            .db
            .read("effects", &format!("{}/{id}", subscriber.name))
            .map_or(0, |bytes| bytes.len());
        if rows != delivered.applied as usize {
            let text = format!("{id} took effect {} times, its row says {rows}", delivered.applied);
            return Some((Invariant::EffectOnce, text));
        }
    }
    let skips = world.db.skips().iter().filter(|skip| {
        world.journal.original(skip.event) == id && *skip.lane.subscription == *subscriber.name
    });
    let skips = skips.count();
    if skips != delivered.skips as usize {
        return Some((
            Invariant::NoSilentSkip,
            format!("{id} was skipped {} times, noted {skips}", delivered.skips),
        ));
    }
    letters_differ(world, index, id, event).map(|text| (Invariant::DeadLetters, text))
}

/// Every death has its letter, byte for byte; an edited copy is one from the first. As many are put back as were, and the
/// others wait. A rewind changes nothing of that: what dies again has another letter.
fn letters_differ(world: &World, index: usize, id: EventId, event: &Published) -> Option<String> {
    let (subscriber, delivered) = (&world.journal.subscribers[index], &event.at[index]);
    let is_copy = event.only_for == Some(index);
    let letters = letters(world, index, id);
    if letters.len() != delivered.deaths as usize + usize::from(is_copy) {
        let (deaths, found) = (delivered.deaths, letters.len());
        let copy = if is_copy { ", an edited copy," } else { "" };
        return Some(format!("{id}{copy} died {deaths} times and has {found} dead letters"));
    }
    // What lands in a consumer's log says there where it came from.
    let same = |found: &Event| {
        found.payload == event.payload && (subscriber.behind || found.headers == event.headers)
    };
    if let Some(letter) = letters.iter().find(|letter| !same(&letter.event)) {
        return Some(format!("the dead letter of {id} has other bytes: {:?}", letter.event));
    }
    let count = |states: &[DeadState]| letters.iter().filter(|l| states.contains(&l.state)).count();
    let put_back = count(&[DeadState::Replayed]);
    let waiting = count(&[DeadState::Dead, DeadState::Archived]);
    if put_back != delivered.replays as usize || put_back + waiting != letters.len() {
        let (times, all) = (delivered.replays, letters.len());
        return Some(format!(
            "{id} was put back {times} times; of its {all} dead letters {put_back} say so, {waiting} wait"
        ));
    }
    // A copy that was on its way may reach a broker after its event was given up; what was dead before a rewind may
    // have had its effect since.
    let late = !subscriber.once && delivered.applied > 0 || delivered.rewinds > 0;
    let dead = delivered.end == End::Dead || is_copy && delivered.replays == 0;
    (waiting != usize::from(dead) && !late)
        .then(|| format!("{id} ended {:?} and {waiting} dead letters wait", delivered.end))
}

fn letters(world: &World, index: usize, id: EventId) -> Vec<&DeadRow> {
    let name = world.journal.subscribers[index].name;
    let mine = |row: &&DeadRow| {
        world.journal.original(row.event.id) == id && *row.lane.subscription == *name
    };
    world.db.dead().map(|(_, row)| row).filter(mine).collect()
}

/// Skips, deaths and retries raise a counter when their note is known to be committed: a process that died, sleeps, or never heard
/// of its commit, has counted less; nobody ever counts more.
fn counters_differ(
    world: &mut World,
    counters: &Counters,
    asleep: bool,
) -> Option<(Invariant, String)> {
    const UNHEARD: [&str; 3] = ["crash", "reply lost", "carried out late"];
    let unheard = UNHEARD.iter().any(|fault| world.seen.faults.contains_key(fault));
    let all_heard = !unheard && !asleep;
    let journal = &world.journal;
    for (index, subscriber) in journal.subscribers.iter().enumerate() {
        let name = subscriber.name;
        let noted = [
            (SKIPPED, journal.skipped[index]),
            (DIED, journal.died[index]),
            (RETRIED, journal.retried[index]),
        ];
        for (counter, noted) in noted {
            let counted = counters.counted(counter, name);
            if counted > noted || all_heard && counted < noted {
                let text = format!("{counter} of {name} is {counted}, and {noted} were noted");
                return Some((Invariant::NoSilentSkip, text));
            }
        }
    }
    if all_heard && journal.skipped.iter().any(|noted| *noted > 0) {
        world.seen.sometimes("all skips were counted by whoever noted them");
    }
    if all_heard && world.journal.died.iter().any(|noted| *noted > 0) {
        world.seen.sometimes("all dead letters were counted by whoever wrote them");
    }
    if all_heard && world.journal.retried.iter().any(|noted| *noted > 0) {
        world.seen.sometimes("all retries were counted by whoever noted them");
    }
    None
}
