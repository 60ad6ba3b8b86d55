//! PostgreSQL of any supported major version.

use super::process::{ServerProcess, StopSignal};
use super::tls::{CLIENT, Certificates, TlsFiles};
use super::{Result, ServiceError, locate, port, sql};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Recovery after a crash may take a while on a busy disk.
const READY_LIMIT: Duration = Duration::from_secs(180);

/// Its data is thrown away, so "immediate" is the right way for it to stop.
const IMMEDIATE: StopSignal = StopSignal { signal: Signal::QUIT, name: "QUIT" };

pub(crate) const USER: &str = "postgres";
pub(crate) const PASSWORD: &str = "relevo";

/// A user that a server with TLS turns away when it comes without.
pub const TLS_ONLY: &str = "tls_only";

/// How a server differs from the default.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The major version.
    pub major: u16,
    /// Whether commits wait for the disk. Off by default; crash tests turn it on.
    pub fsync: bool,
    /// Further lines of postgresql.conf; a later one wins.
    pub settings: Vec<(String, String)>,
    /// Certificates, for connections by TLS.
    pub tls: Option<Certificates>,
}

impl PostgresOptions {
    /// The defaults for one major version.
    pub fn new(major: u16) -> PostgresOptions {
        PostgresOptions { major, fsync: false, settings: Vec::new(), tls: None }
    }

    /// Makes commits wait for the disk.
    pub fn durable(mut self) -> PostgresOptions {
        self.fsync = true;
        self
    }

    /// Speaks TLS beside plain connections. The user `relevo` logs in by certificate, the user [`TLS_ONLY`] by password
    /// and never without TLS; a test makes the roles it needs.
    pub fn tls(mut self, certificates: &Certificates) -> PostgresOptions {
        self.tls = Some(certificates.clone());
        self
    }

