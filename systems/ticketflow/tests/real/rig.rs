//! The real parts: PostgreSQL, RabbitMQ and a mail server, started by the testkit, and TicketFlow's own processes.

use crate::common;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use relevo_testkit::services::{self, Postgres, RabbitMq, Smtp};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use ticketflow::client::Client;
use ticketflow::database::Database;
use ticketflow::verify::{Arrived, Change};
use ticketflow::worker::mail::event_of;

pub(crate) const TOKEN: &str = "open sesame";

/// A database, a virtual host and a mail server of one test's own.
pub(crate) struct Rig {
    pub(crate) database: Database,
    pub(crate) database_url: String,
    pub(crate) rabbit: Arc<RabbitMq>,
    pub(crate) rabbit_url: String,
    pub(crate) smtp: Arc<Smtp>,
}

impl Rig {
    /// On a broker that all tests share.
    pub(crate) async fn shared() -> Option<Self> {
        Self::on(services::require(RabbitMq::shared())?).await
    }

    /// On a broker that may be harmed.
    pub(crate) async fn own() -> Option<Self> {
        Self::on(Arc::new(services::require(RabbitMq::start())?)).await
    }

    /// With an Outbox of one partition a month.
    pub(crate) async fn partitioned() -> Option<Self> {
        Self::with(services::require(RabbitMq::shared())?, true).await
    }

    async fn on(rabbit: Arc<RabbitMq>) -> Option<Self> {
        Self::with(rabbit, false).await
    }

    async fn with(rabbit: Arc<RabbitMq>, partitioned: bool) -> Option<Self> {
        let postgres = services::require(Postgres::shared(16))?;
        let smtp = Arc::new(services::require(Smtp::start())?);
        let database_url = postgres.create_database().expect("a database");
        let rabbit_url = rabbit.fresh_vhost().expect("a virtual host");
        let database = Database::open(&database_url).await.expect("it answers");
        let rig = Self { database, database_url, rabbit, rabbit_url, smtp };
        rig.migrate(partitioned);
        Some(rig)
    }

    /// As an operator does it.
    fn migrate(&self, partitioned: bool) {
        let mut command = self.command("migrate");
        let command = if partitioned { command.arg("--partitioned") } else { &mut command };
        assert!(command.status().expect("it runs").success());
    }

    pub(crate) fn command(&self, kind: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ticketflow"));
        command
            .arg(kind)
            .env("DATABASE_URL", &self.database_url)
            .env("RABBITMQ_URL", &self.rabbit_url)
            .env("SMTP_URL", self.smtp.url())
            .env("LISTEN", "127.0.0.1:0")
            .env("ADMIN_TOKEN", TOKEN)
            .env("OUTBOX_DISPATCH_INTERVAL_MS", "100")
            .env("HEARTBEAT_INTERVAL_S", "1")
            .env("RUST_LOG", "warn,lapin=off");
        command
    }

    /// Starts the API with its dispatcher.
    pub(crate) fn api(&self) -> Process {
        Process::start(&mut self.command("api"))
    }

    /// The same; its dispatcher looks every so many milliseconds.
    pub(crate) fn api_every(&self, ms: i64) -> Process {
        let mut command = self.command("api");
        Process::start(command.env("OUTBOX_DISPATCH_INTERVAL_MS", ms.to_string()))
    }

    /// Starts a worker that tries again after these seconds.
    pub(crate) fn worker(&self, name: &str, retries: &str) -> Process {
        let mut command = self.command("worker");
        Process::start(command.env("WORKER_NAME", name).env("RETRY_DELAYS_S", retries))
    }

    /// What came by mail, in its order. The events are known by `Outbox`.
    pub(crate) async fn mails(&self) -> Vec<Arrived> {
        let known = self.events().await;
        let mails = self.smtp.mails().expect("a Maildir");
        let arrived = mails.iter().map(|mail| {
            let id = mail.lines().find_map(|line| line.strip_prefix("Message-ID: "));
            let id = id.expect("a Message-ID").trim().to_owned();
            let event = event_of(&id).expect("an id of ours").to_string();
            let change = *known.get(&event).expect("an event of ours");
            let arrived = Arrived { change, message_id: id };
            assert_eq!(Arrived::read(mail).as_ref(), Some(&arrived), "what it says: {mail}");
            arrived
        });
        arrived.collect()
    }

    async fn events(&self) -> BTreeMap<String, Change> {
        const EVENTS: &str = r#"SELECT "Id", "PayloadJson" FROM "Outbox""#;
        let mut connection = self.database.connect().await.expect("a connection");
        let rows = connection.session().query(EVENTS, &[]).await.expect("an answer");
        let change = |row: &ticketflow::database::Row| {
            let told: serde_json::Value =
                serde_json::from_str(&row.text(1).expect("text")).expect("JSON");
            let ticket = told["ticketId"].as_str().expect("a ticket").parse().expect("an id");
            (row.text(0).expect("an id"), (ticket, told["version"].as_i64().expect("a version")))
        };
        rows.iter().map(change).collect()
    }

