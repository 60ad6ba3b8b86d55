//! Every example runs as a user would run it, and the README shows nothing that is not in one of them.

use relevo_testkit::services::{self, Postgres, RabbitMq};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

struct Service {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Service {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the example starts");
        let stdout = child.stdout.take().expect("its output is ours");
        Self { child, lines: BufReader::new(stdout).lines() }
    }

    /// The next line that begins with `start`, without it.
    fn line(&mut self, start: &str) -> String {
        let next = self.lines.find_map(|line| line.ok()?.strip_prefix(start).map(str::to_owned));
        next.unwrap_or_else(|| panic!("the example ended before it printed {start:?}"))
    }

    fn interrupt(mut self) -> String {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
        let farewell = self.line("stopped");
        assert!(self.child.wait().expect("it ends").success());
        farewell
    }
}

fn post(address: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the service listens");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    );
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len())
        .expect("it takes a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn an_axum_and_sqlx_service_publishes_in_its_own_transaction_and_stops_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tickets.db");
    let mut service =
        Service::start(Command::new(env!("CARGO_BIN_EXE_tickets_axum_sqlx")).arg(&file));
    let address = service.line("listening on ");
    let answer = post(&address, "/tickets", r#"{"id": "t-1", "title": "Printer on fire"}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(service.line("mail for "), "t-1 written");
    assert_eq!(service.interrupt(), "; nothing is lost");
    let db = rusqlite::Connection::open(&file).expect("the file is there");
    let mails: i64 = db
        .query_row("SELECT count(*) FROM mails WHERE ticket = 't-1'", [], |row| row.get(0))
        .expect("mails");
    assert_eq!(mails, 1);
}

#[test]
fn a_handler_is_tested_with_the_memory_store() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_test_with_memory")).output().expect("the example runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "apples in stock: 5\n");
}

fn bills_once(broker: Option<&str>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut example = Command::new(env!("CARGO_BIN_EXE_consume_once"));
    example.arg(folder.path().join("billing.db")).env_remove("RABBITMQ_URL");
    if let Some(url) = broker {
        example.env("RABBITMQ_URL", url);
    }
    let output = example.output().expect("the example runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let expected = "invoices: 2\ndead letter: order.placed, nothing to bill\n";
    assert_eq!(text, expected);
}

#[test]
fn an_order_that_arrives_twice_is_billed_once() {
    bills_once(None);
}

#[test]
fn an_order_that_arrives_twice_by_rabbitmq_is_billed_once() {
    let Some(server) = services::require(RabbitMq::shared()) else { return };
    bills_once(Some(&server.fresh_vhost().expect("a virtual host")));
}

#[test]
fn a_python_service_publishes_and_rolls_back_by_plain_sql() {
    let Some(postgres) = services::require(Postgres::shared(15)) else { return };
    let Some(python) = services::require(services::python()) else { return };
    let url = postgres.create_database().expect("a database");
    let store = relevo::postgres::PostgresStore::connect(&url);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { relevo::Operate::migrate(&store.await?).await }).expect("migrated");
    let script = root().join("examples/python/tickets.py");
    let output = Command::new(python).arg(script).arg(&url).output().expect("python runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.starts_with("published ") && text.contains("rolled back: a ticket needs a title"),
        "{text}"
    );
    assert_eq!(
        services::sql::value(&url, "SELECT count(*) FROM relevo.outbox").expect("counted"),
        "1"
    );
}

/// The lines of every fenced block of this language, without comments and indentation.
fn blocks(markdown: &str, language: &str) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in markdown.lines() {
        if line.starts_with("```") {
            inside = line == format!("```{language}");
        } else if inside && !line.trim().is_empty() && !line.trim().starts_with("//") {
            lines.push(line.trim().to_owned());
        }
    }
    lines
}

fn assert_stands_in(page: &str, shown: &[String], example: &str) {
    let example = std::fs::read_to_string(root().join(example)).expect("an example");
    for line in shown {
        assert!(
            example.lines().any(|other| other.trim() == line),
            "{page} shows {line:?}, the example does not"
        );
    }
}

#[test]
fn what_the_readme_shows_stands_in_the_examples_line_by_line() {
    for readme in ["README.md", "README.es.md"] {
        let text = std::fs::read_to_string(root().join(readme)).expect("a README");
        for (language, example) in [
            ("rust", "examples/src/bin/tickets_axum_sqlx.rs"),
            ("python", "examples/python/tickets.py"),
        ] {
            let shown = blocks(&text, language);
            assert!(
                !shown.is_empty() && shown.len() <= 15,
                "{readme}: {} lines of {language}",
                shown.len()
            );
            assert_stands_in(readme, &shown, example);
        }
    }
}

#[test]
fn what_the_page_on_consuming_shows_stands_in_its_example() {
    let page = std::fs::read_to_string(root().join("docs/consuming.md")).expect("a page");
    let shown = blocks(&page, "rust");
    assert!(shown.len() > 20, "{} lines", shown.len());
    assert_stands_in("docs/consuming.md", &shown, "examples/src/bin/consume_once.rs");
}
