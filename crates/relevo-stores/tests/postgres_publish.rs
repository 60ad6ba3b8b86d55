//! Publishing into PostgreSQL: with every driver, by SQL functions, and by a plain INSERT.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::dead_letters::Operate;
use relevo_core::outbox::{Position, PublishIn, Row};
use relevo_core::{Headers, Kind, NewEvent};
use relevo_stores::postgres::{PostgresOutbox, print};
use tokio_postgres::Client;
use uuid::Uuid;

async fn all(rig: &Rig) -> Vec<Row> {
    drain(&rig.store, Position::default()).await.0
}

fn full() -> NewEvent {
    NewEvent::bytes("ticket.created", vec![0, 159, 146, 150])
        .key("ñ-1 \"x\"")
        .header("x", "é")
        .tenant("t")
}

fn many() -> Vec<NewEvent> {
    (0..1500).map(|n| NewEvent::bytes("many", n.to_string()).key(format!("k{}", n % 3))).collect()
}

/// What went in is what comes out, in its order.
async fn assert_same(rig: &Rig, sent: &[NewEvent]) {
    let rows = all(rig).await;
    assert_eq!(rows.len(), sent.len());
    for (row, sent) in rows.iter().zip(sent) {
        let got = &row.event;
        assert_eq!(
            (got.id, &got.topic, &got.key, &got.payload, &got.headers),
            (sent.id, &sent.topic, &sent.key, &sent.payload, &sent.headers)
        );
    }
}

#[tokio::test]
async fn tokio_postgres_transactions_publish_one_and_many_in_order() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let (one, many) = (full(), many());
    let mut tx = client.transaction().await.unwrap();
    let outbox = PostgresOutbox::new();
    assert_eq!(outbox.publish(&mut tx, one.clone()).await.unwrap(), one.id);
    outbox.publish_all(&mut tx, many.clone()).await.unwrap();
    outbox.publish_all(&mut tx, vec![]).await.unwrap();
    tx.commit().await.unwrap();
    assert_same(&rig, &[vec![one], many].concat()).await;
}

#[tokio::test]
async fn deadpool_transactions_publish_one_and_many_in_order() {
    let Some(rig) = rig().await else { return };
    let (one, many) = (full(), many());
    let mut object = rig.store.pool().get().await.unwrap();
    let mut tx = object.transaction().await.unwrap();
    let outbox = rig.store.outbox();
    outbox.publish(&mut tx, one.clone()).await.unwrap();
    outbox.publish_all(&mut tx, many.clone()).await.unwrap();
    tx.commit().await.unwrap();
    assert_same(&rig, &[vec![one], many].concat()).await;
}

#[tokio::test]
async fn a_statement_that_is_prepared_once_publishes_the_same() {
    let Some(rig) = rig().await else { return };
    let mut object = rig.store.pool().get().await.unwrap();
    let outbox = rig.store.outbox().prepared();
    let events = [full(), NewEvent::bytes("a.b", vec![]), full()];
    for event in &events {
        let mut tx = object.transaction().await.unwrap();
        assert_eq!(outbox.publish(&mut tx, event.clone()).await.unwrap(), event.id);
        tx.commit().await.unwrap();
        let mut gone = object.transaction().await.unwrap();
        outbox.publish(&mut gone, full()).await.unwrap();
        gone.rollback().await.unwrap();
    }
    assert_eq!(object.statement_cache.size(), 1);
    let mut tx = object.transaction().await.unwrap();
    let large = NewEvent::bytes("a", vec![0; (1 << 20) + 1]);
    let error = outbox.publish(&mut tx, large).await.unwrap_err();
    assert_eq!(error.kind(), Kind::PayloadTooLarge);
    tx.rollback().await.unwrap();
    assert_same(&rig, &events).await;
}

#[cfg(feature = "sqlx")]
#[tokio::test]
async fn sqlx_transactions_publish_one_and_many_in_order() {
    let Some(rig) = rig().await else { return };
    let (one, many) = (full(), many());
    let pool = sqlx::PgPool::connect(&rig.url).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let outbox = PostgresOutbox::new();
    outbox.publish(&mut tx, one.clone()).await.unwrap();
    outbox.publish_all(&mut tx, many.clone()).await.unwrap();
    tx.commit().await.unwrap();
    let mut gone = pool.begin().await.unwrap();
    outbox.publish(&mut gone, full()).await.unwrap();
    gone.rollback().await.unwrap();
    assert_same(&rig, &[vec![one], many].concat()).await;
}

#[tokio::test]
async fn an_event_over_a_limit_is_refused_before_anything_is_written() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let mut tx = client.transaction().await.unwrap();
    let outbox = PostgresOutbox::new();
    let large = NewEvent::bytes("a", vec![0; (1 << 20) + 1]);
    let error = outbox.publish_all(&mut tx, vec![full(), large]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::PayloadTooLarge);
    // The transaction is still good.
    outbox.publish(&mut tx, full()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(all(&rig).await.len(), 1);
}

