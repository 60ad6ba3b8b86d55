//! Which file a URL means, and whether it is still the file that was opened.

use super::ADAPTER;
use relevo_core::error::quoted;
use relevo_core::{Error, Kind, Result};
use std::path::{Path, PathBuf};

/// How the file may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    ReadOnly,
    ReadWrite,
    Create,
}

/// A database file, as a URL or a path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) path: PathBuf,
    pub(super) mode: Mode,
}

fn refuse(why: String) -> Error {
    Error::new(Kind::InvalidUrl, why).from_adapter(ADAPTER)
}

impl Location {
    /// Reads `sqlite:file`, `sqlite://file` or a path; `?mode=ro|rw|rwc` says how it may be opened.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (file, is_url) = match text.strip_prefix("sqlite:") {
            Some(rest) => (rest.strip_prefix("//").unwrap_or(rest), true),
            None => (text, false),
        };
        if !is_url && file.contains("://") {
            return Err(refuse(format!(
                "{} is not an SQLite URL; write sqlite:path/to/file.db",
                quoted(text)
            )));
        }
        let (file, query) = file.split_once('?').unwrap_or((file, ""));
        if file.is_empty() || file.contains(":memory:") || query.contains("mode=memory") {
            return Err(refuse(format!(
                "{} names no file: a database in memory ends with its process and no other can see it; \
                 write sqlite:path/to/file.db, or use the memory store in tests",
                quoted(text)
            )));
        }
        let path = if is_url { percent_decoded(file)? } else { file.to_owned() };
        Ok(Self { path: PathBuf::from(path), mode: mode_of(query)? })
    }

    /// Refuses with a clear word what SQLite would only call "unable to open".
    pub(super) fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::new(Kind::FileMoved, why).from_adapter(ADAPTER));
        let path = self.path.display();
        if self.path.is_dir() {
            return bad(format!("{path} is a folder, not a file"));
        }
        if self.path.exists() {
            return Ok(());
        }
        if self.mode != Mode::Create {
            return bad(format!("there is no file {path}; `relevo migrate` makes it"));
        }
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => bad(format!(
                "there is no folder {} to make the file in; make it first",
                folder.display()
            )),
            _ => Ok(()),
        }
    }
}

fn mode_of(query: &str) -> Result<Mode> {
    let mut mode = Mode::Create;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        mode = match pair {
            "mode=ro" => Mode::ReadOnly,
            "mode=rw" => Mode::ReadWrite,
            "mode=rwc" => Mode::Create,
            other => {
                return Err(refuse(format!(
                    "the option {} is not known; mode=ro, mode=rw and mode=rwc are",
                    quoted(other)
                )));
            }
        };
    }
    Ok(mode)
}

fn percent_decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = (*first == b'%').then(|| tail.get(..2)).flatten();
        // `from_str_radix` would take a sign for a digit.
        let hex = hex.filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        match hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes)
        .map_err(|_| refuse(format!("{} is not UTF-8 once its %-signs are decoded", quoted(text))))
}

/// What tells one file from another of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileIdentity {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl FileIdentity {
    /// The file that is at `path` now.
    pub(super) fn of(path: &Path) -> Self {
        // Absolute, so that a change of the working folder does not look like a moved file.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let identity = identity_of(&path);
        Self { path, identity }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// SQLite itself goes on writing into a file that was deleted or replaced under it, where nobody will
    /// ever find it again; so every transaction asks first.
    pub(super) fn check(&self) -> Result<()> {
        if self.identity.is_none() || identity_of(&self.path) == self.identity {
            return Ok(());
        }
        let what = if self.path.exists() {
            "was replaced by another file"
        } else {
            "was moved or deleted"
        };
        Err(Error::new(
            Kind::FileMoved,
            format!(
                "{} {what} while it was open; put it back together with its -wal file, or restart on the new one",
                self.path.display()
            ),
        )
        .from_adapter(ADAPTER))
    }
}

#[cfg(unix)]
fn identity_of(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Elsewhere the system does not let an open file be moved or deleted.
#[cfg(not(unix))]
fn identity_of(_path: &Path) -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_and_a_path_name_the_same_file() {
        for text in ["a/b.db", "sqlite:a/b.db", "sqlite://a/b.db", "sqlite:a%2Fb.db?mode=rwc"] {
            let location = Location::parse(text).unwrap();
            assert_eq!(
                (location.path.to_str(), location.mode),
                (Some("a/b.db"), Mode::Create),
                "{text}"
            );
        }
        assert_eq!(Location::parse("sqlite:///tmp/x.db").unwrap().path, PathBuf::from("/tmp/x.db"));
        assert_eq!(Location::parse("sqlite:%+1%zz%").unwrap().path, PathBuf::from("%+1%zz%"));
        assert_eq!(Location::parse("sqlite:x.db?mode=ro").unwrap().mode, Mode::ReadOnly);
    }

    #[test]
    fn what_names_no_file_is_refused() {
        for text in [
            "",
            "sqlite:",
            ":memory:",
            "sqlite::memory:",
            "sqlite:x?mode=memory",
            "postgres://h/d",
            "sqlite:x?cache=shared",
        ] {
            assert_eq!(Location::parse(text).unwrap_err().kind(), Kind::InvalidUrl, "{text}");
        }
    }
}
