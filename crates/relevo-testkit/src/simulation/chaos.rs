//! What goes wrong: statements lost and late, processes that die or stop, clocks that jump, servers that go.

use super::broker::LineId;
use super::call::goes_to_broker;
use super::intake::Inlet;
use super::late::{self, Late};
use super::options::{MS, Micros, Trouble};
use super::sim::{Event, Owner, Sim, TaskId};
use relevo_core::inbox::consume::intake;
use relevo_core::relay::Input;
use relevo_stores::memory::TxId;
use std::collections::BTreeMap;

/// What becomes of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Goes,
    RequestLost,
    ReplyLost,
    Late,
    Conflict,
    AnsweredLate,
    Hangs,
}

impl Fate {
    fn name(self) -> &'static str {
        match self {
            Self::Goes => "none",
            Self::RequestLost => "request lost",
            Self::ReplyLost => "reply lost",
            Self::Late => "carried out late",
            Self::Conflict => "conflict",
            Self::AnsweredLate => "answered late",
            Self::Hangs => "hangs",
        }
    }

    /// The client hears that its statement failed, or nothing.
    fn fails(self) -> bool {
        !matches!(self, Self::Goes | Self::AnsweredLate | Self::Hangs)
    }
}

fn fate(sim: &mut Sim, id: TaskId, in_transaction: bool) -> Fate {
    if !sim.world.storm {
        return Fate::Goes;
    }
    let rates = sim.world.options.rates.clone();
    let mut roll = sim.rng.below(1_000);
    let conflict = if in_transaction { rates.conflict } else { 0 };
    let table = [
        (rates.request_lost, Fate::RequestLost),
        (rates.reply_lost, Fate::ReplyLost),
        (rates.late, Fate::Late),
        (conflict, Fate::Conflict),
    ];
    for (rate, fate) in table {
        if roll < rate {
            return fate;
        }
        roll -= rate;
    }
    late::fate(sim, id)
}

/// A statement of a process or consumer sets out.
pub(super) fn send(sim: &mut Sim, id: TaskId) {
    let Some(call) = sim.tasks.get(&id).and_then(|task| task.call.as_ref()) else { return };
    let (name, tx, about) = (call.name, call.tx, call.about);
    if tx.is_some_and(|tx| sim.world.is_broken(tx)) || is_cut(sim, id) {
        return refuse(sim, id);
    }
    let fate = if name == super::call::NOTE { Fate::Goes } else { fate(sim, id, tx.is_some()) };
    if fate != Fate::Goes {
        let state = sim.world.state();
        sim.world.seen.fault(fate.name(), name, state);
        sim.world.trace.line(sim.world.now, format_args!("FAULT      {} at {name}", fate.name()));
    }
    if fate.fails() {
        if let Some((subscriber, event)) = about.filter(|_| fate != Fate::RequestLost) {
            sim.world.journal.failed(subscriber, event, false);
        }
        if let Some(tx) = tx.filter(|_| fate != Fate::Conflict) {
            sim.world.break_session(tx);
        }
    }
    match fate {
        Fate::Goes => sim.send(id),
        Fate::Conflict => conflict(sim, id, tx),
        Fate::ReplyLost => {
            note_unknown(sim, name, tx, true);
            with_call(sim, id, super::call::Call::lose_reply);
            sim.send(id);
        }
        Fate::RequestLost => {
            note_unknown(sim, name, tx, false);
            refuse(sim, id);
        }
        Fate::Late => {
            with_call(sim, id, super::call::Call::lose_reply);
            if let Some(call) = forget_call(sim, id) {
                let delay = sim.rng.below(1_500 * MS);
                sim.haunt(call, delay);
            }
            sim.answer(id, 10 * MS);
        }
        Fate::AnsweredLate => {
            let late = late::how_late(sim);
            sim.send_answered(id, late);
        }
        Fate::Hangs => {
            late::hangs(sim, id);
            sim.send_answered(id, Late::Hangs);
        }
    }
}

/// Did the server restart since this task's last statement? It finds out once, then has a new connection.
pub(super) fn is_cut(sim: &mut Sim, id: TaskId) -> bool {
    let Some(task) = sim.tasks.get_mut(&id) else { return false };
    let database = task
        .call
        .as_ref()
        .is_some_and(|call| !goes_to_broker(call.name) && call.name != super::call::NOTE);
    database && std::mem::take(&mut task.cut)
}

