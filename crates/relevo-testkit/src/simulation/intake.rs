//! A consumer in a simulated process: the intake that production runs, with the worker that production runs. Here is
//! only their shell: tasks that talk to the simulated broker and database, and what came of them.

use super::call::Mailbox;
use super::chaos;
use super::client::{SimDriver, SimHandler};
use super::describe;
use super::invariant::Invariant;
use super::options::{ConsumerOptions, Micros, Options};
use super::process::Process;
use super::receiver::SimSubscriber;
use super::sim::{Answer, Event, Owner, Sim, TaskId};
use super::world::Ids;
use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::broker::{Incoming, Received, Receiver, Subscriber};
use relevo_core::inbox::consume::intake::{Action, Bounds, Input, Intake};
use relevo_core::inbox::consume::{Settled, Worker};
use relevo_core::inbox::{Handler, TxDriver};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Mutex;

/// A receiver, one request at a time.
type Line = Arc<Mutex<Box<dyn Receiver>>>;

/// A worker of whatever driver.
#[async_trait]
trait Works: Send + Sync {
    async fn work_on(&self, messages: &[Incoming]) -> Result<Settled>;
}

#[async_trait]
impl<D: TxDriver + Clone, H: Handler<D>> Works for Worker<D, H> {
    async fn work_on(&self, messages: &[Incoming]) -> Result<Settled> {
        self.work(messages).await
    }
}

/// What a task of a consumer came to.
pub(super) enum Came {
    Opened(Result<Line>),
    Received(Result<Received>),
    Told(Result<()>),
    Worked(Input),
}

/// What a task that talks to the receiver is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Talk {
    /// It waits for messages, and may be interrupted.
    Listens,
    Tells,
}

/// A consumer at work in a process.
pub(super) struct Inlet {
    name: &'static str,
    bounds: Bounds,
    pub(super) intake: Intake,
    subscriber: Arc<SimSubscriber>,
    worker: Arc<dyn Works>,
    line: Option<Line>,
    /// What the receiver is to be told, in this order.
    tell: VecDeque<Action>,
    talk: Option<(TaskId, Talk)>,
    wakes_at: Option<Micros>,
    /// Batches under way.
    pub(super) working: usize,
}

impl Inlet {
    /// The process's part in one of the seed's consumers.
    pub(super) fn new(
        process: usize,
        consumer: usize,
        mailbox: &Mailbox,
        ids: &Ids,
        options: &Options,
    ) -> Self {
        let ConsumerOptions { name, bounds, unsettled, .. } = options.consumers[consumer];
        let subscriber = SimSubscriber { mailbox: mailbox.clone(), process, consumer, unsettled };
        let driver = SimDriver { mailbox: mailbox.clone(), process };
        let handler = Arc::new(SimHandler::of_consumer(mailbox, options, name));
        let ids = ids.clone();
        let worker = Worker::new(name, driver, handler, subscriber.binding())
            .idle_limit(options.lease * 4 / 5)
            .ids(move || ids.fresh());
        Self {
            name,
            bounds,
            intake: Intake::new(bounds),
            subscriber: Arc::new(subscriber),
            worker: Arc::new(worker),
            line: None,
            tell: VecDeque::new(),
            talk: None,
            wakes_at: None,
            working: 0,
        }
    }

    /// It was stopped, and nothing is left to be told.
    pub(super) fn is_finished(&self) -> bool {
        self.intake.is_finished() && self.tell.is_empty() && self.talk.is_none()
    }
}

/// A process, and which of its consumers.
pub(super) type At = (usize, usize);

/// A process that has ended has none.
fn inlet_of(processes: &mut [Process], (process, nth): At) -> Option<&mut Inlet> {
    processes[process].inlets.get_mut(nth)
}

impl Sim {
    /// A task of a consumer has ended.
    pub(super) fn came(&mut self, at: At, task: TaskId, came: Came) {
        let Some(inlet) = inlet_of(&mut self.processes, at) else { return };
        inlet.talk.take_if(|(id, _)| *id == task);
        let input = match came {
            Came::Opened(Ok(line)) => {
                inlet.line = Some(line);
                Input::Opened(Ok(()))
            }
            Came::Opened(Err(error)) => Input::Opened(Err(error)),
            Came::Received(Ok(received)) => Input::Received(received),
            Came::Told(Ok(())) => Input::Wake,
            Came::Told(Err(error)) | Came::Received(Err(error)) => {
                // Nothing more can be told to this one.
                inlet.tell.clear();
                Input::Lost(error)
            }
            Came::Worked(input) => {
                inlet.working -= 1;
                input
            }
        };
        self.tell_intake(at, input);
    }

    /// Gives a consumer's machine an input and does what it says.
    pub(super) fn tell_intake(&mut self, at: At, input: Input) {
        let (number, now) = (at.0, self.processes[at.0].clock(self.world.now));
        if self.world.trace.is_kept() {
            let short = describe::intake_input(&input);
            self.trace_intake(at, "<=", &short);
        }
        let Some(inlet) = inlet_of(&mut self.processes, at) else { return };
        inlet.intake.handle(now, input);
        let actions = inlet.intake.poll(now);
        let wakes = inlet.intake.wake_at();
        for action in actions {
            self.act_for_intake(at, action);
        }
        self.talk(at);
        if let Some(moment) = wakes {
            self.wake_intake_in(at, (moment.since(now).as_micros() as Micros + 1).max(1));
        }
        self.check_intake(at);
        chaos::end_if_finished(self, number);
    }

