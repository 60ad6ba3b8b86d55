//! An event's whole way without a line of Rust in the services: published by psycopg in a transaction of its own,
//! relayed by `relevo run -c relevo.toml`, consumed by Python's client of each broker with `relevo.first_time` in a
//! transaction of its own. Or written into an outbox table of the service's own, which the daemon adopts.

// Helpers unwrap as tests do: a panic says what was expected and where.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "shared with the tests of `relevo run`, which use all of it")]
#[path = "run/support.rs"]
mod support;

use relevo_testkit::services::{self, Nats, Postgres, RabbitMq, sql, unique_name};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::{Daemon, eventually};

/// What the service tries to publish. One in ten is rolled back.
const TRIED: u32 = 600;
const COMMITTED: u32 = TRIED - TRIED / 10;
const COUNT: &str = "SELECT count(*) FROM effects";
/// How a consumer ends that dies between its commit and its acknowledgement.
const CRASHED: i32 = 9;

/// Where the way begins: a service, and how its events are known to the daemon.
struct Source {
    program: &'static str,
    /// `[subscription.bus]` of relevo.toml, and what it needs.
    subscription: &'static str,
}

const PUBLISHES: Source =
    Source { program: "service.py", subscription: "[subscription.bus]\nstore = \"shop\"\n" };

const HAS_A_TABLE: Source = Source {
    program: "owner.py",
    subscription: r#"
[adopt.messages]
table = "shop_outboxmessage"
topic_prefix = "order."
[adopt.messages.columns]
id = "id"
sequence = "id"
topic = "routing_key"
key = "customer_id"
payload = "body"
published_at = "sent_at"
attempts = "tries"
[adopt.messages.status]
column = "state"
pending = ["new"]
published = "sent"
[subscription.bus]
adopt = "messages"
"#,
};

/// Where the way leads: a broker, and the Python program that knows it.
struct Destination {
    program: &'static str,
    address: String,
    /// A queue, a stream or a topic.
    name: String,
    /// `[broker.bus]` of relevo.toml.
    table: String,
}

/// The services at both ends, and the database they share with the daemon.
struct Shop {
    python: PathBuf,
    database: String,
    folder: tempfile::TempDir,
    from: Source,
    to: Destination,
}

impl Shop {
    async fn open(from: Source, to: Destination) -> Option<Shop> {
        let python = services::require(services::python())?;
        let started = tokio::task::spawn_blocking(|| Postgres::shared(15)).await.unwrap();
        let database = services::require(started)?.create_database().unwrap();
        let shop = Shop { python, database, folder: tempfile::tempdir().unwrap(), from, to };
        shop.configure();
        shop.relevo(&["migrate"]);
        let Destination { program, address, name, .. } = &shop.to;
        succeeds(&mut shop.program(program).args(["declare", address, name]).spawn().unwrap());
        Some(shop)
    }

    fn configure(&self) {
        let text = format!(
            "[service]\nname = \"shop\"\n[store.shop]\nurl = \"{}\"\n[broker.bus]\n{}\
             {}to = \"bus\"\nretry = \"patient\"\n\
             [retry.patient]\nkind = \"linear\"\nstep = \"200ms\"\nmax_attempts = 1000\n\
             [http]\nlisten = \"127.0.0.1:0\"\n",
            self.database, self.to.table, self.from.subscription
        );
        std::fs::write(self.folder.path().join("relevo.toml"), text).unwrap();
    }

    fn relevo(&self, arguments: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
        let ended = command.args(arguments).current_dir(self.folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "relevo {arguments:?}: {said}");
    }

    async fn daemon(&self) -> Daemon {
        Daemon::start(self.folder.path(), &["-c", "relevo.toml"]).await
    }

    fn program(&self, name: &str) -> Command {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
        let mut command = Command::new(&self.python);
        command.arg(folder.join(name)).stdin(Stdio::null());
        command
    }

    /// Publishes orders, each in its own transaction.
    fn publish(&self, first: u32, last: u32) -> Process {
        let numbers = [first.to_string(), last.to_string()];
        let mut service = self.program(self.from.program);
        Process(service.arg(&self.database).args(numbers).spawn().unwrap())
    }

    /// Consumes until all effects are there and nothing more comes.
    fn consume(&self, crash_at: u32) -> Process {
        let Destination { program, address, name, .. } = &self.to;
        let mut command = self.program(program);
        command.args(["consume", address, name, &self.database, &COMMITTED.to_string()]);
        Process(command.env("CRASH_AT", crash_at.to_string()).spawn().unwrap())
    }

    fn number(&self, query: &str) -> u32 {
        sql::value(&self.database, query).unwrap().parse().unwrap()
    }

