//! The verdict: every change of every tenant joined with its effects, whatever the relay says of itself.
//!
//! A tenant's `version` counts its changes in the service's own table; the outbox has no part in that. So each version from
//! 1 to the tenant's must be found downstream once, or among the dead letters.

use super::journal::{Tally, Told};
use crate::db::{Db, Sql};
use anyhow::Result;
use std::collections::{HashMap, HashSet};

pub use proof::{Report, Verdict};

/// Whether effects must come in the order of their tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// They must.
    Kept,
    /// A broker that delivers again what a dead consumer held brings it behind later ones.
    Free,
}

const TENANTS: Sql =
    Sql::each("SELECT id::text, version FROM tenants", "SELECT id, version FROM tenants");
const EFFECTS: Sql =
    Sql::both("SELECT event_id, tenant_id, version FROM audit_log ORDER BY number");
const DEAD: Sql = Sql::each(
    "SELECT aggregate_id, coalesce((payload ->> 'version')::bigint, 0) FROM outbox_events_dlq",
    "SELECT aggregate_id, CAST(coalesce(payload ->> '$.version', 0) AS INTEGER) FROM outbox_events_dlq",
);
const PENDING: Sql = Sql::each(
    "SELECT aggregate_id, coalesce((payload ->> 'version')::bigint, 0) FROM outbox_events WHERE published_at IS NULL",
    "SELECT aggregate_id, CAST(coalesce(payload ->> '$.version', 0) AS INTEGER) FROM outbox_events WHERE published_at IS NULL",
);
/// Sent again after they had been dead letters: late on purpose.
const RISEN: Sql = Sql::each(
    "SELECT id::text FROM outbox_events WHERE error_class IN ('permanent', 'poison')",
    "SELECT id FROM outbox_events WHERE error_class IN ('permanent', 'poison')",
);

/// A change: of which tenant, and which version of it.
type Change = (String, i64);

/// What the report has no column for.
#[derive(Debug, Default)]
struct Facts {
    pending: u64,
    ghosts: u64,
    twice: u64,
    out_of_order: u64,
    both: u64,
    taken_back: u64,
}

/// Judges the two databases. `told` are the changes that clients were told of.
pub async fn judge(
    service: &Db,
    downstream: &Db,
    tally: Tally,
    told: &[Told],
    order: Order,
) -> Result<Verdict> {
    let versions: HashMap<String, i64> = service.rows(&TENANTS, &[]).await?.into_iter().collect();
    let dead: HashSet<Change> = service.rows(&DEAD, &[]).await?.into_iter().collect();
    let pending: HashSet<Change> = service.rows(&PENDING, &[]).await?.into_iter().collect();
    let risen: HashSet<String> =
        service.rows::<(String,)>(&RISEN, &[]).await?.into_iter().map(|(id,)| id).collect();
    let effects: Vec<(String, String, i64)> = downstream.rows(&EFFECTS, &[]).await?;

    let was_made = |(tenant, version): &Change| {
        versions.get(tenant).is_some_and(|last| (1..=*last).contains(version))
    };
    let seen: Vec<Change> = effects.iter().map(|(_, tenant, v)| (tenant.clone(), *v)).collect();
    let delivered: HashSet<&Change> = seen.iter().filter(|change| was_made(change)).collect();
    let made = versions.iter().flat_map(|(tenant, last)| (1..=*last).map(|v| (tenant.clone(), v)));
    let open = made.filter(|change| !delivered.contains(change) && !dead.contains(change));
    let (waiting, lost): (Vec<Change>, Vec<Change>) =
        open.partition(|change| pending.contains(change));
    let orderly = effects.iter().filter(|(id, ..)| !risen.contains(id));

    let facts = Facts {
        pending: waiting.len() as u64,
        ghosts: seen.iter().filter(|change| !was_made(change)).count() as u64,
        twice: (seen.len() - seen.iter().collect::<HashSet<_>>().len()) as u64,
        out_of_order: match order {
            Order::Kept => inversions(orderly.map(|(_, tenant, v)| (tenant.as_str(), *v))),
            Order::Free => 0,
        },
        both: delivered.iter().filter(|change| dead.contains(**change)).count() as u64,
        taken_back: told.iter().filter(|t| !was_made(&(t.tenant_id.clone(), t.version))).count()
            as u64,
    };
    let report = Report {
        committed: versions.values().sum::<i64>().unsigned_abs(),
        delivered: delivered.len() as u64,
        effects: effects.len() as u64,
        duplicates_seen: tally.duplicates,
        retried: tally.failed,
        dead: dead.len() as u64,
        lost: lost.len() as u64 + facts.taken_back,
    };
    let broken = broken(&report, &facts);
    Ok(Verdict { report, broken })
}

/// Effects that came after one of a later change of their tenant.
fn inversions<'e>(effects: impl Iterator<Item = (&'e str, i64)>) -> u64 {
    let mut latest: HashMap<&str, i64> = HashMap::new();
    let mut count = 0;
    for (tenant, version) in effects {
        let last = latest.entry(tenant).or_default();
        count += u64::from(version < *last);
        *last = version.max(*last);
    }
    count
}

fn broken(report: &Report, facts: &Facts) -> Vec<String> {
    let checks = [
        (report.lost, "changes were lost"),
        (facts.taken_back, "changes were acknowledged and never committed"),
        (facts.pending, "changes were still on their way when the patience ended"),
        (facts.twice, "effects happened twice"),
        (facts.ghosts, "effects belong to changes that never committed"),
        (facts.out_of_order, "effects came out of the order of their tenant"),
        (facts.both, "changes took effect and are dead letters"),
        (u64::from(report.committed == 0), "run in which nothing was changed at all"),
    ];
    checks.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_broken_promise_is_named() {
        let report =
            Report { committed: 3, delivered: 2, effects: 2, dead: 1, ..Report::default() };
        assert!(broken(&report, &Facts::default()).is_empty());
        let all =
            Facts { pending: 1, ghosts: 1, twice: 1, out_of_order: 1, both: 1, taken_back: 1 };
        assert_eq!(broken(&Report { lost: 1, ..Report::default() }, &all).len(), 8);
    }

    #[test]
    fn a_later_version_before_an_earlier_one_is_an_inversion() {
        assert_eq!(inversions([("a", 1), ("b", 1), ("a", 2), ("a", 4), ("b", 2)].into_iter()), 0);
        assert_eq!(inversions([("a", 2), ("a", 1), ("b", 3), ("a", 3)].into_iter()), 1);
    }
}
