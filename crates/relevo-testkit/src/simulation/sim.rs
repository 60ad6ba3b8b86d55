//! The scheduler: one seed decides what happens when, what gets lost, who dies.
//!
//! - `tasks`: what waits for an answer, and what becomes of each call
//! - `machines`: the inputs of production's machines, and the actions they ask for

mod machines;
mod tasks;

use super::broker::LineId;
use super::call::{Call, Mailbox};
use super::counters::Counters;
use super::intake::Came;
use super::invariant::{Invariant, Violation};
use super::journal::{Journal, Subscriber};
use super::late::{Late, Lateness};
use super::options::{MS, Micros, Options, To};
use super::process::Process;
use super::seen::Seen;
use super::trace::Trace;
use super::world::{Ids, World};
use super::{chaos, check, writers};
use relevo_core::clock::Rng;
use relevo_core::outbox::{LaneId, Start, Subscription, Token};
use relevo_core::relay::{Input, Order};
use relevo_stores::memory::TxId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub(super) type TaskId = u64;

/// Whose a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// An action of one unit of a process, in one of its lives.
    Unit { process: usize, life: u64, unit: usize },
    /// One of the consumers of a process, in one of its lives.
    Consumer { process: usize, life: u64, inlet: usize },
    /// A writer, an operator.
    Beside,
}

impl Owner {
    /// The process and its life.
    pub(super) fn process(self) -> Option<(usize, u64)> {
        match self {
            Self::Unit { process, life, .. } | Self::Consumer { process, life, .. } => {
                Some((process, life))
            }
            Self::Beside => None,
        }
    }

    /// Is it an action of this process?
    pub(super) fn is_process(self, number: usize) -> bool {
        self.process().is_some_and(|(process, _)| process == number)
    }
}

/// What a task of a process came to.
pub(super) enum Answer {
    /// An input for a relay.
    Relay(Input),
    /// Something for the consumer.
    Consumer(Came),
}

type Work = Pin<Box<dyn Future<Output = Option<Answer>> + Send>>;

pub(super) struct Task {
    pub(super) owner: Owner,
    work: Work,
    pub(super) call: Option<Call>,
    /// The batch's lane and token, for the count of what is in flight.
    pub(super) lane: Option<(LaneId, Token)>,
    /// Its statement is answered late.
    late: Option<Late>,
    /// So late was its last statement's answer.
    late_by: Micros,
    /// The server restarted under it: its connection is gone, the next statement on it fails.
    pub(super) cut: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The task's statement reaches the server.
    Execute(TaskId),
    /// The task goes on.
    Reply(TaskId),
    /// A statement whose client is gone reaches the server.
    Ghost(u64),
    /// A unit wanted to be woken.
    Wake {
        process: usize,
        life: u64,
        unit: usize,
    },
    /// The server notices that a session is gone.
    EndSession(TxId),
    /// The broker notices that a receiver is gone, or has not heard from it for too long.
    HangUp(LineId),
    /// A consumer wanted to be woken.
    WakeConsumer {
        process: usize,
        life: u64,
        inlet: usize,
    },
    /// The server ends a session that idles for too long.
    IdleSession(TxId),
    Start(usize),
    Chaos,
    BrokerUp,
    StormEnds,
    /// Look whether all has come to an end.
    Look,
}

/// The scheduler and all it schedules.
pub(super) struct Sim {
    pub(super) world: World,
    pub(super) mailbox: Mailbox,
    ids: Ids,
    pub(super) processes: Vec<Process>,
    pub(super) tasks: BTreeMap<TaskId, Task>,
    queue: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    order: u64,
    next_task: TaskId,
    ghosts: BTreeMap<u64, Call>,
    pub(super) rng: Rng,
    pub(super) late: Lateness,
    /// Everything was at rest since.
    quiet_since: Option<Micros>,
    over: bool,
}

/// What became of a seed.
#[derive(Debug)]
pub struct Outcome {
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// What the run came through.
    pub seen: Seen,
    /// The account of it, if it was asked for.
    pub trace: Vec<String>,
}