    fn trace_intake(&mut self, at: At, arrow: &str, what: &str) {
        let (number, name) =
            (at.0, inlet_of(&mut self.processes, at).map_or("", |inlet| inlet.name));
        self.world.trace.line(self.world.now, format_args!("p{number} {name}  {arrow} {what}"));
    }

    fn act_for_intake(&mut self, at: At, action: Action) {
        if self.world.trace.is_kept() {
            let short = describe::intake_action(&action);
            self.trace_intake(at, "=>", &short);
        }
        let owner = self.intake_owner(at);
        let Some(inlet) = inlet_of(&mut self.processes, at) else { return };
        match action {
            Action::Open => {
                let subscriber = inlet.subscriber.clone();
                self.spawn(owner, None, async move {
                    let opened = subscriber.open().await;
                    let line = opened.map(|receiver| Arc::new(Mutex::new(receiver)));
                    Some(Answer::Consumer(Came::Opened(line)))
                });
            }
            Action::Work { batch, messages } => {
                inlet.working += 1;
                let worker = inlet.worker.clone();
                self.spawn(owner, None, async move {
                    let result = worker.work_on(&messages).await;
                    Some(Answer::Consumer(Came::Worked(Input::Worked { batch, messages, result })))
                });
            }
            told => inlet.tell.push_back(told),
        }
    }

    fn intake_owner(&self, (process, inlet): At) -> Owner {
        Owner::Consumer { process, life: self.processes[process].life, inlet }
    }

    /// The receiver is told what there is to tell, then asked for more. Whoever only listens is interrupted.
    fn talk(&mut self, at: At) {
        let (owner, next) = (self.intake_owner(at), self.next_id());
        let Some(inlet) = inlet_of(&mut self.processes, at) else { return };
        if !inlet.tell.is_empty()
            && let Some((task, _)) = inlet.talk.take_if(|(_, talk)| *talk == Talk::Listens)
        {
            self.tasks.remove(&task);
        }
        let Some(line) = inlet.line.clone().filter(|_| inlet.talk.is_none()) else {
            return;
        };
        if let Some(told) = inlet.tell.pop_front() {
            if matches!(told, Action::Close) {
                inlet.line = None;
                return;
            }
            inlet.talk = Some((next, Talk::Tells));
            self.spawn(owner, None, async move {
                Some(Answer::Consumer(Came::Told(tell(line, told).await)))
            });
        } else if let Some(max) = inlet.intake.wants() {
            inlet.talk = Some((next, Talk::Listens));
            self.spawn(owner, None, async move {
                Some(Answer::Consumer(Came::Received(line.lock().await.next(max).await)))
            });
        }
    }

    fn wake_intake_in(&mut self, at: At, delay: Micros) {
        let (process, inlet) = at;
        let (now, life) = (self.world.now, self.processes[process].life);
        let Some(Inlet { wakes_at: known, .. }) = inlet_of(&mut self.processes, at) else { return };
        if known.is_none_or(|known| now + delay < known || known <= now) {
            *known = Some(now + delay);
            self.after(delay, Event::WakeConsumer { process, life, inlet });
        }
    }

    pub(super) fn wake_intake(&mut self, process: usize, life: u64, inlet: usize) {
        let (now, at) = (self.world.now, (process, inlet));
        let Process { alive, life: lives, paused_until, .. } = self.processes[process];
        if !alive || lives != life {
            return;
        }
        if let Some(until) = paused_until.filter(|until| *until > now) {
            return self.after(until - now, Event::WakeConsumer { process, life, inlet });
        }
        let Some(inlet) = inlet_of(&mut self.processes, at) else { return };
        if inlet.wakes_at.take_if(|at| *at <= now).is_some() {
            self.tell_intake(at, Input::Wake);
        }
    }

    /// What a consumer may hold and do.
    fn check_intake(&mut self, at: At) {
        let Some(Inlet { bounds, intake, working, .. }) = inlet_of(&mut self.processes, at) else {
            return;
        };
        let most = bounds.queue * bounds.concurrency + bounds.batch;
        let (bounds, waiting, working) = (*bounds, intake.waiting(), *working);
        if waiting > most || working > bounds.concurrency {
            let text = format!(
                "{waiting} messages wait in memory, {working} batches are under way ({bounds:?})"
            );
            self.world.journal.broken(Invariant::Bounded, text);
        }
    }
}

async fn tell(line: Line, action: Action) -> Result<()> {
    let mut receiver = line.lock().await;
    match action {
        Action::Settle(settled) => receiver.settle(&settled).await,
        Action::Pause(source) => receiver.pause(&source).await,
        Action::Resume(source) => receiver.resume(&source).await,
        _ => Ok(()),
    }
}
