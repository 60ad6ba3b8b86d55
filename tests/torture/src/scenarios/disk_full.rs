use super::on_sqlite;
use crate::database::{Database, PostgresDatabase};
use crate::report::Outcome;
use crate::rig::{Relays, Rig, Run};
use anyhow::{Context, Result, ensure};
use relevo_testkit::services::{Postgres, ServiceError, sql};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A file system of a few megabytes in memory. Only root may make one.
#[derive(Debug)]
pub struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Can one be had here?
    pub fn available() -> Result<(), ServiceError> {
        let missing = |error: anyhow::Error| ServiceError::Missing {
            server: "a small disk (the right to mount one)".into(),
            looked: format!("{error:#}"),
        };
        Self::new(1).map(drop).map_err(missing)
    }

    /// Makes one; the error says why it cannot be had.
    pub fn new(megabytes: u32) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("relevo-disk-").tempdir()?;
        mount(&["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"], folder.path())
            .context("a small disk needs the right to mount")?;
        Ok(Self { folder })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Makes room.
    pub fn grow(&self, megabytes: u32) -> Result<()> {
        mount(&["-o", &format!("remount,size={megabytes}m")], self.path())
    }

    /// Fills it to the last byte, until the file is removed.
    pub fn fill(&self) -> Result<PathBuf> {
        let ballast = self.path().join("ballast");
        let mut file = std::fs::File::create(&ballast)?;
        let block = vec![1; 4096];
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
        Ok(ballast)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that is just ending may still have files open in it.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn mount(args: &[&str], folder: &Path) -> Result<()> {
    let output = Command::new("mount").args(args).arg(folder).output()?;
    ensure!(output.status.success(), "mount: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The disk under an SQLite file is full for a while, again and again.
pub async fn disk_full_on_sqlite(run: &Run, name: &str, times: u64) -> Result<Outcome> {
    let disk = SmallDisk::new(24)?;
    let mut rig = Rig::new(run, name, on_sqlite(disk.path())).await?;
    rig.start_relays(2, &Relays::default())?;
    rig.start_writers(3, &["--pause-ms", "100", "--inside-ms", "1"])?;
    full_and_empty(&mut rig, &disk, times).await?;
    rig.finish().await
}

/// The disk under a tablespace with all tables is full for a while, again and again. The write-ahead log is elsewhere.
pub async fn disk_full_on_postgres(
    run: &Run,
    name: &str,
    server: &Postgres,
    times: u64,
) -> Result<Outcome> {
    let disk = SmallDisk::new(48)?;
    let place = disk.path().join("tablespace");
    std::fs::create_dir(&place)?;
    let owner = std::fs::metadata(server.data_folder())?;
    for path in [disk.path(), &place] {
        chown(path, Some(owner.uid()), Some(owner.gid()))?;
    }
    let (admin, space) = (server.url("postgres"), format!("small_{}", run.seed));
    sql::execute(&admin, &format!("CREATE TABLESPACE {space} LOCATION '{}'", place.display()))?;
    sql::execute(
        &admin,
        &format!("CREATE DATABASE {space} TEMPLATE template0 TABLESPACE {space}"),
    )?;
    let database = Database::Postgres(PostgresDatabase::new(server.url(&space)));
    let mut rig = Rig::new(run, name, database).await?;
    rig.start_relays(2, &Relays::default())?;
    rig.start_writers(8, &["--pause-ms", "200"])?;
    full_and_empty(&mut rig, &disk, times).await?;
    let outcome = rig.finish().await?;
    sql::execute(&admin, &format!("DROP DATABASE {space} WITH (FORCE)"))?;
    sql::execute(&admin, &format!("DROP TABLESPACE {space}"))?;
    Ok(outcome)
}

async fn full_and_empty(rig: &mut Rig, disk: &SmallDisk, times: u64) -> Result<()> {
    for _ in 0..times {
        rig.work(Duration::from_millis(800)).await;
        let ballast = disk.fill()?;
        let before = rig.database.count_effects().await?;
        match rig.publishing_fails().await {
            true => rig.figures.fault("disk full"),
            false => rig.problem("the disk was full, and every transaction found room"),
        }
        rig.work(Duration::from_millis(2500)).await;
        let after = rig.database.count_effects().await?;
        rig.figures
            .notes
            .push(format!("{} effects found room while the disk was full", after - before));
        std::fs::remove_file(ballast)?;
        rig.measure_recovery(Instant::now()).await?;
    }
    Ok(())
}
