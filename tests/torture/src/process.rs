//! A worker or writer as a child of the test, with everything it tells.

use crate::journal::Journal;
use crate::story::Line;
use crate::worker::tripwire::UPKEEP;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a process told so far.
#[derive(Debug, Default)]
pub struct Told {
    /// It is at work.
    pub ready: bool,
    /// It ended in good order.
    pub stopped: bool,
    /// What it said aloud.
    pub notes: Vec<String>,
    /// Batches in hand, with their events.
    open: HashMap<u64, usize>,
    /// How batches came back.
    pub ends: HashMap<String, u64>,
    /// What happened to it, how often.
    pub met: HashMap<String, u64>,
}

impl Told {
    /// Events in batches that were handed over and did not come back.
    pub fn in_flight(&self) -> usize {
        self.open.values().sum()
    }

    /// Batches that were handed over and did not come back; each holds one lane.
    pub fn batches(&self) -> usize {
        self.open.len()
    }

    /// Is upkeep under way?
    pub fn in_upkeep(&self) -> bool {
        let [begun, ended] = UPKEEP.map(|what| self.met.get(what).copied().unwrap_or(0));
        begun > ended
    }

    fn hear(&mut self, line: Line) {
        match line {
            Line::Ready => self.ready = true,
            Line::Stopped => self.stopped = true,
            Line::Note(text) => self.notes.push(text),
            Line::Began(batch, events) => {
                self.open.insert(batch, events);
            }
            Line::Ended(batch, how) => {
                self.open.remove(&batch);
                *self.ends.entry(how).or_default() += 1;
            }
            Line::Met(what) => *self.met.entry(what).or_default() += 1,
            Line::Intent(_) | Line::Committed(..) | Line::RolledBack(_) => {}
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    told: Mutex<Told>,
    news: Condvar,
}

impl Shared {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A child process; it dies with this value.
#[derive(Debug)]
pub struct Process {
    /// Its name.
    pub name: String,
    child: Child,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    /// It has ended and was waited for: its id may be another's by now.
    gone: bool,
}

impl Process {
    /// Starts `program` with `args`; what writers tell goes into `journal`, errors into a file of `logs`.
    pub fn start(
        program: &Path,
        name: &str,
        args: &[String],
        logs: &Path,
        journal: &Arc<Mutex<Journal>>,
    ) -> Result<Self> {
        let log =
            File::options().create(true).append(true).open(logs.join(format!("{name}.log")))?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let output = child.stdout.take().context("its output is a pipe")?;
        let shared = Arc::new(Shared::default());
        let reader = std::thread::spawn({
            let (shared, journal) = (shared.clone(), journal.clone());
            move || listen(BufReader::new(output), &shared, &journal)
        });
        Ok(Self { name: name.to_owned(), child, shared, reader: Some(reader), gone: false })
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| !self.gone) {
            // One that has just ended needs no signal.
            let _ = kill_process(pid, signal);
        }
    }

    /// What it told so far.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.shared.told()
    }

    /// Events in flight, and the batches they are in.
    pub fn in_hand(&self) -> (usize, usize) {
        let told = self.told();
        (told.in_flight(), told.batches())
    }

    /// Waits until what it told fulfils a condition; false if it takes too long or the process ends before.
    pub fn wait_until(&self, limit: Duration, condition: impl Fn(&Told) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        let mut told = self.told();
        while !condition(&told) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.reader.as_ref().is_none_or(JoinHandle::is_finished) {
                return false;
            }
            let step = left.min(Duration::from_millis(50));
            told = self
                .shared
                .news
                .wait_timeout(told, step)
                .map_or_else(|poison| poison.into_inner().0, |woken| woken.0);
        }
        true
    }

    /// Is it still there?
    pub fn is_running(&mut self) -> bool {
        self.gone |= !matches!(self.child.try_wait(), Ok(None));
        !self.gone
    }

    /// Kills it at once. Answers with the events that were in flight.
    pub fn kill(&mut self) -> usize {
        self.signal(Signal::KILL);
        self.end();
        self.told().in_flight()
    }

    /// Waits for its end by itself (a tripwire); false if it goes on living.
    pub fn wait_end(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_running() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.end();
        true
    }

    /// Stops it in its tracks, as a swapped-out or frozen machine would.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    /// Is it stopped by a signal?
    pub fn is_paused(&self) -> bool {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, after_name)| after_name.starts_with('T'))
    }

    /// Waits until it is stopped by a signal; false if it goes on.
    pub fn wait_paused(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.is_paused() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end, without waiting.
    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
    }

    /// Asks it to end and waits. Answers with the events that were in flight when it was asked.
    pub fn terminate(&mut self, limit: Duration) -> Result<usize> {
        // Before it has come so far as to listen, the signal would simply end it.
        ensure!(self.wait_until(limit, |told| told.ready), "{} does not start", self.name);
        let in_flight = self.told().in_flight();
        self.ask_to_end();
        self.ended_well(limit)?;
        Ok(in_flight)
    }

    /// Waits until it has ended in good order.
    pub fn ended_well(&mut self, limit: Duration) -> Result<()> {
        ensure!(self.wait_end(limit), "{} did not end within {limit:?} of being asked", self.name);
        let status = self.child.wait()?;
        ensure!(
            status.success() && self.told().stopped,
            "{} did not end well: {status}",
            self.name
        );
        Ok(())
    }

    fn end(&mut self) {
        let _ = self.child.wait();
        self.gone = true;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.end();
    }
}

fn listen(output: impl BufRead, shared: &Shared, journal: &Mutex<Journal>) {
    for line in output.lines() {
        let Ok(line) = line else { return };
        // The last line of a killed process may be cut off: whatever it says did not happen yet.
        let Ok(line) = line.parse::<Line>() else { continue };
        journal.lock().unwrap_or_else(PoisonError::into_inner).hear(&line);
        shared.told().hear(line);
        shared.news.notify_all();
    }
}