    /// Adds a line to postgresql.conf. The value is quoted here.
    pub fn setting(mut self, name: &str, value: &str) -> PostgresOptions {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A PostgreSQL server of its own cluster; it stops when the value is dropped.
///
/// It has `wal_level=logical`, 200 connections and prepared transactions; the user `postgres` is
/// superuser and logs in with a password (scram).
#[derive(Debug)]
pub struct Postgres {
    major: u16,
    port: u16,
    bin: PathBuf,
    data: PathBuf,
    databases: AtomicU32,
    tls: Option<TlsFiles>,
    process: Mutex<ServerProcess>,
}

impl Postgres {
    /// The major versions that Relevo supports.
    pub const MAJORS: [u16; 5] = [14, 15, 16, 17, 18];

    /// Starts a server for tests that harm it; others take [`Postgres::shared`].
    pub fn start(major: u16) -> Result<Postgres> {
        Postgres::start_with(&PostgresOptions::new(major))
    }

    /// Starts a server that differs from the default.
    pub fn start_with(options: &PostgresOptions) -> Result<Postgres> {
        let bin = locate::postgres_bin(options.major)?;
        // Between finding a port free and listening on it, somebody else may take it.
        let mut tries = 3;
        loop {
            tries -= 1;
            match Postgres::try_start(options, &bin) {
                Err(ServiceError::Failed { why, .. })
                    if tries > 0 && why.contains("could not bind") => {}
                result => return result,
            }
        }
    }

    /// The one server of this major version that all tests of this process share. Each test makes
    /// its own database with [`Postgres::create_database`].
    pub fn shared(major: u16) -> Result<Arc<Postgres>> {
        type Slot = Arc<OnceLock<Result<Arc<Postgres>>>>;
        static SHARED: Mutex<BTreeMap<u16, Slot>> = Mutex::new(BTreeMap::new());
        // The lock covers the look-up only: servers of different versions start side by side.
        let slot = locked(&SHARED).entry(major).or_default().clone();
        slot.get_or_init(|| Postgres::start(major).map(Arc::new)).clone()
    }

    fn try_start(options: &PostgresOptions, bin: &Path) -> Result<Postgres> {
        let mut process = ServerProcess::new(&format!("PostgreSQL {}", options.major), IMMEDIATE)?;
        let port = port::free_port();
        let data = process.folder().join("data");
        init(&process, bin, &data)?;
        let certificates = options.tls.as_ref();
        let tls = certificates.map(|all| all.write(&process)).transpose()?;
        configure(&process, options, &data, port)?;
        if tls.is_some() {
            admit_by_tls(&process, &data)?;
        }
        spawn(&mut process, bin, &data)?;
        let server = Postgres {
            major: options.major,
            port,
            bin: bin.to_owned(),
            data,
            databases: AtomicU32::new(0),
            tls,
            process: Mutex::new(process),
        };
        server.wait_ready(&mut server.process())?;
        Ok(server)
    }

    /// The major version.
    pub fn major(&self) -> u16 {
        self.major
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        port::local(self.port)
    }

    /// The folder that holds the cluster.
    pub fn data_folder(&self) -> &Path {
        &self.data
    }

    /// What a client with TLS needs, if the server was started with it.
    pub fn tls_files(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// The URL of a database of this server, as its superuser.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes an empty database and returns its URL.
    pub fn create_database(&self) -> Result<String> {
        let count = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{count}", std::process::id());
        sql::execute(&self.url("postgres"), &format!("CREATE DATABASE {name} TEMPLATE template0"))?;
        Ok(self.url(&name))
    }

    /// A server that follows this one, asynchronously, by way of `through`: this server's address or a proxy before it.
    /// This server stops for a moment, while its data is copied.
    pub fn standby(&self, through: SocketAddr) -> Result<Postgres> {
        let mut process =
            ServerProcess::new(&format!("PostgreSQL {}, a standby", self.major), IMMEDIATE)?;
        let (port, data) = (port::free_port(), process.folder().join("data"));
        self.stop();
        let copy = ["-a", &self.data.display().to_string(), &data.display().to_string()];
        let copied = process.run(Path::new("cp"), &copy);
        self.restart()?;
        copied?;
        follow(&process, &data, port, through).map_err(|error| process.failed(error))?;
        spawn(&mut process, &self.bin, &data)?;
        let server = Postgres {
            major: self.major,
            port,
            bin: self.bin.clone(),
            data,
            databases: AtomicU32::new(0),
            tls: None,
            process: Mutex::new(process),
        };
        server.wait_ready(&mut server.process())?;
        Ok(server)
    }

    /// Makes a standby a server of its own, with what had reached it by then.
    pub fn promote(&self) -> Result<()> {
        let promoted = "DO $$ BEGIN IF NOT pg_promote(true, 120) THEN RAISE 'it is not promoted'; END IF; END $$";
        sql::execute(&self.url("postgres"), promoted)
    }

    /// Kills the server with all its children, like a power cut. The data stays.
    pub fn kill9(&self) {
        self.process().kill9();
    }

    /// Stops it in good order: open transactions are rolled back, clients disconnected.
    pub fn stop(&self) {
        self.process().end(Signal::INT);
    }

    /// Starts it again on the same port with the same data, after stopping it if need be.
    pub fn restart(&self) -> Result<()> {
        let mut process = self.process();
        if process.is_running() {
            process.end(Signal::INT);
        }
        spawn(&mut process, &self.bin, &self.data)?;
        self.wait_ready(&mut process)
    }

    /// Makes it stand still with all its children (SIGSTOP): connections stay open, and nothing
    /// answers.
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Lets it go on after [`Postgres::pause`].
    pub fn resume(&self) {
        self.process().resume();
    }

    /// The server's first process, the parent of all its others.
    pub fn pid(&self) -> Option<u32> {
        self.process().pid()
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        self.process().log()
    }

    fn wait_ready(&self, process: &mut ServerProcess) -> Result<()> {
        let url = self.url("postgres");
        process.wait_ready(READY_LIMIT, || sql::execute(&url, "SELECT 1"))
    }

    fn process(&self) -> MutexGuard<'_, ServerProcess> {
        locked(&self.process)
    }
}

/// A test that panicked while it held a server must not take the others down.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn init(process: &ServerProcess, bin: &Path, data: &Path) -> Result<()> {
    let password = process.write("password", PASSWORD)?;
    let password = format!("--pwfile={}", password.display());
    let data = data.display().to_string();
    let fixed =
        ["-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"];
    let own = ["-D", &data, "-U", USER, &password];
    process.run(&bin.join("initdb"), &[&own[..], &fixed[..]].concat())
}

fn configure(
    process: &ServerProcess,
    options: &PostgresOptions,
    data: &Path,
    port: u16,
) -> Result<()> {
    let (port, sockets) = (port.to_string(), process.folder().display().to_string());
    let fsync = if options.fsync { "on" } else { "off" };
    let defaults = [
        ("listen_addresses", "127.0.0.1"),
        ("port", &port),
        ("unix_socket_directories", &sockets),
        ("wal_level", "logical"),
        ("max_connections", "200"),
        ("max_prepared_transactions", "50"),
        ("shared_buffers", "32MB"),
        ("fsync", fsync),
        ("full_page_writes", fsync),
        // Syncing file by file makes recovery wait for everybody else's writes.
        ("recovery_init_sync_method", "syncfs"),
        ("timezone", "UTC"),
        ("log_timezone", "UTC"),
    ];
    let chosen = options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let files = ["ca.pem", "server.pem", "server.key"].map(|name| format!("{sockets}/{name}"));
    let tls = [
        ("ssl", "on"),
        ("ssl_ca_file", &files[0]),
        ("ssl_cert_file", &files[1]),
        ("ssl_key_file", &files[2]),
    ];
    let tls = tls.into_iter().filter(|_| options.tls.is_some());
    let lines = defaults.into_iter().chain(tls).chain(chosen);
    let text: String =
        lines.map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''"))).collect();
    fs::write(data.join("postgresql.conf"), text).map_err(|error| process.failed(error))
}

/// Makes a copy of a server's data follow the original. A later line of postgresql.conf wins.
fn follow(
    process: &ServerProcess,
    data: &Path,
    port: u16,
    through: SocketAddr,
) -> std::io::Result<()> {
    let sockets = process.folder().display();
    let from = format!("host=127.0.0.1 port={} user={USER} password={PASSWORD}", through.port());
    let lines = format!(
        "port = '{port}'\nunix_socket_directories = '{sockets}'\nprimary_conninfo = '{from}'\n\
         wal_receiver_timeout = '2s'\n"
    );
    let file = data.join("postgresql.conf");
    fs::write(&file, fs::read_to_string(&file)? + &lines)?;
    fs::write(data.join("standby.signal"), "")
}

/// Who must come encrypted; the first line that fits counts.
fn admit_by_tls(process: &ServerProcess, data: &Path) -> Result<()> {
    let file = data.join("pg_hba.conf");
    let rest = fs::read_to_string(&file).map_err(|error| process.failed(error))?;
    let first = format!("hostnossl all {TLS_ONLY} all reject\nhostssl all {CLIENT} all cert\n");
    fs::write(&file, first + &rest).map_err(|error| process.failed(error))
}

fn spawn(process: &mut ServerProcess, bin: &Path, data: &Path) -> Result<()> {
    process.spawn(&bin.join("postgres"), &["-D", &data.display().to_string()])
}
