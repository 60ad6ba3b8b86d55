//! What the workers leave behind: each effect once, whatever comes twice; numbers that add up; nothing for longer than it
//! is kept.

use crate::world::World;
use chrono::{DateTime, TimeDelta, Utc};
use relevo::NewEvent;
use relevo_testkit::{PATIENCE, eventually};
use std::time::Duration;
use ticketflow::retention;
use ticketflow::ticket::{Status, Ticket};
use ticketflow::traffic::Journal;
use ticketflow::verify::Totals;

/// The ticket's first event, as the dispatcher publishes it.
async fn first_event(world: &World, ticket: &Ticket) -> NewEvent {
    const FIRST: &str = r#"SELECT "Id", "Type", "PayloadJson" FROM "Outbox" WHERE "PayloadJson" LIKE $1 ORDER BY "OccurredAt""#;
    let mut connection = world.database().connect().await.expect("a connection");
    let its = format!("%{}%", ticket.id);
    let row = connection.session().query_one(FIRST, &[its.as_str().into()]).await;
    let row = row.expect("an answer").expect("a row");
    let text = |column| row.text(column).expect("text");
    NewEvent::bytes(text(1), text(2)).id(text(0).parse().expect("an id")).key(ticket.id.to_string())
}

async fn numbers(world: &World) -> Totals {
    const NUMBERS: &str = r#"SELECT "Metric", "Label", "Value" FROM "TicketMetrics""#;
    let mut connection = world.database().connect().await.expect("a connection");
    let rows = connection.session().query(NUMBERS, &[]).await.expect("an answer");
    let number = |row: &ticketflow::database::Row| {
        let name = (row.text(0).expect("a metric"), row.text(1).expect("a label"));
        (name, row.number(2).expect("a number"))
    };
    rows.iter().map(number).collect()
}

