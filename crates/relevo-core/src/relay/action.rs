use super::batch::{Batch, Item};
use crate::clock::Instant;
use crate::error::Error;
use crate::outbox::{
    Beat, Claim, Fleet, LaneChange, LaneId, LaneState, Page, PageRequest, ParkedEvent, Token,
};

/// What the shell should do. Actions of one poll may run at the same time.
#[derive(Debug, Clone)]
pub enum Action {
    /// Sign life, read who is there.
    Beat(Beat),
    /// Take lanes.
    Take(Vec<Claim>),
    /// Read a lane again: what memory has of it is void.
    Load(LaneId, Token),
    /// Give lanes back.
    Release(Vec<Claim>),
    /// Read a page; `reader` comes back with the answer.
    ReadPage {
        /// Which of the reading groups.
        reader: usize,
        /// What to read.
        request: PageRequest,
    },
    /// Read what waits behind a parked key.
    ReadParked {
        /// The lane.
        lane: LaneId,
        /// Its token.
        token: Token,
        /// The key.
        key: String,
        /// At most this many.
        max_rows: usize,
    },
    /// Hand a batch over; record it if its effects share the transaction.
    Deliver(Box<Batch>),
    /// Record changes of several lanes, all or nothing.
    Record(Vec<LaneChange>),
}

/// What became of a batch.
#[derive(Debug)]
pub enum Delivery {
    /// The change is durable. `rest` was not decided, because the destination is `down`.
    Recorded {
        /// What was recorded.
        change: LaneChange,
        /// What was not decided.
        rest: Vec<Item>,
        /// Why the rest was not decided.
        down: Option<String>,
    },
    /// Confirmed or refused, and not recorded yet: the machine records it, many lanes at once. `rest` was not decided,
    /// because the destination is `down`.
    Decided {
        /// What is to be recorded.
        change: LaneChange,
        /// What was not decided.
        rest: Vec<Item>,
        /// Why the rest was not decided.
        down: Option<String>,
    },
    /// Nothing was recorded, because the destination as a whole is down.
    Down {
        /// The untouched batch's events.
        items: Vec<Item>,
        /// Why.
        reason: String,
    },
    /// The shared transaction was rolled back: these events must be redone one by one.
    Aborted {
        /// The untouched batch's events.
        items: Vec<Item>,
        /// Why.
        reason: String,
    },
    /// Nobody knows, or the store failed: the lane must be read again.
    Void(Error),
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// Time passed.
    Wake,
    /// The doorbell: something may have come.
    Rung,
    /// Stop: finish what is under way, give the lanes back.
    Stop,
    /// The answer to a beat sent at `sent`.
    Beat {
        /// When it was sent.
        sent: Instant,
        /// The answer.
        result: Result<Fleet, Error>,
    },
    /// The answer to a take.
    Taken {
        /// What was asked.
        claims: Vec<Claim>,
        /// Those that were got.
        result: Result<Vec<(u16, LaneState)>, Error>,
    },
    /// The answer to a load.
    Loaded {
        /// The lane.
        lane: u16,
        /// The token it was asked under.
        token: Token,
        /// `None`: the lane is another's.
        result: Result<Option<LaneState>, Error>,
    },
    /// The answer to a release.
    Released {
        /// What was given back.
        claims: Vec<Claim>,
        /// Whether it worked; if not, the lease runs out by itself.
        result: Result<(), Error>,
    },
    /// The answer to a page.
    Page {
        /// Which of the reading groups.
        reader: usize,
        /// The answer.
        result: Result<Page, Error>,
    },
    /// The answer to a read of parked events.
    Parked {
        /// The lane.
        lane: u16,
        /// The token it was asked under.
        token: Token,
        /// The key.
        key: String,
        /// How many were asked for.
        max_rows: usize,
        /// The answer.
        result: Result<Vec<ParkedEvent>, Error>,
    },
    /// What became of a batch.
    Delivered {
        /// The lane.
        lane: u16,
        /// The token it was cut under.
        token: Token,
        /// The outcome.
        delivery: Box<Delivery>,
    },
    /// What became of changes that the machine had recorded.
    Recorded {
        /// The changes.
        changes: Vec<LaneChange>,
        /// Whether they are durable.
        result: Result<(), Error>,
    },
}
