//! The tenant service: every change and its event are one transaction.
//!
//! A change begins by updating its tenant's row, and so holds it until the commit: changes of one tenant come one after
//! the other, their versions without a gap, and the times of their events in the same order.

use crate::db::{Arg, Conn, Db, Sql};
use crate::events::{Change, Governance, TenantEvent, Voting};
use crate::outbox;
use chrono::{DateTime, Utc};
use relevo::EventId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// No such tenant.
    #[error("there is no tenant {0}")]
    NotFound(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// It is there already.
    #[error("{0}")]
    Conflict(String),
    /// The database.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
}

type Result<T, E = Refused> = std::result::Result<T, E>;

/// A change that committed, and its event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The tenant.
    pub tenant_id: String,
    /// Its version now.
    pub version: i64,
    /// The event's id.
    pub event_id: String,
}

/// A tenant as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tenant {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// How it decides.
    pub governance: serde_json::Value,
    /// How often it was changed, its creation included.
    pub version: i64,
}

/// The service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tenants {
    db: Db,
}

const CREATE: Sql = Sql::each(
    "INSERT INTO tenants (id, name) VALUES ($1::uuid, $2) RETURNING version",
    "INSERT INTO tenants (id, name) VALUES ($1, $2) RETURNING version",
);
const RENAME: Sql = Sql::each(
    "UPDATE tenants SET name = $2, version = version + 1, updated_at = now() WHERE id = $1::uuid RETURNING version",
    "UPDATE tenants SET name = $2, version = version + 1, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      WHERE id = $1 RETURNING version",
);
const GOVERN: Sql = Sql::each(
    "UPDATE tenants SET governance = $2::jsonb, version = version + 1, updated_at = now()
      WHERE id = $1::uuid RETURNING version",
    "UPDATE tenants SET governance = $2, version = version + 1, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      WHERE id = $1 RETURNING version",
);
const TOUCH: Sql = Sql::each(
    "UPDATE tenants SET version = version + 1, updated_at = now() WHERE id = $1::uuid RETURNING version",
    "UPDATE tenants SET version = version + 1, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      WHERE id = $1 RETURNING version",
);
const ADD_USER: Sql = Sql::each(
    "INSERT INTO users (id, tenant_id, email, role) VALUES ($2::uuid, $1::uuid, $3, $4)",
    "INSERT INTO users (id, tenant_id, email, role) VALUES ($2, $1, $3, $4)",
);
const SCHEDULE: Sql = Sql::each(
    "INSERT INTO assemblies (id, tenant_id, title, scheduled_for) VALUES ($2::uuid, $1::uuid, $3, $4::timestamptz)",
    "INSERT INTO assemblies (id, tenant_id, title, scheduled_for) VALUES ($2, $1, $3, $4)",
);
const SHOW: Sql = Sql::each(
    "SELECT id::text, name, governance::text, version FROM tenants WHERE id = $1::uuid",
    "SELECT id, name, governance, version FROM tenants WHERE id = $1",
);
const LIST: Sql = Sql::each(
    "SELECT id::text, name, governance::text, version FROM tenants WHERE id > $1::uuid ORDER BY id LIMIT $2",
    "SELECT id, name, governance, version FROM tenants WHERE id > $1 ORDER BY id LIMIT $2",
);

impl Tenants {
    /// The service on a database.
    pub fn on(db: Db) -> Self {
        Self { db }
    }

    /// A new tenant.
    pub async fn create(&self, name: &str) -> Result<Changed> {
        let (id, name) = (Uuid::now_v7().to_string(), named(name)?);
        let args = vec![name.clone().into()];
        self.commit(id, CREATE, args, None, Change::TenantCreated { name }).await
    }

    /// Gives it another name.
    pub async fn rename(&self, tenant: &str, name: &str) -> Result<Changed> {
        let name = named(name)?;
        let args = vec![name.clone().into()];
        self.commit(known(tenant)?, RENAME, args, None, Change::TenantUpdated { name }).await
    }

    /// Lets it decide in another way.
    pub async fn change_governance(&self, tenant: &str, governance: Governance) -> Result<Changed> {
        if let Some(problem) = governance.problem() {
            return Err(Refused::Invalid(problem));
        }
        let text =
            serde_json::to_string(&governance).map_err(|e| Refused::Invalid(e.to_string()))?;
        let change = Change::GovernanceChanged { governance };
        self.commit(known(tenant)?, GOVERN, vec![text.into()], None, change).await
    }