/// Runs one seed, from a thread that has nothing else to do.
pub fn run_alone(options: Options, traced: bool) -> Outcome {
    let timers = super::campaign::Timers::new();
    let _entered = timers.enter();
    run(options, traced)
}

/// Runs one seed. The shells' timers must be there already.
pub(super) fn run(options: Options, traced: bool) -> Outcome {
    let mut sim = Sim::new(Arc::new(options), traced);
    let counters = Counters::default();
    metrics::with_local_recorder(&counters, || {
        sim.begin();
        sim.go_on();
    });
    let now = sim.world.now;
    let asleep = sim.processes.iter().any(|process| process.is_paused(now));
    let asleep = asleep || sim.late.is_awaited(now);
    check::at_the_end(&mut sim.world, &counters, asleep);
    sim.into_outcome()
}

fn subscribers(options: &Options) -> Vec<Subscriber> {
    let mut all: Vec<Subscriber> = Vec::new();
    for subscription in &options.subscriptions {
        all.push(Subscriber {
            name: subscription.name,
            once: subscription.to != To::Broker,
            only_a: subscription.filtered,
            max_attempts: subscription.max_attempts,
            behind: subscription.to == To::Consumer,
            ordered: subscription.config.order != Order::Any,
        });
    }
    all
}

impl Sim {
    fn new(options: Arc<Options>, traced: bool) -> Self {
        let mailbox = Mailbox::default();
        let journal = Journal::new(subscribers(&options));
        let processes =
            (0..options.processes).map(|number| Process::new(number, &mailbox, &options)).collect();
        let rng = Rng::seeded(options.seed.rotate_left(32) ^ 0xC0FFEE);
        let late = Lateness::of(options.seed);
        let ids = Ids::of(options.seed);
        let told = mailbox.told.clone();
        Self {
            world: World::new(options, ids.clone(), journal, told, Trace::new(traced)),
            mailbox,
            ids,
            processes,
            tasks: BTreeMap::new(),
            queue: BinaryHeap::new(),
            order: 0,
            next_task: 0,
            ghosts: BTreeMap::new(),
            rng,
            late,
            quiet_since: None,
            over: false,
        }
    }

    fn begin(&mut self) {
        let options = self.world.options.clone();
        self.world.trace.line(0, format_args!("seed {} looks at {:?}", options.seed, options.bias));
        for subscription in &options.subscriptions {
            let nonce = self.world.token();
            let start = if subscription.starts_now { Start::Now } else { Start::Beginning };
            let about = Subscription::new(subscription.name)
                .topics(subscription.config.topics.clone())
                .start(start);
            if let Err(error) =
                self.world.db.subscribe(&about.after_dead(subscription.config.after_dead), nonce)
            {
                self.world
                    .journal
                    .broken(Invariant::Recovery, format!("subscribing failed: {error}"));
            }
        }
        // Subscribing commits synchronously; a tick that a subscription starts at is durable with all ids before it.
        self.world.flush();
        for number in 0..options.processes {
            let late = if number == 0 { 0 } else { self.rng.below(options.storm / 2) };
            self.after(late, Event::Start(number));
        }
        for _ in 0..options.writers {
            let pause = self.rng.below(400 * MS);
            let work =
                writers::writer(self.mailbox.clone(), options.transactions_per_writer, pause);
            self.beside(work);
        }
        for _ in 0..options.operators {
            self.beside(writers::operator(self.mailbox.clone()));
        }
        self.after(options.storm, Event::StormEnds);
        if options.chaos_every > 0 {
            self.after(options.chaos_every, Event::Chaos);
        }
        self.after(options.storm + 50 * MS, Event::Look);
    }

    fn beside(&mut self, work: impl Future<Output = relevo_core::Result<()>> + Send + 'static) {
        self.spawn(Owner::Beside, None, async move {
            drop(work.await);
            None
        });
    }

    // ---- the queue ----

