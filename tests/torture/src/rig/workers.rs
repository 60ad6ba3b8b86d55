use super::{END_LIMIT, RECOVERY_LIMIT, Relays, Rig, START_LIMIT};
use crate::database::Database;
use crate::process::Process;
use crate::report::Figures;
use crate::worker::Broken;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::time::{Duration, Instant};

impl Rig {
    fn spawn(&mut self, kind: &str, args: Vec<String>) -> Result<Process> {
        self.started += 1;
        let name = format!("{kind}-{}", self.started);
        let mut all = vec![if kind == "writer" { kind } else { "relay" }.to_owned()];
        all.extend(args);
        if kind != "writer" {
            all.extend(["--member".to_owned(), name.clone()]);
        }
        Process::start(&self.run.program, &name, &all, self.folder.path(), &self.journal)
    }

    /// Starts a relay without waiting for it.
    pub fn spawn_relay(&mut self, how: &Relays) -> Result<Process> {
        let mut args = self.worker_args(how);
        if let Some(broker) = &self.outside {
            args.extend(["--outside".to_owned(), broker.address().to_owned()]);
        }
        args.extend(self.adopting());
        args.extend(how.args.clone());
        self.spawn("relay", args)
    }

    /// Starts a consumer without waiting for it.
    pub fn spawn_consumer(&mut self, how: &Relays) -> Result<Process> {
        let broker = self.outside.clone().context("there is nothing to consume from")?;
        let mut args = self.worker_args(how);
        args.extend(["--consume".to_owned(), broker.address().to_owned()]);
        args.extend(how.args.clone());
        self.spawn("consumer", args)
    }

    /// What relays and consumers are told alike. On PostgreSQL handlers of about every other one are slow; on SQLite, where
    /// each of their events waits for the disk while everybody else waits for them, writers would leave them behind.
    fn worker_args(&mut self, how: &Relays) -> Vec<String> {
        let url = how.url.clone().unwrap_or_else(|| self.database.url().to_owned());
        let mut args = vec!["--store".to_owned(), url];
        if let Some(trip) = &how.trip {
            args.extend(["--trip".to_owned(), trip.to_string()]);
        }
        if let Some(broken) = how.broken {
            args.extend(["--broken".to_owned(), value_name(broken)]);
        }
        let server = matches!(self.database, Database::Postgres(_));
        if server && how.may_be_slow() && self.below(2) == 0 {
            args.push("--slow".to_owned());
        }
        args
    }

    fn adopting(&self) -> Vec<String> {
        let file = |file: &PathBuf| ["--adopt".to_owned(), file.display().to_string()];
        self.adopts.iter().flat_map(file).collect()
    }

    /// Starts consumers and waits until they work.
    pub fn start_consumers(&mut self, count: usize, how: &Relays) -> Result<()> {
        for _ in 0..count {
            let consumer = self.spawn_consumer(how)?;
            self.consumers.push(consumer);
        }
        wait_ready(&self.consumers)
    }

    /// Starts relays and waits until they work.
    pub fn start_relays(&mut self, count: usize, how: &Relays) -> Result<()> {
        for _ in 0..count {
            let relay = self.spawn_relay(how)?;
            self.relays.push(relay);
        }
        wait_ready(&self.relays)
    }

    /// Starts a process with so many writers in it; `args` as on its command line.
    pub fn start_writers(&mut self, writers: u64, args: &[&str]) -> Result<()> {
        let url = self.database.url().to_owned();
        self.start_writers_at(&url, writers, args)
    }

    /// Like [`Self::start_writers`], by another way to the database.
    pub fn start_writers_at(&mut self, url: &str, writers: u64, args: &[&str]) -> Result<()> {
        let seed = self.rng.next_u64() >> 32;
        let mut all: Vec<String> =
            ["--store", url, "--writers", &writers.to_string(), "--seed", &seed.to_string()]
                .map(str::to_owned)
                .into();
        all.extend(self.adopting());
        all.extend(args.iter().map(ToString::to_string));
        let writer = self.spawn("writer", all)?;
        self.writers.push(writer);
        Ok(())
    }

