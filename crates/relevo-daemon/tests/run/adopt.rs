//! Outbox tables that are there already: each ready-made mapping, and what `relevo adopt check` proposes, in a daemon.

use crate::AT_ONCE;
use crate::support::{Daemon, Endpoint, Received, eventually, run_cli};
use relevo_testkit::services::{self, Postgres, sql};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A service's database, and a folder for the daemon beside it.
struct Owner {
    folder: tempfile::TempDir,
    /// As the configuration says it.
    url: String,
    /// The file, where it is one.
    file: Option<PathBuf>,
}

impl Owner {
    fn in_a_file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = Some(folder.path().join("owner.db"));
        Self { folder, url: "sqlite:owner.db".into(), file }
    }

    async fn on_a_server() -> Option<Self> {
        let started = tokio::task::spawn_blocking(|| Postgres::shared(15)).await.unwrap();
        let url = services::require(started)?.create_database().unwrap();
        Some(Self { folder: tempfile::tempdir().unwrap(), url, file: None })
    }

    /// For this process, which is not in the folder.
    #[cfg(feature = "demo")]
    fn absolute_url(&self) -> String {
        let file = self.file.as_ref().map(|file| format!("sqlite:{}", file.display()));
        file.unwrap_or_else(|| self.url.clone())
    }

    fn execute(&self, statements: &str) {
        match &self.file {
            Some(file) => connection(file).execute_batch(statements).unwrap(),
            None => sql::execute(&self.url, statements).unwrap(),
        }
    }

    /// The number that a query answers with.
    fn number(&self, query: &str) -> i64 {
        match &self.file {
            Some(file) => connection(file).query_row(query, [], |row| row.get(0)).unwrap(),
            None => sql::value(&self.url, query).unwrap().parse().unwrap(),
        }
    }

    async fn counts(&self, query: &str, wanted: i64) {
        eventually(query, || async { (self.number(query) == wanted).then_some(()) }).await;
    }

    /// What a command says; it must end well.
    async fn relevo(&self, arguments: &[&str]) -> String {
        let ended = run_cli(self.folder.path(), arguments).await;
        assert_eq!(ended.code, 0, "relevo {arguments:?}\n{}{}", ended.out, ended.err);
        ended.out
    }

    /// `relevo migrate` and `relevo run`, with `[adopt.NAME]` as it is given, towards an endpoint.
    async fn relay(&self, name: &str, adopt: &str, endpoint: &Endpoint) -> Daemon {
        let text = format!(
            "[service]\nname = \"shop\"\n[store.shop]\nurl = \"{}\"\n[broker.hook]\nurl = \"http://{}/\"\n\
             [retry.fast]\nkind = \"linear\"\nstep = \"50ms\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
             [subscription.hook]\nadopt = \"{name}\"\nto = \"hook\"\nretry = \"fast\"\n\n{adopt}\n",
            self.url, endpoint.address
        );
        std::fs::write(self.folder.path().join("relevo.toml"), text).unwrap();
        self.relevo(&["migrate"]).await;
        Daemon::start(self.folder.path(), &["-c", "relevo.toml"]).await
    }

    /// The same with a ready-made mapping and nothing else.
    async fn relay_preset(&self, preset: &str, endpoint: &Endpoint) -> Daemon {
        let adopt = format!("[adopt.theirs]\npreset = \"{preset}\"");
        self.relay("theirs", &adopt, endpoint).await
    }

    /// A type as this database calls it.
    fn kind(&self, on_a_server: &'static str) -> &'static str {
        if self.file.is_some() { "text" } else { on_a_server }
    }
}

fn connection(file: &Path) -> Connection {
    let connection = Connection::open(file).unwrap();
    connection.busy_timeout(Duration::from_secs(60)).unwrap();
    connection
}

/// An endpoint that refuses for good whatever has "bad" in it.
async fn endpoint() -> Endpoint {
    Endpoint::start(|body| (if body.contains("bad") { 422 } else { 200 }, AT_ONCE)).await
}

/// A row's id: they are UUIDs, made by their owner.
fn id(number: u32) -> String {
    format!("01990f6a-7d3c-7b53-9f0e-{number:012}")
}

fn of_id(received: &[Received], number: u32) -> &Received {
    received.iter().find(|it| it.header("ce-id") == id(number)).unwrap()
}

