//! Handlers that do not wait for the disk (`synchronous_commit = off`): the server confirms their commits and may lose them
//! when it dies, effect and record together. The relay's memory then knows of what never happened.

use super::journal::Undecided;
use super::world::World;
use relevo_core::outbox::{LaneChange, LaneId};
use relevo_stores::memory::{Db, TxId};

/// What there was before a commit that may be lost.
#[derive(Debug, Clone)]
pub(super) struct BeforeCommit {
    db: Db,
    deliveries: Vec<Undecided>,
    lanes: Vec<LaneId>,
}

impl World {
    /// What there is before the commit of a handler's own session, if that does not wait for the disk.
    ///
    /// What publishes is left to wait: an event whose commit is lost may have been delivered before, which nobody promises
    /// against.
    pub(super) fn before_hasty_commit(&self, tx: TxId) -> Option<BeforeCommit> {
        let changes: Vec<&LaneChange> = self.journal.changes_of(tx).collect();
        let hasty = self.options.hasty_handlers
            && self.journal.has_effects(tx)
            && !self.journal.has_published(tx)
            && !changes.is_empty()
            && !changes.iter().any(|change| waits_for_the_disk(change));
        hasty.then(|| BeforeCommit {
            db: self.db.clone(),
            deliveries: self.journal.undecided_before(tx),
            lanes: changes.iter().map(|change| change.lane.clone()).collect(),
        })
    }

    /// The server died and lost such a commit.
    pub(super) fn take_back(&mut self, before: BeforeCommit) {
        self.db.lose_since(before.db);
        self.journal.take_back(before.deliveries);
        for lane in before.lanes {
            let Some(row) = self.db.cursor(&lane) else { continue };
            self.journal.lane_reset(lane, row.token, row.position);
        }
        self.seen.sometimes("a handler's effect was lost in a crash of the database");
    }
}

/// Were the commit of a change lost that moves no cursor, nobody would notice: a store makes it wait.
fn waits_for_the_disk(change: &LaneChange) -> bool {
    change.before == change.after && !mutant!(DrainNotDurable)
}
