//! Processes that cannot outlive xtask, however it ends.
//!
//! Their group is led by a shell that waits for the end of its standard input, whose other end only xtask holds. When
//! that ends, the shell ends the group. The servers of the tests lead groups of their own, and end with the process
//! that started them.

use anyhow::{Context, Result, anyhow};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

const LEAD: &str = r#"
trap '' INT TERM HUP
read -r _
kill -TERM 0
sleep 0.2
kill -KILL 0
"#;

/// A group of processes. It ends when this value goes, and when xtask does.
pub(crate) struct Group {
    leader: Child,
    id: i32,
}

impl Group {
    pub(crate) fn new() -> Result<Group> {
        Self::led().context("no shell to lead a group of processes")
    }

    fn led() -> io::Result<Group> {
        let leader = Command::new("sh")
            .args(["-c", LEAD])
            .stdin(Stdio::piped())
            // Whoever reads our output to its end must not wait for it.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let id = i32::try_from(leader.id()).map_err(io::Error::other)?;
        Ok(Group { leader, id })
    }

    /// What the command starts belongs to the group.
    pub(crate) fn take_in(&self, command: &mut Command) {
        command.process_group(self.id);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.leader.stdin.take());
        // It ends by its own signal; if it is gone already, so is the group.
        let _ = self.leader.wait();
    }
}

/// Lets a command end with xtask.
pub(crate) fn end_with_xtask(command: &mut Command) -> Result<&mut Command> {
    static OF_THIS_RUN: LazyLock<io::Result<Group>> = LazyLock::new(Group::led);
    match &*OF_THIS_RUN {
        Ok(group) => group.take_in(command),
        Err(error) => return Err(anyhow!("no shell to lead a group of processes: {error}")),
    }
    Ok(command)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::stage::{Output, run_and_tally};
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    /// Set for a run that is to be killed: the folder with programs for it.
    const RUN: &str = "RELEVO_TEST_OF_GROUPS";

    /// A family whose output somebody keeps to himself: it tells its ids where the run's own lines go.
    const PROGRAM: &str = "#!/bin/sh\nsleep 1000 &\necho family $$ $! >/proc/$PPID/fd/1\nwait\n";

    /// A program that has started another, as `cargo test` does; both tell their ids.
    fn family() -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo family $$ $!; wait"]);
        command
    }

    fn ids(line: &str) -> Option<Vec<u32>> {
        let (_, ids) = line.split_once("family ")?;
        ids.split_whitespace().map(|id| id.parse().ok()).collect()
    }

    /// A zombie only waits to be noticed.
    fn is_alive(id: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    #[track_caller]
    fn all_end(ids: &[u32]) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while ids.iter().any(|id| is_alive(*id)) {
            assert!(Instant::now() < deadline, "still there: {ids:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Where a run that is to be killed finds programs that start another and wait for it, by the names `family` and
    /// `java`; nothing in any other run.
    pub(crate) fn to_be_killed() -> Option<PathBuf> {
        std::env::var_os(RUN).map(PathBuf::from)
    }

    fn write_programs(folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        for name in ["family", "java"] {
            let file = folder.join(name);
            fs::write(&file, PROGRAM).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// Runs that test alone, in a process that is killed as soon as a family has told its ids: the family ends as well.
    #[track_caller]
    pub(crate) fn ends_with_a_killed_run(test: &str) {
        let name = format!("relevo-group-{}-{}", std::process::id(), test.replace(':', "-"));
        let folder = std::env::temp_dir().join(name);
        write_programs(&folder);
        let path = std::env::var("PATH").unwrap();
        let mut run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(RUN, &folder)
            .env("PATH", format!("{}:{path}", folder.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let started = lines.map_while(Result::ok).find_map(|line| ids(&line)).unwrap();
        assert!(started.len() == 2 && started.iter().all(|id| is_alive(*id)), "{started:?}");
        run.kill().unwrap();
        run.wait().unwrap();
        fs::remove_dir_all(folder).unwrap();
        all_end(&started);
    }

    /// Who is to be killed: this test binary again, told so by the environment.
    #[test]
    fn a_run_that_waits_for_its_tests() {
        if to_be_killed().is_some() {
            run_and_tally(family(), Output::Live).unwrap();
        }
    }

    #[test]
    fn what_a_run_has_started_ends_with_it_even_if_that_is_killed_alone() {
        ends_with_a_killed_run("group::tests::a_run_that_waits_for_its_tests");
    }

    #[test]
    fn a_group_that_is_dropped_takes_everybody_along() {
        let group = Group::new().unwrap();
        let mut command = family();
        group.take_in(&mut command);
        let mut first = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
        drop(group);
        all_end(&ids(&line).unwrap());
        first.wait().unwrap();
    }
}