async fn ticketflows_outbox(owner: Owner) {
    let (uuid, time) = (owner.kind("uuid"), owner.kind("timestamptz"));
    owner.execute(&format!(
        r#"CREATE TABLE "Outbox" ("Id" {uuid} PRIMARY KEY, "Type" text NOT NULL, "PayloadJson" text NOT NULL,
               "CorrelationId" text, "OccurredAt" {time} NOT NULL, "DispatchedAt" {time})"#
    ));
    let endpoint = endpoint().await;
    let daemon = owner.relay_preset("ticketflow", &endpoint).await;
    for number in 1..=3 {
        owner.execute(&format!(
            r#"INSERT INTO "Outbox" VALUES ('{}', 'ticket.created', '{{"ticketId": "T-7", "n": {number}}}', 'c-{number}',
                   '2001-01-0{number}T00:00:00Z', NULL)"#,
            id(number)
        ));
    }
    let received = endpoint.has_received(3).await;
    let second = of_id(&received, 2);
    assert_eq!(second.body, r#"{"ticketId": "T-7", "n": 2}"#);
    assert_eq!(second.header("ce-topic"), "ticket.created");
    assert_eq!(second.header("ce-partitionkey"), "T-7");
    assert_eq!(second.header("x-correlation-id"), "c-2");
    assert_eq!(second.header("ce-time"), "2001-01-02T00:00:00.000Z");
    owner.counts(r#"SELECT count(*) FROM "Outbox" WHERE "DispatchedAt" > "OccurredAt""#, 3).await;
    assert_eq!(endpoint.received().len(), 3, "each once: {}", daemon.said());
}

async fn smartedifys_outbox_events(owner: Owner) {
    let (uuid, time, json) = (owner.kind("uuid"), owner.kind("timestamptz"), owner.kind("jsonb"));
    let columns = format!(
        "id {uuid} PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
         payload {json} NOT NULL, retry_count int NOT NULL DEFAULT 0, next_retry_at {time} NOT NULL DEFAULT '2001-01-01T00:00:00Z',
         published_at {time}, last_error text, error_class text, last_error_at {time},
         created_at {time} NOT NULL DEFAULT '2001-01-01T00:00:00Z', updated_at {time} NOT NULL DEFAULT '2001-01-01T00:00:00Z'"
    );
    owner.execute(&format!(
        "CREATE TABLE outbox_events ({columns}); CREATE TABLE outbox_events_dlq ({columns});"
    ));
    let endpoint = endpoint().await;
    let _daemon = owner.relay_preset("smartedify", &endpoint).await;
    for (number, word) in [(1, "good"), (2, "bad")] {
        owner.execute(&format!(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             VALUES ('{}', 'tenant', 't-9', 'governance.changed', '{{\"word\": \"{word}\"}}')",
            id(number)
        ));
    }
    let received = endpoint.has_received(2).await;
    let good = of_id(&received, 1);
    assert_eq!(good.body, r#"{"word": "good"}"#);
    assert_eq!(good.header("ce-type"), "governance.changed");
    assert_eq!(good.header("ce-partitionkey"), "t-9");
    let published = format!(
        "SELECT count(*) FROM outbox_events WHERE id = '{}' AND published_at > created_at
            AND updated_at > created_at AND retry_count = 0 AND last_error IS NULL",
        id(1)
    );
    owner.counts(&published, 1).await;
    let dead = format!(
        "SELECT count(*) FROM outbox_events_dlq WHERE id = '{}' AND published_at IS NULL AND retry_count = 1
            AND last_error LIKE '%422%' AND error_class = 'poison' AND last_error_at > created_at AND updated_at > created_at",
        id(2)
    );
    owner.counts(&dead, 1).await;
    assert_eq!(owner.number("SELECT count(*) FROM outbox_events"), 1, "what is dead is there only");
}

async fn debeziums_outbox(owner: Owner) {
    let (uuid, json) = (owner.kind("uuid"), owner.kind("jsonb"));
    owner.execute(&format!(
        "CREATE TABLE outboxevent (id {uuid} PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
             aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload {json})"
    ));
    owner.execute(match owner.file {
        Some(_) => {
            "CREATE TRIGGER never BEFORE UPDATE ON outboxevent BEGIN SELECT RAISE(ABORT, 'never'); END;
             CREATE TRIGGER neither BEFORE DELETE ON outboxevent BEGIN SELECT RAISE(ABORT, 'never'); END"
        }
        None => {
            "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'never'; END $$;
             CREATE TRIGGER never BEFORE UPDATE OR DELETE ON outboxevent FOR EACH STATEMENT EXECUTE FUNCTION never()"
        }
    });
    for (number, word) in [(1, "good"), (2, "bad"), (3, "good")] {
        owner.execute(&format!(
            "INSERT INTO outboxevent VALUES ('{}', 'order', 'o-{number}', 'OrderPlaced', '{{\"word\": \"{word}\"}}')",
            id(number)
        ));
    }
    let endpoint = endpoint().await;
    let mut daemon = owner.relay_preset("debezium", &endpoint).await;
    let received = endpoint.has_received(3).await;
    let first = of_id(&received, 1);
    assert_eq!(first.header("ce-topic"), "outbox.event.order");
    assert_eq!(first.header("ce-type"), "OrderPlaced");
    assert_eq!(first.header("ce-partitionkey"), "o-1");
    let published = async |daemon: &Daemon, wanted: f64| {
        eventually("they are recorded", || async {
            daemon.metric("outbox_published_total{").await.filter(|count| *count == wanted)
        })
        .await;
    };
    published(&daemon, 2.0).await;
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.end().await.code(), Some(0), "{}", daemon.said());
    // One that begins anew knows what was relayed, though the table does not say it.
    let daemon = Daemon::start(owner.folder.path(), &["-c", "relevo.toml"]).await;
    owner.execute(&format!(
        "INSERT INTO outboxevent VALUES ('{}', 'order', 'o-1', 'OrderPaid', '{{\"word\": \"good\"}}')",
        id(4)
    ));
    endpoint.has_received(4).await;
    published(&daemon, 1.0).await;
    assert_eq!(endpoint.received().len(), 4, "each once: {}", daemon.said());
    assert_eq!(owner.number("SELECT count(*) FROM outboxevent"), 4, "its rows are all there");
}

