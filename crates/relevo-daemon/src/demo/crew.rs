//! The worker as its parent sees it: started, stopped, woken, killed and started again.

use super::shop::Place;
use relevo_core::{Error, Kind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};

/// So many workers may end by themselves before the demo gives up.
const ENDS_BY_ITSELF: u32 = 5;

/// How the worker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worker {
    AtWork,
    /// Started after a kill: its lanes are still another's.
    Waiting,
    Stopped,
    Gone,
}

/// The one worker there is at a time.
pub(super) struct Crew {
    place: Place,
    child: Option<Child>,
    pub(super) state: Worker,
    pub(super) started: u32,
    ended_by_itself: u32,
}

impl Crew {
    /// Starts the first worker.
    pub(super) fn start(place: Place) -> Result<Self> {
        let mut crew =
            Self { place, child: None, state: Worker::Gone, started: 0, ended_by_itself: 0 };
        crew.hire()?;
        Ok(crew)
    }

    /// Starts a worker; what it says goes to a file.
    pub(super) fn hire(&mut self) -> Result<()> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.place.worker_log())
            .map_err(|e| failed("its log", e))?;
        let binary = std::env::current_exe().map_err(|e| failed("this binary", e))?;
        let child = Command::new(binary)
            .args(["demo", "--worker", "--dir"])
            .arg(self.place.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| failed("the process", e))?;
        self.child = Some(child);
        self.state = Worker::AtWork;
        self.started += 1;
        Ok(())
    }

    /// Starts another worker after one that ended by itself, but not for ever.
    pub(super) fn replace(&mut self, how: &str) -> Result<()> {
        self.ended_by_itself += 1;
        if self.ended_by_itself < ENDS_BY_ITSELF {
            return self.hire();
        }
        let log = std::fs::read_to_string(self.place.worker_log()).unwrap_or_default();
        let last = log.lines().rfind(|line| line.starts_with("error")).unwrap_or("it said nothing");
        let why = format!("the demo's worker ends by itself again and again ({how}): {last}");
        Err(Error::new(Kind::StoreFailed, why))
    }

    /// Its process, while there is one.
    pub(super) fn pid(&self) -> Option<Pid> {
        self.child.as_ref().and_then(Child::id).and_then(|id| Pid::from_raw(id.cast_signed()))
    }

    /// Wakes a stopped worker.
    pub(super) fn wake(&mut self) {
        if let (Some(pid), Worker::Stopped) = (self.pid(), self.state) {
            signal(pid, Signal::CONT);
            self.state = Worker::AtWork;
        }
    }

    /// After a kill: waits for its end.
    pub(super) async fn bury(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.wait().await.map_err(|e| failed("its end", e))?;
        }
        self.state = Worker::Gone;
        Ok(())
    }

    /// Did the worker end by itself? Then this is how.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        self.state = Worker::Gone;
        Some(status.to_string())
    }

    /// Lets the worker finish what is under way, and ends it.
    pub(super) async fn dismiss(&mut self) -> Result<()> {
        self.wake();
        let Some(pid) = self.pid() else { return Ok(()) };
        signal(pid, Signal::TERM);
        if let Some(child) = &mut self.child
            && tokio::time::timeout(Duration::from_secs(10), child.wait()).await.is_err()
        {
            child.kill().await.map_err(|e| failed("its end", e))?;
        }
        self.child = None;
        self.state = Worker::Gone;
        Ok(())
    }
}

/// Sends a signal; a process that is gone already needs none.
pub(super) fn signal(pid: Pid, signal: Signal) {
    if let Err(error) = kill_process(pid, signal) {
        tracing::debug!(%error, "the worker was gone already");
    }
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::new(Kind::StoreFailed, format!("the demo's worker: {what}: {error}")).because(error)
}
