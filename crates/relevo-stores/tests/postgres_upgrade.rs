//! A log that an older version made and filled is brought up.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::dead_letters::Operate;
use relevo_core::event::lane_of;
use relevo_core::outbox::{PageRequest, Position, Store};
use relevo_testkit::services::unique_name;
use std::collections::BTreeMap;
use tokio_postgres::Client;

/// The schema as the versions up to this one made it.
async fn made_by(client: &Client, last: i64) {
    client.batch_execute("CREATE SCHEMA relevo").await.unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/postgres/migrations");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let numbered = files.filter_map(|file| {
        let name = file.file_stem()?.to_str()?.to_owned();
        let version: i64 = name.get(..4)?.parse().ok()?;
        Some((version, (name, std::fs::read_to_string(&file).unwrap())))
    });
    let numbered: BTreeMap<i64, (String, String)> = numbered.collect();
    for (version, (name, sql)) in numbered.range(..=last) {
        client.batch_execute(sql).await.unwrap();
        let note = "INSERT INTO relevo.migration (version, name, checksum, oldest) VALUES ($1, $2, md5($3::text), 1)";
        client.execute(note, &[version, name, sql]).await.unwrap();
    }
    for _ in 0..3 {
        client.batch_execute("SELECT relevo.make_segment(100)").await.unwrap();
    }
}

/// A plain INSERT for this key, as a role.
async fn insert_as(client: &Client, role: &str, columns: &str, key: &str) {
    let sql = format!(
        "SET ROLE {role}; INSERT INTO relevo.outbox ({columns}topic, key, payload)
         SELECT {values} 'a', '{key}', ''; RESET ROLE",
        values =
            if columns.is_empty() { String::new() } else { format!("{}::smallint,", lane_of(key)) },
    );
    client.batch_execute(&sql).await.unwrap();
}

#[tokio::test]
async fn rows_with_a_generated_lane_stay_where_they_are_and_whoever_could_publish_still_can() {
    let Some((_server, url)) = empty() else { return };
    let client = connect(&url).await;
    made_by(&client, 10).await;
    let plain = unique_name("writer");
    // One whose name must be quoted, one that has its right from another.
    let (quoted, lead, member) =
        (format!("\"The {plain}\""), format!("lead_{plain}"), format!("member_{plain}"));
    let columns = "(id, topic, key, headers, payload)";
    let mut roles = String::new();
    for role in [&plain, &quoted, &lead, &member] {
        roles += &format!(
            "CREATE ROLE {role} NOLOGIN; GRANT USAGE ON SCHEMA relevo TO {role};
             GRANT USAGE ON SEQUENCE relevo.outbox_seq TO {role}; "
        );
    }
    roles += &format!(
        "GRANT INSERT {columns} ON relevo.outbox TO {plain}, {quoted};
         GRANT INSERT {columns} ON relevo.outbox TO {lead} WITH GRANT OPTION;
         SET ROLE {lead}; GRANT INSERT {columns} ON relevo.outbox TO {member}; RESET ROLE"
    );
    client.batch_execute(&roles).await.unwrap();
    // More than the segments have room for: some rows are in the default one.
    let keys: Vec<String> = (0..350).map(|n| format!("key {n}")).collect();
    for key in &keys {
        insert_as(&client, "none", "", key).await;
    }

    let store = open(&url);
    assert!(!store.migrate().await.unwrap().is_empty());
    let mut all = keys;
    for (n, role) in [&plain, &quoted, &lead, &member].into_iter().enumerate() {
        let (told, untold) = (format!("told {n}"), format!("untold {n}"));
        insert_as(&client, role, "in_lane, ", &told).await;
        insert_as(&client, role, "", &untold).await;
        all.extend([told, untold]);
    }
    for lane in all_lanes() {
        let request = PageRequest {
            position: Position::default(),
            lanes: vec![lane],
            max_rows: 1000,
            max_bytes: 1 << 20,
        };
        let page = store.read_page(&request).await.unwrap();
        let got: Vec<String> = page.rows.iter().map(|row| row.event.order_key()).collect();
        let wanted: Vec<String> = all.iter().filter(|key| lane_of(key) == lane).cloned().collect();
        assert_eq!(got, wanted, "lane {lane}");
    }
    // A relay of the version before would pass over rows that came without a lane: it finds no such column.
    let error = client.query("SELECT lane FROM relevo.outbox LIMIT 1", &[]).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42703");
}

#[tokio::test]
async fn what_everybody_might_publish_everybody_still_may() {
    let Some((_server, url)) = empty() else { return };
    let client = connect(&url).await;
    made_by(&client, 10).await;
    let anybody = unique_name("anybody");
    let rights = format!(
        "CREATE ROLE {anybody} NOLOGIN; GRANT USAGE ON SCHEMA relevo TO PUBLIC;
         GRANT USAGE ON SEQUENCE relevo.outbox_seq TO PUBLIC;
         GRANT INSERT (id, topic, key, headers, payload) ON relevo.outbox TO PUBLIC"
    );
    client.batch_execute(&rights).await.unwrap();
    assert!(!open(&url).migrate().await.unwrap().is_empty());
    insert_as(&client, &anybody, "in_lane, ", "told").await;
    let publish =
        format!("SET ROLE {anybody}; SELECT relevo.publish_bytes('a', 'by function', 'x')");
    client.batch_execute(&publish).await.unwrap();
    let lanes = "SELECT key, in_lane FROM relevo.outbox ORDER BY seq";
    client.batch_execute("RESET ROLE").await.unwrap();
    let rows = client.query(lanes, &[]).await.unwrap();
    let lanes: Vec<(String, i16)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let wanted = ["told", "by function"].map(|key| (key.to_owned(), lane_of(key) as i16));
    assert_eq!(lanes, wanted);
}
