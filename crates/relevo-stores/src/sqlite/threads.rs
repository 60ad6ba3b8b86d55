//! One thread that writes and two that read, each with a connection of its own.
//!
//! SQLite has one writer at a time anyway: a single writing thread keeps our own transactions from
//! waiting for each other with the busy handler's sleeps, and no future of ours holds a lock across an await.

use super::errors::{Fault, Sql, of_rusqlite, own};
use super::location::{FileIdentity, Location, Mode};
use relevo_core::{Kind, Result};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a transaction waits for the write lock before the file counts as locked.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it looks meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(2);

const READERS: usize = 2;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The threads; they end when the last sender is gone.
pub(super) struct Threads {
    write: Sender<Job>,
    read: Sender<Job>,
}

impl Threads {
    pub(super) fn start(location: &Location) -> Result<Self> {
        let writer = connect(location)?;
        let (write, jobs) = channel();
        spawn("relevo-sqlite-writer", writer, Arc::new(Mutex::new(jobs)))?;
        let (read, jobs) = channel();
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..READERS {
            spawn("relevo-sqlite-reader", connect_to_read(location)?, jobs.clone())?;
        }
        Ok(Self { write, read })
    }

    /// Runs `work` in a transaction that has the write lock; commits if it succeeds.
    pub(super) async fn write<T, F>(
        &self,
        file: Arc<FileIdentity>,
        durable: bool,
        work: F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Sql<T> + Send + 'static,
    {
        run(&self.write, move |conn| {
            file.check()?;
            // A cursor that only moves may be lost with the machine's power (it brings copies), so its
            // commit need not wait for the disk; in WAL mode the file stays sound either way.
            conn.pragma_update(None, "synchronous", if durable { "FULL" } else { "NORMAL" })?;
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let answer = work(&tx)?;
            tx.commit()?;
            Ok(answer)
        })
        .await
    }

    /// Runs `work` on one consistent state of the file.
    pub(super) async fn read<T, F>(&self, file: Arc<FileIdentity>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Sql<T> + Send + 'static,
    {
        run(&self.read, move |conn| {
            file.check()?;
            let tx = conn.transaction_with_behavior(TransactionBehavior::Deferred)?;
            work(&tx)
        })
        .await
    }
}

async fn run<T, F>(jobs: &Sender<Job>, work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&mut Connection) -> Sql<T> + Send + 'static,
{
    let (answer, wait) = oneshot::channel();
    let job: Job = Box::new(move |conn| {
        // The receiver is gone if the caller stopped waiting: the work is done, nobody asks how it went.
        let _ = answer.send(work(conn).map_err(relevo_core::Error::from));
    });
    let ended = || own(Kind::StoreFailed, "the store's thread has ended");
    jobs.send(job).map_err(|_| ended())?;
    wait.await.map_err(|_| {
        own(Kind::StoreFailed, "the store's thread panicked at this work; it was rolled back")
    })?
}

fn spawn(name: &str, mut conn: Connection, jobs: Arc<Mutex<Receiver<Job>>>) -> Result<()> {
    let body = move || {
        while let Some(job) = next_job(&jobs) {
            // Only the work's own state is lost with a panic: its transaction rolls back as it unwinds.
            if catch_unwind(AssertUnwindSafe(|| job(&mut conn))).is_err() {
                tracing::error!(
                    adapter = super::ADAPTER,
                    "work on the store panicked and was rolled back"
                );
            }
        }
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|e| own(Kind::StoreFailed, format!("the thread {name} cannot be started: {e}")))
}

fn next_job(jobs: &Mutex<Receiver<Job>>) -> Option<Job> {
    let jobs = jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    jobs.recv().ok()
}

/// A connection that may write.
pub(super) fn connect(location: &Location) -> Result<Connection> {
    open(location).map_err(|fault| match fault {
        Fault::Own(error) => error,
        Fault::Sql(error) => of_rusqlite(error),
    })
}

fn open(location: &Location) -> Sql<Connection> {
    location.check()?;
    let access = match location.mode {
        Mode::ReadOnly => OpenFlags::SQLITE_OPEN_READ_ONLY,
        Mode::ReadWrite => OpenFlags::SQLITE_OPEN_READ_WRITE,
        Mode::Create => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
    };
    let conn =
        Connection::open_with_flags(&location.path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.busy_handler(Some(look_again))?;
    if location.mode != Mode::ReadOnly {
        use_wal(&conn)?;
    }
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

/// Waits for the file's lock, steadily. SQLite's own handler looks ever more rarely, up to every 100 ms, and whoever works
/// batch after batch leaves the lock free for a millisecond in between: signs of life, take-overs and lanes given back
/// would wait for seconds.
fn look_again(times: i32) -> bool {
    thread_local! {
        static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let since = SINCE.get().filter(|_| times > 0).unwrap_or_else(Instant::now);
    SINCE.set(Some(since));
    #[cfg(test)]
    tests::LOOKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::thread::sleep(LOOK_EVERY);
    since.elapsed() < BUSY_TIMEOUT
}

/// Readers and the writer go on beside each other only with a write-ahead log.
fn use_wal(conn: &Connection) -> Sql<()> {
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode.eq_ignore_ascii_case("wal") {
        return Ok(());
    }
    let why = format!(
        "the file's journal mode stays {mode:?}; Relevo needs WAL, which needs a local file system"
    );
    Err(own(Kind::NotSupported, why).into())
}

/// A connection that only reads.
pub(super) fn connect_to_read(location: &Location) -> Result<Connection> {
    let conn = connect(location)?;
    conn.pragma_update(None, "query_only", true).map_err(of_rusqlite)?;
    Ok(conn)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    pub(super) static LOOKS: AtomicU32 = AtomicU32::new(0);

    /// SQLite's own handler comes to a hundred looks in nine seconds, and gives up after five.
    #[test]
    fn whoever_waits_for_the_write_lock_looks_often_enough_to_find_a_gap() {
        let folder = std::env::temp_dir().join(format!("relevo-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        let location = Location::parse(&format!("sqlite:{}/log.db", folder.display())).unwrap();
        let (mut held, mut waiting) = (connect(&location).unwrap(), connect(&location).unwrap());
        let tx = held.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let waiter = std::thread::spawn(move || {
            waiting.transaction_with_behavior(TransactionBehavior::Immediate).map(drop)
        });
        while LOOKS.load(Ordering::Relaxed) < 100 && !waiter.is_finished() {
            std::thread::yield_now();
        }
        tx.commit().unwrap();
        waiter.join().unwrap().unwrap();
        assert!(LOOKS.load(Ordering::Relaxed) >= 100);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
