use crate::clock::Clock;
use crate::database::Database;
use crate::telemetry;
use anyhow::Result;
use chrono::{DateTime, Utc};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Between two signs of life.
pub const EVERY: Duration = Duration::from_secs(30);

/// When the last message came. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Pulse {
    micros: Arc<AtomicI64>,
}

impl Pulse {
    /// A message came.
    pub fn beat(&self, now: DateTime<Utc>) {
        self.micros.store(now.timestamp_micros(), Ordering::Relaxed);
    }

    /// When, if ever.
    pub fn last(&self) -> Option<DateTime<Utc>> {
        let micros = self.micros.load(Ordering::Relaxed);
        DateTime::from_timestamp_micros(micros).filter(|_| micros != 0)
    }

    /// Signs life now: a row and a gauge.
    pub async fn sign(&self, database: &Database, clock: &Clock, worker: &str) -> Result<()> {
        const SIGN: &str = r#"INSERT INTO "Heartbeats" ("Worker", "BeatAt", "LastMessageAt") VALUES ($1, $2, $3)
            ON CONFLICT ("Worker") DO UPDATE SET "BeatAt" = $2, "LastMessageAt" = $3"#;
        let (now, last) = (clock.now(), self.last());
        telemetry::heartbeat(worker, now, last);
        let mut connection = database.connect().await?;
        let values = [worker.into(), now.into(), last.into()];
        connection.session().execute(SIGN, &values).await.map(drop)
    }

    /// Signs life every `every`, for ever.
    pub async fn keep(self, database: Database, clock: Clock, worker: String, every: Duration) {
        loop {
            if let Err(error) = self.sign(&database, &clock, &worker).await {
                tracing::warn!(error = format!("{error:#}"), "no sign of life could be written");
            }
            tokio::time::sleep(every).await;
        }
    }
}
