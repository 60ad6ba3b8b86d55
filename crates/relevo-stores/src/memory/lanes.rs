//! Subscriptions, members, leases and cursors.

use super::db::{Db, Lock, Refusal, Statement};
use chrono::{DateTime, Utc};
use relevo_core::limits::LANES;
use relevo_core::outbox::{
    Beat, Claim, Fleet, LaneId, LaneState, Lease, MemberId, Moved, ParkedKey, Position, Start,
    Subscription, Tick, Token,
};
use relevo_core::{Error, Kind, Result};
use std::sync::Arc;

/// How many due requests a beat brings at most.
const REQUESTS_PER_BEAT: usize = 100;

#[derive(Debug, Clone)]
pub(super) struct SubscriptionRow {
    pub(super) about: Subscription,
    /// Where it first started, for `why`.
    pub(super) started_at: Tick,
    pub(super) paused: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct MemberRow {
    pub(super) beat: i64,
    pub(super) at: DateTime<Utc>,
    pub(super) note: String,
}

/// A lane's cursor and lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorRow {
    /// How far the lane is decided.
    pub position: Position,
    /// The token in force.
    pub token: Token,
    /// Whose lane it is.
    pub owner: Option<MemberId>,
    /// When the position last changed.
    pub moved_at: Option<DateTime<Utc>>,
}

impl Db {
    /// Makes a subscription known. `nonce` names the tick that a start now makes.
    pub fn subscribe(&mut self, subscription: &Subscription, nonce: i64) -> Result<()> {
        if let Some(known) = self.subscriptions.get_mut(&subscription.name) {
            let start = known.about.start;
            known.about = subscription.clone();
            known.about.start = start;
            return Ok(());
        }
        let started_at = self.start_tick(subscription.start, nonce)?;
        for lane in 0..LANES {
            let position = Position::at(started_at.tick);
            let row = CursorRow { position, token: 0, owner: None, moved_at: None };
            self.cursors.insert(LaneId { subscription: subscription.name.clone(), lane }, row);
        }
        let row = SubscriptionRow { about: subscription.clone(), started_at, paused: None };
        self.subscriptions.insert(subscription.name.clone(), row);
        Ok(())
    }

    pub(super) fn start_tick(&mut self, start: Start, nonce: i64) -> Result<Tick> {
        match start {
            Start::Beginning => Ok(Tick::zero()),
            Start::Now => self.make_tick(nonce),
            Start::Time(time) => Ok(self.tick_at(time)),
        }
    }

    pub(super) fn subscription(&mut self, name: &str) -> Result<&mut SubscriptionRow> {
        self.subscriptions.get_mut(name).ok_or_else(|| {
            Error::new(Kind::UnknownSubscription, format!("there is no subscription {name:?}"))
                .from_adapter("memory")
        })
    }

