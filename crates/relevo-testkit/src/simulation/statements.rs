//! What the database does for the relay, with the journal looking on.

use super::invariant::Invariant;
use super::journal::End;
use super::plan::Plan;
use super::world::World;
use bytes::Bytes;
use relevo_core::Kind;
use relevo_core::event::{Event, NewEvent};
use relevo_core::outbox::{Beat, Claim, Fleet, LaneId, LaneState, MemberId, Page, Tick, Token};
use relevo_stores::memory::{PageStep, Refusal, Statement, TxId};
use std::sync::Arc;

impl World {
    /// A few bits about the world, to tell in which states a boundary was struck.
    pub(super) fn state(&self) -> u8 {
        let parked =
            self.options.subscriptions.iter().any(|s| self.db.parked(s.name).next().is_some());
        let asked = self.db.requests().any(|(_, row)| !row.done && !row.cancelled);
        let bits = [
            parked,
            self.sessions.len() > 1,
            self.broker.down,
            self.db.dead().next().is_some(),
            asked,
            self.zombies.is_empty(),
        ];
        bits.iter().enumerate().map(|(bit, on)| u8::from(*on) << bit).sum()
    }

    pub(super) fn is_zombie(&self, process: usize) -> bool {
        self.zombies.contains(&process)
    }

