use socket2::SockRef;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpStream;

/// The socket below a connection. The client waits for the peer's answers in a thread of its own, and some it awaits for
/// ever; only the end of the socket ends that.
#[derive(Clone, Default)]
pub(super) struct Socket(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    held: Option<socket2::Socket>,
    cut: bool,
}

impl Socket {
    /// From now on it is this one. An error if nobody wants it any more.
    pub(super) fn hold(&self, stream: &TcpStream) -> io::Result<()> {
        let mut state = self.state();
        if state.cut {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "given up meanwhile"));
        }
        state.held = Some(SockRef::from(stream).try_clone()?);
        Ok(())
    }

    /// Ends it, and whatever is dialled in its place later on.
    pub(super) fn cut(&self) {
        let mut state = self.state();
        state.cut = true;
        if let Some(held) = state.held.take() {
            // An error means that it had ended by itself.
            let _ = held.shutdown(Shutdown::Both);
        }
    }

    /// Cut unless [`kept`](Attempt::keep).
    pub(super) fn cut_when_dropped(self) -> Attempt {
        Attempt(Some(self))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who waits for a connection, and may give up.
pub(super) struct Attempt(Option<Socket>);

impl Attempt {
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            socket.cut();
        }
    }
}