    /// Adds somebody to it.
    pub async fn add_user(&self, tenant: &str, email: &str, role: &str) -> Result<Changed> {
        if !email.contains('@') || role.is_empty() {
            return Err(Refused::Invalid("a user needs an e-mail address and a role".into()));
        }
        let user_id = Uuid::now_v7().to_string();
        let args = vec![user_id.clone().into(), email.into(), role.into()];
        let change = Change::UserAdded { user_id, email: email.into(), role: role.into() };
        self.commit(known(tenant)?, TOUCH, Vec::new(), Some((ADD_USER, args)), change).await
    }

    /// Lets its owners meet.
    pub async fn schedule_assembly(
        &self,
        tenant: &str,
        title: &str,
        scheduled_for: DateTime<Utc>,
    ) -> Result<Changed> {
        let title = named(title)?;
        let assembly_id = Uuid::now_v7().to_string();
        let args = vec![
            assembly_id.clone().into(),
            title.clone().into(),
            scheduled_for.to_rfc3339().into(),
        ];
        let change = Change::AssemblyScheduled { assembly_id, title, scheduled_for };
        self.commit(known(tenant)?, TOUCH, Vec::new(), Some((SCHEDULE, args)), change).await
    }

    /// A bug of the service, on request: a change whose event makes no sense.
    pub(crate) async fn change_nonsensically(&self, tenant: &str) -> Result<Changed> {
        let governance =
            Governance { quorum_percent: 255, voting: Voting::ByHead, president: None };
        let change = Change::GovernanceChanged { governance };
        self.commit(known(tenant)?, TOUCH, Vec::new(), None, change).await
    }

    /// Some tenant's change whose event makes no sense.
    pub(crate) async fn poison(&self) -> Result<()> {
        let some = self.list(None, 1).await?;
        let tenant = match some.first() {
            Some(tenant) => tenant.id.clone(),
            None => self.create("Edificio Mirador").await?.tenant_id,
        };
        self.change_nonsensically(&tenant).await.map(drop)
    }

    /// Lets many decide in another way at once, as when a law changes. All of them or none.
    pub async fn change_governance_of_all(
        &self,
        tenants: &[String],
        governance: &Governance,
    ) -> Result<Vec<Changed>> {
        let ids = tenants.iter().map(|id| known(id)).collect::<Result<Vec<_>>>()?;
        let (db, governance) = (self.db.clone(), governance.clone());
        unbroken(async move {
            let mut tx = db.begin().await?;
            let changed = govern_all(&mut tx.conn(), &ids, &governance).await?;
            tx.commit().await?;
            Ok(changed)
        })
        .await
    }

    /// One tenant.
    pub async fn show(&self, tenant: &str) -> Result<Tenant> {
        let rows = self.db.rows(&SHOW, &[known(tenant)?.into()]).await?;
        rows.into_iter().map(shown).next().ok_or_else(|| Refused::NotFound(tenant.to_owned()))
    }

    /// Tenants after this one, in the order of their ids, at most so many.
    pub async fn list(&self, after: Option<&str>, limit: i64) -> Result<Vec<Tenant>> {
        let after = known(after.unwrap_or("00000000-0000-0000-0000-000000000000"))?;
        let rows = self.db.rows(&LIST, &[after.into(), limit.clamp(1, 200).into()]).await?;
        Ok(rows.into_iter().map(shown).collect())
    }

    /// The one transaction of a change.
    async fn commit(
        &self,
        tenant: String,
        update: Sql,
        args: Vec<Arg>,
        more: Option<(Sql, Vec<Arg>)>,
        change: Change,
    ) -> Result<Changed> {
        let db = self.db.clone();
        unbroken(async move {
            let mut tx = db.begin().await?;
            let changed = write(&mut tx.conn(), tenant, (update, args), more, change).await?;
            tx.commit().await?;
            Ok(changed)
        })
        .await
    }
}