    /// Every cursor of a subscription, by lane.
    pub fn cursors<'a>(&'a self, subscription: &str) -> impl Iterator<Item = (u16, &'a CursorRow)> {
        let first = LaneId { subscription: subscription.into(), lane: 0 };
        let last = LaneId { subscription: subscription.into(), lane: u16::MAX };
        self.cursors.range(first..=last).map(|(lane, row)| (lane.lane, row))
    }

    /// One lane's cursor.
    pub fn cursor(&self, lane: &LaneId) -> Option<&CursorRow> {
        self.cursors.get(lane)
    }

    /// A crash of the server lost a move of this cursor, which had been committed asynchronously.
    pub fn lose_move(&mut self, lane: &LaneId, position: Position) {
        if let Some(row) = self.cursors.get_mut(lane) {
            row.position = position;
        }
    }

    /// A crash of the server lost a change of this lane's owner, which had been committed asynchronously.
    pub fn lose_owner(&mut self, lane: &LaneId, token: Token, owner: Option<MemberId>) {
        if let Some(row) = self.cursors.get_mut(lane) {
            (row.token, row.owner) = (token, owner);
        }
    }

    /// Signs life and reads who is there.
    pub fn beat(&mut self, beat: &Beat) -> Fleet {
        let Some(subscription) = self.subscriptions.get(&beat.subscription) else {
            return Fleet { removed: true, ..Fleet::default() };
        };
        let paused = subscription.paused.is_some();
        let who = (beat.subscription.clone(), beat.member.clone());
        let now = self.now;
        let row = self.members.entry(who).or_insert_with(|| MemberRow {
            beat: 0,
            at: now,
            note: String::new(),
        });
        *row = MemberRow { beat: row.beat + 1, at: now, note: beat.note.clone() };
        let members =
            self.members_of(&beat.subscription).map(|(who, row)| (who.clone(), row.beat)).collect();
        let lease = |(lane, row): (u16, &CursorRow)| Lease {
            lane,
            owner: row.owner.clone(),
            token: row.token,
            position: row.position,
        };
        let leases = self.cursors(&beat.subscription).map(lease).collect();
        let requests = self.due_requests(&beat.subscription).take(REQUESTS_PER_BEAT).collect();
        Fleet { members, leases, paused, removed: false, requests }
    }

    pub(super) fn members_of<'a>(
        &'a self,
        subscription: &'a str,
    ) -> impl Iterator<Item = (&'a MemberId, &'a MemberRow)> {
        self.members
            .iter()
            .filter(move |((name, _), _)| &**name == subscription)
            .map(|((_, who), row)| (who, row))
    }

    /// Forgets a member.
    pub fn forget_member(&mut self, subscription: &str, member: &MemberId) {
        self.members.remove(&(Arc::from(subscription), member.clone()));
    }

    /// Takes the lanes whose token is still the one seen; answers with those.
    pub fn take_lanes(
        &mut self,
        subscription: &Arc<str>,
        claims: &[Claim],
        member: &MemberId,
    ) -> Statement<Vec<(u16, Token)>> {
        self.swap_tokens(subscription, claims, Some(member))
    }

    /// Gives lanes back; a claim that no longer matches is passed over.
    pub fn release_lanes(&mut self, subscription: &Arc<str>, claims: &[Claim]) -> Statement<()> {
        self.swap_tokens(subscription, claims, None).map(drop)
    }

    fn swap_tokens(
        &mut self,
        subscription: &Arc<str>,
        claims: &[Claim],
        owner: Option<&MemberId>,
    ) -> Statement<Vec<(u16, Token)>> {
        let lane = |claim: &Claim| LaneId { subscription: subscription.clone(), lane: claim.lane };
        for claim in claims {
            let held = self.cursors.get(&lane(claim)).is_some_and(|row| row.token == claim.seen);
            if held {
                self.must_be_free(&Lock::Cursor(lane(claim)))?;
            }
        }
        let mut swapped = Vec::new();
        for claim in claims {
            let Some(row) = self.cursors.get_mut(&lane(claim)) else { continue };
            if row.token == claim.seen || super::mutant!(TakeWithoutSwap) {
                row.token = claim.fresh;
                row.owner = owner.cloned();
                swapped.push((claim.lane, claim.fresh));
            }
        }
        Ok(swapped)
    }

    /// A lane as its owner finds it; `None` if the token is no longer in force.
    pub fn load_lane(&self, lane: &LaneId, token: Token, max_parked: usize) -> Option<LaneState> {
        let row = self.cursors.get(lane).filter(|row| row.token == token)?;
        let first = (lane.clone(), String::new());
        let parked = self
            .parked_keys
            .range(first..)
            .take_while(|((at, _), _)| at == lane)
            .take(max_parked + 1);
        let parked = parked.map(|((_, key), row)| ParkedKey {
            key: key.clone(),
            attempts: row.attempts,
            deaths: row.deaths,
            due_in: row.due.map(|due| (due - self.now).to_std().unwrap_or_default()),
        });
        Some(LaneState { position: row.position, parked: parked.collect() })
    }

    /// Every lane of a subscription gets a fresh token and no owner: whoever worked it is fenced off.
    pub(super) fn fence_off(
        &mut self,
        subscription: &str,
        mut fresh: impl FnMut() -> Token,
    ) -> Statement<()> {
        let lanes: Vec<LaneId> = self
            .cursors
            .keys()
            .filter(|lane| &*lane.subscription == subscription)
            .cloned()
            .collect();
        for lane in &lanes {
            self.must_be_free(&Lock::Cursor(lane.clone()))?;
        }
        for lane in &lanes {
            if let Some(row) = self.cursors.get_mut(lane) {
                row.token = fresh();
                row.owner = None;
            }
        }
        Ok(())
    }

    /// Pauses a subscription and fences its owners off.
    pub fn pause(
        &mut self,
        subscription: &str,
        by: &str,
        fresh: impl FnMut() -> Token,
    ) -> Statement<()> {
        self.subscription(subscription)?;
        self.fence_off(subscription, fresh)?;
        self.subscription(subscription)?.paused = Some(by.to_owned());
        Ok(())
    }

    /// Lets a paused subscription go on.
    pub fn resume(&mut self, subscription: &str) -> Result<()> {
        self.subscription(subscription)?.paused = None;
        Ok(())
    }

    /// Moves every cursor of a subscription to `to`. What will be read again is no longer parked; what lies
    /// before the new position and still waits goes on waiting.
    pub fn rewind(
        &mut self,
        subscription: &str,
        to: Start,
        nonce: i64,
        fresh: impl FnMut() -> Token,
    ) -> Statement<()> {
        self.subscription(subscription)?;
        self.fence_off(subscription, fresh)?;
        let tick = self.start_tick(to, nonce).map_err(Refusal::Failed)?;
        self.note_moves(subscription, &tick);
        let now = self.now;
        for (lane, row) in &mut self.cursors {
            if &*lane.subscription == subscription {
                row.position = Position::at(tick.tick);
                row.moved_at = Some(now);
            }
        }
        self.unpark_what_comes_again(subscription, &tick);
        Ok(())
    }

    /// So that `why` can tell what is left out.
    fn note_moves(&mut self, subscription: &str, after: &Tick) {
        let of_it = self.cursors.iter().filter(|(lane, _)| &*lane.subscription == subscription);
        let moved = |(lane, row): (&LaneId, &CursorRow)| {
            let Position { from, to, seq } = row.position;
            let from = self.tick(from).ok()?;
            let to = to.and_then(|to| self.tick(to).ok());
            Some((lane.clone(), Moved { from, to, seq, after: after.clone() }))
        };
        let moves: Vec<(LaneId, Moved)> = of_it.filter_map(moved).collect();
        self.moves.extend(moves);
    }

    fn unpark_what_comes_again(&mut self, subscription: &str, tick: &Tick) {
        let log = &self.log;
        // An edited copy has an id of its own: the log does not bring it again.
        let unread = |seq: i64, xid| {
            !tick.has_decided(seq, xid)
                || super::mutant!(RewindComparesXids) && !tick.snapshot.sees(xid)
        };
        let comes_again = |seq: &i64, id| {
            log.get(seq).is_some_and(|row| row.event.id == id && unread(*seq, row.xid))
        };
        self.parked_refs.retain(|(lane, _, _, seq, _), row| {
            &*lane.subscription != subscription || !comes_again(seq, row.id)
        });
        let waits: std::collections::BTreeSet<(LaneId, String)> =
            self.parked_refs.keys().map(|(lane, key, ..)| (lane.clone(), key.clone())).collect();
        self.parked_keys.retain(|at, row| {
            &*at.0.subscription != subscription || row.due.is_none() || waits.contains(at)
        });
    }

    /// Ends a subscription; its dead letters stay.
    pub fn remove(&mut self, subscription: &str, fresh: impl FnMut() -> Token) -> Statement<()> {
        self.subscription(subscription)?;
        self.fence_off(subscription, fresh)?;
        self.subscriptions.remove(subscription);
        self.moves.retain(|(lane, _)| &*lane.subscription != subscription);
        self.cursors.retain(|lane, _| &*lane.subscription != subscription);
        self.members.retain(|(name, _), _| &**name != subscription);
        self.parked_keys.retain(|(lane, _), _| &*lane.subscription != subscription);
        self.parked_refs.retain(|(lane, ..), _| &*lane.subscription != subscription);
        self.drop_requests_of(subscription);
        Ok(())
    }
}
