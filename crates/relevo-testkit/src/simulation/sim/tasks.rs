//! Tasks: what waits for an answer of the simulated world, and what becomes of each call.

use super::super::broker::LineId;
use super::super::call::{self, Call, Ran, Wait};
use super::super::late::{self, Late};
use super::super::options::{MS, Micros};
use super::super::{chaos, check};
use super::{Answer, Event, Owner, Sim, Task, TaskId};
use relevo_core::outbox::{LaneId, Token};
use std::future::Future;
use std::task::{Context, Poll, Waker};

impl Sim {
    /// The id of the task that is spawned next.
    pub(in crate::simulation) fn next_id(&self) -> TaskId {
        self.next_task + 1
    }

    pub(in crate::simulation) fn spawn(
        &mut self,
        owner: Owner,
        lane: Option<(LaneId, Token)>,
        work: impl Future<Output = Option<Answer>> + Send + 'static,
    ) {
        self.next_task += 1;
        let id = self.next_task;
        let (call, late, work) = (None, None, Box::pin(work));
        self.tasks.insert(id, Task { owner, work, call, lane, late, late_by: 0, cut: false });
        self.poll(id);
    }

    /// Lets a task go on until it waits again, or ends.
    pub(super) fn poll(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let polled = task.work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(answer) => self.ended(id, answer),
            Poll::Pending => match self.mailbox.take() {
                Some(Wait::Sleep(time)) => self.after(time, Event::Reply(id)),
                Some(Wait::Call(call)) => self.called(id, call),
                // Only the doorbell waits for nothing, and nobody here waits for the doorbell.
                None => {}
            },
        }
    }

    pub(super) fn called(&mut self, id: TaskId, call: Call) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let name = call.name;
        (task.call, task.late) = (Some(call), None);
        let owner = task.owner;
        if name == call::WAVE {
            check::wave(self, owner);
        }
        if owner == Owner::Beside {
            let delay = self.latency();
            return self.after(delay, Event::Execute(id));
        }
        chaos::send(self, id);
    }

    /// The statement is on its way and will be carried out.
    pub(in crate::simulation) fn send(&mut self, id: TaskId) {
        let delay = self.latency();
        self.after(delay, Event::Execute(id));
    }

    /// The same, and the answer takes its time.
    pub(in crate::simulation) fn send_answered(&mut self, id: TaskId, late: Late) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.late = Some(late);
        }
        self.send(id);
    }

    /// The client hears (or gives up) after a while.
    pub(in crate::simulation) fn answer(&mut self, id: TaskId, more: Micros) {
        let delay = self.latency() + more;
        self.after(delay, Event::Reply(id));
    }

    /// A statement goes on without its client.
    pub(in crate::simulation) fn haunt(&mut self, call: Call, delay: Micros) {
        self.next_task += 1;
        self.ghosts.insert(self.next_task, call);
        self.after(delay, Event::Ghost(self.next_task));
    }

    /// What was on its way to the database does not survive the database.
    pub(in crate::simulation) fn lay_ghosts(&mut self) {
        self.ghosts.retain(|_, call| call::goes_to_broker(call.name) || mutant!(TickAcrossRestart));
    }

    pub(super) fn ghost(&mut self, id: u64) {
        let Some(mut call) = self.ghosts.remove(&id) else { return };
        let dead = call.tx.is_some_and(|tx| !self.world.db.is_open(tx));
        if dead {
            return;
        }
        self.world.trace.line(self.world.now, format_args!("ghost      {}", call.name));
        let ran = self.run_unheard(&mut call);
        if ran == Ran::Locked {
            return self.haunt(call, 5 * MS);
        }
        self.world.seen.sometimes("a statement was carried out after its client had given up");
    }

    /// Carries a statement out whose answer nobody hears: a session it opened ends when the server notices.
    pub(super) fn run_unheard(&mut self, call: &mut Call) -> Ran {
        let known = self.world.sessions.last_key_value().map(|(tx, _)| *tx);
        let known_line = self.newest_line();
        let ran = call.run(&mut self.world);
        let opened =
            self.world.sessions.last_key_value().map(|(tx, _)| *tx).filter(|tx| Some(*tx) > known);
        if let Some(tx) = opened {
            let delay = chaos::notice(self);
            self.after(delay, Event::EndSession(tx));
        }
        if let Some(line) = self.newest_line().filter(|line| Some(*line) > known_line) {
            let delay = chaos::notice(self);
            self.after(delay, Event::HangUp(line));
        }
        ran
    }

    pub(super) fn newest_line(&self) -> Option<LineId> {
        self.world.broker.lines.last_key_value().map(|(line, _)| *line)
    }

    pub(super) fn execute(&mut self, id: TaskId) {
        if chaos::is_cut(self, id) {
            return chaos::refuse(self, id);
        }
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let Some(mut call) = task.call.take() else { return };
        let ran =
            if call.is_lost() { self.run_unheard(&mut call) } else { call.run(&mut self.world) };
        self.world.seen.statements += 1;
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if ran == Ran::Locked {
            task.call = Some(call);
            let delay = 500 + self.latency();
            return self.after(delay, Event::Execute(id));
        }
        let (owner, name, late) = (task.owner, call.name, task.late.take());
        task.late_by = late.map_or(0, |late| if let Late::By(time) = late { time } else { 1 });
        self.world.seen.mix(self.world.now ^ id.rotate_left(40) ^ ran as u64);
        self.world.seen.mix_text(name);
        if self.world.trace.is_kept() {
            self.world.trace.line(self.world.now, format_args!("{:<10} {name}", who(owner)));
        }
        let delay = self.latency();
        match late {
            None => self.after(delay, Event::Reply(id)),
            Some(Late::By(more)) => self.after(delay + more, Event::Reply(id)),
            Some(Late::Hangs) => {}
        }
        if let Some(late) = late {
            late::answers(self, owner, late);
        }
        chaos::executed(self, owner, name);
    }

    pub(super) fn reply(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(&id) else { return };
        if let Some((process, _)) = task.owner.process()
            && let Some(until) =
                self.processes[process].paused_until.filter(|until| *until > self.world.now)
        {
            // A stopped process goes on when it is woken, and not before.
            let delay = until - self.world.now + self.latency();
            return self.after(delay, Event::Reply(id));
        }
        if let Some(what) = self.came_late(task) {
            self.world.seen.sometimes(what);
        }
        self.poll(id);
    }

    /// Whose is the lane of a batch by the time that a late answer comes?
    fn came_late(&self, task: &Task) -> Option<&'static str> {
        let (lane, token) = task.lane.as_ref().filter(|_| task.late_by > 0)?;
        let lease = self.world.options.lease.as_micros() as Micros;
        let kept = self.world.db.cursor(lane)?.token == *token;
        match kept {
            true if task.late_by > lease => {
                Some("a lane stayed its owner's through a call longer than the lease")
            }
            true => None,
            false => Some("an answer came after its lane had another owner"),
        }
    }

    pub(super) fn ended(&mut self, id: TaskId, answer: Option<Answer>) {
        let Some(task) = self.tasks.remove(&id) else { return };
        if let Some((lane, token)) = &task.lane
            && self.world.in_flight.get(lane) == Some(token)
        {
            self.world.in_flight.remove(lane);
        }
        let Some((process, life)) = task.owner.process() else { return };
        if self.processes[process].life != life || !self.processes[process].alive {
            return;
        }
        match (task.owner, answer) {
            (Owner::Unit { unit, .. }, Some(Answer::Relay(input))) => {
                self.input(process, unit, input);
            }
            (Owner::Consumer { inlet, .. }, Some(Answer::Consumer(came))) => {
                self.came((process, inlet), id, came);
            }
            _ => {}
        }
    }
}

fn who(owner: Owner) -> String {
    match owner {
        Owner::Unit { process, life, unit } => format!("p{process}.{life}/{unit}"),
        Owner::Beside => "writer".into(),
        Owner::Consumer { process, life, inlet } => format!("p{process}.{life}/c{inlet}"),
    }
}
