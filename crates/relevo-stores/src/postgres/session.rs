//! A connection of the pool, for statements that carry their types with them.
//!
//! Statements are never prepared by name: each is parsed, bound and run in one round trip. That works behind a
//! transaction pooler too, where the next statement may meet another server process.

use super::Inner;
use super::errors::{error, from_driver, from_pool, on_commit};
use super::reserved::Reserved;
use chrono::{DateTime, Utc};
use deadpool_postgres::Object;
use futures::TryStreamExt;
use futures::future::join;
use relevo_core::{Kind, Result};
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// A Rust type with the PostgreSQL types it travels as.
pub(crate) trait SqlType: ToSql + Sync {
    const TYPE: Type;
    const ARRAY: Type;
}

macro_rules! sql_types {
    ($($rust:ty => $one:ident, $many:ident;)*) => {
        $(impl SqlType for $rust {
            const TYPE: Type = Type::$one;
            const ARRAY: Type = Type::$many;
        })*
    };
}
sql_types! {
    bool => BOOL, BOOL_ARRAY;
    i16 => INT2, INT2_ARRAY;
    i32 => INT4, INT4_ARRAY;
    i64 => INT8, INT8_ARRAY;
    f64 => FLOAT8, FLOAT8_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    String => TEXT, TEXT_ARRAY;
    &[u8] => BYTEA, BYTEA_ARRAY;
    Uuid => UUID, UUID_ARRAY;
    DateTime<Utc> => TIMESTAMPTZ, TIMESTAMPTZ_ARRAY;
}
impl<T: SqlType> SqlType for Option<T> {
    const TYPE: Type = T::TYPE;
    const ARRAY: Type = T::ARRAY;
}
impl<T: SqlType> SqlType for Vec<T> {
    const TYPE: Type = T::ARRAY;
    const ARRAY: Type = T::ARRAY;
}

pub(crate) type Args<'a> = [(&'a (dyn ToSql + Sync), Type)];

pub(crate) fn type_of<T: SqlType>(_: &T) -> Type {
    T::TYPE
}

/// Arguments of a statement, each with the type its Rust type says.
macro_rules! args {
    ($($value:expr),* $(,)?) => {
        &[$((&$value as &(dyn tokio_postgres::types::ToSql + Sync), $crate::postgres::session::type_of(&$value))),*]
    };
}
pub(crate) use args;

/// Whoever gives up after so long has met silence, rather than changed their mind.
const SILENCE: Duration = Duration::from_secs(1);
/// Between two statements of a transaction on an adopted table nobody needs longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Where a connection goes back to.
enum Lent {
    ByPool(Object),
    Reserved(deadpool::managed::Object<Reserved>),
}

/// A connection that is closed rather than given back when its state is in doubt.
pub(crate) struct Session {
    object: Option<Lent>,
    limit: Duration,
    in_doubt: AtomicBool,
    store: Arc<Inner>,
}

impl Session {
    pub(super) async fn get(store: &Arc<Inner>, limit: Duration) -> Result<Self> {
        let object = store.pool.get().await.map_err(from_pool)?;
        Ok(Self::over(Lent::ByPool(object), limit, store))
    }

    /// One of the connections that handlers cannot use up.
    pub(super) async fn reserved(store: &Arc<Inner>, limit: Duration) -> Result<Self> {
        let object = store.reserved()?.get().await.map_err(from_pool)?;
        Ok(Self::over(Lent::Reserved(object), limit, store))
    }

    fn over(object: Lent, limit: Duration, store: &Arc<Inner>) -> Self {
        let in_doubt = AtomicBool::new(false);
        Self { object: Some(object), limit, in_doubt, store: store.clone() }
    }

    fn client(&self) -> Result<&tokio_postgres::Client> {
        let client = self.object.as_ref().map(|object| -> &tokio_postgres::Client {
            match object {
                Lent::ByPool(object) => object,
                Lent::Reserved(object) => object,
            }
        });
        client.ok_or_else(|| error(Kind::StoreFailed, "the connection was given back already"))
    }

