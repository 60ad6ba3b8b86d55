//! Production's machines: their inputs, and the actions they ask for.

use super::super::invariant::Invariant;
use super::super::options::{Micros, SECOND};
use super::super::process::perform;
use super::super::{chaos, check, describe};
use super::{Answer, Event, Owner, Sim};
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
                if matches!(**delivery, Delivery::Aborted { .. }) {
                    self.world.seen.sometimes("a batch was rolled back and redone one by one");
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
                Some(batch.lane().clone())
            }
            Action::ReadPage { .. } => {
                process.units[unit].reading += 1;
                None
            }
            _ => None,
        };
        if let (Some(lane), Action::Deliver(batch)) = (&lane, &action) {
            let before = self.world.in_flight.insert(lane.clone(), batch.token());
            if before == Some(batch.token()) {
                let text = format!("two batches of lane {} are under way", lane.lane);
                self.world.journal.broken(Invariant::Bounded, text);
            }
        }
        let owner = Owner::Unit { process: number, life: process.life, unit };
        let member = MemberId(format!("p{number}.{}", process.life).into());
        let (store, destination) = (process.store.clone(), process.units[unit].destination.clone());
        let (sent, name) = (process.clock(self.world.now), Arc::from(subscription.name));
        let most = subscription.config.max_parked_keys + 1;
        self.spawn(owner, lane, async move {
            let input = perform(store, destination, name, member, most, sent, action).await;
            Some(Answer::Relay(input))
        });
    }
}