/// The connection is gone: nothing is sent.
pub(super) fn refuse(sim: &mut Sim, id: TaskId) {
    with_call(sim, id, super::call::Call::lose_reply);
    if let Some((subscriber, event)) = forget_call(sim, id).and_then(|call| call.about) {
        sim.world.journal.failed(subscriber, event, false);
    }
    late::is_refused(sim, id);
    sim.answer(id, 0);
}

fn with_call(sim: &Sim, id: TaskId, act: impl Fn(&super::call::Call)) {
    if let Some(call) = sim.tasks.get(&id).and_then(|task| task.call.as_ref()) {
        act(call);
    }
}

fn forget_call(sim: &mut Sim, id: TaskId) -> Option<super::call::Call> {
    sim.tasks.get_mut(&id).and_then(|task| task.call.take())
}

/// The server ends the transaction's work so far: a deadlock, a serialization failure, a statement timeout.
fn conflict(sim: &mut Sim, id: TaskId, tx: Option<TxId>) {
    with_call(sim, id, super::call::Call::answer_conflict);
    forget_call(sim, id);
    if let Some(tx) = tx {
        sim.world.db.fail(tx);
        sim.world.journal.failed_in(tx);
    }
    sim.answer(id, 0);
}

/// The client will not know whether its commit happened; the world does.
fn note_unknown(sim: &mut Sim, name: &str, tx: Option<TxId>, applied: bool) {
    let Some(tx) = tx.filter(|_| name.starts_with("commit")) else { return };
    let lane = sim.world.journal.changes_of(tx).next().map(|change| change.lane.clone());
    if let Some(lane) = lane {
        sim.world.unknown.insert(lane, applied);
    }
}

/// A statement was carried out: the process may die right here, or stop for longer than its lease.
pub(super) fn executed(sim: &mut Sim, owner: Owner, name: &'static str) {
    if owner != Owner::Beside && name != super::call::NOTE {
        sim.world.seen.boundary(name);
    }
    if !sim.world.storm {
        return;
    }
    let rates = sim.world.options.rates.clone();
    let (dies, stops) = (sim.rng.below(1_000) < rates.crash, sim.rng.below(1_000) < rates.zombie);
    match owner.process() {
        Some((process, _)) if dies => crash(sim, process, name),
        Some((process, _)) if stops => pause(sim, process, name),
        _ => {}
    }
    let loses =
        LOSES.contains(&name) || name == "commit effect" && sim.world.options.hasty_handlers;
    if sim.world.options.has(Trouble::DatabaseCrash) && loses {
        crash_database_here(sim, name);
    }
}

/// What makes or reads something that the server has not flushed.
const LOSES: [&str; 7] = [
    "burn xid",
    "read snapshot",
    "read top",
    "find floor",
    "insert tick",
    "read window",
    "commit record",
];

/// The server dies with a tick half made, or one that somebody has read from, or a cursor that stands at it.
fn crash_database_here(sim: &mut Sim, name: &'static str) {
    let rate = sim.world.options.rates.database_crash;
    if sim.rng.below(1_000) < rate {
        database_crash(sim, name);
    }
}

fn note(sim: &mut Sim, kind: &'static str, boundary: &'static str) {
    let state = sim.world.state();
    sim.world.seen.fault(kind, boundary, state);
    sim.world.trace.line(sim.world.now, format_args!("FAULT      {kind} at {boundary}"));
}

/// The process is gone. What it had sent may still arrive; its sessions end when the server notices.
fn crash(sim: &mut Sim, number: usize, boundary: &'static str) {
    if !sim.processes[number].alive {
        return;
    }
    note(sim, "crash", boundary);
    if sim.processes[number].units.iter().any(|unit| unit.delivering > 0) {
        sim.world.seen.sometimes("a process died with work in flight");
    }
    if sim.processes[number].inlets.iter().any(|inlet| inlet.working > 0) {
        sim.world.seen.sometimes("a consumer died with messages in hand");
    }
    orphan_replays(sim, number);
    drop_tasks(sim, |owner| owner.is_process(number));
    sim.processes[number].end();
    end_sessions_of(sim, number);
    end_lines_of(sim, number);
    let delay = sim.rng.below(2 * sim.world.options.lease.as_micros() as u64);
    sim.after(delay, Event::Start(number));
}

