use super::handler::{EffectRow, Writes};
use relevo::{Failure, NewEvent, Result, Store, TxDriver};
use relevo_core::inbox::{Meet, Met};
use relevo_core::outbox::LaneChange;
use std::sync::Arc;
use std::time::Duration;

/// Wrong on purpose: what the checker must catch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Broken {
    /// Answers "done" for every twentieth event without doing anything.
    Drop,
    /// Records in a transaction of its own, then commits the effect.
    RecordFirst,
    /// Commits the effect, then records in a transaction of its own: no fence guards the effect.
    RecordLast,
    /// Confirms to the relay before the outside has stored anything.
    ConfirmEarly,
    /// A writer that publishes on a connection of its own, beside its transaction.
    PublishApart,
    /// An adopted table whose key was not mapped.
    KeyOverlooked,
    /// A consumer that settles messages when they come.
    AcknowledgeFirst,
    /// A consumer whose effect commits before, and apart from, its note in the inbox.
    EffectApart,
}

/// What such a worker does outside of its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    /// The record, before the effect commits.
    RecordFirst,
    /// The record, after the effect committed.
    RecordLast,
    /// The effect.
    Effect,
}

impl Split {
    pub(super) fn of(broken: Broken) -> Option<Self> {
        Some(match broken {
            Broken::RecordFirst => Self::RecordFirst,
            Broken::RecordLast => Self::RecordLast,
            Broken::EffectApart => Self::Effect,
            _ => return None,
        })
    }
}

/// A driver whose record, or effect, is not in the transaction of the other.
#[derive(Clone)]
pub(super) struct Apart<D> {
    driver: D,
    store: Arc<dyn Store>,
    split: Split,
}

impl<D> Apart<D> {
    pub(super) fn new(driver: D, store: Arc<dyn Store>, split: Split) -> Self {
        Self { driver, store, split }
    }
}

pub(super) struct ApartTx<'c, D: TxDriver> {
    tx: D::Tx<'c>,
    apart: &'c Apart<D>,
    later: Option<LaneChange>,
}

impl<D: TxDriver> TxDriver for Apart<D> {
    type Conn = D::Conn;
    type Tx<'c> = ApartTx<'c, D>;

    const HOLD: Duration = D::HOLD;
    const SAVEPOINTS_TELL: bool = D::SAVEPOINTS_TELL;

    async fn acquire(&self) -> Result<Self::Conn> {
        self.driver.acquire().await
    }

    fn committed(&self, conn: Self::Conn) {
        self.driver.committed(conn);
    }

    fn distrust(&self, conn: Option<Self::Conn>) {
        self.driver.distrust(conn);
    }

    async fn begin<'c>(
        &'c self,
        conn: &'c mut Self::Conn,
        idle_limit: Duration,
    ) -> Result<Self::Tx<'c>> {
        let tx = self.driver.begin(conn, idle_limit).await?;
        Ok(ApartTx { tx, apart: self, later: None })
    }

    async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
        D::savepoint(&mut tx.tx).await
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        D::undo(&mut tx.tx).await
    }

    async fn record(tx: &mut Self::Tx<'_>, change: &LaneChange) -> Result<()> {
        match tx.apart.split {
            Split::RecordFirst => tx.apart.store.record(std::slice::from_ref(change)).await,
            Split::Effect => D::record(&mut tx.tx, change).await,
            Split::RecordLast => {
                tx.later = Some(change.clone());
                Ok(())
            }
        }
    }

    async fn meet(tx: &mut Self::Tx<'_>, consumer: &str, messages: &[Meet]) -> Result<Vec<Met>> {
        D::meet(&mut tx.tx, consumer, messages).await
    }

    async fn land(
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        events: Vec<NewEvent>,
        keys: &[String],
    ) -> Result<()> {
        D::land(&mut tx.tx, consumer, events, keys).await
    }

    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        D::is_conflict(error)
    }

    async fn seal(tx: &mut Self::Tx<'_>) -> Result<()> {
        D::seal(&mut tx.tx).await
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        let ApartTx { tx, apart, later } = tx;
        D::commit(tx).await?;
        match later {
            Some(change) => apart.store.record(&[change]).await,
            None => Ok(()),
        }
    }
}

impl<D: Writes> Writes for Apart<D> {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), Failure> {
        if tx.apart.split != Split::Effect {
            return D::write(&mut tx.tx, row).await;
        }
        let driver = &tx.apart.driver;
        let mut conn = driver.acquire().await?;
        let mut other = driver.begin(&mut conn, Duration::from_secs(60)).await?;
        D::write(&mut other, row).await?;
        Ok(D::commit(other).await?)
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), Failure> {
        D::publish(&mut tx.tx, event).await
    }

    async fn fight(tx: &mut Self::Tx<'_>, slots: [i64; 2]) -> Result<(), Failure> {
        D::fight(&mut tx.tx, slots).await
    }
}
