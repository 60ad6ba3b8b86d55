use super::consume::{Meet, Met};
use crate::error::{Error, Kind, Result};
use crate::event::NewEvent;
use crate::outbox::LaneChange;
use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How a driver's transactions are opened, fenced and ended. One small implementation per driver
/// (sqlx, tokio-postgres, deadpool, ...); everything else is written once over it.
///
/// Errors: `TransactionConflict` for deadlocks, serialization failures and server-side timeouts; `Stale` when
/// the fence does not match; `CommitUnknown` when nobody knows whether a commit happened.
pub trait TxDriver: Send + Sync + Sized + 'static {
    /// A connection, checked out for one batch.
    type Conn: Send;
    /// A transaction on it.
    type Tx<'c>: Send;

    /// How long a handler may hold a transaction open. Where writers wait for each other it must stay below what
    /// publishers are ready to wait. A shared transaction takes in no further event after a quarter of it.
    const HOLD: Duration = Duration::from_secs(120);

    /// True if the database may end a transaction by itself, and statements then go on outside of any: the savepoint before
    /// each event tells that, and is set even as long as nothing fails.
    const SAVEPOINTS_TELL: bool = true;

    /// Checks a connection out.
    fn acquire(&self) -> impl Future<Output = Result<Self::Conn>> + Send;

    /// The last thing heard on this connection was that its transaction is committed: nothing is under way on it. One that
    /// is dropped without a word may still be busy with what was given up.
    fn committed(&self, conn: Self::Conn) {
        drop(conn);
    }

    /// Somebody waited in vain on this connection, if one was had at all: it may be half-open, or busy still with what
    /// was given up, and those that idle may be no better. None of them may be handed out again.
    fn distrust(&self, conn: Option<Self::Conn>) {
        drop(conn);
    }

    /// Begins. The session must end by itself if it idles inside the transaction for longer than `idle_limit`.
    fn begin<'c>(
        &'c self,
        conn: &'c mut Self::Conn,
        idle_limit: Duration,
    ) -> impl Future<Output = Result<Self::Tx<'c>>> + Send;

    /// Sets the savepoint `relevo_event` (again).
    fn savepoint(tx: &mut Self::Tx<'_>) -> impl Future<Output = Result<()>> + Send;

    /// Undoes everything since the savepoint; the transaction goes on.
    fn undo(tx: &mut Self::Tx<'_>) -> impl Future<Output = Result<()>> + Send;

    /// Writes the lane's change; its last statement is the fence.
    fn record(
        tx: &mut Self::Tx<'_>,
        change: &LaneChange,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Notes in the inbox that `consumer` meets these messages, and tells for each what it is. The notes live and die
    /// with the transaction.
    fn meet(
        _tx: &mut Self::Tx<'_>,
        _consumer: &str,
        _messages: &[Meet],
    ) -> impl Future<Output = Result<Vec<Met>>> + Send {
        async { Err(Error::new(Kind::NotSupported, "this driver has no inbox")) }
    }

    /// Puts events into the consumer's log, and remembers that `keys` wait there.
    fn land(
        _tx: &mut Self::Tx<'_>,
        _consumer: &str,
        _events: Vec<NewEvent>,
        _keys: &[String],
    ) -> impl Future<Output = Result<()>> + Send {
        async { Err(Error::new(Kind::NotSupported, "this driver has no inbox")) }
    }

    /// Is this error, as a handler saw it, a deadlock or serialization failure: did the database choose this
    /// transaction as a victim, rather than the event being at fault?
    fn is_conflict(_error: &(dyn std::error::Error + 'static)) -> bool {
        false
    }

    /// A last look before a commit without [`Self::record`]: is this still the transaction that was begun?
    fn seal(_tx: &mut Self::Tx<'_>) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Commits. An error whose outcome is not certain is `CommitUnknown`.
    fn commit(tx: Self::Tx<'_>) -> impl Future<Output = Result<()>> + Send;
}

/// The transaction a handler works in. A fast handler finds it open; a slow one opens it by first use.
pub struct Effect<'c, D: TxDriver> {
    driver: &'c D,
    idle_limit: Duration,
    state: State<'c, D>,
    opened: watch::Sender<Option<Instant>>,
    /// Why it could not be opened: the store's trouble, not the event's.
    trouble: Option<(Kind, String)>,
}

enum State<'c, D: TxDriver> {
    /// Not used yet: not even a connection is held.
    Idle(&'c mut Option<D::Conn>),
    Open(D::Tx<'c>),
    /// Only while it is being opened, or after that failed.
    Gone,
}

impl<'c, D: TxDriver> Effect<'c, D> {
    /// `slot` will hold the connection, once one is needed.
    pub(crate) fn new(driver: &'c D, slot: &'c mut Option<D::Conn>, idle_limit: Duration) -> Self {
        Self {
            driver,
            idle_limit,
            state: State::Idle(slot),
            opened: watch::channel(None).0,
            trouble: None,
        }
    }

    /// The transaction, begun now if this is its first use.
    pub async fn tx(&mut self) -> Result<&mut D::Tx<'c>> {
        if let State::Idle(_) = self.state
            && let State::Idle(slot) = std::mem::replace(&mut self.state, State::Gone)
        {
            let opened = open(self.driver, slot, self.idle_limit).await;
            let note = |error: &Error| self.trouble = Some((error.kind(), error.to_string()));
            self.state = State::Open(opened.inspect_err(note)?);
            self.opened.send_replace(Some(Instant::now()));
        }
        match &mut self.state {
            State::Open(tx) => Ok(tx),
            _ => Err(Error::new(
                Kind::StoreFailed,
                "the transaction could not be opened before; this attempt is over",
            )),
        }
    }

    /// What kept the transaction from being opened, if anything did.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.trouble.as_ref().map(|(kind, text)| Error::new(*kind, text.clone()))
    }

    /// How long its session may idle inside the transaction.
    pub(crate) fn idle_limit(&self) -> Duration {
        self.idle_limit
    }

    /// How long the transaction has been open.
    pub(crate) fn open_for(&self) -> Duration {
        self.opened.borrow().map_or(Duration::ZERO, |opened| opened.elapsed())
    }

    /// Tells when the transaction was opened, as soon as it is.
    pub(crate) fn opened(&self) -> watch::Receiver<Option<Instant>> {
        self.opened.subscribe()
    }

    /// The transaction, if it was used.
    pub(crate) fn into_open(self) -> Option<D::Tx<'c>> {
        match self.state {
            State::Open(tx) => Some(tx),
            _ => None,
        }
    }
}

async fn open<'c, D: TxDriver>(
    driver: &'c D,
    slot: &'c mut Option<D::Conn>,
    idle_limit: Duration,
) -> Result<D::Tx<'c>> {
    let conn = slot.insert(driver.acquire().await?);
    driver.begin(conn, idle_limit).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::inbox::{Answer, Handler, Settled};

    /// Says no more than it must. A connection is told by its number.
    struct Plain;

    impl TxDriver for Plain {
        type Conn = u32;
        type Tx<'c> = u32;

        async fn acquire(&self) -> Result<u32> {
            Ok(7)
        }

        async fn begin<'c>(&'c self, conn: &'c mut u32, _: Duration) -> Result<u32> {
            Ok(*conn)
        }

        async fn savepoint(_: &mut Self::Tx<'_>) -> Result<()> {
            Ok(())
        }

        async fn undo(_: &mut Self::Tx<'_>) -> Result<()> {
            Ok(())
        }

        async fn record(_: &mut Self::Tx<'_>, _: &LaneChange) -> Result<()> {
            Ok(())
        }

        async fn commit(_: Self::Tx<'_>) -> Result<()> {
            Ok(())
        }
    }

    impl Handler<Plain> for Plain {
        async fn handle(&self, _: &Event, _: &mut Effect<'_, Plain>) -> Answer {
            Ok(Settled::Done)
        }
    }

    #[test]
    fn a_driver_that_knows_no_conflicts_sees_none() {
        assert!(!Plain::is_conflict(&Error::new(Kind::TransactionConflict, "deadlock")));
    }

    #[test]
    fn a_handler_that_says_nothing_else_is_fast_and_has_half_a_minute() {
        assert!(!Plain.slow());
        assert_eq!(Plain.limit(), Duration::from_secs(30));
    }

    #[tokio::test]
    async fn a_transaction_is_open_from_its_first_use_on() {
        let mut slot = None;
        let mut effect = Effect::new(&Plain, &mut slot, Duration::from_secs(1));
        let opened = effect.opened();
        assert_eq!((effect.open_for(), *opened.borrow()), (Duration::ZERO, None));
        assert_eq!(*effect.tx().await.unwrap(), 7);
        let since = opened.borrow().unwrap();
        while since.elapsed().is_zero() {
            tokio::task::yield_now().await;
        }
        assert!(effect.open_for() > Duration::ZERO);
        assert_eq!(effect.into_open(), Some(7));
    }
}