/// Notes which dead letters the process was to put back, or had put back and not brought to an end yet.
fn orphan_replays(sim: &mut Sim, number: usize) {
    let process = &sim.processes[number];
    for (subscriber, unit) in process.units.iter().enumerate() {
        let lanes: BTreeMap<u16, i64> = unit.relay.owned().collect();
        let orphans = sim.world.replays_under_way(subscriber, &lanes);
        for event in orphans {
            if let Some(delivered) = sim.world.journal.delivered(subscriber, event) {
                delivered.replay_orphaned = true;
                sim.world.seen.sometimes("a process died while a replay was under way");
            }
        }
    }
}

fn end_sessions_of(sim: &mut Sim, number: usize) {
    let sessions = sim.world.sessions.iter().filter(|(_, session)| session.process == Some(number));
    let sessions: Vec<TxId> = sessions.map(|(tx, _)| *tx).collect();
    for tx in sessions {
        let delay = notice(sim);
        sim.after(delay, Event::EndSession(tx));
    }
}

fn end_lines_of(sim: &mut Sim, number: usize) {
    sim.mailbox.take_hung_up();
    for line in lines_of(sim, number) {
        let delay = notice(sim);
        sim.after(delay, Event::HangUp(line));
    }
}

fn lines_of(sim: &Sim, number: usize) -> Vec<LineId> {
    let lines = sim.world.broker.lines.iter().filter(|(_, line)| line.process == number);
    lines.map(|(line, _)| *line).collect()
}

/// When the server notices that a client is gone: at once, or when it next looks.
pub(super) fn notice(sim: &mut Sim) -> Micros {
    if sim.rng.below(4) == 0 { sim.rng.below(800 * MS) } else { sim.rng.below(5 * MS) }
}

fn drop_tasks(sim: &mut Sim, mine: impl Fn(Owner) -> bool) {
    let gone: Vec<TaskId> =
        sim.tasks.iter().filter(|(_, task)| mine(task.owner)).map(|(id, _)| *id).collect();
    for id in gone {
        let Some(mut task) = sim.tasks.remove(&id) else { continue };
        if let Some(call) = task.call.take().filter(|_| sim.rng.below(2) == 0) {
            let delay = sim.rng.below(20 * MS);
            sim.haunt(call, delay);
        }
    }
    // Their transactions are not rolled back by the client: the server has to notice.
    for tx in sim.mailbox.take_dropped() {
        let delay = notice(sim);
        sim.after(delay, Event::EndSession(tx));
    }
}

/// The process stops, its sessions idle, and it goes on later as if nothing had happened.
fn pause(sim: &mut Sim, number: usize, boundary: &'static str) {
    if !sim.processes[number].alive || sim.processes[number].is_paused(sim.world.now) {
        return;
    }
    note(sim, "pause", boundary);
    let lease = sim.world.options.lease.as_micros() as u64;
    let length = lease / 2 + sim.rng.below(2 * lease);
    sim.processes[number].paused_until = Some(sim.world.now + length);
    if length > lease {
        sim.world.zombies.insert(number);
    }
    let sessions = sim.world.sessions.iter().filter(|(_, session)| session.process == Some(number));
    let sessions: Vec<(TxId, Micros)> =
        sessions.map(|(tx, session)| (*tx, session.idle_limit)).collect();
    for (tx, limit) in sessions {
        sim.after(limit, Event::IdleSession(tx));
    }
    // It does not answer the broker's heart beats either.
    for line in lines_of(sim, number) {
        let patience = sim.rng.below(2 * lease);
        if patience < length {
            sim.after(patience, Event::HangUp(line));
        }
    }
}

/// Greater trouble.
pub(super) fn strike(sim: &mut Sim) {
    if !sim.world.storm {
        return;
    }
    let number = sim.rng.below(sim.processes.len() as u64) as usize;
    let options = sim.world.options.clone();
    let which = sim.rng.below(options.troubles.len() as u64) as usize;
    match options.troubles[which] {
        Trouble::Crash => crash(sim, number, "anywhere"),
        Trouble::Pause => pause(sim, number, "anywhere"),
        Trouble::Stop => stop(sim, number),
        Trouble::BrokerDown => broker_down(sim),
        Trouble::LineCut => cut_line(sim),
        Trouble::SessionCut => cut_session(sim),
        Trouble::ClockJump => jump(sim, number),
        Trouble::DatabaseCrash => database_crash(sim, "anywhere"),
        Trouble::DatabaseMove => database_move(sim),
    }
    let every = sim.world.options.chaos_every;
    let delay = every / 2 + sim.rng.below(every);
    sim.after(delay, Event::Chaos);
}