    pub(super) fn after(&mut self, delay: Micros, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((self.world.now + delay, self.order, event)));
    }

    /// How long a statement or its answer is on the way.
    fn latency(&mut self) -> Micros {
        match self.rng.below(100) {
            0 => self.rng.below(60 * MS),
            1..=9 => self.rng.below(6 * MS),
            _ => 50 + self.rng.below(700),
        }
    }

    fn go_on(&mut self) {
        // A run that does not end by itself is cut off far beyond any bound that is checked.
        while !self.over && self.world.journal.violation.is_none() {
            let Some(Reverse((at, _, event))) = self.queue.pop() else { break };
            self.world.set_now(at);
            self.processes.iter().for_each(|process| process.show(at));
            self.happen(event);
            self.end_dropped();
            self.ring();
        }
        self.world.seen.micros = self.world.now;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Execute(id) => self.execute(id),
            Event::Reply(id) => self.reply(id),
            Event::Ghost(id) => self.ghost(id),
            Event::Wake { process, life, unit } => self.wake(process, life, unit),
            Event::EndSession(tx) => self.world.rollback(tx),
            Event::HangUp(line) => self.world.hang_up(line),
            Event::WakeConsumer { process, life, inlet } => self.wake_intake(process, life, inlet),
            Event::IdleSession(tx) => self.end_if_idle(tx),
            Event::Start(number) => self.start(number),
            Event::Chaos => chaos::strike(self),
            Event::BrokerUp => self.world.broker.down = false,
            Event::StormEnds => chaos::end(self),
            Event::Look => self.look(),
        }
    }

    fn end_dropped(&mut self) {
        for tx in self.mailbox.take_dropped() {
            let delay = self.latency();
            self.after(delay, Event::EndSession(tx));
        }
        for line in self.mailbox.take_hung_up() {
            let delay = self.latency();
            self.after(delay, Event::HangUp(line));
        }
    }

    fn end_if_idle(&mut self, tx: TxId) {
        let idle = self
            .world
            .sessions
            .get(&tx)
            .is_some_and(|s| self.world.now - s.last_active >= s.idle_limit);
        if idle {
            self.world.rollback(tx);
        }
    }

    /// The doorbell: every unit hears it, sooner or later, or not at all.
    fn ring(&mut self) {
        if !std::mem::take(&mut self.world.rang) || !self.world.options.doorbell {
            return;
        }
        let now = self.world.now;
        for number in 0..self.processes.len() {
            let process = &self.processes[number];
            let lost = self.world.storm && self.rng.below(20) == 0;
            if !process.alive || process.is_paused(now) || lost {
                continue;
            }
            for unit in 0..self.processes[number].units.len() {
                self.input(number, unit, Input::Rung);
            }
        }
    }

    /// After the storm all must come to rest, stay so for a while, and within the bound.
    fn look(&mut self) {
        let now = self.world.now;
        if check::at_rest(self) {
            let since = *self.quiet_since.get_or_insert(now);
            self.over = now - since >= 600 * MS;
        } else {
            self.quiet_since = None;
            check::help(self);
        }
        if now > self.world.options.storm + check::RECOVERY {
            check::not_recovered(self);
        }
        self.after(100 * MS, Event::Look);
    }

    fn into_outcome(mut self) -> Outcome {
        self.tasks.clear();
        if let Some(violation) = &self.world.journal.violation {
            self.world.trace.line(self.world.now, format_args!("{violation}"));
        }
        let committed =
            self.world.journal.events.values().filter(|event| event.committed_at.is_some()).count();
        let mut seen = self.world.seen;
        // Whatever was drawn differently has left its traces here.
        [self.rng.next_u64(), self.world.rng.next_u64()].into_iter().for_each(|it| seen.mix(it));
        seen.committed = committed as u64;
        seen.delivered += self.world.journal.effects;
        Outcome {
            violation: self.world.journal.violation,
            seen,
            trace: self.world.trace.into_lines(),
        }
    }
}
