use crate::clock::Instant;
use crate::limits::LANES;
use crate::mutant;
use crate::outbox::{Fleet, MemberId, Token};
use std::collections::BTreeMap;
use std::time::Duration;

/// Who seems alive and which lanes may be taken, judged by this process's own clock only.
///
/// A lane may be taken when it is nobody's, or when its `(token, owner's beat)` has stood still for a whole
/// lease. Clocks are never compared between machines.
#[derive(Debug)]
pub struct Leases {
    me: MemberId,
    lease: Duration,
    members: BTreeMap<MemberId, (i64, Instant)>,
    lanes: BTreeMap<u16, Seen>,
    observed: Instant,
}

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    owner: Option<MemberId>,
    token: Token,
    beat: Option<i64>,
    since: Instant,
}

impl Leases {
    /// Nothing seen yet.
    pub fn new(me: MemberId, lease: Duration) -> Self {
        Self {
            me,
            lease,
            members: BTreeMap::new(),
            lanes: BTreeMap::new(),
            observed: Instant::ZERO,
        }
    }

    /// Takes in what a beat brought.
    pub fn observe(&mut self, now: Instant, fleet: &Fleet) {
        self.observed = now;
        let beats: BTreeMap<&MemberId, i64> =
            fleet.members.iter().map(|(member, beat)| (member, *beat)).collect();
        self.members.retain(|member, _| beats.contains_key(member));
        for (member, beat) in &fleet.members {
            let seen = self.members.entry(member.clone()).or_insert((*beat, now));
            if seen.0 != *beat {
                *seen = (*beat, now);
            }
        }
        for lease in &fleet.leases {
            let beat = lease.owner.as_ref().and_then(|owner| beats.get(owner).copied());
            let fresh = Seen { owner: lease.owner.clone(), token: lease.token, beat, since: now };
            let seen = self.lanes.entry(lease.lane).or_insert_with(|| fresh.clone());
            if (seen.token, seen.beat, &seen.owner) != (fresh.token, fresh.beat, &fresh.owner) {
                *seen = fresh;
            }
        }
    }

    /// Lanes that may be taken (or are held already in this member's name), as last observed, with the token to swap.
    pub fn claimable(&self) -> impl Iterator<Item = (u16, Token)> {
        self.lanes
            .iter()
            .filter(|(_, seen)| self.is_claimable(seen))
            .map(|(lane, seen)| (*lane, seen.token))
    }

    /// Leases in this member's name, with their tokens.
    pub fn mine(&self) -> impl Iterator<Item = (u16, Token)> {
        let mine = self.lanes.iter().filter(|(_, seen)| seen.owner.as_ref() == Some(&self.me));
        mine.map(|(lane, seen)| (*lane, seen.token))
    }

    fn is_claimable(&self, seen: &Seen) -> bool {
        // A lease in my own name that I do not hold is left over from a take that seemed to fail. It would never run
        // out, because my own beats keep it alive: I take it again (or give it back).
        let mine = |owner: &MemberId| *owner == self.me && !mutant!(IgnoreLeftovers);
        seen.owner.as_ref().is_none_or(mine)
            || self.observed.since(seen.since) >= self.lease && !mutant!(NeverTakesOver)
            || mutant!(IgnoreLease)
    }

