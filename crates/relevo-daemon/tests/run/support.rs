//! A daemon as a real process, an endpoint that behaves as told, and waiting without guessing.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use relevo_core::dead_letters::Operate;
use relevo_core::{EventId, NewEvent};
use relevo_stores::sqlite::SqliteStore;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `look` finds something.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a finished command left.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the binary in `folder` to its end.
pub(crate) async fn run_cli(folder: &Path, arguments: &[&str]) -> Ended {
    let mut command = relevo(folder);
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// The binary, in a folder, without the variables of whoever runs the tests.
pub(crate) fn relevo(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
    command.current_dir(folder).stdin(Stdio::null());
    command.env_remove("RELEVO_STORE").env_remove("RELEVO_LOG").env_remove("COLUMNS");
    command
}

/// `relevo run` as a process.
pub(crate) struct Daemon {
    child: Child,
    said: Arc<Mutex<String>>,
    pub(crate) printed: Arc<Mutex<String>>,
    pub(crate) address: String,
    readers: Vec<JoinHandle<()>>,
}

impl Daemon {
    /// Starts in `folder`, where relevo.toml lies, and waits until it listens.
    pub(crate) async fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self::start_with(folder, arguments, &[]).await
    }

    /// The same, with these variables.
    pub(crate) async fn start_with(
        folder: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = relevo(folder);
        command.arg("run").args(arguments).envs(variables.iter().copied());
        let mut daemon = Self::launch(command);
        let said = daemon.said.clone();
        daemon.address = eventually("the daemon listens", || {
            let said = said.lock().unwrap().clone();
            async move {
                let (_, rest) = said.split_once("listening on http://")?;
                Some(rest.split_whitespace().next()?.to_owned())
            }
        })
        .await;
        daemon
    }

    fn launch(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (printed, out) = collect(child.stdout.take().unwrap());
        let (said, err) = collect(child.stderr.take().unwrap());
        Self { child, said, printed, address: String::new(), readers: vec![out, err] }
    }

    /// What it said so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Waits for its end, and for its last words.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        let status = eventually("the daemon ends", || {
            let status = self.child.try_wait().unwrap();
            async move { status }
        })
        .await;
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        status
    }

    /// Asks for a path: the status and the body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
        let body =
            answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        (status, body)
    }

    /// The value of the first sample whose line begins with `begin`.
    pub(crate) async fn metric(&self, begin: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").await;
        let line = text.lines().find(|line| line.starts_with(begin))?.to_owned();
        line.rsplit(' ').next()?.parse().ok()
    }

    /// `/health/ready`, read.
    pub(crate) async fn ready(&self) -> (u16, serde_json::Value) {
        let (status, body) = self.get("/health/ready").await;
        (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("not JSON: {body}")))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Only a test that failed leaves one behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Collected = (Arc<Mutex<String>>, JoinHandle<()>);

fn collect(stream: impl std::io::Read + Send + 'static) -> Collected {
    let text = Arc::new(Mutex::new(String::new()));
    let into = text.clone();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut text = into.lock().unwrap();
            text.push_str(&line);
            text.push('\n');
        }
    });
    (text, reader)
}

/// One request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> String {
        self.headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    }
}

type Behaviour = Arc<dyn Fn(&str) -> (u16, Duration) + Send + Sync>;

/// An HTTP endpoint on a local port. `behaviour` says, by the body, which status it answers and after how long.
#[derive(Clone)]
pub(crate) struct Endpoint {
    received: Arc<Mutex<Vec<Received>>>,
    behaviour: Behaviour,
    pub(crate) address: SocketAddr,
}

impl Endpoint {
    pub(crate) async fn start(
        behaviour: impl Fn(&str) -> (u16, Duration) + Send + Sync + 'static,
    ) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), behaviour).await
    }

    pub(crate) async fn start_at(
        address: SocketAddr,
        behaviour: impl Fn(&str) -> (u16, Duration) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = Self { received: Arc::default(), behaviour: Arc::new(behaviour), address };
        let app = Router::new().fallback(receive).with_state(endpoint.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        endpoint
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Bodies in the order they came.
    pub(crate) fn bodies(&self) -> Vec<String> {
        self.received().into_iter().map(|received| received.body).collect()
    }

    pub(crate) async fn has_received(&self, n: usize) -> Vec<Received> {
        eventually(&format!("{n} requests came"), || async {
            Some(self.received()).filter(|received| received.len() >= n)
        })
        .await
    }
}

async fn receive(
    State(endpoint): State<Endpoint>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, &'static str) {
    let body = String::from_utf8_lossy(&body).into_owned();
    let (status, after) = (endpoint.behaviour)(&body);
    endpoint.received.lock().unwrap().push(Received { headers, body });
    tokio::time::sleep(after).await;
    (StatusCode::from_u16(status).unwrap(), "as told")
}

/// An address nobody listens on (for now).
pub(crate) async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Writes relevo.toml: a store `shop` in a file beside it, and a subscription `hook` to `url`.
pub(crate) fn configure(folder: &Path, url: &str, more: &str) {
    let text = format!(
        "[service]\nname = \"shop\"\n[store.shop]\nurl = \"sqlite:shop.db\"\n[broker.hook]\nurl = \"{url}\"\n\
         [subscription.hook]\nstore = \"shop\"\nto = \"hook\"\nretry = \"fast\"\n[retry.fast]\nkind = \"linear\"\nstep = \"200ms\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n{more}"
    );
    std::fs::write(folder.join("relevo.toml"), text).unwrap();
}

/// The store in `folder`, with its tables.
pub(crate) async fn store(folder: &Path) -> SqliteStore {
    let store = SqliteStore::open(&format!("sqlite:{}", folder.join("shop.db").display())).unwrap();
    store.migrate().await.unwrap();
    store
}

/// Publishes `{"n": n}` under `key`.
pub(crate) async fn publish(store: &SqliteStore, key: &str, n: u64) -> EventId {
    let event = NewEvent::json("order.placed", &serde_json::json!({ "n": n })).unwrap().key(key);
    store.publish_now(event).await.unwrap()
}
