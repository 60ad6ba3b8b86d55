//! What keeps the tables in order, on both databases: clean-up, migrations, the choice of a broker, what metrics read.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use chrono::{TimeDelta, Utc};
use common::outbox::{Told, on_both, quick, refused, relay};
use common::{Kind, Place, number, run, until};
use relevo::ErrorClass;
use relevo::broker::Confirm;
use smartedify::broker::{At, Broker};
use smartedify::db::Sql;
use smartedify::downstream::direct::Direct;
use smartedify::downstream::retention;
use smartedify::metrics::Waiting;
use smartedify::migrate;
use smartedify::outbox::choice::choose;
use smartedify::outbox::cleanup::{self, Gone, Keep};
use smartedify::tenants::Tenants;

on_both! {
    a_month_passes_and_only_what_was_published_goes,
    ids_are_forgotten_when_nothing_can_bring_their_events_again,
    migrations_may_run_again_and_at_the_same_time,
    another_broker_is_chosen_only_while_nothing_is_under_way,
    the_backlog_and_its_age_are_those_of_the_oldest_that_wait,
}

async fn a_month_passes_and_only_what_was_published_goes(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let broker = Told::new(|event, _| match &*event.topic {
        "user.added" => refused(ErrorClass::Permanent),
        "tenant.updated" => refused(ErrorClass::Transient),
        _ => Confirm::Stored,
    });
    let (outbox, relay) = relay(&place, &quick(), broker).await;
    for n in 0..30 {
        let tenant = tenants.create(&format!("Edificio {n}")).await.unwrap().tenant_id;
        if n < 3 {
            tenants.add_user(&tenant, "ana@example.org", "owner").await.unwrap();
            tenants.rename(&tenant, "Alameda").await.unwrap();
        }
    }
    until("published", 30, || place.published()).await;
    until("dead", 3, || place.dead()).await;
    relay.stop().await.unwrap();
    // The clock of the clean-up is ours: day after day, until a month is over and then a quarter.
    let (today, mut gone_at) = (Utc::now(), Vec::new());
    for day in 0..=95 {
        let gone =
            cleanup::sweep(&place.db, today + TimeDelta::days(day), Keep::default()).await.unwrap();
        if gone != Gone::default() {
            gone_at.push((day, gone));
        }
    }
    let [(month, first), (quarter, second)] = gone_at[..] else { panic!("{gone_at:?}") };
    assert!((30..=31).contains(&month) && first == Gone { published: 30, dead: 0 }, "{gone_at:?}");
    assert!(
        (90..=91).contains(&quarter) && second == Gone { published: 0, dead: 3 },
        "{gone_at:?}"
    );
    assert_eq!(place.pending().await, 3, "what is not published never goes");
    assert_eq!(outbox.pending().await.unwrap().rows, 3);
}

const IDS: Sql = Sql::both("SELECT count(*) FROM processed_event_ids");

/// An id outlives the dead letter of its event, and the week of a stream that has it again.
async fn ids_are_forgotten_when_nothing_can_bring_their_events_again(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let (_, relay) = relay(&place, &quick(), Direct::to(place.directory.clone())).await;
    for n in 0..3 {
        tenants.create(&format!("Edificio {n}")).await.unwrap();
    }
    until("effects", 3, || place.effects()).await;
    relay.stop().await.unwrap();
    let (today, keep, mut gone_at) = (Utc::now(), Keep::default(), Vec::new());
    for day in 0..=185 {
        let now = today + TimeDelta::days(day);
        cleanup::sweep(&place.db, now, keep).await.unwrap();
        let gone = retention::forget(&place.directory, now, keep.processed).await.unwrap();
        if gone > 0 {
            gone_at.push((day, gone));
        }
    }
    let [(day, 3)] = gone_at[..] else { panic!("{gone_at:?}") };
    assert!((180..=181).contains(&day), "{gone_at:?}");
    assert!(keep.processed > keep.dead + TimeDelta::days(7));
    assert_eq!((number(&place.directory, IDS).await, place.effects().await), (0, 3));
}

/// Migrations of the tenant service.
const ALL: usize = 4;

async fn migrations_may_run_again_and_at_the_same_time(place: Place) {
    assert!(migrate::tenants(&place.db).await.unwrap().is_empty(), "the second time does nothing");
    let fresh = Place::fresh(if place.service.starts_with("sqlite") {
        Kind::Sqlite
    } else {
        Kind::Postgres
    });
    let fresh = fresh.await.unwrap();
    let tables = Sql::both("DROP TABLE smartedify_migrations");
    // As if an earlier version, without the table of migrations, had made the rest; and as if it had made half of it.
    for half in [false, true] {
        run(&fresh.db, tables, &[]).await;
        if half {
            run(&fresh.db, Sql::both("ALTER TABLE outbox_events DROP COLUMN last_error_at"), &[])
                .await;
        }
        assert_eq!(migrate::tenants(&fresh.db).await.unwrap().len(), ALL);
        let named =
            Sql::both("SELECT count(error_class) + count(last_error_at) FROM outbox_events");
        assert_eq!(number(&fresh.db, named).await, 0, "both columns are there");
    }
    let url = if place.service.starts_with("sqlite") {
        format!("{}-another", fresh.service)
    } else {
        fresh.downstream.clone()
    };
    let db = smartedify::db::Db::open(&url).await.unwrap();
    let both = tokio::join!(migrate::tenants(&db), migrate::tenants(&db));
    let applied = both.0.unwrap().len() + both.1.unwrap().len();
    assert_eq!(applied, ALL, "each migration was applied once");
}