    /// Kills a relay at a random moment with work in flight, and starts another in its place. Answers when it died.
    pub fn kill_relay(&mut self, how: &Relays) -> Result<Instant> {
        let victim = self.below(self.relays.len() as u64) as usize;
        let delay = Duration::from_micros(self.below(8000));
        let died = kill_in_flight(&mut self.relays[victim], delay, &mut self.figures);
        self.figures.fault("kill -9 of a relay");
        self.relays[victim] = self.spawn_relay(how)?;
        Ok(died)
    }

    /// Kills a consumer at a random moment with messages in hand, and starts another in its place. Answers when it died.
    pub fn kill_consumer(&mut self, how: &Relays) -> Result<Instant> {
        let victim = self.below(self.consumers.len() as u64) as usize;
        let delay = Duration::from_micros(self.below(8000));
        let died = kill_in_flight(&mut self.consumers[victim], delay, &mut self.figures);
        self.figures.fault("kill -9 of a consumer");
        self.consumers[victim] = self.spawn_consumer(how)?;
        Ok(died)
    }

    /// Asks a relay to end, expects that it does so well, and starts another. Answers when it was asked.
    pub fn terminate_relay(&mut self, how: &Relays) -> Result<Instant> {
        let victim = self.below(self.relays.len() as u64) as usize;
        let next = self.spawn_relay(how)?;
        let relay = std::mem::replace(&mut self.relays[victim], next);
        Ok(self.terminate(relay, "a relay"))
    }

    /// The same with a consumer.
    pub fn terminate_consumer(&mut self, how: &Relays) -> Result<Instant> {
        let victim = self.below(self.consumers.len() as u64) as usize;
        let next = self.spawn_consumer(how)?;
        let consumer = std::mem::replace(&mut self.consumers[victim], next);
        Ok(self.terminate(consumer, "a consumer"))
    }

    fn terminate(&mut self, mut process: Process, who: &str) -> Instant {
        let asked = Instant::now();
        match process.terminate(END_LIMIT) {
            Ok(0) => self.figures.fault(&format!("SIGTERM of {who}")),
            Ok(_) => self.figures.fault(&format!("SIGTERM of {who} with work in flight")),
            Err(error) => self.problem(format!("{error:#}")),
        }
        asked
    }

    /// Kills all writers.
    pub fn kill_writers(&mut self) {
        self.writers.clear();
        self.figures.fault("kill -9 of a writer");
    }

    /// Kills a writer and starts another.
    pub fn kill_writer(&mut self, writers: u64, args: &[&str]) -> Result<()> {
        drop(self.writers.pop());
        self.figures.fault("kill -9 of a writer");
        self.start_writers(writers, args)
    }

    /// Waits until relays, or consumers if there are any, have work in hand, and answers how many events.
    pub fn wait_for_flight(&self) -> usize {
        let deadline = Instant::now() + RECOVERY_LIMIT;
        let of = |workers: &[Process]| -> usize {
            workers.iter().map(|worker| worker.told().in_flight()).sum()
        };
        loop {
            let in_flight =
                if self.consumers.is_empty() { of(&self.relays) } else { of(&self.consumers) };
            if in_flight > 0 || Instant::now() > deadline {
                return in_flight;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(super) fn wait_ready(processes: &[Process]) -> Result<()> {
    for process in processes {
        let ready = process.wait_until(START_LIMIT, |told| told.ready);
        ensure!(ready, "{} does not start", process.name);
    }
    Ok(())
}

/// Kills a process with work in flight, as far as there is any. Answers when it died.
fn kill_in_flight(process: &mut Process, delay: Duration, figures: &mut Figures) -> Instant {
    if process.wait_until(RECOVERY_LIMIT, |told| told.in_flight() > 0) {
        std::thread::sleep(delay);
        // What was in flight may be done by now; the next batch is as good.
        process.wait_until(Duration::from_secs(5), |told| told.in_flight() > 0);
    }
    let died = Instant::now();
    figures.kill(process.kill());
    died
}

fn value_name(broken: Broken) -> String {
    use clap::ValueEnum;
    broken.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
