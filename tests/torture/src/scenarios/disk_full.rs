use super::{Source, on_sqlite};
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

    /// How many megabytes are free.
    pub fn free(&self) -> Result<u64> {
        let output = Command::new("df").args(["--output=avail", "-m"]).arg(self.path()).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let free = text.lines().nth(1).and_then(|line| line.trim().parse().ok());
        free.with_context(|| format!("df says {text:?}"))
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
pub async fn disk_full_on_sqlite(
    run: &Run,
    name: &str,
    source: Source,
    times: u64,
) -> Result<Outcome> {
    let disk = SmallDisk::new(24)?;
    let mut rig = Rig::new(run, name, source.of(run, on_sqlite(disk.path()))).await?;
    rig.start_relays(2, &Relays::default())?;
    rig.start_writers(3, &["--pause-ms", "100", "--inside-ms", "1"])?;
    full_and_empty(&mut rig, &disk, times).await?;
    rig.finish().await
}

/// The disk under a tablespace with all tables is full for a while, again and again; then that of the write-ahead log.
pub async fn disk_full_on_postgres(
    run: &Run,
    name: &str,
    like: &Postgres,
    source: Source,
    times: u64,
) -> Result<Outcome> {
    let (disk, wal) = (SmallDisk::new(48)?, SmallDisk::new(160)?);
    // Of its own: it dies with every log that is full.
    let server = super::server(like.major())?;
    move_wal(&server, &wal)?;
    let place = disk.path().join("tablespace");
    std::fs::create_dir(&place)?;
    for path in [disk.path(), &place] {
        give_to_owner(&server, path)?;
    }
    let (admin, space) = (server.url("postgres"), format!("small_{}", run.seed));
    sql::execute(&admin, &format!("CREATE TABLESPACE {space} LOCATION '{}'", place.display()))?;
    sql::execute(
        &admin,
        &format!("CREATE DATABASE {space} TEMPLATE template0 TABLESPACE {space}"),
    )?;
    let database = Database::Postgres(PostgresDatabase::new(server.url(&space)));
    let mut rig = Rig::new(run, name, source.of(run, database)).await?;
    rig.start_relays(2, &Relays::default())?;
    rig.start_writers(8, &["--pause-ms", "200"])?;
    full_and_empty(&mut rig, &disk, times).await?;
    wal_full_and_empty(&mut rig, &server, &wal, times).await?;
    rig.finish().await
}

fn give_to_owner(server: &Postgres, path: &Path) -> Result<()> {
    let owner = std::fs::metadata(server.data_folder())?;
    Ok(chown(path, Some(owner.uid()), Some(owner.gid()))?)
}

/// From now on the server's write-ahead log is on this disk, and keeps no segment that it does not need: one that it kept
/// for later is room that its recovery does not find.
fn move_wal(server: &Postgres, disk: &SmallDisk) -> Result<()> {
    for setting in ["min_wal_size = '32MB'", "max_wal_size = '48MB'", "wal_recycle = off"] {
        sql::execute(&server.url("postgres"), &format!("ALTER SYSTEM SET {setting}"))?;
    }
    server.stop();
    let (there, here) = (server.data_folder().join("pg_wal"), disk.path().join("pg_wal"));
    let copied = Command::new("cp").arg("-a").args([&there, &here]).status()?;
    ensure!(copied.success(), "the write-ahead log could not be moved: {copied}");
    std::fs::remove_dir_all(&there)?;
    std::os::unix::fs::symlink(&here, &there)?;
    give_to_owner(server, disk.path())?;
    Ok(server.restart()?)
}

/// What a server may need to recover: the segment it goes on in, the next one, and one that is made meanwhile.
const ROOM_TO_RECOVER: u64 = 3 * 16;

/// What fills the disk is taken away again, and that must be enough: segments from before the last checkpoint go first.
fn leave_room(server: &Postgres, disk: &SmallDisk) -> Result<()> {
    sql::execute(&server.url("postgres"), "CHECKPOINT")?;
    let free = disk.free()?;
    ensure!(
        free >= ROOM_TO_RECOVER,
        "{free} MB are free beside the write-ahead log, {ROOM_TO_RECOVER} are needed"
    );
    Ok(())
}

/// A server that can have no further segment panics, and cannot even recover before there is room.
async fn wal_full_and_empty(
    rig: &mut Rig,
    server: &Postgres,
    disk: &SmallDisk,
    times: u64,
) -> Result<()> {
    let panics = || server.log().matches("PANIC:").count();
    // The next segment, until there is none.
    let switch = "SELECT pg_logical_emit_message(false, 'full', ''), pg_switch_wal()";
    for _ in 0..times {
        rig.work(Duration::from_millis(800)).await;
        leave_room(server, disk)?;
        let (before, in_flight) = (panics(), rig.wait_for_flight());
        let ballast = disk.fill()?;
        let full = (0..100).any(|_| sql::execute(&server.url("postgres"), switch).is_err());
        match full && panics() > before {
            true => rig.figures.fault("disk full under the write-ahead log: the server panicked"),
            false => {
                rig.problem("the disk of the write-ahead log was full, and the server went on")
            }
        }
        rig.figures.notes.push(format!("{in_flight} events were in flight when it was full"));
        std::fs::remove_file(ballast)?;
        server.restart()?;
        rig.measure_recovery(Instant::now()).await?;
    }
    Ok(())
}

async fn full_and_empty(rig: &mut Rig, disk: &SmallDisk, times: u64) -> Result<()> {
    for _ in 0..times {
        rig.work(Duration::from_millis(800)).await;
        let ballast = disk.fill()?;
        let before = rig.count_effects().await?;
        match rig.publishing_fails().await {
            true => rig.figures.fault("disk full"),
            false => rig.problem("the disk was full, and every transaction found room"),
        }
        rig.work(Duration::from_millis(2500)).await;
        let after = rig.count_effects().await?;
        rig.figures
            .notes
            .push(format!("{} effects found room while the disk was full", after - before));
        std::fs::remove_file(ballast)?;
        rig.measure_recovery(Instant::now()).await?;
    }
    Ok(())
}