    async fn effects(&self, wanted: u32) {
        eventually(&format!("{wanted} effects"), || async {
            let there: u32 = sql::value(&self.database, COUNT).ok()?.parse().ok()?;
            (there >= wanted).then_some(())
        })
        .await;
    }
}

/// A Python program at work; a test that failed leaves none behind.
struct Process(Child);

impl Process {
    async fn ended(&mut self) -> Option<i32> {
        eventually("the program ends", || {
            let status = self.0.try_wait().unwrap();
            async move { status }
        })
        .await
        .code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn succeeds(child: &mut Child) {
    assert!(child.wait().unwrap().success());
}

/// The daemon is killed twice while orders are placed, a consumer dies between commit and acknowledgement.
async fn an_event_goes_its_whole_way(from: Source, to: Destination) -> Option<(Shop, Daemon)> {
    let shop = Shop::open(from, to).await?;
    assert_eq!(shop.publish(1, 50).ended().await, Some(0));
    let mut daemon = shop.daemon().await;
    assert_eq!(shop.consume(20).ended().await, Some(CRASHED));
    let mut consumer = shop.consume(0);
    let mut publishing = shop.publish(51, TRIED);
    for killed_at in [100, 250] {
        shop.effects(killed_at).await;
        drop(daemon);
        daemon = shop.daemon().await;
    }
    assert_eq!(publishing.ended().await, Some(0));
    assert_eq!(consumer.ended().await, Some(0));
    check(&shop);
    Some((shop, daemon))
}

async fn rabbitmq() -> Option<Destination> {
    let started = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let address = services::require(started)?.fresh_vhost().unwrap();
    let table = format!("url = \"{address}\"\nexchange = \"shop\"\n");
    let (program, name) = ("consume_rabbitmq.py", "orders".to_owned());
    Some(Destination { program, address, name, table })
}

#[tokio::test(flavor = "multi_thread")]
async fn by_rabbitmq_and_pika() {
    let Some(to) = rabbitmq().await else { return };
    an_event_goes_its_whole_way(PUBLISHES, to).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_a_table_of_the_services_own_by_rabbitmq_and_pika() {
    let Some(to) = rabbitmq().await else { return };
    let way = an_event_goes_its_whole_way(HAS_A_TABLE, to).await;
    let Some((shop, _daemon)) = way else { return };
    eventually("every row is marked in its owner's words", || async {
        let open =
            "SELECT count(*) FROM shop_outboxmessage WHERE state <> 'sent' OR sent_at IS NULL";
        (shop.number(open) == 0).then_some(())
    })
    .await;
    let owned = "SELECT count(*) FROM shop_outboxmessage WHERE tries = 0";
    assert_eq!(shop.number(owned), COMMITTED, "its rows are all there, and none failed");
    let columns =
        "SELECT count(*) FROM information_schema.columns WHERE table_name = 'shop_outboxmessage'";
    assert_eq!(shop.number(columns), 7, "its columns are its owner's");
}

#[tokio::test(flavor = "multi_thread")]
async fn by_nats_and_nats_py() {
    let Some(server) = services::require(Nats::shared()) else { return };
    let (address, name) = (server.url(), unique_name("orders"));
    let table = format!("url = \"{address}\"\nsubject_prefix = \"{name}\"\n");
    let program = "consume_nats.py";
    an_event_goes_its_whole_way(PUBLISHES, Destination { program, address, name, table }).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn by_kafka_and_confluent_kafka() {
    let started = tokio::task::spawn_blocking(services::Kafka::shared).await.unwrap();
    let Some(server) = services::require(started) else { return };
    let (address, name) = (server.bootstrap(), unique_name("orders"));
    let table = format!("url = \"kafka://{address}\"\ntopic = \"{name}\"\n");
    let program = "consume_kafka.py";
    an_event_goes_its_whole_way(PUBLISHES, Destination { program, address, name, table }).await;
}

fn check(shop: &Shop) {
    assert_eq!(shop.number("SELECT count(*) FROM orders"), COMMITTED);
    let apart = "SELECT count(*) FROM orders FULL JOIN effects USING (number) \
                 WHERE orders.number IS NULL OR effects.number IS NULL";
    assert_eq!(shop.number(apart), 0, "lost, or never committed");
    assert_eq!(shop.number(COUNT), COMMITTED, "an effect for each order, and no second one");
    let overtaken = "SELECT count(*) FROM (SELECT number, lag(number) OVER \
                     (PARTITION BY customer ORDER BY place) AS before FROM effects) AS placed \
                     WHERE number < before";
    assert_eq!(shop.number(overtaken), 0, "in the order of each customer");
}
