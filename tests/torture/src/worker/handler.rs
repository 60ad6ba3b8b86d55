use super::tripwire::{self, Tripped};
use super::{Broken, RelayOptions};
use crate::story::Fate;
use relevo::postgres::{Deadpool, PostgresOutbox, SqlxPostgres, TokioPostgres};
use relevo::sqlite::{SqliteOutbox, SqlxSqlite};
use relevo::{
    Answer, Effect, Event, Failure, Handler, NewEvent, PublishIn, Result, Settled, TxDriver,
};
use relevo_core::clock::Rng;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// A row of the table of effects.
pub(super) struct EffectRow {
    id: Uuid,
    key: String,
    cause: Option<Uuid>,
    attempt: String,
    /// Which attempt of this process it is.
    number: u64,
}

/// Rows that handlers of different lanes fight over.
const SLOTS: u64 = 4;

const EFFECT: &str = "INSERT INTO effect (id, key, cause, attempt) VALUES ($1, $2, $3, $4)";
/// For sqlx, which knows of UUIDs only by a feature that nothing else here needs.
const EFFECT_BY_TEXT: &str =
    "INSERT INTO effect (id, key, cause, attempt) VALUES ($1::text::uuid, $2, $3::text::uuid, $4)";
const FIGHT: &str = "UPDATE shared SET n = n + 1 WHERE slot = $1";

/// What the handler writes, in the words of one driver.
pub(super) trait Writes: TxDriver {
    /// The effect itself.
    fn write(
        tx: &mut Self::Tx<'_>,
        row: &EffectRow,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// A follower.
    fn publish(
        tx: &mut Self::Tx<'_>,
        event: NewEvent,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Changes shared rows in the given order.
    fn fight(
        tx: &mut Self::Tx<'_>,
        slots: [i64; 2],
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Writes one row for each event, and whatever the event's fate asks for.
pub(super) struct Effects {
    member: String,
    attempts: AtomicU64,
    handler_ms: u64,
    slow: bool,
    conflicts: bool,
    drops: bool,
    rng: Mutex<Rng>,
}

impl Effects {
    pub(super) fn new(options: &RelayOptions) -> Self {
        Self {
            // Two processes of one name are two: the process id is part of an attempt's identity.
            member: format!("{}-{}", options.member, std::process::id()),
            attempts: AtomicU64::new(0),
            handler_ms: options.handler_ms,
            slow: options.slow,
            conflicts: options.conflicts,
            drops: options.broken == Some(Broken::Drop),
            rng: Mutex::new(Rng::from_os()),
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.rng.lock().map_or(0, |mut rng| rng.below(bound))
    }

    fn row(&self, event: &Event, fate: Fate) -> Result<EffectRow, Failure> {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        let cause = if fate == Fate::Follow { Some(event.json::<Uuid>()?) } else { None };
        let key = event.key.clone().unwrap_or_default();
        let attempt = format!("{}/{number}", self.member);
        Ok(EffectRow { id: event.id.0, key, cause, attempt, number })
    }

    async fn dawdle(&self) {
        tokio::time::sleep(Duration::from_micros(self.below(self.handler_ms * 1000 + 1))).await;
    }

    async fn work<D: Writes>(&self, event: &Event, effect: &mut Effect<'_, D>) -> Answer {
        let fate = Fate::of_topic(&event.topic).ok_or_else(|| Failure::for_good("no such fate"))?;
        let row = self.row(event, fate)?;
        if self.slow {
            // Whatever it waits for, it waits for before it has a transaction.
            self.dawdle().await;
        }
        let tx = effect.tx().await?;
        if !(self.drops && fate == Fate::Plain && row.number % 20 == 19) {
            D::write(tx, &row).await?;
        }
        if self.conflicts {
            let slots = [self.below(SLOTS) as i64, self.below(SLOTS) as i64];
            D::fight(tx, slots).await?;
        }
        if !self.slow {
            self.dawdle().await;
        }
        match fate {
            Fate::Poison => return Err(Failure::for_good("poisoned on purpose")),
            Fate::Flaky if self.below(3) == 0 => {
                return Err(Failure::retry_after(Duration::from_millis(15), "flaky"));
            }
            Fate::Chain => {
                let follower = NewEvent::json(Fate::Follow.topic(), &row.id)?.key(row.key);
                D::publish(tx, follower).await?;
            }
            _ => {}
        }
        Ok(Settled::Done)
    }
}

impl<D: Writes> Handler<D> for Effects {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, D>) -> Answer {
        tripwire::at("handle", true);
        let answer = self.work(event, effect).await;
        tripwire::at("handle", false);
        answer
    }

    fn slow(&self) -> bool {
        self.slow
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(4)
    }
}

impl<D: Writes> Writes for Tripped<D> {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), Failure> {
        D::write(tx, row).await
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), Failure> {
        D::publish(tx, event).await
    }

    async fn fight(tx: &mut Self::Tx<'_>, slots: [i64; 2]) -> Result<(), Failure> {
        D::fight(tx, slots).await
    }
}

async fn write_on(client: &tokio_postgres::Client, row: &EffectRow) -> Result<(), Failure> {
    client.execute(EFFECT, &[&row.id, &row.key, &row.cause, &row.attempt]).await?;
    Ok(())
}

async fn fight_on(client: &tokio_postgres::Client, slots: [i64; 2]) -> Result<(), Failure> {
    for slot in slots {
        client.execute(FIGHT, &[&slot]).await?;
    }
    Ok(())
}

impl Writes for Deadpool {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), Failure> {
        write_on(tx.client(), row).await
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), Failure> {
        PostgresOutbox::new().publish(tx, event).await?;
        Ok(())
    }

    async fn fight(tx: &mut Self::Tx<'_>, slots: [i64; 2]) -> Result<(), Failure> {
        fight_on(tx.client(), slots).await
    }
}

impl Writes for TokioPostgres {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), Failure> {
        write_on(tx.client(), row).await
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), Failure> {
        PostgresOutbox::new().publish(tx, event).await?;
        Ok(())
    }

    async fn fight(tx: &mut Self::Tx<'_>, slots: [i64; 2]) -> Result<(), Failure> {
        fight_on(tx.client(), slots).await
    }
}

impl Writes for SqlxPostgres {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), Failure> {
        let (id, cause) = (row.id.to_string(), row.cause.map(|cause| cause.to_string()));
        let query =
            sqlx::query(EFFECT_BY_TEXT).bind(id).bind(&row.key).bind(cause).bind(&row.attempt);
        query.execute(&mut **tx).await?;
        Ok(())
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), Failure> {
        PostgresOutbox::new().publish(tx, event).await?;
        Ok(())
    }

    async fn fight(tx: &mut Self::Tx<'_>, slots: [i64; 2]) -> Result<(), Failure> {
        for slot in slots {
            sqlx::query(FIGHT).bind(slot).execute(&mut **tx).await?;
        }
        Ok(())
    }
}

impl Writes for SqlxSqlite {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), Failure> {
        let (id, cause) = (row.id.to_string(), row.cause.map(|cause| cause.to_string()));
        let query = sqlx::query(EFFECT).bind(id).bind(&row.key).bind(cause).bind(&row.attempt);
        query.execute(&mut **tx).await?;
        Ok(())
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), Failure> {
        SqliteOutbox::default().publish(tx, event).await?;
        Ok(())
    }

    async fn fight(tx: &mut Self::Tx<'_>, slots: [i64; 2]) -> Result<(), Failure> {
        for slot in slots {
            sqlx::query(FIGHT).bind(slot).execute(&mut **tx).await?;
        }
        Ok(())
    }
}