    /// See [`common::say`].
    pub(crate) async fn say(&self, sql: &str) {
        common::say(&self.database, sql).await;
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        common::count(&self.database, sql).await
    }

    /// The partitions of Outbox, by name.
    pub(crate) async fn partitions(&self) -> Vec<String> {
        const NAMES: &str = r#"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = '"Outbox"'::regclass
            ORDER BY 1"#;
        let mut connection = self.database.connect().await.expect("a connection");
        let rows = connection.session().query(NAMES, &[]).await.expect("an answer");
        rows.iter().map(|row| row.text(0).expect("a name").replace('"', "")).collect()
    }

    pub(crate) async fn channel(&self) -> (Connection, Channel) {
        let connection = Connection::connect(&self.rabbit_url, ConnectionProperties::default());
        let connection = connection.await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        (connection, channel)
    }

    /// Puts a message of no known kind into a queue.
    pub(crate) async fn put(&self, queue: &str, properties: BasicProperties, body: &[u8]) {
        let (_connection, channel) = self.channel().await;
        let (queue, options) = (queue.into(), BasicPublishOptions::default());
        let sent = channel.basic_publish("".into(), queue, options, body, properties).await;
        sent.expect("sent").await.expect("confirmed");
        channel.close(200, "done".into()).await.expect("closed");
    }

    /// Takes the oldest message of a queue, and publishes it to an exchange once more, as it was.
    pub(crate) async fn send_again(&self, exchange: &str, queue: &str) {
        let (_connection, channel) = self.channel().await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let got = channel.basic_get(queue.into(), BasicGetOptions::default()).await;
        let message = got.expect("an answer").expect("a message");
        let (key, properties) = (message.routing_key.clone(), message.properties.clone());
        let (exchange, options) = (exchange.into(), BasicPublishOptions::default());
        let sent = channel.basic_publish(exchange, key, options, &message.data, properties).await;
        assert!(sent.expect("sent").await.expect("an answer").is_ack());
        message.ack(BasicAckOptions::default()).await.expect("acknowledged");
        channel.close(200, "done".into()).await.expect("closed");
    }

    /// A queue that gets whatever goes through an exchange.
    pub(crate) async fn overhear(&self, exchange: &str, queue: &str) {
        let (_connection, channel) = self.channel().await;
        let declared = channel.queue_declare(
            queue.into(),
            QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() },
            FieldTable::default(),
        );
        declared.await.expect("declared");
        let (options, table) = (QueueBindOptions::default(), FieldTable::default());
        let bound = channel.queue_bind(queue.into(), exchange.into(), "#".into(), options, table);
        bound.await.expect("bound");
    }

    /// The ids of Outbox, oldest first.
    pub(crate) async fn outbox_rows(&self) -> Vec<String> {
        const IDS: &str = r#"SELECT "Id" FROM "Outbox" ORDER BY "OccurredAt""#;
        let mut connection = self.database.connect().await.expect("a connection");
        let rows = connection.session().query(IDS, &[]).await.expect("an answer");
        rows.iter().map(|row| row.text(0).expect("an id")).collect()
    }

    /// Everything in a queue, taken out: headers (and the routing key) as text, and the body.
    pub(crate) async fn drain(&self, queue: &str) -> Vec<(BTreeMap<String, String>, Vec<u8>)> {
        let (_connection, channel) = self.channel().await;
        let mut all = Vec::new();
        let get = || channel.basic_get(queue.into(), BasicGetOptions::default());
        while let Some(message) = get().await.expect("an answer") {
            let headers = message.properties.headers().clone().unwrap_or_default();
            let text = |value: &lapin::types::AMQPValue| match value {
                lapin::types::AMQPValue::LongString(text) => text.to_string(),
                other => format!("{other:?}"),
            };
            let headers = headers.inner().iter().map(|(name, it)| (name.to_string(), text(it)));
            let headers = headers.chain([("routing key".into(), message.routing_key.to_string())]);
            all.push((headers.collect(), message.data.to_vec()));
            message.ack(BasicAckOptions::default()).await.expect("acknowledged");
        }
        all
    }
}

/// A process of TicketFlow's; killed when the value is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = child.stdout.take().expect("its output is ours");
        let mut lines = BufReader::new(stdout).lines();
        let address = lines.find_map(|line| {
            line.ok()?.strip_prefix("listening on ").and_then(|text| text.parse().ok())
        });
        Self { child, address: address.expect("it listens") }
    }

    pub(crate) fn client(&self) -> Client {
        Client::at(self.address).token(TOKEN)
    }

    /// What `/metrics` says under a name, where the labels have this in them.
    pub(crate) async fn figure(&self, name: &str, label: &str) -> Option<f64> {
        let answer = self.client().get("/metrics").await.ok()?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let is_it = |line: &&str| {
            let labels = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']));
            labels.is_some_and(|labels| labels.contains(label))
        };
        text.lines().find(is_it)?.rsplit(' ').next()?.parse().ok()
    }

    /// Like a power cut.
    pub(crate) fn kill9(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// In good order.
    pub(crate) fn terminate(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
