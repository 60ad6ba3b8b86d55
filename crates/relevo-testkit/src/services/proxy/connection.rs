//! One connection through the proxy: two pumps and what became of it.

use super::{Faults, Open, Shared};
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// After a lost reply the server may have more to say; when it is quiet for this long, it is done.
const QUIET: Duration = Duration::from_millis(50);

const PIECE: usize = 64 * 1024;

/// What happened to a connection so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Whole,
    /// Bytes are missing, so nothing may pass any more, also after the faults end.
    Broken,
    /// Replies are missing: requests still pass, replies never again.
    Mute,
    /// The next reply is to be lost and the connection closed.
    LosesReply,
}

/// A connection, by its number.
struct Link {
    number: u64,
    fate: Cell<Fate>,
}

/// What to do with a piece of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Pass(Duration),
    Swallow,
    LoseAndClose,
    /// It passes when what holds it ends.
    Hold,
}

/// Passes bytes until a side closes, a reply is lost, or the test cuts.
pub(super) async fn serve(
    client: TcpStream,
    target: SocketAddr,
    number: u64,
    open: Open,
    cuts: watch::Receiver<u64>,
) {
    pass(client, target, number, &open.shared, cuts).await;
    // Both sockets are closed by now, and only now may a cut say so.
    drop(open);
}

async fn pass(
    mut client: TcpStream,
    target: SocketAddr,
    number: u64,
    shared: &Shared,
    mut cuts: watch::Receiver<u64>,
) {
    let Ok(mut server) = TcpStream::connect(target).await else {
        // As if the server itself had answered: nobody listens.
        let _ = client.set_zero_linger();
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let link = Link { number, fate: Cell::new(Fate::Whole) };
    let was_cut = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            () = pump(from_client, to_server, shared, |piece| shared.on_request(piece, &link)) => false,
            () = replies(from_server, to_client, shared, &link) => false,
            _ = cuts.changed() => true,
        }
    };
    if was_cut {
        // Closing with a reset, as a firewall or a dead machine would.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

async fn replies(
    mut from_server: impl AsyncRead + Unpin,
    to_client: impl AsyncWrite + Unpin,
    shared: &Shared,
    link: &Link,
) {
    pump(&mut from_server, to_client, shared, |piece| {
        shared.replied_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        shared.on_reply(link)
    })
    .await;
    if link.fate.get() == Fate::LosesReply {
        drain(&mut from_server).await;
        shared.lost.send_modify(|lost| *lost += 1);
    }
}

/// Moves pieces from one side to the other until one closes or a verdict ends it.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    shared: &Shared,
    judge: impl Fn(&[u8]) -> Verdict,
) {
    let mut buffer = vec![0; PIECE];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let piece = &buffer[..count];
        match judge(piece) {
            Verdict::Swallow => {}
            Verdict::LoseAndClose => return,
            Verdict::Hold => {
                shared.until_released().await;
                if to.write_all(piece).await.is_err() {
                    return;
                }
            }
            Verdict::Pass(delay) => {
                if !delay.is_zero() {
                    sleep(delay).await;
                }
                if to.write_all(piece).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Lets the server finish what it was asked before it sees the connection close.
async fn drain(from_server: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = vec![0; PIECE];
    while let Ok(Ok(1..)) = timeout(QUIET, from_server.read(&mut buffer)).await {}
}

impl Shared {
    fn swallows(&self, faults: &Faults, link: &Link) -> bool {
        let forgotten = link.number <= self.forgotten.load(Ordering::Relaxed);
        faults.swallow || forgotten || link.fate.get() == Fate::Broken
    }

    async fn until_released(&self) {
        // The sender lives as long as `self`.
        let _ = self.holds.subscribe().wait_for(|holds| !holds).await;
    }

    fn on_request(&self, piece: &[u8], link: &Link) -> Verdict {
        let (mut faults, fate) = (self.faults(), &link.fate);
        if self.swallows(&faults, link) {
            fate.set(Fate::Broken);
            return Verdict::Swallow;
        }
        let has = |text: &mut Vec<u8>| contains(piece, text);
        if faults.lose_reply_to.take_if(has).is_some() {
            fate.set(Fate::LosesReply);
        }
        if faults.hold_replies_to.take_if(has).is_some() {
            self.holds.send_replace(true);
        }
        Verdict::Pass(faults.delay)
    }

    fn on_reply(&self, link: &Link) -> Verdict {
        let (mut faults, fate) = (self.faults(), &link.fate);
        if fate.get() == Fate::LosesReply || faults.counts_down_to_loss() {
            fate.set(Fate::LosesReply);
            return Verdict::LoseAndClose;
        }
        if self.swallows(&faults, link) {
            fate.set(Fate::Broken);
            return Verdict::Swallow;
        }
        if faults.lose_replies || fate.get() == Fate::Mute {
            fate.set(Fate::Mute);
            self.lost.send_modify(|lost| *lost += 1);
            return Verdict::Swallow;
        }
        match *self.holds.borrow() {
            true => Verdict::Hold,
            false => Verdict::Pass(faults.delay),
        }
    }
}

impl Faults {
    /// Whether the reply at hand is the one to lose.
    fn counts_down_to_loss(&mut self) -> bool {
        match self.replies_until_lost {
            Some(0) => {
                self.replies_until_lost = None;
                true
            }
            Some(count) => {
                self.replies_until_lost = Some(count - 1);
                false
            }
            None => false,
        }
    }
}

fn contains(piece: &[u8], text: &[u8]) -> bool {
    !text.is_empty() && piece.windows(text.len()).any(|window| window == text)
}
