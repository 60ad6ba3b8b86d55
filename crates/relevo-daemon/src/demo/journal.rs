//! What every attempt of the handler leaves behind, outside any transaction: one line, written at once.
//!
//! The relay's own counters end with its process, and a rolled-back attempt leaves nothing in the database.
//! This file sees them all, so that attempts whose effect was absorbed can be counted.

use relevo_core::{Error, EventId, Kind, Result};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// How an attempt ended, as far as the handler knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The effect was written into the transaction. Whether that commits is another matter.
    Effect,
    /// It failed and will be tried again.
    Failed,
    /// It can never work.
    Poisoned,
}

impl Attempt {
    const ALL: [Self; 3] = [Self::Effect, Self::Failed, Self::Poisoned];

    fn word(self) -> &'static str {
        match self {
            Self::Effect => "effect",
            Self::Failed => "failed",
            Self::Poisoned => "poisoned",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|attempt| attempt.word() == word)
    }
}

/// The worker's end of the journal.
pub(super) struct Writer(File);

impl Writer {
    pub(super) fn open(path: &Path) -> Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Self).map_err(failed)
    }

    /// One line in one write: a kill leaves it whole or not at all.
    pub(super) fn note(&self, attempt: Attempt, id: EventId) -> std::io::Result<()> {
        (&self.0).write_all(format!("{} {id}\n", attempt.word()).as_bytes())
    }
}

/// The other end: reads on from where it stopped.
pub(super) struct Reader {
    file: File,
    rest: String,
}

impl Reader {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file =
            OpenOptions::new().create(true).append(true).read(true).open(path).map_err(failed)?;
        Ok(Self { file, rest: String::new() })
    }

    /// Everything since the last look.
    pub(super) fn read(&mut self) -> Result<Vec<(Attempt, EventId)>> {
        self.file.read_to_string(&mut self.rest).map_err(failed)?;
        let whole = self.rest.rfind('\n').map_or(0, |end| end + 1);
        let tail = self.rest.split_off(whole);
        let lines = std::mem::replace(&mut self.rest, tail);
        Ok(lines.lines().filter_map(line).collect())
    }
}

fn line(text: &str) -> Option<(Attempt, EventId)> {
    let (word, id) = text.split_once(' ')?;
    Some((Attempt::parse(word)?, id.parse().ok()?))
}

/// What all attempts amount to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Attempts at an effect beyond the first of the same event: their earlier copies were rolled back.
    pub(super) duplicates: u64,
    /// Attempts that failed and were tried again.
    pub(super) retried: u64,
    effects: BTreeMap<EventId, u64>,
}

impl Tally {
    pub(super) fn add(&mut self, attempt: Attempt, id: EventId) {
        match attempt {
            Attempt::Effect => {
                let times = self.effects.entry(id).or_default();
                *times += 1;
                self.duplicates += u64::from(*times > 1);
            }
            Attempt::Failed => self.retried += 1,
            Attempt::Poisoned => {}
        }
    }

    /// Of the whole file.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let mut reader = Reader::open(path)?;
        reader.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut tally = Self::default();
        reader.read()?.into_iter().for_each(|(attempt, id)| tally.add(attempt, id));
        Ok(tally)
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::new(Kind::StoreFailed, format!("the demo's journal of attempts: {error}")).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_attempted_again_is_a_duplicate_and_a_half_written_line_is_none_yet() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (a, b) = (EventId::fresh(), EventId::fresh());
        let writer = Writer::open(&path).unwrap();
        for (attempt, id) in
            [(Attempt::Effect, a), (Attempt::Failed, b), (Attempt::Effect, a), (Attempt::Effect, b)]
        {
            writer.note(attempt, id).unwrap();
        }
        (&writer.0).write_all(b"effect 0").unwrap();
        let tally = Tally::of(&path).unwrap();
        assert_eq!((tally.duplicates, tally.retried), (1, 1));
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.read().unwrap().len(), 4);
        assert_eq!(reader.read().unwrap().len(), 0);
    }
}