    async fn limited<T>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        let mut statement = Unanswered { session: Some(self), since: Instant::now() };
        match tokio::time::timeout(self.limit, answer).await {
            Ok(result) => {
                statement.session = None;
                result.map_err(from_driver)
            }
            Err(_) => Err(error(Kind::Timeout, format!("no answer within {:?}", self.limit))),
        }
    }

    /// Nobody waits any more for a statement's answer, for which somebody had waited for so long.
    fn give_up(&self, waited: Duration) {
        self.in_doubt.store(true, Ordering::Relaxed);
        if waited >= SILENCE.min(self.limit) {
            self.store.distrust_idle_ones();
        }
    }

    pub(crate) async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<Row>> {
        self.limited(self.client()?.query_typed(sql, args)).await
    }

    /// What `read` makes of each row. Rows are read as they come, while the server looks for the next ones.
    pub(crate) async fn query_each<T>(
        &self,
        sql: &str,
        args: &Args<'_>,
        read: impl Fn(&Row) -> T,
    ) -> Result<Vec<T>> {
        let client = self.client()?;
        let args = args.iter().map(|(value, kind)| (*value, kind.clone()));
        let rows = async {
            let found = client.query_typed_raw(sql, args).await?;
            found.map_ok(|row| read(&row)).try_collect().await
        };
        self.limited(rows).await
    }

    pub(crate) async fn query_opt(&self, sql: &str, args: &Args<'_>) -> Result<Option<Row>> {
        Ok(self.query(sql, args).await?.into_iter().next())
    }

    pub(crate) async fn query_one(&self, sql: &str, args: &Args<'_>) -> Result<Row> {
        let row = self.query_opt(sql, args).await?;
        row.ok_or_else(|| {
            error(Kind::StoreFailed, "a statement that always answers did not answer")
        })
    }

    pub(crate) async fn execute(&self, sql: &str, args: &Args<'_>) -> Result<u64> {
        self.limited(self.client()?.execute_typed(sql, args)).await
    }

    /// Statements without arguments.
    pub(crate) async fn batch(&self, sql: &str) -> Result<()> {
        self.limited(self.client()?.batch_execute(sql)).await
    }

    /// [`Self::begin`], each statement of which sees what had committed before it, whatever the database's default is, and
    /// wants few rows of a table that may be large: reading all of it for them, or compiling a plan, is never worth it.
    ///
    /// Others work past its locks, or wait for them: whoever falls asleep in it, or vanishes without a goodbye, loses them.
    pub(crate) async fn begin_by_index(&self) -> Result<Tx<'_>> {
        Ok(self.begin_by_index_with(std::future::ready(Ok(()))).await?.0)
    }

    /// The same, in one round trip with what is asked first in it.
    pub(crate) async fn begin_by_index_with<T>(
        &self,
        first: impl Future<Output = Result<T>>,
    ) -> Result<(Tx<'_>, T)> {
        let tx = Tx { session: self, ended: false };
        let idle = LONGEST_PAUSE.as_millis();
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_seqscan = off; SET LOCAL jit = off;
             SET LOCAL idle_in_transaction_session_timeout = {idle}"
        );
        let (begun, first) = in_one_trip(self.batch(&begin), first).await?;
        begun?;
        Ok((tx, first?))
    }

    /// Begins a transaction; unless it is ended properly the connection is closed, and the server rolls back.
    pub(crate) async fn begin(&self) -> Result<Tx<'_>> {
        let tx = Tx { session: self, ended: false };
        self.batch("BEGIN").await?;
        Ok(tx)
    }
}

/// Two requests in one round trip: the driver sends in the order of the first polls. What fails at its first poll was not
/// sent, and nothing is sent behind it: a COMMIT would keep half of a transaction. Of what was sent both answers are heard,
/// behind a refusal too, or a server that answers would be taken for a silent one.
pub(super) async fn in_one_trip<A, B>(
    first: impl Future<Output = Result<A>>,
    second: impl Future<Output = Result<B>>,
) -> Result<(Result<A>, Result<B>)> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    let one = sent(first.as_mut()).await?;
    let two = sent(second.as_mut()).await?;
    Ok(join(answered(one, first), answered(two, second)).await)
}

