//! What those who take part note for themselves, outside of any database: a line for each acknowledged change, and one for
//! each attempt at an effect.

use crate::tenants::Changed;
use anyhow::{Context, Result};
use relevo::EventId;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How an attempt at an effect ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// It took effect.
    Effect,
    /// It had before.
    Duplicate,
    /// It failed.
    Failed,
}

impl Attempt {
    fn letter(self) -> char {
        match self {
            Self::Effect => 'e',
            Self::Duplicate => 'd',
            Self::Failed => 'f',
        }
    }

    fn of(letter: char) -> Option<Self> {
        [Self::Effect, Self::Duplicate, Self::Failed].into_iter().find(|one| one.letter() == letter)
    }
}

/// How often what was noted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Effects.
    pub effects: u64,
    /// Copies.
    pub duplicates: u64,
    /// Failures.
    pub failed: u64,
}

impl Tally {
    fn add(&mut self, attempt: Attempt) {
        match attempt {
            Attempt::Effect => self.effects += 1,
            Attempt::Duplicate => self.duplicates += 1,
            Attempt::Failed => self.failed += 1,
        }
    }
}

/// A file of lines; each is one write. Cheap to clone.
#[derive(Debug, Clone)]
struct Lines {
    path: Arc<PathBuf>,
    file: Arc<Mutex<File>>,
}

impl Lines {
    fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("the journal {}", path.display()))?;
        Ok(Self { path: Arc::new(path.to_owned()), file: Arc::new(Mutex::new(file)) })
    }

    fn add(&self, line: String) -> std::io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())
    }

    fn read(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&*self.path)?)
    }
}

/// Attempts at effects.
#[derive(Debug, Clone)]
pub struct Journal {
    lines: Lines,
    tally: Arc<Mutex<Tally>>,
}

impl Journal {
    /// Goes on with the file, or begins it.
    pub fn open(path: &Path) -> Result<Self> {
        let lines = Lines::open(path)?;
        let mut tally = Tally::default();
        let text = lines.read()?;
        let noted = text.lines().filter_map(|line| Attempt::of(line.chars().next()?));
        noted.for_each(|attempt| tally.add(attempt));
        Ok(Self { lines, tally: Arc::new(Mutex::new(tally)) })
    }

    /// Notes an attempt. It is only for the figures: without it nothing is judged wrongly.
    pub fn note(&self, attempt: Attempt, event: EventId) {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).add(attempt);
        if let Err(error) = self.lines.add(format!("{} {event}\n", attempt.letter())) {
            tracing::error!(%error, "an attempt could not be noted");
        }
    }

    /// How often what was noted.
    pub fn tally(&self) -> Tally {
        *self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change that its client was told of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Told {
    /// Whose.
    pub tenant_id: String,
    /// Which.
    pub version: i64,
    /// Its event.
    pub event_id: String,
}

/// Changes that their clients were told of: whatever else happens, these must take effect.
#[derive(Debug, Clone)]
pub struct Acknowledged {
    lines: Lines,
    count: Arc<AtomicU64>,
}

impl Acknowledged {
    /// Goes on with the file, or begins it.
    pub fn open(path: &Path) -> Result<Self> {
        let lines = Lines::open(path)?;
        let count = lines.read()?.lines().count() as u64;
        Ok(Self { lines, count: Arc::new(count.into()) })
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Notes a change.
    pub fn note(&self, changed: &Changed) -> Result<()> {
        let Changed { tenant_id, version, event_id } = changed;
        self.lines.add(format!("{tenant_id} {version} {event_id}\n"))?;
        self.count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// All of them.
    pub fn read(&self) -> Result<Vec<Told>> {
        let told = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let (tenant_id, version, event_id) = (words.next()?, words.next()?, words.next()?);
            Some(Told { tenant_id, version: version.parse().ok()?, event_id })
        };
        self.lines.read()?.lines().map(|line| told(line).context("an odd line")).collect()
    }
}