/// The process is asked to stop: it ends what is under way, gives its lanes back, and starts again.
fn stop(sim: &mut Sim, number: usize) {
    let gone = !sim.processes[number].alive || sim.processes[number].is_paused(sim.world.now);
    if gone || late::hangs_in(sim, number) {
        return;
    }
    note(sim, "stop", "anywhere");
    sim.processes[number].stopping = true;
    for unit in 0..sim.processes[number].units.len() {
        sim.input(number, unit, Input::Stop);
    }
    for inlet in 0..sim.processes[number].inlets.len() {
        sim.tell_intake((number, inlet), intake::Input::Stop);
    }
}

/// A process that was asked to stop ends when all its machines have finished.
pub(super) fn end_if_finished(sim: &mut Sim, number: usize) {
    let process = &mut sim.processes[number];
    let finished = process.stopping
        && process.units.iter().all(|unit| unit.relay.is_finished())
        && process.inlets.iter().all(Inlet::is_finished);
    if !finished {
        return;
    }
    process.end();
    sim.world.seen.sometimes("a process stopped in good order");
    sim.world.trace.line(sim.world.now, format_args!("process {number} has stopped"));
    drop_tasks(sim, |owner| owner.is_process(number));
    let delay = sim.rng.below(sim.world.options.lease.as_micros() as u64);
    sim.after(delay, Event::Start(number));
}

fn broker_down(sim: &mut Sim) {
    note(sim, "broker down", "anywhere");
    sim.world.broker_goes_down();
    let delay = sim.rng.below(1_500 * MS);
    sim.after(delay, Event::BrokerUp);
}

fn jump(sim: &mut Sim, number: usize) {
    note(sim, "clock jump", "anywhere");
    let far = sim.rng.below(5_000 * MS);
    match sim.rng.below(3) {
        // A suspended machine: its monotonic clock may leap ahead, never back.
        0 => sim.processes[number].clock_ahead += far,
        1 => sim.world.clock_skew += far as i64,
        _ => sim.world.clock_skew -= (far / 4) as i64,
    }
}

fn database_crash(sim: &mut Sim, boundary: &'static str) {
    note(sim, "database crash", boundary);
    if !sim.world.sessions.is_empty() {
        sim.world.seen.sometimes("the database died with transactions open");
    }
    sim.world.database_crash();
    cut_connections(sim);
}

fn database_move(sim: &mut Sim) {
    note(sim, "database moved", "anywhere");
    sim.world.database_move();
    cut_connections(sim);
}

/// Nothing that was on its way reaches the server, and whoever had a connection has none.
fn cut_connections(sim: &mut Sim) {
    sim.lay_ghosts();
    for task in sim.tasks.values_mut().filter(|task| task.owner != Owner::Beside) {
        task.cut = !mutant!(TickAcrossRestart);
    }
}

/// The broker ends one consumer's connection. The consumer finds out when it next asks, and works on meanwhile.
fn cut_line(sim: &mut Sim) {
    let lines: Vec<LineId> = sim.world.broker.lines.keys().copied().collect();
    if let Some(line) = lines.get(sim.rng.below(lines.len().max(1) as u64) as usize) {
        note(sim, "connection to the broker cut", "anywhere");
        sim.world.hang_up(*line);
    }
}

/// The server ends one session: an administrator, a failed connection.
fn cut_session(sim: &mut Sim) {
    let open: Vec<TxId> = sim.world.sessions.keys().copied().collect();
    if let Some(tx) = open.get(sim.rng.below(open.len().max(1) as u64) as usize) {
        note(sim, "session cut", "anywhere");
        sim.world.rollback(*tx);
    }
}

/// Faults stop: whoever is down comes up, whoever stopped goes on, whatever is paused is resumed.
pub(super) fn end(sim: &mut Sim) {
    sim.world.storm = false;
    sim.world.broker.down = false;
    sim.world.trace.line(sim.world.now, format_args!("the storm ends"));
    for number in 0..sim.processes.len() {
        sim.after(MS, Event::Start(number));
    }
    let options = sim.world.options.clone();
    for subscription in &options.subscriptions {
        // An operator's pause may still be on its way to its end; resuming twice is harmless.
        drop(sim.world.db.resume(subscription.name));
    }
}
