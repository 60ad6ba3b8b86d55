use super::Rig;
use super::rig::fresh_token;
use crate::PATIENCE;
use relevo_core::event::{Event, EventId};
use relevo_core::outbox::{
    Claim, Death, EventRef, LaneChange, LaneId, LaneState, MemberId, PageRequest, ParkKey,
    ParkedEvent, Position, Skip, Token,
};
use relevo_core::{ErrorClass, Result};
use std::time::{Duration, Instant};

/// The name under which a hand owns its lane.
pub(super) const MEMBER: &str = "hand";

/// One lane under our lease, worked by hand.
pub struct Hand<'r> {
    rig: &'r Rig,
    /// The lane.
    pub lane: LaneId,
    /// Its token.
    pub token: Token,
    /// What is durable.
    pub position: Position,
    /// Up to where rows were read.
    pub read: Position,
}

/// An event that was read, with where the lane stands after it.
#[derive(Debug, Clone)]
pub struct Read {
    /// Where it stands.
    pub at: EventRef,
    /// What it carries.
    pub event: Event,
    /// Where the lane stands after it.
    pub after: Position,
}

impl<'r> Hand<'r> {
    pub(super) async fn take(rig: &'r Rig, lane: LaneId) -> Result<Self> {
        let fleet = rig.beat(&lane.subscription, MEMBER).await?;
        let seen = fleet
            .leases
            .iter()
            .find(|lease| lease.lane == lane.lane)
            .map_or(0, |lease| lease.token);
        let claim = Claim { lane: lane.lane, seen, fresh: fresh_token() };
        let taken = rig
            .store
            .take_lanes(&lane.subscription, &[claim], &MemberId(MEMBER.into()), 100)
            .await?;
        assert_eq!(taken.len(), 1, "the lane can be taken under the token just seen");
        let position = taken[0].1.position;
        Ok(Self { rig, lane, token: claim.fresh, position, read: position })
    }

    /// Reads on until so many events of the lane came and their window is done.
    pub async fn read(&mut self, count: usize) -> Result<Vec<Read>> {
        let began = Instant::now();
        let mut all = Vec::new();
        while all.len() < count || self.read.to.is_some() {
            let position = self.read;
            let request = PageRequest {
                position,
                lanes: vec![self.lane.lane],
                max_rows: 100,
                max_bytes: 1 << 30,
            };
            let page = self.rig.store.read_page(&request).await?;
            let Some(to) = page.to else {
                assert!(began.elapsed() < PATIENCE, "only {} of {count} events came", all.len());
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            };
            let place = |seq| Position { from: position.from, to: Some(to), seq };
            all.extend(page.rows.into_iter().map(|row| Read {
                at: EventRef { key: row.event.order_key(), to, seq: row.seq, id: row.event.id },
                after: place(row.seq),
                event: row.event,
            }));
            self.read = page.end;
        }
        Ok(all)
    }

    /// Reads on until this event came and its window is done.
    pub async fn read_event(&mut self, id: EventId) -> Result<Read> {
        loop {
            if let Some(read) = self.read(1).await?.into_iter().find(|read| read.at.id == id) {
                return Ok(read);
            }
        }
    }

    /// A change that moves the cursor to everything read.
    pub fn change(&self) -> LaneChange {
        LaneChange::moving(self.lane.clone(), self.token, self.position, self.read)
    }

    /// A change that leaves the cursor where it is.
    pub fn still(&self) -> LaneChange {
        LaneChange::moving(self.lane.clone(), self.token, self.position, self.position)
    }

    /// Records a change and stands where it leads.
    pub async fn record(&mut self, change: LaneChange) -> Result<()> {
        self.rig.store.record(std::slice::from_ref(&change)).await?;
        self.position = change.after;
        Ok(())
    }

    /// The lane as the store has it.
    pub async fn load(&self) -> Result<LaneState> {
        let state = self.rig.store.load_lane(&self.lane, self.token, 100).await?;
        assert!(state.is_some(), "the lane loads under the token in force");
        Ok(state.unwrap_or(LaneState { position: self.position, parked: Vec::new() }))
    }

    /// What waits behind a key.
    pub async fn parked(&self, key: &str) -> Result<Vec<ParkedEvent>> {
        self.rig.store.read_parked(&self.lane, key, 100).await
    }

    /// The ids of what waits behind a key.
    pub async fn parked_ids(&self, key: &str) -> Result<Vec<EventId>> {
        Ok(self.parked(key).await?.into_iter().map(|parked| parked.at.id).collect())
    }

    /// Parks the key of `events`: the first failed, the others wait behind it.
    pub async fn park(&mut self, events: &[Read], retry_in: Option<Duration>) -> Result<()> {
        let mut change = self.change();
        change.waiting = events.iter().map(|read| read.at.clone()).collect();
        change.parked = vec![park_key(&events[0].at.key, 1, retry_in)];
        self.record(change).await
    }

    /// Makes dead letters of events read from the log.
    pub async fn bury(&mut self, events: &[Read]) -> Result<()> {
        let mut change = self.change();
        change.deaths = events.iter().map(|read| death(&read.at, "no good")).collect();
        self.record(change).await
    }

    /// Carries out the requests that a beat brings for this lane, and answers with how many.
    pub async fn carry_out_requests(&mut self) -> Result<usize> {
        let fleet = self.rig.beat(&self.lane.subscription, MEMBER).await?;
        let mut change = self.still();
        change.replayed =
            fleet.requests.iter().filter(|r| r.lane == self.lane.lane).map(|r| r.id).collect();
        let count = change.replayed.len();
        if count > 0 {
            self.record(change).await?;
        }
        Ok(count)
    }

    /// Drains a parked key: everything behind it took effect.
    pub async fn drain(&mut self, key: &str) -> Result<Vec<EventId>> {
        let parked = self.parked(key).await?;
        let mut change = self.still();
        change.settled = parked.iter().map(|parked| parked.at.clone()).collect();
        change.unparked = vec![key.to_owned()];
        change.delivered = parked.len() as u64;
        self.record(change).await?;
        Ok(parked.into_iter().map(|parked| parked.at.id).collect())
    }
}

/// A key that failed so many times.
pub(super) fn park_key(key: &str, attempts: u32, retry_in: Option<Duration>) -> ParkKey {
    let error = format!("failed {attempts} times");
    ParkKey {
        key: key.to_owned(),
        attempts,
        deaths: 0,
        retry_in,
        class: ErrorClass::Transient,
        error,
    }
}

/// A death of the event there.
pub(super) fn death(at: &EventRef, error: &str) -> Death {
    Death { event: at.clone(), attempts: 3, class: ErrorClass::Permanent, error: error.to_owned() }
}

/// A skip of the event there.
pub(super) fn skip(at: &EventRef, reason: &str) -> Skip {
    Skip { event: at.clone(), reason: reason.to_owned() }
}
