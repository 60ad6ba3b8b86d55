//! What takes its time and goes wrong in no other way: answers that come late, turns that come late, a call that hangs.
//!
//! All of it is drawn apart from the rest: seeds without it are the runs that they were.

use super::chaos::Fate;
use super::options::{MS, Micros};
use super::sim::{Event, Owner, Sim, TaskId};
use relevo_core::clock::Rng;
use relevo_core::outbox::{LaneId, Token};
use relevo_stores::memory::TxId;

/// What is late in a run.
pub(super) struct Lateness {
    rng: Rng,
    /// The last of the answers that are late comes now.
    until: Micros,
    hung: Option<Hung>,
}

/// How late an answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    By(Micros),
    /// When everything else is at rest.
    Hangs,
}

/// A call that is carried out and not answered.
#[derive(Debug, Clone)]
struct Hung {
    task: TaskId,
    process: usize,
    lane: LaneId,
    token: Token,
}

impl Lateness {
    pub(super) fn of(seed: u64) -> Self {
        Self { rng: Rng::seeded(seed ^ 0x1A7E_A450_E25C_A11D), until: 0, hung: None }
    }

    /// Is an answer still on its way, or does one never come?
    pub(super) fn is_awaited(&self, now: Micros) -> bool {
        self.until > now || self.hung.is_some()
    }
}

fn strikes(sim: &mut Sim, rate: u64) -> bool {
    sim.world.storm && rate > 0 && sim.late.rng.below(1_000) < rate
}

/// What else becomes of a statement that would go its way.
pub(super) fn fate(sim: &mut Sim, id: TaskId) -> Fate {
    let options = sim.world.options.clone();
    let Some(task) = sim.tasks.get(&id) else { return Fate::Goes };
    let hands_over = task.call.as_ref().is_some_and(|call| call.about.is_some());
    if hands_over && options.hangs && may_hang(sim, id) && strikes(sim, 50) {
        return Fate::Hangs;
    }
    let late = hands_over || !options.is_calm();
    match late && strikes(sim, options.rates.answer_late) {
        true => Fate::AnsweredLate,
        false => Fate::Goes,
    }
}

/// How late the answer comes: up to three leases, as with the production's patience and its lease.
pub(super) fn how_late(sim: &mut Sim) -> Late {
    let lease = sim.world.options.lease.as_micros() as u64;
    Late::By(sim.late.rng.below(3 * lease))
}

/// A batch's task gets its turn after so long.
pub(super) fn turn(sim: &mut Sim, process: usize) -> Option<Micros> {
    let options = sim.world.options.clone();
    if !strikes(sim, options.rates.turn_late) {
        return None;
    }
    let state = sim.world.state();
    sim.world.seen.fault("turn late", "hand over", state);
    let delay = sim.late.rng.below(2 * options.lease.as_micros() as u64);
    let ms = delay / MS;
    sim.world
        .trace
        .line(sim.world.now, format_args!("FAULT      a batch of p{process} waits for {ms} ms"));
    Some(delay)
}

/// The answer to what was just carried out comes so late, or never: the server ends the process's sessions that idle
/// meanwhile.
pub(super) fn answers(sim: &mut Sim, owner: Owner, late: Late) {
    if let Late::By(late) = late {
        sim.late.until = sim.late.until.max(sim.world.now + late);
    }
    let Some((process, _)) = owner.process() else { return };
    let mine = sim.world.sessions.iter().filter(|(_, session)| session.process == Some(process));
    let sessions: Vec<(TxId, Micros)> =
        mine.map(|(tx, session)| (*tx, session.idle_limit)).collect();
    for (tx, limit) in sessions {
        sim.after(limit, Event::IdleSession(tx));
    }
}

/// One call hangs at a time, of a process that goes on: of whoever was asked to stop nothing is expected but an end. There
/// must be room for other batches beside it, and the destination must be up: a probe is one for all.
fn may_hang(sim: &Sim, id: TaskId) -> bool {
    let Some(task) = sim.tasks.get(&id) else { return false };
    let Owner::Unit { process, unit, .. } = task.owner else { return false };
    let config = &sim.world.options.subscriptions[unit].config;
    let process = &sim.processes[process];
    let now = process.clock(sim.world.now);
    let is_up = process.units.get(unit).is_some_and(|it| !it.relay.counts(now).breaker_open);
    let room = config.batches_at_once() > 1;
    sim.late.hung.is_none() && task.lane.is_some() && !process.stopping && is_up && room
}

/// The call of this task is carried out, and hangs.
pub(super) fn hangs(sim: &mut Sim, id: TaskId) {
    let Some(task) = sim.tasks.get(&id) else { return };
    let (Some((process, _)), Some((lane, token))) = (task.owner.process(), task.lane.clone())
    else {
        return;
    };
    sim.late.hung = Some(Hung { task: id, process, lane, token });
}

/// This task was answered after all: its connection is gone.
pub(super) fn is_refused(sim: &mut Sim, id: TaskId) {
    sim.late.hung.take_if(|hung| hung.task == id);
}

/// Does a call of this process hang?
pub(super) fn hangs_in(sim: &mut Sim, process: usize) -> bool {
    look(sim);
    sim.late.hung.as_ref().is_some_and(|hung| hung.process == process)
}

/// What has gone with its process hangs no longer.
fn look(sim: &mut Sim) {
    let tasks = &sim.tasks;
    sim.late.hung.take_if(|hung| !tasks.contains_key(&hung.task));
}

/// The subscriber and lane in which a call hangs.
pub(super) fn hung_lane(sim: &mut Sim) -> Option<(usize, u16)> {
    look(sim);
    let hung = sim.late.hung.as_ref()?;
    Some((sim.world.journal.subscriber(&hung.lane.subscription), hung.lane.lane))
}

/// The call that hung is answered at last.
pub(super) fn hangs_no_longer(sim: &mut Sim) {
    let Some(hung) = sim.late.hung.take() else { return };
    sim.world.trace.line(
        sim.world.now,
        format_args!("what hung in lane {} under {} is answered", hung.lane.lane, hung.token),
    );
    sim.late.until = sim.world.now + 100 * MS;
    sim.after(MS, Event::Reply(hung.task));
}
