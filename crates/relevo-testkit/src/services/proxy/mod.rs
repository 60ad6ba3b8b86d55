//! A TCP proxy that does to connections what networks do.

mod connection;

use super::{Result, ServiceError, port};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;

/// Stands between a client and a server on 127.0.0.1. Until told otherwise it only passes bytes.
///
/// It runs in a thread of its own, so a test may block or use any runtime. Dropping it closes
/// every connection.
///
/// | call | who notices what |
/// |---|---|
/// | [`cut`](Proxy::cut) | both sides: connection reset |
/// | [`refuse`](Proxy::refuse) | like `cut`, and new connections are closed at once |
/// | [`half_open`](Proxy::half_open) | nobody anything: bytes vanish both ways |
/// | [`forget`](Proxy::forget) | the same for connections of this moment, for ever; new ones work |
/// | [`delay`](Proxy::delay) | every piece arrives later |
/// | [`lose_replies`](Proxy::lose_replies) | the server works on, the client hears nothing |
/// | [`hold_replies`](Proxy::hold_replies) | the same, and the client hears all of it when it is healed |
/// | [`hold_replies_to`](Proxy::hold_replies_to) | the same from one request on |
/// | [`lose_reply_to`](Proxy::lose_reply_to) | one request is done, its answer is a closed connection |
/// | [`lead_to`](Proxy::lead_to) | new connections meet another server |
/// | [`heal`](Proxy::heal) | new connections work; those that lost bytes stay broken |
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy in front of a server.
    pub fn start(target: SocketAddr) -> Result<Proxy> {
        let failed = |error: std::io::Error| ServiceError::failed("Proxy", error);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let listener = std::net::TcpListener::bind(port::local(0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let shared = Arc::new(Shared { target: Mutex::new(Some(target)), ..Shared::default() });
        let (stop, stopped) = oneshot::channel::<()>();
        let of_thread = shared.clone();
        let thread = std::thread::spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                let listener =
                    TcpListener::from_std(listener).expect("the runtime has its I/O driver");
                tokio::select! {
                    () = accept(listener, of_thread) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Proxy { port, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        port::local(self.port)
    }

    /// The URL that reaches the same database through the proxy.
    pub fn url(&self, direct: &str) -> String {
        port::with_port(direct, self.port)
    }

    /// Leads new connections to another server, as a change of address does; those of this moment stay where they are.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.shared.target() = Some(target);
    }

    /// Resets every connection of this moment; when it returns they are gone. New ones work.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
        let this_cut = *self.shared.cuts.borrow();
        let mut open = self.shared.open();
        // Connections are known by the number of cuts before them.
        while open.keys().any(|cuts| *cuts < this_cut) {
            open = self.shared.closed.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Resets every connection and lets no new one through until [`Proxy::heal`].
    pub fn refuse(&self) {
        self.shared.faults().refuse = true;
        self.cut();
    }

    /// Swallows every byte in both directions, as when packets stop arriving.
    pub fn half_open(&self) {
        self.shared.faults().swallow = true;
    }

    /// Forgets every connection of this moment, those that idle too, as a router does that lost its tables: whatever is
    /// sent on them vanishes, also after [`Proxy::heal`]. New ones work.
    pub fn forget(&self) {
        self.shared.forgotten.store(self.connections(), Ordering::Relaxed);
    }

    /// Makes each piece of data arrive this much later, in both directions.
    pub fn delay(&self, time: Duration) {
        self.shared.faults().delay = time;
    }

    /// From now on requests pass and replies vanish; the client waits in vain until [`Proxy::cut`].
    pub fn lose_replies(&self) {
        self.shared.faults().lose_replies = true;
    }

    /// From now on requests pass and replies wait, none is lost: they come with [`Proxy::heal`].
    pub fn hold_replies(&self) {
        self.shared.holds.send_replace(true);
    }

    /// [`hold_replies`](Proxy::hold_replies) begins with the next request that contains `text`.
    pub fn hold_replies_to(&self, text: &str) {
        self.shared.faults().hold_replies_to = Some(text.as_bytes().to_vec());
    }

    /// Are replies held at this moment?
    pub fn holds_replies(&self) -> bool {
        *self.shared.holds.borrow()
    }

    /// Lets `count` more replies pass, then loses one and closes its connection, once.
    pub fn lose_reply_after(&self, count: usize) {
        self.shared.faults().replies_until_lost = Some(count);
    }

    /// Lets the next request that contains `text` reach the server, loses what the server answers
    /// and closes the connection, once: the client cannot know whether the request was done, and it
    /// was. With `text` `COMMIT` that is a commit whose outcome is unknown.
    ///
    /// A request is what arrives in one piece; short ones on one machine do.
    pub fn lose_reply_to(&self, text: &str) {
        self.shared.faults().lose_reply_to = Some(text.as_bytes().to_vec());
    }

    /// A request whose reply is to be lost has not come yet.
    pub fn owes_a_loss(&self) -> bool {
        self.shared.faults().lose_reply_to.is_some()
    }

    /// Ends all faults. A connection that lost bytes stays broken: what follows a gap is garbage.
    pub fn heal(&self) {
        *self.shared.faults() = Faults::default();
        self.shared.holds.send_replace(false);
    }

    /// How many replies were lost so far.
    pub fn lost(&self) -> u64 {
        *self.shared.lost.borrow()
    }

    /// Waits until that many replies were lost.
    pub async fn until_lost(&self, count: u64) {
        // The sender lives as long as `self`.
        let _ = self.shared.lost.subscribe().wait_for(|lost| *lost >= count).await;
    }

    /// How many bytes the server sent so far, over all connections.
    pub fn replied_bytes(&self) -> u64 {
        self.shared.replied_bytes.load(Ordering::Relaxed)
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the test's thread and the proxy's thread both see.
#[derive(Debug, Default)]
struct Shared {
    /// Where new connections lead.
    target: Mutex<Option<SocketAddr>>,
    faults: Mutex<Faults>,
    connections: AtomicU64,
    replied_bytes: AtomicU64,
    /// Connections up to this one are forgotten.
    forgotten: AtomicU64,
    /// How many connections are open, by the number of cuts before each.
    open: Mutex<BTreeMap<u64, usize>>,
    /// Rings when a connection has closed.
    closed: Condvar,
    /// Counts the cuts; connections end when it changes.
    cuts: watch::Sender<u64>,
    lost: watch::Sender<u64>,
    /// Replies wait while it says so.
    holds: watch::Sender<bool>,
}

impl Shared {
    fn target(&self) -> MutexGuard<'_, Option<SocketAddr>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts as open until dropped.
struct Open {
    shared: Arc<Shared>,
    cuts: u64,
}

impl Open {
    fn new(shared: Arc<Shared>, cuts: u64) -> Open {
        *shared.open().entry(cuts).or_default() += 1;
        Open { shared, cuts }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = self.shared.open();
        if let Some(count) = open.get_mut(&self.cuts) {
            *count -= 1;
        }
        open.retain(|_, count| *count > 0);
        self.shared.closed.notify_all();
    }
}

#[derive(Debug, Default)]
struct Faults {
    refuse: bool,
    swallow: bool,
    delay: Duration,
    lose_replies: bool,
    replies_until_lost: Option<usize>,
    lose_reply_to: Option<Vec<u8>>,
    hold_replies_to: Option<Vec<u8>>,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let number = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let target = *shared.target();
        let Some(target) = target.filter(|_| !shared.faults().refuse) else {
            let _ = client.set_zero_linger();
            continue;
        };
        let cuts = shared.cuts.subscribe();
        // Counted here and not in the task: a cut right after must already know it.
        let open = Open::new(shared.clone(), *cuts.borrow());
        tokio::task::spawn_local(connection::serve(client, target, number, open, cuts));
    }
}
