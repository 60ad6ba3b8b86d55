//! The doorbell: a temporary replication slot that only says "something came". The tables stay the truth, and the slot
//! dies with its connection, so it can neither lose an event nor fill a disk.

use super::PostgresStore;
use super::address::Address;
use super::replication::{Heard, Replication};
use super::session::{Session, args};
use relevo_core::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const PUBLICATION: &str = "relevo_doorbell";

/// The stream tells of a commit a moment before other sessions see it, so each ring is repeated after these.
const ECHOES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(150)];
/// While nothing can be heard (a slot waits for transactions that are open when it is made) readers are sent to look
/// for themselves.
const DEAF: Duration = Duration::from_millis(500);
/// How long to wait before the bell is hung up again.
const AGAIN: Duration = Duration::from_secs(5);
/// The server ends a connection that is silent for `wal_sender_timeout`, a minute by default.
const NOD: Duration = Duration::from_secs(5);
/// Each nod is answered; after so long a silence nobody is there any more.
const LOST: Duration = Duration::from_secs(20);

/// A store's bell: not looked at yet, impossible here, or hung.
pub(crate) struct Doorbell {
    /// How to connect; a pool of the user's own does not tell.
    address: Option<Address>,
    state: Mutex<State>,
}

enum State {
    Unknown,
    Silent,
    Hung(Bell),
}

struct Bell {
    rings: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Doorbell {
    pub(crate) fn new(address: Option<Address>) -> Self {
        Self { address, state: Mutex::new(State::Unknown) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_unknown(&self) -> bool {
        matches!(*self.state(), State::Unknown)
    }

    fn is_hung(&self) -> bool {
        matches!(*self.state(), State::Hung(_))
    }

    fn silence(&self) {
        *self.state() = State::Silent;
    }

    /// A listener of its own for each caller; the first one hangs the bell.
    pub(crate) fn listen(&self) -> Option<watch::Receiver<u64>> {
        let mut state = self.state();
        if let State::Hung(bell) = &*state {
            return Some(bell.rings.clone());
        }
        let (State::Unknown, Some(address)) = (&*state, &self.address) else { return None };
        // Outside of a runtime nobody can wait for a ring either.
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (sender, rings) = watch::channel(0);
        let task = runtime.spawn(ring_for_ever(address.clone(), sender));
        *state = State::Hung(Bell { rings: rings.clone(), task });
        Some(rings)
    }
}

impl PostgresStore {
    /// How the relay learns that something came, and why not better. Decides whether there is a bell.
    pub(crate) async fn waking(&self, session: &Session, pooled: bool) -> Result<String> {
        let bell = &self.inner.doorbell;
        if bell.is_hung() {
            return Ok("doorbell (a temporary replication slot)".into());
        }
        let obstacle = match (&bell.address, pooled) {
            (None, _) => Some("the store was given a pool, not a URL to listen by".to_owned()),
            (_, true) => Some("a pooler carries no replication stream".to_owned()),
            _ => obstacle(session).await?,
        };
        Ok(match obstacle {
            None => "doorbell (a temporary replication slot)".into(),
            Some(why) => {
                bell.silence();
                format!("polling: {why}")
            }
        })
    }

    /// Finds out once whether there can be a bell.
    pub(crate) async fn decide_doorbell(&self, session: &Session) -> Result<()> {
        if self.inner.doorbell.is_unknown() {
            let pooled = self.is_pooled(session).await?;
            self.waking(session, pooled).await?;
        }
        Ok(())
    }
}

/// Why this server rings no bell for this user.
async fn obstacle(session: &Session) -> Result<Option<String>> {
    let sql = "SELECT current_setting('wal_level'),
                      (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
                      (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
                      EXISTS (SELECT FROM pg_publication WHERE pubname = $1),
                      (SELECT count(*) FROM pg_replication_slots) < current_setting('max_replication_slots')::bigint,
                      current_user::text";
    let row = session.query_one(sql, args![PUBLICATION]).await?;
    let wal_level: &str = row.get(0);
    let user: &str = row.get(5);
    Ok(if wal_level != "logical" {
        Some(format!("wal_level is {wal_level}; with logical a doorbell would do"))
    } else if row.get::<_, Option<bool>>(1) != Some(true) {
        Some(format!(
            "user {user} lacks REPLICATION; ALTER ROLE {user} REPLICATION lets the doorbell open"
        ))
    } else if row.get::<_, i64>(2) == 0 {
        // A listener that died unnoticed would keep its slot, and the slot the disk.
        Some("wal_sender_timeout is 0".to_owned())
    } else if !row.get::<_, bool>(3) {
        Some(format!(
            "there is no publication {PUBLICATION}: whoever migrated lacked CREATE on the database"
        ))
    } else if !row.get::<_, bool>(4) {
        Some("every replication slot is taken; raise max_replication_slots".to_owned())
    } else {
        None
    })
}

fn ring(sender: &watch::Sender<u64>) {
    sender.send_modify(|rings| *rings = rings.wrapping_add(1));
}

/// Listens; whenever that ends, tries again. Until it hears, it rings by the clock.
async fn ring_for_ever(address: Address, sender: watch::Sender<u64>) {
    let hears = Arc::new(AtomicBool::new(false));
    let by_the_clock = async {
        loop {
            if !hears.load(Ordering::Relaxed) {
                ring(&sender);
            }
            tokio::time::sleep(DEAF).await;
        }
    };
    let by_ear = async {
        loop {
            let result = listen(&address, &sender, &hears).await;
            hears.store(false, Ordering::Relaxed);
            if let Err(cause) = result {
                tracing::warn!(%cause, "the doorbell is deaf; readers look by the clock until it hears again");
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    futures::join!(by_the_clock, by_ear);
}

async fn listen(
    address: &Address,
    sender: &watch::Sender<u64>,
    hears: &AtomicBool,
) -> std::io::Result<()> {
    let mut connection = Replication::connect(address).await?;
    let slot = format!("relevo_doorbell_{}", uuid::Uuid::new_v4().simple());
    connection.listen(&slot, PUBLICATION).await?;
    tracing::debug!(slot, "the doorbell hears");
    hears.store(true, Ordering::Relaxed);
    // Something may have come while it was being hung.
    ring(sender);
    let mut echoes: Vec<Instant> = Vec::new();
    let (mut nod_at, mut heard_at) = (Instant::now() + NOD, Instant::now());
    loop {
        let next = echoes.first().copied().unwrap_or(nod_at).min(nod_at);
        tokio::select! {
            heard = connection.hear() => {
                heard_at = Instant::now();
                match heard? {
                    Heard::Commit => {
                        ring(sender);
                        echoes = ECHOES.iter().map(|after| heard_at + *after).collect();
                    }
                    Heard::Question => nod_at = heard_at,
                    Heard::Nothing => {}
                }
            }
            () = tokio::time::sleep_until(next) => {
                let now = Instant::now();
                if echoes.first().is_some_and(|echo| *echo <= now) {
                    echoes.remove(0);
                    ring(sender);
                }
            }
        }
        if heard_at.elapsed() > LOST {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        // Also under load, when there is always something to hear.
        if nod_at <= Instant::now() {
            connection.nod().await?;
            nod_at = Instant::now() + NOD;
        }
    }
}
