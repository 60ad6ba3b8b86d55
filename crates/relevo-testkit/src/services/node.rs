//! A server process that is stopped, killed, paused and started again with what it has.

use super::process::{Launch, ServerProcess};
use super::{Result, ServiceError};
use rustix::process::Signal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A process, how it is started, and the request that tells whether it serves.
pub struct Node {
    process: Mutex<ServerProcess>,
    launch: Launch,
    ready: Box<dyn Fn() -> Result<()> + Send + Sync>,
    ready_limit: Duration,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Node").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Node {
    /// A node that does not run yet.
    pub(crate) fn new(
        process: ServerProcess,
        launch: Launch,
        ready_limit: Duration,
        ready: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Node {
        Node { process: Mutex::new(process), launch, ready: Box::new(ready), ready_limit }
    }

    /// Starts it without waiting. The nodes of a cluster wait for each other, so all of them are
    /// spawned before the first is waited for.
    pub(crate) fn spawn(&self) -> Result<()> {
        let mut process = self.process();
        if process.is_running() { Ok(()) } else { process.launch(&self.launch) }
    }

    /// Whether it answers its request now.
    pub(crate) fn try_ready(&self) -> Result<()> {
        (self.ready)()
    }

    /// How long it may take to become ready.
    pub(crate) fn ready_limit(&self) -> Duration {
        self.ready_limit
    }

    /// Waits until it answers its request.
    pub(crate) fn wait_ready(&self) -> Result<()> {
        self.process().wait_ready(self.ready_limit, &self.ready)
    }

    pub(crate) fn start(&self) -> Result<()> {
        self.spawn()?;
        self.wait_ready()
    }

    pub(crate) fn restart(&self) -> Result<()> {
        self.stop();
        self.start()
    }

    pub(crate) fn stop(&self) {
        let mut process = self.process();
        if process.is_running() {
            process.end(Signal::TERM);
        }
    }

    pub(crate) fn kill9(&self) {
        self.process().kill9();
    }

    pub(crate) fn pause(&self) {
        self.process().pause();
    }

    pub(crate) fn resume(&self) {
        self.process().resume();
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process().is_running()
    }

    pub(crate) fn log(&self) -> String {
        self.process().log()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process().pid()
    }

    pub(crate) fn memory_kb(&self) -> u64 {
        self.process().memory_kb()
    }

    fn process(&self) -> MutexGuard<'_, ServerProcess> {
        // A test that panicked while it held a server must not take the others down.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Between finding a port free and listening on it, somebody else may take it.
pub(crate) fn with_free_ports<T>(start: impl Fn() -> Result<T>) -> Result<T> {
    let mut tries = 3;
    loop {
        tries -= 1;
        match start() {
            Err(ServiceError::Failed { why, .. }) if tries > 0 && is_taken(&why) => {}
            result => return result,
        }
    }
}

fn is_taken(why: &str) -> bool {
    let why = why.to_lowercase();
    ["eaddrinuse", "address already in use", "port already in use"].iter().any(|t| why.contains(t))
}

/// What every server of the kit can be told, over its field `node`.
macro_rules! node_methods {
    () => {
        /// Stops it in good order. The data stays.
        pub fn stop(&self) {
            self.node.stop();
        }

        /// Kills it with all its children, like a power cut. The data stays.
        pub fn kill9(&self) {
            self.node.kill9();
        }

        /// Starts it again on the same ports with the same data, after stopping it in good order if
        /// need be, and waits until it serves.
        pub fn restart(&self) -> $crate::services::Result<()> {
            self.node.restart()
        }

        /// Makes it stand still (SIGSTOP): connections stay open, and nothing answers.
        pub fn pause(&self) {
            self.node.pause();
        }

        /// Lets it go on after [`pause`](Self::pause).
        pub fn resume(&self) {
            self.node.resume();
        }

        /// Whether its process runs; a paused one does.
        pub fn is_running(&self) -> bool {
            self.node.is_running()
        }

        /// The server's log so far.
        pub fn log(&self) -> String {
            self.node.log()
        }

        /// Its process, while it runs.
        pub fn pid(&self) -> Option<u32> {
            self.node.pid()
        }

        /// How much memory it holds at the moment, in kB.
        pub fn memory_kb(&self) -> u64 {
            self.node.memory_kb()
        }
    };
}
pub(crate) use node_methods;
