//! The folder that keeps fetched servers. It survives `cargo clean` and git ignores it.

use crate::shell::is_root;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where root keeps servers when the repository lies in a folder that only root may enter.
const REACHABLE_BY_ALL: &str = "/var/tmp/relevo-cache";

#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    pub(crate) fn open() -> Result<Cache> {
        let folder = match std::env::var_os("RELEVO_CACHE") {
            Some(chosen) => PathBuf::from(chosen),
            None => default_folder(&std::env::current_dir()?),
        };
        fs::create_dir_all(folder.join("servers"))
            .with_context(|| format!("cannot make the cache folder {}", folder.display()))?;
        Ok(Cache { folder: folder.canonicalize()? })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The place of one server, there or not.
    pub(crate) fn server(&self, name: &str) -> PathBuf {
        self.folder.join("servers").join(name)
    }

    /// Fills a server's place so that a broken attempt never looks like a server.
    pub(crate) fn fill(
        &self,
        name: &str,
        with: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let place = self.server(name);
        let unfinished = self.server(&format!("{name}.part"));
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&unfinished)?;
        with(&unfinished)?;
        let _ = fs::remove_dir_all(&place);
        fs::rename(&unfinished, &place)?;
        Ok(place)
    }

    /// Two runs at once wait for each other here, and the second finds what the first fetched.
    pub(crate) fn lock(&self) -> Result<File> {
        let file = File::create(self.folder.join("lock"))?;
        file.lock()?;
        Ok(file)
    }
}

/// PostgreSQL and PgBouncer refuse to run as root, and the user they run as must reach them.
fn default_folder(repository: &Path) -> PathBuf {
    if is_root() && !open_to_all(repository) {
        return PathBuf::from(REACHABLE_BY_ALL);
    }
    repository.join(".cache")
}

fn open_to_all(folder: &Path) -> bool {
    let enterable = |dir: &Path| dir.metadata().is_ok_and(|m| m.permissions().mode() & 0o001 != 0);
    folder.ancestors().all(enterable)
}
