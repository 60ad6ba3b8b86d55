//! The file of figures. It is written after every contest, so that an error after hours loses nothing, and it keeps what
//! earlier long runs measured and this one does not: several runs fill one file.

use crate::figure::Results;
use crate::machine::Machine;
use anyhow::{Context, Result, ensure};
use chrono::{SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What `cargo xtask bench` says is checked out.
const COMMIT: &str = "RELEVO_COMMIT";

/// The file while a run is at work.
pub(crate) struct Ledger {
    path: PathBuf,
    book: Book,
}

/// What is in it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Book {
    pub(crate) long: bool,
    pub(crate) release: bool,
    pub(crate) machine: Machine,
    /// Of servers, by name.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) queries_are: String,
    /// What could not be had, by name.
    pub(crate) missing: BTreeMap<String, String>,
    pub(crate) contests: Vec<Entry>,
}

/// A contest, and where its figures come from.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    pub(crate) results: Results,
    pub(crate) measured_at: String,
    pub(crate) rounds: usize,
    pub(crate) commit: String,
}

impl Book {
    fn empty(long: bool) -> Book {
        Book {
            long,
            release: !cfg!(debug_assertions),
            machine: Machine::here(),
            versions: BTreeMap::new(),
            queries_are: String::new(),
            missing: BTreeMap::new(),
            contests: Vec::new(),
        }
    }
}

impl Ledger {
    /// Refuses a file whose figures must not be mixed with those of this run: before hours are spent on it. Short runs
    /// mean nothing to each other and begin afresh.
    pub(crate) fn open(path: &Path, long: bool) -> Result<Ledger> {
        let fresh = Book::empty(long);
        let book = match earlier(path)? {
            Some(earlier) => continued(earlier, fresh)
                .with_context(|| format!("name another file than {} by --json", path.display()))?,
            None => fresh,
        };
        Ok(Ledger { path: path.to_owned(), book })
    }

    /// How queries are counted.
    pub(crate) fn queries_are(&mut self, how: &str) {
        how.clone_into(&mut self.book.queries_are);
    }

    /// Something to measure with is there, in this version.
    pub(crate) fn has(&mut self, name: &str, version: Option<String>) {
        let version = version.unwrap_or_else(|| "unknown".to_owned());
        self.book.versions.insert(name.to_owned(), version);
        self.book.missing.remove(name);
    }

    /// Something to measure with is not there.
    pub(crate) fn lacks(&mut self, name: &str, why: &str) {
        self.book.missing.insert(name.to_owned(), why.to_owned());
    }

    /// Takes in a contest that is over, in the place of an earlier one of its name, and writes the file.
    pub(crate) fn keep(&mut self, results: &Results, rounds: usize) -> Result<()> {
        let measured_at = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        let commit = std::env::var(COMMIT).unwrap_or_else(|_| "unknown".to_owned());
        let entry = Entry { results: results.clone(), measured_at, rounds, commit };
        let contests = &mut self.book.contests;
        match contests.iter().position(|earlier| earlier.results.name == entry.results.name) {
            Some(place) => contests[place] = entry,
            None => contests.push(entry),
        }
        self.write()
    }

    /// All of it or nothing: whoever dies in between leaves the file as it was.
    pub(crate) fn write(&self) -> Result<()> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let part = self.path.with_extension("part");
        std::fs::write(&part, serde_json::to_string_pretty(&self.book)?)
            .and_then(|()| std::fs::rename(&part, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// What a file has, if there is one.
fn earlier(path: &Path) -> Result<Option<Value>> {
    if !path.exists() {
        return Ok(None);
    }
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let json = serde_json::from_str(&text);
    json.map(Some)
        .with_context(|| format!("{} has no figures; name another by --json", path.display()))
}

/// A long run goes on with what an earlier one left, if it was of the same kind and on the same machine.
fn continued(earlier: Value, fresh: Book) -> Result<Book> {
    let was_long = earlier["long"] == true;
    if !was_long && !fresh.long {
        return Ok(fresh);
    }
    let length = |long| if long { "long" } else { "short" };
    ensure!(
        was_long == fresh.long,
        "its figures are of a {} run, and this one is {}",
        length(was_long),
        length(fresh.long),
    );
    let earlier: Book = serde_json::from_value(earlier).context("it is of another version")?;
    ensure!(earlier.release == fresh.release, "one is of a release build and the other is not");
    let there = &earlier.machine;
    ensure!(there.is_as_fast_as(&fresh.machine), "it is of another machine: {there:?}");
    Ok(Book { machine: fresh.machine, ..earlier })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of its own, which goes with it.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let folder = format!("relevo-ledger-{}-{name}", std::process::id());
            Place(std::env::temp_dir().join(folder).join("figures.json"))
        }

        fn open(&self, long: bool) -> Result<Ledger> {
            Ledger::open(&self.0, long)
        }

        fn contests(&self) -> Vec<(String, usize)> {
            let book: Book =
                serde_json::from_str(&std::fs::read_to_string(&self.0).unwrap()).unwrap();
            let told = |entry: &Entry| (entry.results.name.clone(), entry.rounds);
            book.contests.iter().map(told).collect()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
        }
    }

    fn results(name: &str) -> Results {
        Results::of(name.to_owned(), Vec::new(), &[])
    }

    #[test]
    fn a_long_run_keeps_what_an_earlier_one_measured_and_this_one_did_not() {
        let place = Place::new("kept");
        let mut first = place.open(true).unwrap();
        first.keep(&results("drain"), 5).unwrap();
        first.keep(&results("flat"), 3).unwrap();
        let mut second = place.open(true).unwrap();
        second.keep(&results("flat"), 2).unwrap();
        second.keep(&results("idle"), 1).unwrap();
        let wanted = [("drain", 5), ("flat", 2), ("idle", 1)];
        assert_eq!(place.contests(), wanted.map(|(name, rounds)| (name.to_owned(), rounds)));
    }

    #[test]
    fn short_and_long_figures_never_meet_in_a_file() {
        let place = Place::new("apart");
        place.open(false).unwrap().keep(&results("drain"), 1).unwrap();
        assert!(format!("{:#}", place.open(true).err().unwrap()).contains("--json"));
        place.open(false).unwrap().write().unwrap();
        assert!(place.contests().is_empty(), "a short run begins afresh");
        std::fs::remove_file(&place.0).unwrap();
        place.open(true).unwrap().write().unwrap();
        assert!(format!("{:#}", place.open(false).err().unwrap()).contains("long"));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_written_over() {
        let place = Place::new("unreadable");
        place.open(true).unwrap().write().unwrap();
        std::fs::write(&place.0, "{\"long\": tru").unwrap();
        for long in [true, false] {
            let error = format!("{:#}", place.open(long).err().unwrap());
            assert!(error.contains("has no figures") && error.contains("--json"), "{error}");
        }
    }

    #[test]
    fn figures_of_another_machine_are_not_continued() {
        let mut other = Book::empty(true);
        other.machine.cores += 1;
        let error =
            continued(serde_json::to_value(&other).unwrap(), Book::empty(true)).unwrap_err();
        assert!(error.to_string().contains("another machine"));
    }

    #[test]
    fn what_is_had_at_last_is_not_missing_any_more() {
        let place = Place::new("had");
        let mut ledger = place.open(true).unwrap();
        ledger.lacks("NATS", "NATS is not on this machine");
        ledger.write().unwrap();
        let mut ledger = place.open(true).unwrap();
        assert_eq!(ledger.book.missing.len(), 1);
        ledger.has("NATS", Some("2.15".into()));
        assert!(ledger.book.missing.is_empty());
    }
}
