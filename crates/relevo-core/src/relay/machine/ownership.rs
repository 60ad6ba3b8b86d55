//! Which lanes this process has: it signs life, takes what is its share, gives back what is more.

use super::Relay;
use crate::clock::Instant;
use crate::mutant;
use crate::outbox::{Beat, Claim, LaneChange, MemberNote, Token};
use crate::relay::action::Action;
use crate::relay::lane::Lane;

impl Relay {
    pub(super) fn sign_life(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let over = (self.stopping || self.removed) && self.released;
        let expired = self.next_expiry().is_some_and(|expiry| expiry <= now);
        // Whoever looks at the destination's state must not have to wait for the next regular beat.
        let news = self.breaker.is_open() != self.beats.told_down;
        let silent = mutant!(SilentWhileBusy) && self.delivering > 0;
        if self.beats.under_way || over || silent || now < self.beats.next && !expired && !news {
            return;
        }
        self.beats.under_way = true;
        self.beats.told_down = self.breaker.is_open();
        let stopped = |lane: &Lane| lane.stopped.clone().map(|why| (lane.id.lane, why));
        let mut note = MemberNote::default();
        note.breaker = self.breaker.note(now);
        note.stopped = self.lanes.values().filter_map(stopped).collect();
        actions.push(Action::Beat(Beat {
            subscription: self.subscription.clone(),
            member: self.member.clone(),
            note: note.to_string(),
        }));
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.leases.next_expiry(|lane| self.lanes.contains_key(&lane))
    }

    /// An owner hands nothing over once its last good beat was sent too long ago: others may have its lanes.
    pub(super) fn is_current(&self, now: Instant) -> bool {
        self.lapses().is_some_and(|lapses| now < lapses) || mutant!(ZombieGoesOn)
    }

    /// When that is, as far as the beats that were answered tell.
    pub(super) fn lapses(&self) -> Option<Instant> {
        self.beats.last_good.map(|sent| sent + (self.config.lease - self.config.margin()))
    }

    pub(super) fn take_and_give(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let share = self.leases.share(now);
        self.give_back(self.lanes.len().saturating_sub(share), actions);
        if !self.taking && self.looked && self.lanes.len() < share {
            self.take(share - self.lanes.len(), actions);
        }
        self.give_back_leftovers(actions);
    }

    /// Leases in our name that we do not hold are left over from a take that seemed to fail. Our beats keep them
    /// alive, so nobody else could ever have them.
    pub(super) fn give_back_leftovers(&mut self, actions: &mut Vec<Action>) {
        if self.taking || !self.looked || mutant!(IgnoreLeftovers) {
            return;
        }
        let left: Vec<(u16, Token)> =
            self.leases.mine().filter(|(lane, _)| !self.lanes.contains_key(lane)).collect();
        if left.is_empty() {
            return;
        }
        self.send_release(left, actions);
    }

    pub(super) fn take(&mut self, most: usize, actions: &mut Vec<Action>) {
        let mut free: Vec<(u16, Token)> =
            self.leases.claimable().filter(|(lane, _)| !self.lanes.contains_key(lane)).collect();
        if free.is_empty() {
            return;
        }
        // From anywhere: a lane that cannot be had (a sleeper's transaction holds its row) must not stand before the
        // others for as long as that lasts.
        let first = self.rng.below(free.len() as u64) as usize;
        free.rotate_left(first);
        free.truncate(most);
        let claims = free
            .into_iter()
            .map(|(lane, seen)| Claim { lane, seen, fresh: self.fresh_token(seen) })
            .collect();
        self.taking = true;
        // Whatever becomes of it, the tokens seen are used up: the next take waits for the next look at the leases.
        self.looked = false;
        self.under_way += 1;
        actions.push(Action::Take(claims));
    }

    pub(super) fn fresh_token(&mut self, seen: Token) -> Token {
        if mutant!(TokensCount) {
            return seen + 1;
        }
        // Positive and never 0, which is the token of a lane nobody ever had.
        (self.rng.next_u64() >> 1).max(1) as Token
    }

    /// Lanes that others should have hand over nothing more, and go when all they had handed over is recorded. What is
    /// queued is read again by the next owner.
    pub(super) fn give_back(&mut self, most: usize, actions: &mut Vec<Action>) {
        self.choose_leaving(most);
        let ready =
            |(number, lane): (&u16, &Lane)| (lane.leaving && lane.may_leave()).then_some(*number);
        let ready: Vec<u16> = self.lanes.iter().filter_map(ready).collect();
        self.release(&ready, actions);
    }

    /// As many as are too many; those that are leaving already come first, then those with nothing under way.
    pub(super) fn choose_leaving(&mut self, most: usize) {
        if most == 0 && !self.lanes.values().any(|lane| lane.leaving) {
            return;
        }
        let mut lanes: Vec<&mut Lane> = self.lanes.values_mut().collect();
        lanes.sort_by_key(|lane| (!lane.leaving, !lane.may_leave()));
        for (index, lane) in lanes.into_iter().enumerate() {
            lane.leaving = index < most;
        }
    }

    pub(super) fn release(&mut self, numbers: &[u16], actions: &mut Vec<Action>) {
        let gone: Vec<(u16, Token)> = numbers
            .iter()
            .filter_map(|number| self.lanes.remove(number).map(|lane| (*number, lane.token)))
            .collect();
        if !gone.is_empty() {
            self.send_release(gone, actions);
        }
    }

    pub(super) fn send_release(&mut self, lanes: Vec<(u16, Token)>, actions: &mut Vec<Action>) {
        let claims = lanes
            .into_iter()
            .map(|(lane, seen)| Claim { lane, seen, fresh: self.fresh_token(seen) })
            .collect();
        self.looked = false;
        self.under_way += 1;
        actions.push(Action::Release(claims));
    }

    /// Stopping: what is under way ends, what is decided is written down, then the lanes go back. Pages that are being read
    /// are nobody's any more.
    pub(super) fn give_back_everything(&mut self, actions: &mut Vec<Action>) {
        if self.released || self.under_way > 0 {
            return;
        }
        let lagging: Vec<LaneChange> = self
            .lanes
            .values_mut()
            .filter(|lane| !lane.is_settled() && !lane.is_void())
            .map(Lane::catch_up)
            .collect();
        if !lagging.is_empty() {
            self.record(lagging, actions);
            return;
        }
        let all: Vec<u16> = self.lanes.keys().copied().collect();
        self.release(&all, actions);
        self.released = true;
    }
}