    /// When to look again, because a lane that stood still since may be taken by then. Lanes in `held` are ours.
    pub fn next_expiry(&self, held: impl Fn(u16) -> bool) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (lane, seen) in &self.lanes {
            let expiry = seen.since + self.lease;
            // Asked at every step of the machine: the cheap questions come first.
            let sooner = next.is_none_or(|known| expiry < known);
            if sooner && !self.is_claimable(seen) && !held(*lane) {
                next = Some(expiry);
            }
        }
        next
    }

    fn alive(&self, now: Instant) -> impl Iterator<Item = &MemberId> {
        let alive = move |(member, (_, since)): &(&MemberId, &(i64, Instant))| {
            **member == self.me || now.since(*since) < self.lease
        };
        self.members.iter().filter(alive).map(|(member, _)| member)
    }

    /// Is anybody else alive?
    pub fn alone(&self, now: Instant) -> bool {
        self.alive(now).all(|member| *member == self.me)
    }

    /// How many lanes this member should have: shares differ by at most one and add up to all lanes.
    pub fn share(&self, now: Instant) -> usize {
        let others: Vec<&MemberId> = self.alive(now).filter(|member| **member != self.me).collect();
        let (members, rank) =
            (others.len() + 1, others.iter().filter(|other| ***other < self.me).count());
        let lanes = usize::from(LANES);
        lanes / members + usize::from(rank < lanes % members)
    }

    /// Members silent for so long that nobody needs their row.
    pub fn long_silent(&self, now: Instant) -> Vec<MemberId> {
        let silent = |since: Instant| now.since(since) >= self.lease * 30;
        self.members
            .iter()
            .filter(|(m, (_, since))| **m != self.me && silent(*since))
            .map(|(m, _)| m.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::{Lease, Position};

    fn member(name: &str) -> MemberId {
        MemberId(name.into())
    }

    fn fleet(beat: i64, token: Token) -> Fleet {
        Fleet {
            members: vec![(member("a"), 1), (member("b"), beat)],
            leases: vec![
                Lease { lane: 3, owner: Some(member("b")), token, position: Position::default() },
                Lease { lane: 4, owner: None, token: 0, position: Position::default() },
            ],
            ..Fleet::default()
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::at(Duration::from_secs(seconds))
    }

    #[test]
    fn a_lane_is_taken_only_after_its_owner_stood_still_for_a_lease() {
        let mut leases = Leases::new(member("a"), Duration::from_secs(10));
        leases.observe(at(0), &fleet(1, 7));
        let claimable = |leases: &Leases| leases.claimable().collect::<Vec<_>>();
        assert_eq!(claimable(&leases), [(4, 0)]);
        leases.observe(at(9), &fleet(2, 7));
        assert_eq!(leases.next_expiry(|_| false), Some(at(19)));
        leases.observe(at(18), &fleet(2, 7));
        assert_eq!(claimable(&leases), [(4, 0)]);
        leases.observe(at(19), &fleet(2, 7));
        assert_eq!(claimable(&leases), [(3, 7), (4, 0)]);
    }

    #[test]
    fn a_lease_in_my_own_name_that_i_do_not_hold_is_mine_to_take_again() {
        let mut leases = Leases::new(member("b"), Duration::from_secs(10));
        leases.observe(at(0), &fleet(1, 7));
        leases.observe(at(1), &fleet(2, 7));
        assert_eq!(leases.claimable().collect::<Vec<_>>(), [(3, 7), (4, 0)]);
        assert_eq!(leases.next_expiry(|_| false), None);
    }

    #[test]
    fn lanes_are_shared_among_those_alive() {
        let mut leases = Leases::new(member("a"), Duration::from_secs(10));
        leases.observe(at(0), &fleet(1, 7));
        assert_eq!(leases.share(at(5)), 32);
        assert_eq!(leases.share(at(11)), 64);
    }

    #[test]
    fn whoever_shows_no_new_beat_is_not_alive_and_in_the_end_forgotten() {
        let mut leases = Leases::new(member("a"), Duration::from_secs(10));
        leases.observe(at(0), &fleet(1, 7));
        assert!(!leases.alone(at(9)));
        leases.observe(at(9), &fleet(2, 7));
        assert!(!leases.alone(at(18)), "its beat moved at 9");
        leases.observe(at(18), &fleet(2, 7));
        assert!(leases.alone(at(19)));
        assert_eq!(leases.long_silent(at(308)), []);
        assert_eq!(leases.long_silent(at(309)), [member("b")], "never oneself");
    }

    #[test]
    fn every_lane_is_in_one_share_and_the_first_members_have_one_more() {
        let members = ["a", "b", "c"];
        let fleet =
            Fleet { members: members.map(|name| (member(name), 1)).into(), ..Fleet::default() };
        let shares = members.map(|name| {
            let mut leases = Leases::new(member(name), Duration::from_secs(10));
            leases.observe(at(0), &fleet);
            leases.share(at(1))
        });
        assert_eq!(shares, [22, 21, 21]);
    }

    #[test]
    fn the_first_lane_to_stand_still_for_a_lease_is_looked_at_first() {
        let mut leases = Leases::new(member("a"), Duration::from_secs(10));
        let mut fleet = fleet(1, 7);
        leases.observe(at(0), &fleet);
        fleet.leases.push(Lease {
            lane: 2,
            owner: Some(member("b")),
            token: 1,
            position: Position::default(),
        });
        leases.observe(at(4), &fleet);
        fleet.leases.push(Lease {
            lane: 5,
            owner: Some(member("b")),
            token: 1,
            position: Position::default(),
        });
        leases.observe(at(6), &fleet);
        assert_eq!(leases.next_expiry(|_| false), Some(at(10)));
        assert_eq!(leases.next_expiry(|lane| lane == 3), Some(at(14)));
        let mine: Vec<_> = Leases { me: member("b"), ..leases }.mine().collect();
        assert_eq!(mine, [(2, 1), (3, 7), (5, 1)]);
    }
}