/// Work that goes on when its caller hangs up: a `begin` that is given up halfway would leave its connection in a
/// transaction that nobody knows of (sqlx 0.9).
async fn unbroken<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let ended = |join: tokio::task::JoinError| {
        Refused::Database(sqlx::Error::Protocol(format!("the change was not ended: {join}")))
    };
    tokio::spawn(work).await.map_err(ended)?
}

/// In the order of their ids: two such changes wait for each other, and never both.
const HOLD_ALL: Sql = Sql::each(
    "SELECT id::text FROM tenants WHERE id IN (SELECT value::uuid FROM jsonb_array_elements_text($1::jsonb))
      ORDER BY id FOR UPDATE",
    "SELECT id FROM tenants WHERE id IN (SELECT value FROM json_each($1)) ORDER BY id",
);
const GOVERN_ALL: Sql = Sql::each(
    "UPDATE tenants SET governance = $2::jsonb, version = version + 1, updated_at = now()
      WHERE id IN (SELECT value::uuid FROM jsonb_array_elements_text($1::jsonb)) RETURNING id::text, version",
    "UPDATE tenants SET governance = $2, version = version + 1, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      WHERE id IN (SELECT value FROM json_each($1)) RETURNING id, version",
);

async fn govern_all(
    conn: &mut Conn<'_>,
    tenants: &[String],
    governance: &Governance,
) -> Result<Vec<Changed>> {
    let json =
        |value: serde_json::Result<String>| value.map_err(|e| Refused::Invalid(e.to_string()));
    let ids = json(serde_json::to_string(tenants))?;
    conn.rows::<(String,)>(&HOLD_ALL, &[ids.clone().into()]).await?;
    let governed = json(serde_json::to_string(governance))?;
    let rows: Vec<(String, i64)> = conn.rows(&GOVERN_ALL, &[ids.into(), governed.into()]).await?;
    if rows.len() != tenants.len() {
        return Err(Refused::NotFound(format!("among {}", tenants.len())));
    }
    let event = |(tenant_id, version)| {
        let change = Change::GovernanceChanged { governance: governance.clone() };
        (EventId::fresh(), TenantEvent { tenant_id, version, change })
    };
    let events: Vec<_> = rows.into_iter().map(event).collect();
    outbox::add_all(conn, &events).await?;
    let changed = |(id, event): (EventId, TenantEvent)| Changed {
        tenant_id: event.tenant_id,
        version: event.version,
        event_id: id.to_string(),
    };
    Ok(events.into_iter().map(changed).collect())
}

async fn write(
    conn: &mut Conn<'_>,
    tenant_id: String,
    (update, args): (Sql, Vec<Arg>),
    more: Option<(Sql, Vec<Arg>)>,
    change: Change,
) -> Result<Changed> {
    let with_tenant = |args: Vec<Arg>| [vec![tenant_id.clone().into()], args].concat();
    let updated = conn.row(&update, &with_tenant(args)).await.map_err(taken)?;
    let (version,): (i64,) = updated.ok_or_else(|| Refused::NotFound(tenant_id.clone()))?;
    if let Some((sql, args)) = more {
        conn.run(&sql, &with_tenant(args)).await.map_err(taken)?;
    }
    let event = TenantEvent { tenant_id, version, change };
    let event_id = outbox::add(conn, EventId::fresh(), &event).await?;
    Ok(Changed { tenant_id: event.tenant_id, version, event_id: event_id.to_string() })
}

fn taken(error: sqlx::Error) -> Refused {
    match error.as_database_error() {
        Some(known) if known.is_unique_violation() => {
            Refused::Conflict("it is there already".into())
        }
        _ => Refused::Database(error),
    }
}

fn named(name: &str) -> Result<String> {
    match name.trim() {
        "" => Err(Refused::Invalid("a name must not be empty".into())),
        name if name.len() > 200 => Err(Refused::Invalid("a name has at most 200 bytes".into())),
        name => Ok(name.to_owned()),
    }
}

/// An id as it is stored; anything else is no tenant's.
fn known(tenant: &str) -> Result<String> {
    let id: Uuid = tenant.parse().map_err(|_| Refused::NotFound(tenant.to_owned()))?;
    Ok(id.to_string())
}

fn shown((id, name, governance, version): (String, String, String, i64)) -> Tenant {
    let governance = serde_json::from_str(&governance).unwrap_or_default();
    Tenant { id, name, governance, version }
}
