//! A consumer in a simulated process: the intake that production runs, with the worker that production runs. Here is
//! only their shell: tasks that talk to the simulated broker and database, and what came of them.

use super::call::Mailbox;
use super::chaos;
use super::client::{SimDriver, SimHandler};
use super::describe;
use super::inbox::CONSUMER;
use super::invariant::Invariant;
use super::options::{Micros, Options};
use super::process::Process;
use super::receiver::SimSubscriber;
use super::sim::{Answer, Event, Owner, Sim, TaskId};
use super::world::Ids;
use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::broker::{Incoming, Received, Receiver, Subscriber};
use relevo_core::inbox::consume::intake::{Action, Input, Intake};
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
    pub(super) fn new(
        process: usize,
        mailbox: &Mailbox,
        ids: &Ids,
        options: &Options,
    ) -> Option<Self> {
        let consumer = options.consumer.as_ref()?;
        let unsettled = consumer.unsettled;
        let subscriber = SimSubscriber { mailbox: mailbox.clone(), process, unsettled };
        let driver = SimDriver { mailbox: mailbox.clone(), process };
        let handler = Arc::new(SimHandler::of_consumer(mailbox, options));
        let ids = ids.clone();
        let worker = Worker::new(CONSUMER, driver, handler, subscriber.binding())
            .idle_limit(options.lease * 4 / 5)
            .ids(move || ids.fresh());
        Some(Self {
            intake: Intake::new(consumer.bounds),
            subscriber: Arc::new(subscriber),
            worker: Arc::new(worker),
            line: None,
            tell: VecDeque::new(),
            talk: None,
            wakes_at: None,
            working: 0,
        })
    }

    /// It was stopped, and nothing is left to be told.
    pub(super) fn is_finished(&self) -> bool {
        self.intake.is_finished() && self.tell.is_empty() && self.talk.is_none()
    }
}

fn inlet(process: &mut Process) -> Option<&mut Inlet> {
    process.inlet.as_mut()
}

impl Sim {
    /// A task of a consumer has ended.
    pub(super) fn came(&mut self, number: usize, task: TaskId, came: Came) {
        let Some(inlet) = inlet(&mut self.processes[number]) else { return };
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
        self.tell_intake(number, input);
    }

    /// Gives a consumer's machine an input and does what it says.
    pub(super) fn tell_intake(&mut self, number: usize, input: Input) {
        let now = self.processes[number].clock(self.world.now);
        if self.world.trace.is_kept() {
            let short = describe::intake_input(&input);
            self.world.trace.line(self.world.now, format_args!("p{number} {CONSUMER}  <= {short}"));
        }
        let Some(inlet) = inlet(&mut self.processes[number]) else { return };
        inlet.intake.handle(now, input);
        let actions = inlet.intake.poll(now);
        let wakes = inlet.intake.wake_at();
        for action in actions {
            self.act_for_intake(number, action);
        }
        self.talk(number);
        if let Some(at) = wakes {
            self.wake_intake_in(number, (at.since(now).as_micros() as Micros + 1).max(1));
        }
        self.check_intake(number);
        chaos::end_if_finished(self, number);
    }

    fn act_for_intake(&mut self, number: usize, action: Action) {
        if self.world.trace.is_kept() {
            let short = describe::intake_action(&action);
            self.world.trace.line(self.world.now, format_args!("p{number} {CONSUMER}  => {short}"));
        }
        let owner = self.intake_owner(number);
        let Some(inlet) = inlet(&mut self.processes[number]) else { return };
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

    fn intake_owner(&self, number: usize) -> Owner {
        Owner::Consumer { process: number, life: self.processes[number].life }
    }

    /// The receiver is told what there is to tell, then asked for more. Whoever only listens is interrupted.
    fn talk(&mut self, number: usize) {
        let (owner, next) = (self.intake_owner(number), self.next_id());
        let Some(inlet) = inlet(&mut self.processes[number]) else { return };
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

    fn wake_intake_in(&mut self, number: usize, delay: Micros) {
        let (at, life) = (self.world.now + delay, self.processes[number].life);
        let Some(inlet) = inlet(&mut self.processes[number]) else { return };
        if inlet.wakes_at.is_none_or(|known| at < known || known <= self.world.now) {
            inlet.wakes_at = Some(at);
            self.after(delay, Event::WakeConsumer { process: number, life });
        }
    }

    pub(super) fn wake_intake(&mut self, number: usize, life: u64) {
        let now = self.world.now;
        let process = &mut self.processes[number];
        if !process.alive || process.life != life {
            return;
        }
        if let Some(until) = process.paused_until.filter(|until| *until > now) {
            return self.after(until - now, Event::WakeConsumer { process: number, life });
        }
        let Some(inlet) = inlet(process) else { return };
        if inlet.wakes_at.take_if(|at| *at <= now).is_some() {
            self.tell_intake(number, Input::Wake);
        }
    }

    /// What a consumer may hold and do.
    fn check_intake(&mut self, number: usize) {
        let Some(inlet) = inlet(&mut self.processes[number]) else { return };
        let Some(bounds) = self.world.options.consumer.as_ref().map(|consumer| consumer.bounds)
        else {
            return;
        };
        let most = bounds.queue * bounds.concurrency + bounds.batch;
        let (waiting, working) = (inlet.intake.waiting(), inlet.working);
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