/// The answer to a request, where it is there as soon as that was sent.
async fn sent<T>(mut request: Pin<&mut impl Future<Output = Result<T>>>) -> Result<Option<T>> {
    poll_fn(|context| {
        Poll::Ready(match request.as_mut().poll(context) {
            Poll::Ready(answer) => answer.map(Some),
            Poll::Pending => Ok(None),
        })
    })
    .await
}

async fn answered<T>(answer: Option<T>, request: impl Future<Output = Result<T>>) -> Result<T> {
    match answer {
        Some(answer) => Ok(answer),
        None => request.await,
    }
}

/// A statement on its way. Its session is in doubt if nobody hears the answer: because the limit is over, or because whoever
/// waited has a shorter one and dropped the future. The connection may be half-open, or busy with that statement still.
struct Unanswered<'s> {
    session: Option<&'s Session>,
    since: Instant,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session {
            session.give_up(self.since.elapsed());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.in_doubt.load(Ordering::Relaxed)
            && let Some(object) = self.object.take()
        {
            match object {
                Lent::ByPool(object) => drop(Object::take(object)),
                Lent::Reserved(object) => drop(deadpool::managed::Object::take(object)),
            }
        }
    }
}

/// An open transaction of a session.
pub(crate) struct Tx<'s> {
    session: &'s Session,
    ended: bool,
}

impl Tx<'_> {
    pub(crate) async fn commit(mut self) -> Result<()> {
        self.session.batch("COMMIT").await.map_err(on_commit)?;
        self.ended = true;
        Ok(())
    }

    /// Commits in one round trip with the last that is done in it. If the server refuses that, it makes a rollback of the
    /// COMMIT behind it. Nothing of `last` may wait for an answer before it sends: it would send after the end of the
    /// transaction.
    pub(crate) async fn commit_with<T>(
        mut self,
        last: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let both = in_one_trip(last, self.session.batch("COMMIT")).await;
        let (last, committed) = both.map_err(on_commit)?;
        // Whatever the last statement was told: a server that has answered the COMMIT has ended the transaction.
        self.ended = committed.is_ok();
        // Without an answer to the last statement nobody knows either whether the COMMIT behind it arrived.
        let last = last.map_err(on_commit)?;
        committed.map_err(on_commit)?;
        Ok(last)
    }

    pub(crate) async fn rollback(mut self) -> Result<()> {
        self.session.batch("ROLLBACK").await?;
        self.ended = true;
        Ok(())
    }
}

impl Deref for Tx<'_> {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.session
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.session.in_doubt.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::{pending, ready};
    use tokio::task::yield_now;

    fn failed<T>(kind: Kind) -> Result<T> {
        Err(error(kind, "as the test wants it"))
    }

    #[tokio::test]
    async fn behind_a_refusal_the_other_answer_is_heard_too() {
        let heard = Cell::new(false);
        let first = async {
            yield_now().await;
            failed::<()>(Kind::StoreFailed)
        };
        let second = async {
            yield_now().await;
            yield_now().await;
            heard.set(true);
            Ok(7)
        };
        let (first, second) = in_one_trip(first, second).await.unwrap();
        assert_eq!(first.unwrap_err().kind(), Kind::StoreFailed);
        assert_eq!((second.unwrap(), heard.get()), (7, true));
    }

    #[tokio::test]
    async fn nothing_is_sent_behind_what_cannot_be_and_nobody_is_waited_for() {
        let sent = Cell::new(false);
        let commit = async {
            sent.set(true);
            Ok(())
        };
        let silent = pending::<Result<()>>();
        // As a claim does it: the second of its last two statements cannot be sent.
        let last = async {
            let (first, second) =
                in_one_trip(silent, ready(failed::<()>(Kind::Unreachable))).await?;
            first.and(second)
        };
        let error = in_one_trip(last, commit).await.err();
        assert_eq!(error.map(|error| error.kind()), Some(Kind::Unreachable));
        assert!(!sent.get());
    }
}
