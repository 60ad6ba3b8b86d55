//! What the order of a key stands on, where its owner can take it away.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a case that unwraps says what it expects, its name what it shows"
)]

use super::why::rows_of;
use super::{Database, Sink, Work};
use relevo_core::outbox::adopt::{Mapping, Role, TableName};

/// A table whose ids are drawn from a sequence, or are SQLite's own numbers: they are its order.
async fn numbered(db: &Database) -> Mapping {
    let (serial, time) = match db.is_postgres() {
        true => ("bigserial PRIMARY KEY", "timestamptz"),
        false => ("integer PRIMARY KEY", "text"),
    };
    db.run(&format!(
        "CREATE TABLE msgs (no {serial}, whose text, tenant text, body text NOT NULL, sent {time})"
    ))
    .await;
    Mapping::new(TableName::parse("msgs").unwrap())
        .with(Role::Id, "no")
        .with(Role::Sequence, "no")
        .with(Role::Key, "whose")
        .with(Role::Tenant, "tenant")
        .with(Role::Payload, "body")
        .with(Role::PublishedAt, "sent")
        .topic("msgs")
}

/// The payloads as they came, with what the store says its order stands on.
async fn relayed(db: &Database, mapping: Mapping, rows: usize) -> (Vec<String>, String) {
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    let notes = work.table.probe().await.unwrap().notes;
    let order = notes.iter().find_map(|note| note.strip_prefix("order: ")).unwrap().to_owned();
    let seen = work.sink.wait_for(rows).await;
    for seen in &seen {
        let tenant = format!(r#""tenant":"tenant of {}""#, seen.payload);
        assert!(seen.headers.contains(&tenant), "{seen:?}");
    }
    work.end().await;
    (seen.into_iter().map(|seen| seen.payload).collect(), order)
}

async fn insert(db: &Database, columns: &str, values: &str, body: &str) {
    db.run(&format!(
        "INSERT INTO msgs ({columns}whose, tenant, body) VALUES ({values}'k', 'tenant of {body}', '{body}')"
    ))
    .await;
}

pub async fn rows_come_as_they_were_inserted_as_long_as_nobody_gives_them_numbers(db: Database) {
    let mapping = numbered(&db).await;
    for body in ["first", "second", "third"] {
        insert(&db, "", "", body).await;
    }
    let (came, order) = relayed(&db, mapping, 3).await;
    assert_eq!(came, ["first", "second", "third"]);
    assert!(order.starts_with("kept per key: "), "{order}");
}

pub async fn a_number_that_its_owner_gives_a_row_is_its_place_and_it_was_said(db: Database) {
    let mapping = numbered(&db).await;
    for (number, body) in [("9, ", "inserted first"), ("5, ", "inserted second")] {
        insert(&db, "no, ", number, body).await;
    }
    let verdict = rows_of(&db).await.judge_mapping(&mapping).await.unwrap();
    let told = "no is the number of its row, in whose order rows come: let SQLite give it";
    let notes = verdict.notes.iter().filter(|note| note.starts_with(told)).count();
    assert_eq!(notes, usize::from(!db.is_postgres()), "{verdict:?}");
    let (came, order) = relayed(&db, mapping, 2).await;
    assert_eq!(came, ["inserted second", "inserted first"], "this is what it is worth");
    assert!(order.ends_with("as long as nobody gives a row a number of its own"), "{order}");
}