/// The embedded log has no inbox in front of its consumers: what is published twice comes twice, and `ProcessedEvents`
/// alone tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_comes_past_relevos_inbox_is_neither_mailed_nor_counted_again() {
    let world = World::new().await;
    let ticket = world.open_ticket().await;
    world.processed(2).await;
    let copy = first_event(&world, &ticket).await;
    world.database().publish(vec![copy]).await.expect("published");
    // It comes after the copy, being of the same ticket: once it is processed, so is the copy.
    world.client.change_status(ticket.id, Status::Closed).await.expect("changed");
    world.processed(4).await;
    let mails: Vec<i64> = world.mails().iter().map(|mail| mail.version).collect();
    assert_eq!(mails, [1, 2], "one e-mail for each change");
    let counted = r#"SELECT count(*) FROM "TicketActivity""#;
    assert_eq!(world.count(counted).await, 2);
    let events = numbers(&world).await;
    assert_eq!(events[&("events".into(), "ticket.created".into())], 1);
    assert_eq!(events[&("tickets".into(), "closed".into())], 1);
    let verdict = world.embedded.verdict(&Journal::default(), PATIENCE).await.expect("a verdict");
    assert!(verdict.broken.is_empty(), "{:?}", verdict.broken);
    assert_eq!(verdict.report.duplicates_seen, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_are_what_happened_to_the_tickets() {
    let world = World::new().await;
    let (one, two) = (world.open_ticket().await, world.open_ticket().await);
    world.client.change_status(one.id, Status::InProgress).await.expect("changed");
    world.client.assign(one.id, "ben@example.org").await.expect("assigned");
    world.client.assign(one.id, "eva@example.org").await.expect("assigned");
    world.client.change_status(two.id, Status::Closed).await.expect("changed");
    world.processed(12).await;
    let expected = [
        ("events", "ticket.created", 2),
        ("events", "ticket.status.changed", 2),
        ("events", "ticket.assigned", 2),
        ("tickets", "open", 0),
        ("tickets", "in_progress", 1),
        ("tickets", "closed", 1),
        ("assigned", "ben@example.org", 1),
        ("assigned", "eva@example.org", 1),
    ];
    let expected: Totals =
        expected.map(|(metric, label, n)| ((metric.into(), label.into()), n)).into();
    assert_eq!(numbers(&world).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proof_notices_every_number_that_is_wrong() {
    let world = World::new().await;
    let ticket = world.open_ticket().await;
    world.client.assign(ticket.id, "ben@example.org").await.expect("assigned");
    let broken = async |patience| {
        let verdict = world.embedded.verdict(&Journal::default(), patience).await;
        verdict.expect("a verdict").broken
    };
    assert_eq!(broken(PATIENCE).await, Vec::<String>::new());
    let say = async |sql: &str| {
        let mut connection = world.database().connect().await.expect("a connection");
        connection.batch(sql).await.expect("said");
    };
    let of_one =
        [("events", "ticket.created"), ("tickets", "open"), ("assigned", "ben@example.org")];
    for (metric, label) in of_one {
        for value in [0, 2] {
            let set = |value: i64| {
                format!(
                    r#"UPDATE "TicketMetrics" SET "Value" = {value} WHERE "Metric" = '{metric}' AND "Label" = '{label}'"#
                )
            };
            say(&set(value)).await;
            let one = "1 numbers are not what the counted changes add up to";
            assert_eq!(broken(Duration::ZERO).await, [one], "{metric} {label} is {value}");
            say(&set(1)).await;
            assert_eq!(broken(Duration::ZERO).await, Vec::<String>::new());
        }
    }
    say(r#"DELETE FROM "TicketMetrics""#).await;
    let all = "4 numbers are not what the counted changes add up to";
    assert_eq!(broken(Duration::ZERO).await, [all]);
}

/// Nobody calls it here: the job does it, and does it again.
#[tokio::test(flavor = "multi_thread")]
async fn the_sweep_of_what_is_older_than_a_month_comes_by_itself_and_comes_again() {
    let world = World::with(|options| options.sweep = Duration::from_millis(50)).await;
    let rows = r#"SELECT count(*) FROM "Outbox""#;
    for tickets in [1, 2] {
        world.open_ticket().await;
        world.processed(2 * tickets).await;
        world.clock.advance(TimeDelta::days(31));
        eventually("what was dispatched goes", async || {
            (world.count(rows).await == 0).then_some(())
        })
        .await;
    }
    world.processed(4).await;
    world.clock.advance(retention::PROCESSED_KEPT);
    world.processed(0).await;
}

/// A dead letter of the dispatcher can be replayed for 90 days, and its event may have come through at once. Dead again, it
/// can be replayed for 90 more.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_an_event_that_was_replayed_twice_is_neither_mailed_nor_counted_again() {
    let world = World::new().await;
    let ticket = world.open_ticket().await;
    world.processed(2).await;
    let copy = first_event(&world, &ticket).await;
    let letters_stay = relevo::Retention::default().dead_letters;
    for _ in 0..2 {
        world.clock.advance(TimeDelta::from_std(letters_stay).expect("days"));
        let swept = retention::sweep(world.database(), &world.clock).await.expect("swept");
        assert_eq!(swept.processed, 0);
    }
    world.database().publish(vec![copy]).await.expect("published");
    world.client.change_status(ticket.id, Status::Closed).await.expect("changed");
    world.processed(4).await;
    let mails: Vec<i64> = world.mails().iter().map(|mail| mail.version).collect();
    assert_eq!(mails, [1, 2], "one e-mail for each change");
    assert_eq!(world.count(r#"SELECT count(*) FROM "TicketActivity""#).await, 2);
    assert_eq!(numbers(&world).await[&("events".into(), "ticket.created".into())], 1);
}

/// Keeps the time of each sign but the first.
const KEEP_SIGNS: &str = r#"CREATE TABLE "Signs" ("At" text NOT NULL);
    CREATE TRIGGER signed AFTER UPDATE ON "Heartbeats" BEGIN INSERT INTO "Signs" VALUES (NEW."BeatAt"); END"#;

/// Not at every turn of a loop: each sign is a write.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_signs_life_as_often_as_it_is_told_to() {
    let world = World::with(|options| options.heartbeat = Duration::from_millis(200)).await;
    let mut connection = world.database().connect().await.expect("a connection");
    connection.batch(KEEP_SIGNS).await.expect("a trigger");
    let signs = r#"SELECT count(*) FROM "Signs""#;
    eventually("some signs", async || (world.count(signs).await >= 6).then_some(())).await;
    let rows = connection.session().query(r#"SELECT "At" FROM "Signs" ORDER BY rowid"#, &[]).await;
    let rows = rows.expect("an answer");
    let times: Vec<DateTime<Utc>> = rows.iter().map(|row| row.time(0).expect("a time")).collect();
    let pauses: Vec<TimeDelta> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A clock may be slewed, and a machine may be busy: but not all the time.
    let shortest = pauses.iter().min().expect("pauses");
    let wanted = TimeDelta::milliseconds(190)..TimeDelta::milliseconds(2000);
    assert!(wanted.contains(shortest), "{pauses:?}");
}

/// A dead letter stays for 90 days. Were its note gone before it, its copy would be put into the queue again.
#[tokio::test(flavor = "multi_thread")]
async fn that_a_dead_letter_is_in_its_queue_is_known_for_longer_than_the_letter_stays() {
    const NOTE: &str = r#"INSERT INTO "DlqPublished" ("Letter", "Queue", "PublishedAt") VALUES (1, 'metrics', $1)"#;
    let world = World::new().await;
    let mut connection = world.database().connect().await.expect("a connection");
    let noted = connection.session().execute(NOTE, &[world.clock.now().into()]).await;
    assert_eq!(noted.expect("noted"), 1);
    drop(connection);
    for (days, gone) in [(91, 0), (28, 0), (2, 1)] {
        world.clock.advance(TimeDelta::days(days));
        let swept = retention::sweep(world.database(), &world.clock).await.expect("swept");
        assert_eq!(swept.dead_letters, gone, "{days} days later");
    }
}