/// The SQLSTATE and message with which the server refused.
async fn refusal(client: &Client, sql: &str) -> (String, String) {
    let error = client.batch_execute(sql).await.expect_err(sql);
    let db = error.as_db_error().unwrap();
    (
        db.code().code().to_owned(),
        format!("{} {}", db.message(), db.constraint().unwrap_or_default()),
    )
}

#[tokio::test]
async fn sql_functions_refuse_with_our_codes_what_is_out_of_bounds() {
    let Some(rig) = rig().await else { return };
    let client = connect(&rig.url).await;
    for (call, code) in [
        ("publish_bytes('a', 'k', decode(repeat('00', 1048577), 'hex'))", "R0010"),
        ("publish('a', 'k', to_jsonb(repeat('x', 1048577)))", "R0010"),
        ("publish('a', 'k', NULL)", "R0011"),
        ("publish_bytes('a', 'k', NULL)", "R0011"),
        ("publish(NULL, 'k', '{}')", "R0012"),
        ("publish('', 'k', '{}')", "R0012"),
        ("publish('a..b', 'k', '{}')", "R0012"),
        ("publish('a b', 'k', '{}')", "R0012"),
        ("publish('a.*', 'k', '{}')", "R0012"),
        ("publish(E'a\\u00a0b', 'k', '{}')", "R0012"),
        ("publish(repeat('t', 256), 'k', '{}')", "R0012"),
        ("publish('a', '', '{}')", "R0013"),
        ("publish('a', E'a\\nb', '{}')", "R0013"),
        ("publish('a', repeat('é', 128), '{}')", "R0013"),
        ("publish('a', 'k', '{}', '[]')", "R0014"),
        ("publish('a', 'k', '{}', '{\"x y\": \"1\"}')", "R0014"),
        ("publish('a', 'k', '{}', '{\"x\": \"a\\r\\nb\"}')", "R0014"),
        ("publish('a', 'k', '{}', jsonb_build_object('x', repeat('v', 17000)))", "R0014"),
        ("publish('a', 'k', '{}', '{\"traceparent\": \"nonsense\"}')", "R0014"),
        ("publish('a', 'k', '{}', '{\"id\": \"nonsense\"}')", "R0014"),
        ("first_time('c', NULL, 'i')", "R0040"),
    ] {
        let (state, message) = refusal(&client, &format!("SELECT relevo.{call}")).await;
        assert!(message.starts_with(code), "{call}: {message}");
        assert_eq!(state, format!("RLV{}", &code[3..]), "{call}");
    }
    assert!(all(&rig).await.is_empty());
}

#[tokio::test]
async fn a_plain_insert_is_held_to_the_same_limits() {
    let Some(rig) = rig().await else { return };
    let client = connect(&rig.url).await;
    for (values, constraint) in [
        ("('a', 'k', decode(repeat('00', 1048577), 'hex'), '{}')", "outbox_payload_fits"),
        ("('', 'k', '', '{}')", "outbox_topic_valid"),
        ("('a..b', 'k', '', '{}')", "outbox_topic_valid"),
        ("('a.', 'k', '', '{}')", "outbox_topic_valid"),
        ("('a#', 'k', '', '{}')", "outbox_topic_valid"),
        ("(E'a\\tb', 'k', '', '{}')", "outbox_topic_valid"),
        ("('a', '', '', '{}')", "outbox_key_valid"),
        ("('a', E'\\x01', '', '{}')", "outbox_key_valid"),
        ("('a', repeat('k', 256), '', '{}')", "outbox_key_valid"),
        ("('a', 'k', '', '5')", "outbox_headers_valid"),
        ("('a', 'k', '', '{\"a:b\": \"1\"}')", "outbox_headers_valid"),
        ("('a', 'k', '', '{\"\": \"1\"}')", "outbox_headers_valid"),
        ("('a', 'k', '', '{\"x\": \"\\u0007\"}')", "outbox_headers_valid"),
        ("('a', 'k', '', jsonb_build_object('x', repeat('v', 17000)))", "outbox_headers_valid"),
    ] {
        let sql =
            format!("INSERT INTO relevo.outbox (topic, key, payload, headers) VALUES {values}");
        let (_, message) = refusal(&client, &sql).await;
        assert!(message.ends_with(constraint), "{values}: {message}");
    }
    assert!(all(&rig).await.is_empty());
}

#[tokio::test]
async fn what_rust_allows_sql_allows() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let events = [
        NewEvent::bytes("a", vec![7; 1 << 20]).key("k".repeat(255)),
        NewEvent::bytes("t".repeat(255), ""),
        NewEvent::bytes("ñ.日本", "").key("a b \u{2003} 'q' \\"),
        NewEvent::bytes("a", "").header("x", "v".repeat(16383)),
        NewEvent::bytes("a", "").header("x[]\\\"", "tab\there \"quoted\" \\ ü").header("!~", ""),
        NewEvent::bytes("a", "")
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    for event in &events {
        publish(&mut client, event.clone()).await;
    }
    assert_same(&rig, &events).await;
}

