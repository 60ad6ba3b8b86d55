use super::handler::{EffectRow, Writes};
use relevo::{Failure, NewEvent, Result, Store, TxDriver};
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
}

/// A driver whose record is not in the transaction of the effect.
pub(super) struct Apart<D> {
    driver: D,
    store: Arc<dyn Store>,
    first: bool,
}

impl<D> Apart<D> {
    pub(super) fn new(driver: D, store: Arc<dyn Store>, first: bool) -> Self {
        Self { driver, store, first }
    }
}

pub(super) struct ApartTx<'c, D: TxDriver> {
    tx: D::Tx<'c>,
    store: &'c Arc<dyn Store>,
    first: bool,
    later: Option<LaneChange>,
}

impl<D: TxDriver> TxDriver for Apart<D> {
    type Conn = D::Conn;
    type Tx<'c> = ApartTx<'c, D>;

    async fn acquire(&self) -> Result<Self::Conn> {
        self.driver.acquire().await
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
        Ok(ApartTx { tx, store: &self.store, first: self.first, later: None })
    }

    async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
        D::savepoint(&mut tx.tx).await
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        D::undo(&mut tx.tx).await
    }

    async fn record(tx: &mut Self::Tx<'_>, change: &LaneChange) -> Result<()> {
        if tx.first {
            return tx.store.record(std::slice::from_ref(change)).await;
        }
        tx.later = Some(change.clone());
        Ok(())
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        let ApartTx { tx, store, later, .. } = tx;
        D::commit(tx).await?;
        match later {
            Some(change) => store.record(&[change]).await,
            None => Ok(()),
        }
    }
}

impl<D: Writes> Writes for Apart<D> {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), Failure> {
        D::write(&mut tx.tx, row).await
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), Failure> {
        D::publish(&mut tx.tx, event).await
    }

    async fn fight(tx: &mut Self::Tx<'_>, slots: [i64; 2]) -> Result<(), Failure> {
        D::fight(&mut tx.tx, slots).await
    }
}
