//! The doorbell: `PRAGMA data_version` tells, without reading a table, that another connection committed.

use super::errors::own;
use super::location::Location;
use super::threads::connect_to_read;
use relevo_core::{Kind, Result};
use rusqlite::Connection;
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::watch;

/// How often a busy file is asked; an idle one ever more rarely, up to [`IDLE`].
const BUSY: Duration = Duration::from_millis(2);
const IDLE: Duration = Duration::from_millis(25);

/// How it wakes, in words.
pub(super) const WAKING: &str = "doorbell: PRAGMA data_version is asked every 2 to 25 ms, \
                                 and the log only when it changed; no table is read while idle";

/// Starts the thread that listens; it ends with `alive`. The counter grows when the log does.
pub(super) fn start<T: Send + Sync + 'static>(
    location: &Location,
    alive: Weak<T>,
) -> Result<watch::Receiver<u64>> {
    let conn = connect_to_read(location)?;
    let (ring, rings) = watch::channel(0);
    std::thread::Builder::new()
        .name("relevo-sqlite-bell".into())
        .spawn(move || listen(&conn, &ring, &alive))
        .map_err(|e| {
            own(Kind::StoreFailed, format!("the doorbell's thread cannot be started: {e}"))
        })?;
    Ok(rings)
}

fn listen<T>(conn: &Connection, ring: &watch::Sender<u64>, alive: &Weak<T>) {
    let mut watcher = Watcher::default();
    let mut pause = BUSY;
    while alive.strong_count() > 0 {
        let grown = watcher.has_grown(conn);
        if grown {
            ring.send_modify(|count| *count += 1);
        }
        pause = if grown { BUSY } else { (pause * 5 / 4).min(IDLE) };
        std::thread::sleep(pause);
    }
}

#[derive(Default)]
struct Watcher {
    version: Option<i64>,
    newest: i64,
}

impl Watcher {
    /// Has a commit made the log longer? Any trouble counts as yes: the page read after it will say what it is.
    fn has_grown(&mut self, conn: &Connection) -> bool {
        self.look(conn).unwrap_or_else(|error| {
            tracing::debug!(adapter = super::ADAPTER, %error, "the doorbell cannot look");
            std::thread::sleep(Duration::from_secs(1));
            true
        })
    }

    fn look(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let version: i64 =
            conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if self.version == Some(version) {
            return Ok(false);
        }
        let sql = "SELECT COALESCE(max(seq), 0) FROM relevo_outbox";
        let newest: i64 = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        self.version = Some(version);
        let grown = newest > self.newest;
        self.newest = newest.max(self.newest);
        Ok(grown)
    }
}