async fn another_broker_is_chosen_only_while_nothing_is_under_way(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let stored = Told::new(|_, _| Confirm::Stored);
    tenants.create("Mirador").await.unwrap();
    let (outbox, running) = relay(&place, &quick(), stored.clone()).await;
    until("published", 1, || place.published()).await;
    running.stop().await.unwrap();

    let asked = async |broker: &Broker| {
        choose(&place.db, &outbox, broker).await.map_err(|refused| refused.to_string())
    };
    let nats = Broker::at(At::Nats("nats://127.0.0.1:4222".into()));
    let kafka = Broker::at(At::Kafka("kafka://127.0.0.1:9092".into()));
    asked(&nats).await.unwrap();
    tenants.create("Alameda").await.unwrap();
    asked(&nats).await.unwrap();
    asked(&Broker::at(At::Nats("nats://elsewhere:4222".into()))).await.unwrap();
    for another in [kafka.clone(), nats.clone().stream("another")] {
        let refused = asked(&another).await.unwrap_err();
        let why = "goes to nats:smartedify and 1 of its events are pending";
        assert!(refused.contains(why) && refused.contains(&another.name()), "{refused}");
    }

    // Nothing is pending any more, and yet what comes next would go through the relay that is at work.
    let (_, running) = relay(&place, &quick(), stored).await;
    until("published", 2, || place.published()).await;
    let refused = asked(&kafka).await.unwrap_err();
    assert!(refused.contains("1 of its relays are at work"), "{refused}");
    running.stop().await.unwrap();
    asked(&kafka).await.unwrap();
    let kept = Sql::both("SELECT count(*) FROM outbox_broker WHERE broker = 'kafka:smartedify'");
    assert_eq!(number(&place.db, kept).await, 1);
}

/// Makes a row older.
const AGE: Sql = Sql::each(
    "UPDATE outbox_events SET created_at = clock_timestamp() - make_interval(secs => $2::float8) WHERE id = $1::uuid",
    "UPDATE outbox_events SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || $2 || ' seconds') WHERE id = $1",
);

async fn the_backlog_and_its_age_are_those_of_the_oldest_that_wait(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    assert_eq!(Waiting::among(&place.db, 10).await.unwrap(), Waiting::default());
    for seconds in ["5000", "1000", "3000", "9000"] {
        let event = tenants.create("Mirador").await.unwrap().event_id;
        assert_eq!(run(&place.db, AGE, &[event.as_str().into(), seconds.into()]).await, 1);
    }
    // The oldest of all is published.
    let sent = Sql::each(
        "UPDATE outbox_events SET published_at = now() WHERE created_at < now() - interval '8000 seconds'",
        "UPDATE outbox_events SET published_at = created_at WHERE created_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-8000 seconds')",
    );
    assert_eq!(run(&place.db, sent, &[]).await, 1);
    for (most, backlog, average) in [(10, 3, 3000.0), (2, 2, 4000.0)] {
        let waiting = Waiting::among(&place.db, most).await.unwrap();
        assert_eq!(waiting.backlog, backlog);
        // However slow the machine is, a test takes no ten minutes.
        assert!((average..average + 600.0).contains(&waiting.average_s), "{waiting:?}");
        assert!((5000.0..5600.0).contains(&waiting.oldest_s), "{waiting:?}");
    }
}

/// Rows move as they are, the relay goes on, months come and go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partitioned_outbox_is_relayed_and_cleaned_up_alike() {
    let Some(place) = Place::fresh(Kind::Postgres).await else { return };
    let tenants = Tenants::on(place.db.clone());
    let tenant = tenants.create("Mirador").await.unwrap().tenant_id;
    assert!(migrate::partition(&place.db).await.unwrap());
    assert!(migrate::partition(&place.db).await.unwrap(), "again does nothing");
    assert_eq!(place.pending().await, 1);
    let (_, relay) = relay(&place, &quick(), Direct::to(place.directory.clone())).await;
    tenants.rename(&tenant, "Alameda").await.unwrap();
    until("effects", 2, || place.effects()).await;
    until("published", 2, || place.published()).await;
    let partitions = async || {
        number(
            &place.db,
            Sql::both(
                "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass",
            ),
        )
        .await
    };
    let keep = Keep::default();
    for (months, there) in [(0, 3), (1, 4), (2, 5), (8, 3)] {
        let now = Utc::now() + chrono::Months::new(months);
        cleanup::sweep(&place.db, now, keep).await.unwrap();
        assert_eq!(partitions().await, there, "after {months} months");
    }
    tenants.rename(&tenant, "Bellavista").await.unwrap();
    until("effects", 3, || place.effects()).await;
    relay.stop().await.unwrap();
}

#[tokio::test]
async fn sqlite_says_that_it_has_no_partitions() {
    let place = Place::fresh(Kind::Sqlite).await.unwrap();
    assert!(!migrate::partition(&place.db).await.unwrap());
}
