use super::notifications::failed;
use super::{Crew, processed};
use crate::database::{Driver, Session};
use crate::ticket::{TicketEvent, topic};
use crate::topology::METRICS;
use chrono::{DateTime, Utc};
use relevo::{Answer, Effect, Event, Handler, Settled};

/// Keeps ticket metrics: how many events of each type, how many tickets in each status, how many per assignee; and what
/// happened to each ticket, in its order.
pub struct Statistics {
    crew: Crew,
}

impl Statistics {
    pub(super) fn new(crew: Crew) -> Self {
        Self { crew }
    }
}

impl<D: Driver> Handler<D> for Statistics {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, D>) -> Answer {
        let Crew { clock, pulse, .. } = &self.crew;
        let now = clock.now();
        pulse.beat(now);
        let told: TicketEvent = event.json()?;
        let mut session = D::session(effect.tx().await?);
        let first = processed::first_time(&mut session, METRICS, event.id, now);
        if first.await.map_err(failed)? {
            count(&mut session, event, &told, now).await.map_err(failed)?;
        }
        Ok(Settled::Done)
    }
}

async fn count(
    session: &mut Session<'_>,
    event: &Event,
    told: &TicketEvent,
    now: DateTime<Utc>,
) -> anyhow::Result<()> {
    const ADD: &str = r#"INSERT INTO "TicketMetrics" ("Metric", "Label", "Value") VALUES ($1, $2, $3)
        ON CONFLICT ("Metric", "Label") DO UPDATE SET "Value" = "TicketMetrics"."Value" + $3"#;
    const NOTE: &str = r#"INSERT INTO "TicketActivity" ("TicketId", "Version", "EventId", "Type", "OccurredAt", "SeenAt")
        VALUES ($1, $2, $3, $4, $5, $6)"#;
    for (metric, label, by) in changes(&event.topic, told) {
        session.execute(ADD, &[metric.into(), label.into(), by.into()]).await?;
    }
    let values = [
        told.ticket_id.into(),
        told.version.into(),
        event.id.0.into(),
        event.topic.as_str().into(),
        told.occurred_at.into(),
        now.into(),
    ];
    session.execute(NOTE, &values).await.map(drop)
}

/// What an event does to the numbers; sorted, so that two transactions lock their rows in one order.
fn changes<'e>(topic: &'e str, told: &'e TicketEvent) -> Vec<(&'static str, &'e str, i64)> {
    let mut changes = vec![("events", topic, 1)];
    if topic != topic::ASSIGNED {
        changes.push(("tickets", told.status.as_str(), 1));
    }
    if let Some(before) = told.previous_status {
        changes.push(("tickets", before.as_str(), -1));
    }
    if let (topic::ASSIGNED, Some(assignee)) = (topic, &told.assignee) {
        changes.push(("assigned", assignee, 1));
    }
    changes.sort_unstable();
    changes
}
