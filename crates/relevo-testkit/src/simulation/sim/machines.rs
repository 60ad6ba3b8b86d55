//! Production's machines: their inputs, and the actions they ask for.

use super::super::invariant::Invariant;
use super::super::options::{Micros, SECOND};
use super::super::process::Shell;
use super::super::{chaos, check, describe, late};
use super::{Answer, Event, Owner, Sim};
use relevo_core::Kind;
use relevo_core::inbox::consume::intake;
use relevo_core::outbox::MemberId;
use relevo_core::relay::{Action, Delivery, Input};
use std::sync::Arc;

impl Sim {
    pub(super) fn start(&mut self, number: usize) {
        let options = self.world.options.clone();
        let process = &mut self.processes[number];
        if process.alive {
            return;
        }
        process.start(&self.mailbox, &self.ids, &options, &mut self.rng);
        self.world.zombies.remove(&number);
        self.world.trace.line(self.world.now, format_args!("process {number} starts"));
        for unit in 0..options.subscriptions.len() {
            self.input(number, unit, Input::Wake);
        }
        for inlet in 0..options.consumers.len() {
            self.tell_intake((number, inlet), intake::Input::Wake);
        }
    }

    pub(super) fn wake(&mut self, number: usize, life: u64, unit: usize) {
        let now = self.world.now;
        let process = &mut self.processes[number];
        if !process.alive || process.life != life {
            return;
        }
        if let Some(until) = process.paused_until.filter(|until| *until > now) {
            return self.after(until - now, Event::Wake { process: number, life, unit });
        }
        if process.units[unit].wakes_at.is_some_and(|at| at <= now) {
            process.units[unit].wakes_at = None;
            self.input(number, unit, Input::Wake);
        }
    }

    /// Gives a machine an input and does what it says.
    pub(in crate::simulation) fn input(&mut self, number: usize, unit: usize, input: Input) {
        if self.processes[number].units.is_empty() {
            return; // It has stopped meanwhile.
        }
        self.look_at(number, unit, &input);
        let process = &mut self.processes[number];
        let now = process.clock(self.world.now);
        let at = &mut process.units[unit];
        at.relay.handle(now, input);
        let actions = at.relay.poll(now);
        let wake = at
            .relay
            .wake_at(now)
            .map_or(SECOND, |moment| moment.since(now).as_micros() as Micros + 1);
        let (life, wake) = (process.life, wake.clamp(1, 10 * SECOND));
        self.wake_in(number, life, unit, wake);
        check::machine(self, number, unit, &actions);
        for action in actions {
            self.act(number, unit, action);
        }
        chaos::end_if_finished(self, number);
    }

    pub(super) fn wake_in(&mut self, number: usize, life: u64, unit: usize, delay: Micros) {
        let at = self.world.now + delay;
        let known = &mut self.processes[number].units[unit].wakes_at;
        if known.is_none_or(|known| at < known || known <= self.world.now) {
            *known = Some(at);
            self.after(delay, Event::Wake { process: number, life, unit });
        }
    }

    pub(super) fn look_at(&mut self, number: usize, unit: usize, input: &Input) {
        let at = &mut self.processes[number].units[unit];
        match input {
            Input::Beat { sent, result: Ok(_) } => at.last_good = Some(*sent),
            Input::Page { .. } => at.reading -= 1,
            Input::Delivered { delivery, .. } => {
                at.delivering -= 1;
                if let Some(what) = told_by(delivery, self.world.journal.subscribers[unit].once) {
                    self.world.seen.sometimes(what);
                }
            }
            _ => {}
        }
        if self.world.trace.is_kept() {
            let (short, name) = (describe::input(input), self.world.journal.subscribers[unit].name);
            self.world.trace.line(self.world.now, format_args!("p{number} {name}  <- {short}"));
        }
    }

    pub(super) fn act(&mut self, number: usize, unit: usize, action: Action) {
        if self.world.trace.is_kept() {
            let (short, name) =
                (describe::action(&action), self.world.journal.subscribers[unit].name);
            self.world.trace.line(self.world.now, format_args!("p{number} {name}  -> {short}"));
        }
        let options = self.world.options.clone();
        let subscription = &options.subscriptions[unit];
        let process = &mut self.processes[number];
        if process.units.is_empty() {
            return; // It has stopped meanwhile.
        }
        let lane = match &action {
            Action::Deliver(batch) => {
                process.units[unit].delivering += 1;
                Some((batch.lane().clone(), batch.token()))
            }
            Action::ReadPage { .. } => {
                process.units[unit].reading += 1;
                None
            }
            _ => None,
        };
        if let Some((lane, token)) = &lane
            && self.world.in_flight.insert(lane.clone(), *token) == Some(*token)
        {
            let text = format!("two batches of lane {} are under way", lane.lane);
            self.world.journal.broken(Invariant::Bounded, text);
        }
        let owner = Owner::Unit { process: number, life: process.life, unit };
        let shell = Shell {
            store: process.store.clone(),
            destination: process.units[unit].destination.clone(),
            subscription: Arc::from(subscription.name),
            member: MemberId(format!("p{number}.{}", process.life).into()),
            max_parked: subscription.config.max_parked_keys + 1,
            clock: process.shown(),
        };
        let turn = lane.as_ref().and_then(|_| late::turn(self, number));
        let mailbox = self.mailbox.clone();
        self.spawn(owner, lane, async move {
            if let Some(turn) = turn {
                mailbox.sleep(turn).await;
            }
            Some(Answer::Relay(shell.perform(action).await))
        });
    }
}

/// The interesting end of a batch, if it has one. Effects that share the cursor's transaction are fenced by it; only what
/// goes to a broker is held back by whoever hands it over.
fn told_by(delivery: &Delivery, fenced: bool) -> Option<&'static str> {
    match delivery {
        Delivery::Aborted { .. } => Some("a batch was rolled back and redone one by one"),
        Delivery::Decided { rest, down: None, .. } if !rest.is_empty() => {
            Some("a batch stopped between two waves, for its owner's lease might have ended")
        }
        Delivery::Void(error) if !fenced && error.kind() == Kind::Stale => {
            Some("a batch whose turn came too late was not handed over")
        }
        _ => None,
    }
}
