//! A server as a child process that cannot outlive the tests.
//!
//! Each server has a *janitor*: a shell that waits for the end of its standard input, whose other
//! end only this process holds. However this process ends, the janitor then ends the server and
//! removes its folder. (A parent-death signal would fire when the spawning *thread* ends, and the
//! threads of a test harness are short-lived.)

use super::{Result, ServiceError};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A server that takes longer to end is killed.
const STOP_LIMIT: Duration = Duration::from_secs(20);

const JANITOR: &str = r#"
trap '' INT TERM HUP
read -r _
# Whoever makes this folder decides: the process that is about to become the server, its id noted by then, or we, and
# then it never does.
if ! mkdir "$1/begun"; then
  pid=$(cat "$1/pid")
  kill -CONT "$pid" && kill "-$2" "$pid"
  tries=0
  while kill -0 "$pid" && [ $tries -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
  kill -KILL "$pid"
fi 2>/dev/null
[ -n "$RELEVO_KEEP" ] || rm -rf "$1"
"#;

/// How a program's server process is told to end at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StopSignal {
    pub(crate) signal: Signal,
    /// The same for the janitor's shell.
    pub(crate) name: &'static str,
}

/// A program with its arguments and variables, to be started as often as need be.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    program: PathBuf,
    args: Vec<String>,
    environment: Vec<(&'static str, String)>,
    /// Whether the variables of the tests are kept from it.
    alone: bool,
}

impl Launch {
    pub(crate) fn new(program: &Path) -> Launch {
        let (args, environment) = (Vec::new(), Vec::new());
        Launch { program: program.to_owned(), args, environment, alone: false }
    }

    /// Keeps the variables of the tests from the program, which then has only those given here.
    pub(crate) fn alone(mut self) -> Launch {
        self.alone = true;
        self
    }

    pub(crate) fn args<T: AsRef<str>>(mut self, args: &[T]) -> Launch {
        self.args.extend(args.iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(crate) fn variable(mut self, name: &'static str, value: impl std::fmt::Display) -> Launch {
        self.environment.push((name, value.to_string()));
        self
    }
}

/// A folder, a process in it, and the janitor of both.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    name: String,
    folder: PathBuf,
    stop: StopSignal,
    child: Option<Child>,
    janitor: Child,
}

impl ServerProcess {
    /// Makes the folder; nothing runs yet.
    pub(crate) fn new(name: &str, stop: StopSignal) -> Result<ServerProcess> {
        let failed = |why: std::io::Error| ServiceError::failed(name, why);
        let folder = new_folder().map_err(failed)?;
        let janitor = Command::new("sh")
            .args(["-c", JANITOR, "janitor"])
            .arg(&folder)
            .arg(stop.name)
            .stdin(Stdio::piped())
            // Whoever reads our output to its end must not wait for the janitor.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // Its own group: what kills the tests' group must leave it to do its work.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        Ok(ServerProcess { name: name.to_owned(), folder, stop, child: None, janitor })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file that the server's user may read.
    pub(crate) fn write(&self, file: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(file);
        let written = fs::write(&path, text).and_then(|()| give_away(&path));
        written.map_err(|error| self.failed(error))?;
        Ok(path)
    }

    /// Writes a file that only the server's user may read.
    pub(crate) fn write_secret(&self, file: &str, text: &str) -> Result<PathBuf> {
        let path = self.write(file, text)?;
        let only_owner = fs::Permissions::from_mode(0o400);
        fs::set_permissions(&path, only_owner).map_err(|error| self.failed(error))?;
        Ok(path)
    }

    /// Makes a folder that the server's user owns.
    pub(crate) fn make_folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        let made = DirBuilder::new().mode(0o700).create(&path).and_then(|()| give_away(&path));
        made.map_err(|error| self.failed(error))?;
        Ok(path)
    }

    /// Copies a file to where the server's user may read and write it.
    pub(crate) fn copy(&self, from: &Path, to: &str) -> Result<PathBuf> {
        let path = self.folder.join(to);
        let copied = fs::copy(from, &path).and_then(|_| give_away(&path));
        copied.map_err(|error| self.failed(format!("{}: {error}", from.display())))?;
        Ok(path)
    }

    /// Starts the program in the foreground; its output goes to the log.
    pub(crate) fn spawn(&mut self, program: &Path, args: &[&str]) -> Result<()> {
        self.launch(&Launch::new(program).args(args))
    }

    /// Starts a program that needs more than arguments.
    pub(crate) fn launch(&mut self, launch: &Launch) -> Result<()> {
        let log = File::options().append(true).create(true).open(self.log_file());
        let log = log.map_err(|error| self.failed(error))?;
        let errors = log.try_clone().map_err(|error| self.failed(error))?;
        let _ = fs::remove_dir(self.folder.join("begun"));
        // The process itself notes its id before it becomes the server: the janitor always knows it.
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0/pid" && mkdir "$0/begun" && exec "$@""#]);
        command.arg(&self.folder);
        for word in unprivileged(&launch.program) {
            command.arg(word);
        }
        if launch.alone {
            command.env_clear();
        }
        command.args(&launch.args).env("LC_ALL", "C").envs(launch.environment.iter().cloned());
        command.current_dir(&self.folder).process_group(0);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.child = Some(command.spawn().map_err(|error| self.failed(error))?);
        Ok(())
    }

