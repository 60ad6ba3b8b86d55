//! A folder with a store, the binary, and a relay whose destination does what a test wants.

use async_trait::async_trait;
use relevo_core::broker::{Confirm, Publisher, ToBroker};
use relevo_core::dead_letters::Operate;
use relevo_core::outbox::{MemberId, Subscription};
use relevo_core::relay::{RelayConfig, run};
use relevo_core::retry::RetryPolicy;
use relevo_core::{ErrorClass, Event};
use relevo_stores::sqlite::SqliteStore;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a finished command left.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A folder of its own.
pub(crate) struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    /// An empty one.
    pub(crate) fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// With a configuration and a store.
    pub(crate) fn with_store() -> Self {
        let scratch = Self::empty();
        scratch.ok(&["init"]);
        scratch.ok(&["migrate"]);
        scratch
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), text).unwrap();
        name.to_owned()
    }

    /// The command, in the folder, without the variables of whoever runs the tests.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RELEVO_")) {
            command.env_remove(name);
        }
        command.env_remove("VISUAL").env_remove("EDITOR").env_remove("COLUMNS").env("USER", "ana");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        end(&mut self.command(args))
    }

    /// Its output; it must end well.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let ended = self.run(args);
        assert_eq!(ended.code, 0, "relevo {args:?}\n{}{}", ended.out, ended.err);
        ended.out
    }

    /// Its output as JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        let out = self.ok(&args);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("relevo {args:?}: {error}\n{out}"))
    }

    /// What it said on standard error; it must end with this code.
    pub(crate) fn fails(&self, code: i32, args: &[&str]) -> String {
        let ended = self.run(args);
        assert_eq!(ended.code, code, "relevo {args:?}\n{}{}", ended.out, ended.err);
        ended.err
    }

    /// Publishes and answers with the event's id.
    pub(crate) fn publish(&self, topic: &str, key: &str, payload: &str) -> String {
        self.ok(&["publish", topic, payload, "--key", key]).trim().to_owned()
    }

    pub(crate) fn store(&self) -> SqliteStore {
        SqliteStore::open_existing(self.path("relevo.db").to_str().unwrap()).unwrap()
    }

    /// Works a subscription until `done`, every event getting the same answer; a failure is final.
    pub(crate) async fn work(
        &self,
        subscription: &str,
        answer: Confirm,
        done: impl AsyncFn(&SqliteStore) -> bool,
    ) {
        let once = RetryPolicy::default().max_attempts(1);
        let running = self.start(subscription, Destination::Answers(answer), once).await;
        eventually(&self.store(), done).await;
        running.stop(Duration::from_secs(10)).await.unwrap();
    }

    /// Starts working a subscription.
    pub(crate) async fn start(
        &self,
        subscription: &str,
        destination: Destination,
        retry: RetryPolicy,
    ) -> run::Running {
        self.start_as(Subscription::new(subscription), destination, retry).await
    }

    /// Starts working a subscription of any kind.
    pub(crate) async fn start_as(
        &self,
        subscription: Subscription,
        destination: Destination,
        retry: RetryPolicy,
    ) -> run::Running {
        let mut config = RelayConfig::default();
        config.retry = retry;
        config.lease = Duration::from_secs(1);
        let member = MemberId(format!("test-{}", std::process::id()).into());
        let destination = Arc::new(ToBroker::new(destination));
        run::start(Arc::new(self.store()), subscription, config, destination, member).await.unwrap()
    }

    /// Makes a dead letter of everything in the log.
    pub(crate) fn let_die(&self, subscription: &str, count: i64) {
        let refused = Confirm::Refused {
            class: ErrorClass::Poison,
            error: "422 no\u{1b}[31m total".into(),
            after: None,
        };
        block_on(
            self.work(subscription, refused, async |store| {
                dead(store, subscription).await == count
            }),
        );
    }

    /// Delivers everything there is.
    pub(crate) fn deliver(&self, subscription: &str) {
        block_on(self.work(subscription, Confirm::Stored, async |store| {
            let status = store.status().await.unwrap();
            status
                .subscriptions
                .iter()
                .any(|it| it.name == subscription && it.backlog == 0 && it.parked_keys == 0)
        }));
    }
}

async fn dead(store: &SqliteStore, subscription: &str) -> i64 {
    let status = store.status().await.unwrap();
    status.subscriptions.iter().find(|it| it.name == subscription).map_or(0, |it| it.dead_letters)
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Runs a command to its end.
pub(crate) fn end(command: &mut Command) -> Ended {
    let output = command.output().unwrap();
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a command with something on its standard input.
pub(crate) fn end_with_input(mut command: Command, input: &[u8]) -> Ended {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Looks again and again until it is so.
pub(crate) async fn eventually(store: &SqliteStore, is_so: impl AsyncFn(&SqliteStore) -> bool) {
    let begun = Instant::now();
    while !is_so(store).await {
        let status = store.status().await;
        assert!(begun.elapsed() < Duration::from_secs(120), "not in time: {status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Where events go in a test.
pub(crate) enum Destination {
    /// One answer for everything.
    Answers(Confirm),
    /// No answer, ever.
    Hangs,
}

#[async_trait]
impl Publisher for Destination {
    fn name(&self) -> &'static str {
        "test"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        match self {
            Self::Answers(answer) => events.iter().map(|_| answer.clone()).collect(),
            Self::Hangs => std::future::pending().await,
        }
    }
}

/// True if a file can be read by its owner only.
#[cfg(unix)]
pub(crate) fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o077 == 0
}