macro_rules! on_both {
    ($($case:ident,)*) => {
        $(mod $case {
            use super::Owner;

            #[tokio::test(flavor = "multi_thread")]
            async fn is_relayed_by_its_preset_on_sqlite() {
                super::$case(Owner::in_a_file()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn is_relayed_by_its_preset_on_postgresql() {
                let Some(owner) = Owner::on_a_server().await else { return };
                super::$case(owner).await;
            }
        })*
    };
}

on_both! {
    ticketflows_outbox,
    smartedifys_outbox_events,
    debeziums_outbox,
}

/// Without a number of its own a table has only times, and its owner can add one.
const MESSAGES: &str = "CREATE TABLE messages (message_id uuid PRIMARY KEY, routing_key text NOT NULL, aggregate_id text NOT NULL,
    body jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), sent_at timestamptz, attempts int NOT NULL DEFAULT 0,
    last_error text, updated_at timestamptz NOT NULL DEFAULT '2001-01-01')";

#[tokio::test(flavor = "multi_thread")]
async fn what_adopt_check_proposes_on_postgresql_is_run_as_it_is_written() {
    let Some(owner) = Owner::on_a_server().await else { return };
    owner.execute(MESSAGES);
    let check = ["adopt", "check", "messages", "--store", &owner.url];
    let said = owner.relevo(&check).await;
    for part in [
        "table   public.messages\n",
        "order   APPROXIMATE, by created_at, message_id: ",
        "loss    none: a committed row stays pending until the broker confirmed it, and is marked in the transaction",
        r#"index   missing: CREATE INDEX "messages_pending" ON "public"."messages" ("created_at") WHERE "sent_at" IS NULL"#,
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    owner.execute("ALTER TABLE messages ADD position bigint GENERATED ALWAYS AS IDENTITY");
    let said = owner.relevo(&check).await;
    let order = "order   kept per key: position is drawn from a sequence when a row is inserted, as long as nobody gives a \
                 row a number of its own\n";
    assert!(said.contains(order), "{said}");
    let index = said.lines().find_map(|line| line.strip_prefix("index   missing: ")).unwrap();
    assert_eq!(
        index,
        r#"CREATE INDEX "messages_pending" ON "public"."messages" ("position") WHERE "sent_at" IS NULL"#
    );
    owner.execute(index);
    let said = owner.relevo(&check).await;
    assert!(!said.contains("missing"), "{said}");
    let tables = "SELECT count(*) FROM pg_namespace WHERE nspname = 'relevo'";
    assert_eq!(owner.number(tables), 0, "it only looks");

    let (_, mapping) = said.split_once("\n\n").unwrap();
    let endpoint = endpoint().await;
    let daemon = owner.relay("messages", mapping, &endpoint).await;
    eventually("it says what the order is worth", || async {
        daemon.said().contains("adopt messages: order: kept per key: position").then_some(())
    })
    .await;
    for (number, word) in [(1, "good"), (2, "bad")] {
        owner.execute(&format!(
            "INSERT INTO messages (message_id, routing_key, aggregate_id, body)
             VALUES ('{}', 'ticket.created', 'T-1', '{{\"word\": \"{word}\"}}')",
            id(number)
        ));
    }
    let received = endpoint.has_received(2).await;
    let first = of_id(&received, 1);
    assert_eq!(first.header("ce-topic"), "ticket.created");
    assert_eq!(first.header("ce-partitionkey"), "T-1");
    let marked = |number| {
        format!(
            "SELECT count(*) FROM messages WHERE message_id = '{}' AND updated_at > created_at",
            id(number)
        )
    };
    owner.counts(&format!("{} AND sent_at IS NOT NULL AND attempts = 0", marked(1)), 1).await;
    let failed = "sent_at IS NULL AND attempts = 1 AND last_error LIKE '%422%'";
    owner.counts(&format!("{} AND {failed}", marked(2)), 1).await;
}

/// The documented systems' own tables, as their own migrations make them.
#[cfg(feature = "demo")]
mod systems {
    use super::{Owner, known_again};
    use smartedify::{db::Db, migrate};
    use ticketflow::database::{Database, ProcessedKey};

    async fn ticketflows(owner: &Owner, partitioned: bool) {
        let database = Database::open(&owner.absolute_url()).await.unwrap();
        database.migrate_with(ProcessedKey::default(), partitioned).await.unwrap();
    }

    async fn smartedifys(owner: &Owner, partitioned: bool) {
        let db = Db::open(&owner.absolute_url()).await.unwrap();
        migrate::tenants(&db).await.unwrap();
        assert!(!partitioned || migrate::partition(&db).await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn adopt_check_knows_them_again_and_misses_nothing_on_sqlite() {
        let owner = Owner::in_a_file();
        ticketflows(&owner, false).await;
        smartedifys(&owner, false).await;
        let order = "kept per key: one transaction writes at a time, rows are numbered as they come, as long as nobody \
                     gives a row a number of its own";
        known_again(&owner, "Outbox", "ticketflow", order).await;
        known_again(&owner, "outbox_events", "smartedify", order).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn adopt_check_knows_them_again_and_misses_nothing_on_postgresql() {
        for partitioned in [false, true] {
            let Some(owner) = Owner::on_a_server().await else { return };
            ticketflows(&owner, partitioned).await;
            smartedifys(&owner, partitioned).await;
            for (table, preset, columns, index) in [
                ("Outbox", "ticketflow", ["OccurredAt", "Id"], "Outbox_pending"),
                ("outbox_events", "smartedify", ["created_at", "id"], "idx_outbox_pending"),
            ] {
                let order = format!(
                    "APPROXIMATE, by {}: neither a time nor an id tells which of two transactions inserted first (now() \
                     is the transaction's start), so two writers of one key that commit between two looks may be \
                     delivered in the wrong order",
                    columns.join(", ")
                );
                let table = format!("public.{table}");
                known_again(&owner, &table, preset, &order).await;
                // Theirs is the one that it would name.
                owner.execute(&format!(r#"DROP INDEX "{index}""#));
                let said = owner.relevo(&["adopt", "check", &table, "--store", &owner.url]).await;
                let missing: Vec<&str> = said
                    .lines()
                    .filter_map(|line| line.strip_prefix("index   missing: "))
                    .collect();
                let [missing] = missing[..] else { panic!("{said}") };
                assert!(missing.contains(&format!(r#"("{}") WHERE"#, columns[0])), "{said}");
                owner.execute(missing);
                known_again(&owner, &table, preset, &order).await;
            }
        }
    }
}

/// `relevo adopt check` proposes the ready-made mapping for a table, says what it can promise, and has nothing to add.
#[cfg(feature = "demo")]
async fn known_again(owner: &Owner, table: &str, preset: &str, order: &str) {
    let check = ["adopt", "check", table, "--store", &owner.url];
    let said = owner.relevo(&check).await;
    let (verdict, mapping) = said.split_once("\n\n").unwrap();
    let loss = "none: a committed row stays pending until the broker confirmed it, and is marked in the transaction that \
                records the confirm; a crash between the two brings a copy with the same id";
    let mut wanted = vec![
        format!("table   {table}"),
        format!("order   {order}"),
        format!("loss    {loss}"),
        format!("note    the columns are those of the preset {preset:?}"),
    ];
    if preset == "ticketflow" {
        let stays = "rows that fail for good stay as they are; `relevo dead-letters list` has them with their reason";
        wanted.push(format!("note    {stays}"));
    }
    assert_eq!(verdict.lines().collect::<Vec<_>>(), wanted);
    let ready_made = owner.relevo(&[&check[..], &["--preset", preset]].concat()).await;
    assert_eq!(ready_made.split_once("\n\n").unwrap().1, mapping);
}
