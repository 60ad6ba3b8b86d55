//! A test run that is interrupted, and what is left of the servers it had started.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than the kit gives a server to end by itself, and than a cluster takes to start on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Asserts that a server of the kit ends with the process that started it, even if that is killed: nobody listens any
/// more, no process of it is left, and its folder is gone.
#[track_caller]
pub(crate) fn assert_ends_with_its_owner(kind: &str) {
    let mut owner = Owner::start(&[kind]);
    let addresses = owner.addresses();
    assert!(addresses.iter().all(is_open), "{addresses:?}");
    let started = owner.interrupt(Signal::KILL);
    nothing_is_left(&started);
    assert!(!addresses.iter().any(is_open), "somebody listens at {addresses:?}");
}

/// The same for a cluster of three that serves, whose owner gets this signal with its whole group, as by Ctrl-C.
/// `programs` are those that it must consist of, with their number.
#[track_caller]
pub(crate) fn assert_a_cluster_ends_with_its_owner(
    kind: &str,
    signal: Signal,
    programs: &[(&str, usize)],
) {
    let mut owner = Owner::start(&[kind, "cluster"]);
    let addresses = owner.addresses();
    assert!(addresses.len() == 3 && addresses.iter().all(is_open), "{addresses:?}");
    let started = owner.interrupt(signal);
    for (program, number) in programs {
        let found = started.processes.iter().filter(|process| process.name == *program).count();
        assert_eq!(found, *number, "{program}: {started:?}");
    }
    nothing_is_left(&started);
    assert!(!addresses.iter().any(is_open), "somebody listens at {addresses:?}");
}

/// The same for a cluster whose owner gets the signal as soon as the first `program` runs.
#[track_caller]
pub(crate) fn assert_a_starting_cluster_ends_with_its_owner(
    kind: &str,
    signal: Signal,
    program: &str,
) {
    let owner = Owner::start(&[kind, "cluster"]);
    let runs = || descendants_of(owner.child.id()).iter().any(|process| process.name == program);
    until("the first node is started", runs);
    nothing_is_left(&owner.interrupt(signal));
}

/// `relevo-services` in a group of its own, as a shell starts a test run.
struct Owner {
    child: Child,
    /// It would end in good order if this did.
    _input: ChildStdin,
}

impl Owner {
    fn start(words: &[&str]) -> Owner {
        // Whoever runs these tests in the background may ignore Ctrl-C, and children inherit that.
        let mut child = Command::new("env")
            .arg("--default-signal")
            .arg(env!("CARGO_BIN_EXE_relevo-services"))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("env is there");
        let input = child.stdin.take().expect("stdin is a pipe");
        Owner { child, _input: input }
    }

    /// Where its servers listen, once they all do.
    fn addresses(&mut self) -> Vec<SocketAddr> {
        let mut line = String::new();
        let output = self.child.stdout.as_mut().expect("stdout is a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let parts = line.trim().split(['@', '/', ',']);
        let addresses: Vec<SocketAddr> = parts.filter_map(|part| part.parse().ok()).collect();
        assert!(!addresses.is_empty(), "no address in {line:?}");
        addresses
    }

    /// Ends it by a signal to its group, and tells what it had started.
    fn interrupt(mut self, signal: Signal) -> Started {
        let id = self.child.id();
        let group = pid(id);
        // While it stands still, nothing is started that would not be seen.
        kill_process(group, Signal::STOP).expect("it runs");
        until("it stands still", || Process::read(id).is_some_and(|owner| owner.state == "T"));
        let started = Started { owner: id, processes: descendants_of(id) };
        assert!(!started.processes.is_empty(), "nothing was started");
        kill_process_group(group, signal).expect("it is there");
        // Without a success if it is gone by now.
        let _ = kill_process_group(group, Signal::CONT);
        let mut ended = None;
        until("it ends by the signal", || {
            ended = self.child.try_wait().expect("it is our child");
            ended.is_some()
        });
        assert_eq!(ended.and_then(|status| status.signal()), Some(signal.as_raw()));
        started
    }
}

/// Servers and janitors, with everything that these had started.
#[derive(Debug)]
struct Started {
    owner: u32,
    processes: Vec<Process>,
}

impl Started {
    /// Those that still run, and whoever they started since.
    fn left(&self) -> Vec<Process> {
        let born: BTreeSet<(u32, u64)> = self.processes.iter().map(Process::identity).collect();
        let groups: BTreeSet<u32> = self.processes.iter().map(|process| process.group).collect();
        let folders = format!("/relevo-{}-", self.owner);
        let is_ours = |process: &Process| {
            born.contains(&process.identity())
                || groups.contains(&process.group)
                || process.mentions(&folders)
        };
        running().into_iter().filter(is_ours).collect()
    }
}

#[track_caller]
fn nothing_is_left(started: &Started) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let left = started.left();
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "outlived their owner by a minute: {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let folders = folders_of(started.owner);
    assert!(folders.is_empty(), "left behind: {folders:?}");
}

fn folders_of(owner: u32) -> Vec<PathBuf> {
    let prefix = format!("relevo-{owner}-");
    let entries = std::fs::read_dir(std::env::temp_dir()).expect("a folder").flatten();
    let own = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    own.map(|entry| entry.path()).collect()
}

#[derive(Debug, Clone)]
struct Process {
    id: u32,
    name: String,
    state: String,
    parent: u32,
    group: u32,
    /// In ticks since the machine started: an id alone may be another process by now.
    born: u64,
}

impl Process {
    fn read(id: u32) -> Option<Process> {
        let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name may contain anything, also spaces and brackets.
        let (before, after) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        Some(Process {
            id,
            name: before.split_once('(')?.1.to_owned(),
            state: (*fields.first()?).to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            born: fields.get(19)?.parse().ok()?,
        })
    }

    fn identity(&self) -> (u32, u64) {
        (self.id, self.born)
    }

    /// Whether it was started for something in these folders; of other users' processes nobody may tell.
    fn mentions(&self, folders: &str) -> bool {
        let has = |file: &str| {
            let bytes = std::fs::read(format!("/proc/{}/{file}", self.id)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(folders)
        };
        has("cmdline") || has("environ")
    }
}

/// All that do anything; one that only waits to be noticed does not.
fn running() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").expect("Linux has it").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(Process::read).filter(|process| process.state != "Z").collect()
}

fn descendants_of(owner: u32) -> Vec<Process> {
    let all = running();
    let (mut family, mut found) = (BTreeSet::from([owner]), Vec::new());
    loop {
        let is_new =
            |process: &&Process| family.contains(&process.parent) && !family.contains(&process.id);
        let next: Vec<Process> = all.iter().filter(is_new).cloned().collect();
        if next.is_empty() {
            return found;
        }
        family.extend(next.iter().map(|process| process.id));
        found.extend(next);
    }
}

fn is_open(address: &SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}

fn pid(id: u32) -> Pid {
    i32::try_from(id).ok().and_then(Pid::from_raw).expect("an id of a process")
}

#[track_caller]
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !happened() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
