//! `outbox_events`, the service's own table, relayed in place by Relevo.
//!
//! - [`add`]: a row, in the caller's transaction
//! - [`Outbox`]: the table as Relevo has it, and its relay
//! - [`backoff`]: when a failed event is tried again
//! - [`checked`]: what makes no sense is refused before it reaches a broker
//! - [`choice`]: which broker it goes to, kept beside the table
//! - [`dead_letters`]: `outbox_events_dlq`, and how its events are sent again
//! - [`cleanup`]: what goes after so many days

pub mod backoff;
pub mod checked;
pub mod choice;
pub mod cleanup;
pub mod dead_letters;
mod relay;

pub use relay::{Outbox, SUBSCRIPTION, Settings};

use crate::db::{Conn, Sql};
use crate::events::TenantEvent;
use relevo::EventId;

const ADD: Sql = Sql::each(
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
     VALUES ($1::uuid, 'tenant', $2, $3, $4::jsonb)",
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
     VALUES ($1, 'tenant', $2, $3, $4)",
);

/// Adds an event to the outbox, in the transaction of its change.
pub async fn add(conn: &mut Conn<'_>, id: EventId, event: &TenantEvent) -> sqlx::Result<EventId> {
    let payload =
        serde_json::to_string(event).map_err(|error| sqlx::Error::Encode(error.into()))?;
    add_raw(conn, id, &event.tenant_id, event.change.event_type(), &payload).await?;
    Ok(id)
}

/// Adds whatever it is told: the way in for events that this version of the service does not know.
pub async fn add_raw(
    conn: &mut Conn<'_>,
    id: EventId,
    tenant: &str,
    event_type: &str,
    payload: &str,
) -> sqlx::Result<()> {
    let args = [id.to_string().into(), tenant.into(), event_type.into(), payload.into()];
    conn.run(&ADD, &args).await.map(drop)
}

const ADD_ALL: Sql = Sql::each(
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
     SELECT id, 'tenant', payload ->> 'tenant_id', payload ->> 'type', payload
       FROM jsonb_to_recordset($1::jsonb) AS row (id uuid, payload jsonb)",
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
     SELECT value ->> 'id', 'tenant', value ->> '$.payload.tenant_id', value ->> '$.payload.type', value -> 'payload'
       FROM json_each($1)",
);

/// Adds many at once.
pub async fn add_all(conn: &mut Conn<'_>, events: &[(EventId, TenantEvent)]) -> sqlx::Result<()> {
    let row = |(id, event): &(EventId, TenantEvent)| serde_json::json!({ "id": id.to_string(), "payload": event });
    let rows = serde_json::Value::from_iter(events.iter().map(row)).to_string();
    conn.run(&ADD_ALL, &[rows.into()]).await.map(drop)
}