    pub(super) fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.rng.below(last as u64 + 1) as usize);
        }
        order
    }

    pub(super) fn beat(&mut self, process: usize, beat: &Beat) -> Fleet {
        if self.zombies.remove(&process) {
            self.seen.sometimes("a zombie came back after its lease");
        }
        self.db.beat(beat)
    }

    pub(super) fn take_lanes(
        &mut self,
        name: &Arc<str>,
        claims: &[Claim],
        member: &MemberId,
    ) -> Statement<Vec<(u16, Token)>> {
        let lane = |lane: u16| LaneId { subscription: name.clone(), lane };
        let owner = |world: &Self, number: u16| {
            world.db.cursor(&lane(number)).and_then(|row| row.owner.clone())
        };
        let owners: Vec<Option<MemberId>> =
            claims.iter().map(|claim| owner(self, claim.lane)).collect();
        let taken = self.db.take_lanes(name, claims, member);
        let taken = self.waits_for_no_handler("whoever takes lanes over", taken)?;
        for (number, fresh) in &taken {
            let Some(index) = claims.iter().position(|claim| claim.lane == *number) else {
                continue;
            };
            self.owner_changed(lane(*number), claims[index].seen, owners[index].clone());
            self.journal.token_swapped(lane(*number), claims[index].seen, *fresh);
            if let Some(owner) = owners[index].as_ref().filter(|owner| *owner != member) {
                self.robbed(owner, &lane(*number));
            }
        }
        Ok(taken)
    }

    fn robbed(&mut self, owner: &MemberId, lane: &LaneId) {
        if self.in_flight.remove(lane).is_some() {
            self.seen.sometimes("a lane was taken over with work in flight");
        }
        if self.options.is_calm() {
            let text = format!(
                "lane {} of {} was taken from {owner}, which is alive",
                lane.lane, lane.subscription
            );
            self.journal.broken(Invariant::Fencing, text);
        }
    }

    pub(super) fn release_lanes(&mut self, name: &Arc<str>, claims: &[Claim]) -> Statement<()> {
        self.db.release_lanes(name, claims)?;
        self.flush();
        for claim in claims {
            let lane = LaneId { subscription: name.clone(), lane: claim.lane };
            if self.db.cursor(&lane).is_some_and(|row| row.token == claim.fresh) {
                self.journal.token_swapped(lane, claim.seen, claim.fresh);
                if self.now > self.options.lease.as_micros() as u64 {
                    self.seen.sometimes("lanes were rebalanced to a member that joined");
                }
            }
        }
        Ok(())
    }

    pub(super) fn load_lane(
        &mut self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Option<LaneState> {
        match self.unknown.remove(lane) {
            Some(true) => self.seen.sometimes("a commit of unknown outcome was found applied"),
            Some(false) => self.seen.sometimes("a commit of unknown outcome was found not applied"),
            None => {}
        }
        self.db.load_lane(lane, token, max_parked)
    }

    pub(super) fn page_step(&mut self, step: &mut PageStep) -> Statement<Option<Page>> {
        let (inserting, burning) = (step.name() == "insert tick", step.name() == "burn xid");
        let before = self.db.newest_tick().tick.number;
        let nonce = self.token();
        let page = step.run(&mut self.db, nonce)?;
        let after = self.db.newest_tick().tick.number;
        if burning {
            self.xid_burnt();
        }
        if inserting && after > before {
            self.tick_made(after);
        } else if inserting {
            self.seen.sometimes("a tick was thrown away by a conflict");
        }
        if let Some(page) = &page {
            self.look_for_late_rows(step, page);
            self.check_rows_looked_at(step);
        }
        Ok(page)
    }

    fn look_for_late_rows(&mut self, step: &PageStep, page: &Page) {
        let Ok(from) = self.db.tick(step.position().from) else { return };
        if page.rows.iter().any(|row| row.seq <= from.low) {
            self.seen.sometimes("a late row was read");
            self.seen.sometimes("a transaction stayed open past a window");
        }
    }

    /// Rows that were undecided at a tick lie above what any earlier tick saw as ended: a search for late ones goes through
    /// no others, however long the log is.
    fn check_rows_looked_at(&mut self, step: &PageStep) {
        let Ok(from) = self.db.tick(step.position().from) else { return };
        let all_ended = |tick: &&Tick| {
            tick.tick.number < from.tick.number
                && tick.generation == from.generation
                && tick.snapshot.xmax <= from.snapshot.xmin
        };
        let decided = self.db.ticks().rev().find(all_ended).map_or(0, |tick| tick.low);
        let (looked_at, most) = (step.looked_at(), self.db.count_rows(decided, from.low));
        if looked_at > most {
            let number = from.tick.number;
            let text = format!(
                "a page from tick {number} on looked through {looked_at} rows below its `low` for late ones, {most} at most"
            );
            self.journal.broken(Invariant::Bounded, text);
        }
    }

    /// A handler at work on an event. An error of the database is a failed attempt too.
    pub(super) fn work(&mut self, subscriber: usize, tx: TxId, event: &Event) -> Statement<Plan> {
        let worked = self.write_effect(subscriber, tx, event);
        if matches!(worked, Err(Refusal::Failed(_))) {
            self.journal.failed(subscriber, event.id, false);
        }
        worked
    }

    /// Whatever the handler is going to answer, it writes first.
    fn write_effect(&mut self, subscriber: usize, tx: TxId, event: &Event) -> Statement<Plan> {
        self.active(tx);
        self.handlers_at_work(tx, true);
        let name = self.journal.subscribers[subscriber].name;
        let row = format!("{name}/{}", event.id);
        self.lock_hot_row(tx, event)?;
        self.db.lock_row(tx, "effects", &row)?;
        let attempt = self.journal.attempted(subscriber, event);
        let count = self.db.get(tx, "effects", &row)?.map_or(0, |bytes| bytes.len());
        self.db.put(tx, "effects", &row, Some(Bytes::from(vec![b'x'; count + 1])))?;
        self.journal.effect(tx, subscriber, event.id);
        let answer = self.answer(subscriber, attempt, event);
        if answer == Plan::Publishes {
            let child = self.child(event);
            self.db.assign_xid(tx)?;
            let drawn = self.draw_seq();
            self.publish(tx, drawn, child)?;
        }
        Ok(answer)
    }

    /// Some events fight over two rows, in either order: transactions of different lanes meet, and deadlock.
    fn lock_hot_row(&mut self, tx: TxId, event: &Event) -> Statement<()> {
        let (number, _) = event.id.0.as_u64_pair();
        let row = match number % 8 {
            0 => "a",
            1 => "b",
            _ => return Ok(()),
        };
        let locked = self.db.lock_row(tx, "hot", row);
        if matches!(&locked, Err(Refusal::Failed(error)) if error.kind() == Kind::TransactionConflict)
        {
            self.seen.sometimes("a deadlock ended a transaction");
        }
        locked
    }

    fn answer(&mut self, subscriber: usize, attempt: u32, event: &Event) -> Plan {
        let plan = Plan::of(self.options.seed, event.id, subscriber);
        let Some(delivered) = self.journal.delivered(subscriber, event.id) else {
            return Plan::Fine;
        };
        let (mended, tried) =
            (delivered.replays > 0, delivered.failures > 0 && delivered.end == End::None);
        let fails = match plan {
            Plan::Fails(n) | Plan::Panics(n) => attempt <= n,
            Plan::AsksForLater => attempt <= 1,
            Plan::Fatal { mended_by_replay } => !(mended && mended_by_replay),
            Plan::Fine | Plan::Publishes | Plan::Skips => false,
        };
        if fails {
            delivered.failures += 1;
            delivered.fatal += u32::from(matches!(plan, Plan::Fatal { .. }));
            return plan;
        }
        if plan == Plan::Skips {
            delivered.skip_answers += 1;
            return plan;
        }
        if tried {
            self.seen.sometimes("a key was parked and drained");
        }
        let publishes = plan == Plan::Publishes && !event.topic.ends_with("child");
        if publishes { Plan::Publishes } else { Plan::Fine }
    }

    fn child(&mut self, cause: &Event) -> NewEvent {
        let topic = if self.rng.below(2) == 0 { "a.child" } else { "b.child" };
        self.new_event(topic).caused_by(cause)
    }

    /// A fresh event of one of the keys, or of none.
    pub(super) fn new_event(&mut self, topic: &str) -> NewEvent {
        let id = self.fresh_id();
        let keys = self.options.clone();
        let key = self.rng.below(keys.keys.len() as u64 + 1) as usize;
        let (number, _) = id.0.as_u64_pair();
        let event = NewEvent::bytes(topic, format!("event {number}"))
            .id(id)
            .header("x-number", number.to_string());
        match keys.keys.get(key) {
            Some(key) => event.key(key.clone()),
            None => event,
        }
    }
}