    /// Runs a program of the server to its end, as the server's user.
    pub(crate) fn run(&self, program: &Path, args: &[&str]) -> Result<()> {
        let words = unprivileged(program);
        let output = Command::new(&words[0])
            .args(&words[1..])
            .args(args)
            .env("LC_ALL", "C")
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| self.failed(format!("{}: {error}", program.display())))?;
        if output.status.success() {
            return Ok(());
        }
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(self.failed(format!("{} ended with {}: {printed}", program.display(), output.status)))
    }

    /// Tries until it succeeds; ends early when the server does.
    pub(crate) fn wait_ready(
        &mut self,
        limit: Duration,
        ready: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let last = match ready() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if !self.is_running() {
                return Err(self.failed(format!("ended while starting; its log:\n{}", self.log())));
            }
            if Instant::now() > deadline {
                let log = self.log();
                return Err(
                    self.failed(format!("not ready after {limit:?}: {last}; its log:\n{log}"))
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.as_ref().and_then(pid_of) {
            // A process that has ended already needs no signal.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills the server and its children at one moment, as a machine that loses power would.
    pub(crate) fn kill9(&mut self) {
        let Some(pid) = self.child.as_ref().and_then(pid_of) else { return };
        // Stopped first, it can neither start children nor react to their deaths meanwhile.
        let _ = kill_process(pid, Signal::STOP);
        let children = children_of(pid);
        for process in [pid].into_iter().chain(children.iter().copied()) {
            let _ = kill_process(process, Signal::KILL);
        }
        self.reap();
        // A child that still holds shared memory would keep the server from starting again.
        let deadline = Instant::now() + STOP_LIMIT;
        while children.iter().any(|child| is_alive(*child)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the server and its children without telling anybody: connections stay open, nothing
    /// answers.
    pub(crate) fn pause(&self) {
        let Some(pid) = self.child.as_ref().and_then(pid_of) else { return };
        let _ = kill_process(pid, Signal::STOP);
        for child in children_of(pid) {
            let _ = kill_process(child, Signal::STOP);
        }
    }

    /// Lets a paused server go on.
    pub(crate) fn resume(&self) {
        let Some(pid) = self.child.as_ref().and_then(pid_of) else { return };
        for child in children_of(pid) {
            let _ = kill_process(child, Signal::CONT);
        }
        let _ = kill_process(pid, Signal::CONT);
    }

    /// Ends the server by a signal and waits for it.
    pub(crate) fn end(&mut self, signal: Signal) {
        self.resume();
        self.signal(signal);
        let deadline = Instant::now() + STOP_LIMIT;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill9();
        self.reap();
    }

    /// The memory of the server and its children at the moment.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(std::process::Child::id)
    }

    /// How much memory it holds at the moment.
    pub(crate) fn memory_kb(&self) -> u64 {
        let Some(pid) = self.child.as_ref().and_then(pid_of) else { return 0 };
        let all = children_of(pid).into_iter().chain([pid]);
        all.filter_map(resident_kb).sum()
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        fs::read(self.log_file())
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_default()
    }

    pub(crate) fn failed(&self, why: impl std::fmt::Display) -> ServiceError {
        ServiceError::failed(&self.name, why)
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        let _ = fs::remove_file(self.folder.join("pid"));
        let _ = fs::remove_dir(self.folder.join("begun"));
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.end(self.stop.signal);
        if std::env::var_os("RELEVO_KEEP").is_some_and(|keep| !keep.is_empty()) {
            eprintln!("kept: {} of {}", self.folder.display(), self.name);
        }
        // Without its input the janitor removes the folder.
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

/// A new folder of the server's user, with a path short enough for a socket in it.
fn new_folder() -> std::io::Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let parent = Some(std::env::temp_dir()).filter(|dir| dir.as_os_str().len() < 60);
    let parent = parent.unwrap_or_else(|| PathBuf::from("/tmp"));
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("relevo-{}-{count}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            // Left behind by a process that had the same id.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        give_away(&folder)?;
        return Ok(folder);
    }
}

/// As root: hands a file or folder to the user that servers run as.
fn give_away(path: &Path) -> std::io::Result<()> {
    match server_user() {
        Some((uid, gid)) => chown(path, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// The words that run a program, as root by way of `setpriv`, which execs: the process id stays.
fn unprivileged(program: &Path) -> Vec<std::ffi::OsString> {
    let mut words = Vec::new();
    if let Some((uid, gid)) = server_user() {
        words.push("setpriv".into());
        words.push(format!("--reuid={uid}").into());
        words.push(format!("--regid={gid}").into());
        words.push("--clear-groups".into());
    }
    words.push(program.into());
    words
}

/// The user that servers run as when we are root, which they refuse.
fn server_user() -> Option<(u32, u32)> {
    if !geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    ids("postgres").or_else(|| ids("nobody"))
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok());
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .filter(|pid| {
            stat(*pid).is_some_and(|(_, its_parent)| its_parent == parent.as_raw_nonzero().get())
        })
        .collect()
}

fn resident_kb(pid: Pid) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a process still holds anything: a zombie does not.
fn is_alive(pid: Pid) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// State and parent of a process.
fn stat(pid: Pid) -> Option<(char, i32)> {
    let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name before may contain anything, also spaces and brackets.
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
