//! The effect of an event: the same on both databases, behind a broker or not.

use crate::db::{Conn, Sql};
use crate::events::{Change, TenantEvent};
use relevo::Event;

/// This consumer's name. Ids are kept for each consumer: with the id alone a second one in the same database would skip
/// what the first one did.
pub const CONSUMER: &str = "directory";

/// Whether an event took effect now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// For the first time.
    Now,
    /// It had before: nothing was done.
    Before,
}

/// Why it did not.
#[derive(Debug, thiserror::Error)]
pub enum NotApplied {
    /// It never will.
    #[error(transparent)]
    Invalid(#[from] crate::events::Invalid),
    /// The database.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

const FIRST_TIME: Sql = Sql::both(
    "INSERT INTO processed_event_ids (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
);
const AUDIT: Sql = Sql::both(
    "INSERT INTO audit_log (event_id, tenant_id, version, event_type) VALUES ($1, $2, $3, $4)",
);
const NAMED: Sql = Sql::both(
    "INSERT INTO tenant_directory AS d (tenant_id, name, name_version) VALUES ($1, $2, $3)
     ON CONFLICT (tenant_id) DO UPDATE SET name = excluded.name, name_version = excluded.name_version
      WHERE d.name_version < excluded.name_version",
);
const GOVERNED: Sql = Sql::each(
    "INSERT INTO tenant_directory AS d (tenant_id, governance, governance_version) VALUES ($1, $2::jsonb, $3)
     ON CONFLICT (tenant_id) DO UPDATE SET governance = excluded.governance, governance_version = excluded.governance_version
      WHERE d.governance_version < excluded.governance_version",
    "INSERT INTO tenant_directory AS d (tenant_id, governance, governance_version) VALUES ($1, $2, $3)
     ON CONFLICT (tenant_id) DO UPDATE SET governance = excluded.governance, governance_version = excluded.governance_version
      WHERE d.governance_version < excluded.governance_version",
);
const USER: Sql = Sql::both(
    "INSERT INTO tenant_directory AS d (tenant_id, users) VALUES ($1, 1)
     ON CONFLICT (tenant_id) DO UPDATE SET users = d.users + 1",
);
const ASSEMBLY: Sql = Sql::both(
    "INSERT INTO tenant_directory AS d (tenant_id, assemblies) VALUES ($1, 1)
     ON CONFLICT (tenant_id) DO UPDATE SET assemblies = d.assemblies + 1",
);

/// Applies an event in the caller's transaction, unless it was applied before.
///
/// A broker that delivers a message again after a consumer died brings it behind later ones of its tenant, and a dead
/// letter may be sent again after days. So what is set is set by the newest version only, and what is counted is counted
/// once per event: the directory is the same in whatever order events come.
pub async fn apply(conn: &mut Conn<'_>, event: &Event) -> Result<Applied, NotApplied> {
    let TenantEvent { tenant_id, version, change } = TenantEvent::read(event)?;
    let id = event.id.to_string();
    if conn.run(&FIRST_TIME, &[CONSUMER.into(), id.clone().into()]).await? == 0 {
        return Ok(Applied::Before);
    }
    let tenant = || tenant_id.clone().into();
    let audit = [id.into(), tenant(), version.into(), change.event_type().into()];
    conn.run(&AUDIT, &audit).await?;
    match change {
        Change::TenantCreated { name } | Change::TenantUpdated { name } => {
            conn.run(&NAMED, &[tenant(), name.into(), version.into()]).await?
        }
        Change::GovernanceChanged { governance } => {
            let text = serde_json::to_string(&governance);
            let text = text.map_err(|error| sqlx::Error::Encode(error.into()))?;
            conn.run(&GOVERNED, &[tenant(), text.into(), version.into()]).await?
        }
        Change::UserAdded { .. } => conn.run(&USER, &[tenant()]).await?,
        Change::AssemblyScheduled { .. } => conn.run(&ASSEMBLY, &[tenant()]).await?,
    };
    Ok(Applied::Now)
}