#[tokio::test]
async fn sql_functions_publish_in_the_caller_s_transaction() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let tx = client.transaction().await.unwrap();
    let sql = "SELECT relevo.publish('ticket.created', 't-1', '{\"n\": 1}', '{\"tenant\": \"acme\", \"n\": 5}')";
    let id: Uuid = tx.query_one(sql, &[]).await.unwrap().get(0);
    tx.commit().await.unwrap();
    let tx = client.transaction().await.unwrap();
    tx.query_one("SELECT relevo.publish('gone', NULL, '{}')", &[]).await.unwrap();
    tx.rollback().await.unwrap();
    let own = Uuid::now_v7();
    let sql = "SELECT relevo.publish_bytes('b', NULL, '\\x00ff', 'image/png', jsonb_build_object('id', $1::text))";
    let got: Uuid = client.query_one(sql, &[&own.to_string()]).await.unwrap().get(0);
    assert_eq!(got, own, "the header id sets the event's id");
    client
        .batch_execute("INSERT INTO relevo.outbox (topic, key, payload) VALUES ('c', 'k', 'plain')")
        .await
        .unwrap();

    let rows = all(&rig).await;
    assert_eq!(
        rows.iter().map(|row| row.event.topic.as_str()).collect::<Vec<_>>(),
        ["ticket.created", "b", "c"]
    );
    assert_eq!((rows[0].event.id.0, rows[0].event.id.0.get_version_num()), (id, 7));
    assert_eq!(rows[0].event.json::<serde_json::Value>().unwrap()["n"], 1);
    let headers: Headers = [("content-type", "application/json"), ("n", "5"), ("tenant", "acme")]
        .into_iter()
        .collect();
    assert_eq!(rows[0].event.headers, headers);
    assert_eq!(
        (rows[1].event.content_type(), &rows[1].event.payload[..]),
        ("image/png", &[0, 255][..])
    );
    assert_eq!(rows[2].event.id.0.get_version_num(), 7);
}

#[tokio::test]
async fn first_time_is_true_once_per_committed_transaction() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let sql = "SELECT relevo.first_time('billing', 'orders', 'e-1')";
    let tx = client.transaction().await.unwrap();
    assert!(tx.query_one(sql, &[]).await.unwrap().get::<_, bool>(0));
    assert!(!tx.query_one(sql, &[]).await.unwrap().get::<_, bool>(0));
    tx.rollback().await.unwrap();
    assert!(
        client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0),
        "the rollback took the mark along"
    );
    assert!(!client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0));
    let other = "SELECT relevo.first_time('shipping', 'orders', 'e-1')";
    assert!(client.query_one(other, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn the_printed_schema_works_for_a_writer_and_a_relay_that_own_nothing() {
    let Some((server, url)) = empty() else { return };
    let admin = connect(&url).await;
    let suffix = url.rsplit('_').next().unwrap();
    let (writer, relay) = (format!("relevo_writer_{suffix}"), format!("relevo_relay_{suffix}"));
    let sql = print().replace("relevo_writer", &writer).replace("relevo_relay", &relay);
    let roles =
        format!("CREATE ROLE {writer} LOGIN PASSWORD 'w'; CREATE ROLE {relay} LOGIN PASSWORD 'r'");
    admin.batch_execute(&roles).await.unwrap();
    admin.batch_execute(&sql).await.unwrap();
    let as_role = |role: &str, password: &str| {
        url.replace("postgres:relevo@", &format!("{role}:{password}@"))
    };

    let mut client = connect(&as_role(&writer, "w")).await;
    publish(&mut client, event("a", "k")).await;
    client
        .batch_execute(
            "SELECT relevo.publish('b', 'k', '{}'); SELECT relevo.first_time('c', 's', 'i')",
        )
        .await
        .unwrap();
    client
        .batch_execute("INSERT INTO relevo.outbox (topic, key, payload) VALUES ('c', 'k', '')")
        .await
        .unwrap();
    for forbidden in [
        "INSERT INTO relevo.outbox (seq, topic, payload) VALUES (1, 'c', '')",
        "INSERT INTO relevo.outbox (xid, topic, payload) VALUES (1, 'c', '')",
        "SELECT payload FROM relevo.outbox",
        "SELECT relevo.rebase(1)",
        "UPDATE relevo.cursor SET token = 1",
    ] {
        assert_eq!(refusal(&client, forbidden).await.0, "42501", "{forbidden}");
    }

    let store = open(&as_role(&relay, "r"));
    let owner = Owner::of(&store, "s", "me").await;
    let (rows, end) = drain(&store, Position::default()).await;
    assert_eq!(rows.len(), 3);
    let change = owner.change(&store, "k", end).await;
    relevo_core::outbox::Store::record(&store, &[change]).await.unwrap();
    relevo_core::outbox::Store::probe(&store).await.unwrap();
    relevo_core::outbox::Store::upkeep(&store, &Default::default()).await.unwrap();
    store.status().await.unwrap();
    store.doctor().await.unwrap();
    store.why(rows[0].event.id).await.unwrap();
    assert!(store.migrate().await.unwrap().is_empty(), "the printed schema is the migrated one");
    drop(server);

    let error = relevo_core::outbox::Store::probe(&open(&as_role(&writer, "w"))).await.unwrap_err();
    assert_eq!(error.kind(), Kind::MissingPrivilege, "{error}");
}
