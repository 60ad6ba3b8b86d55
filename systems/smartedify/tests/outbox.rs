//! The outbox on both databases: one transaction, retries, dead letters, copies.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use async_trait::async_trait;
use chrono::Utc;
use common::outbox::{Told, on_both, quick, refused, relay};
use common::{Kind, Place, eventually, number, until};
use relevo::broker::{Confirm, Publisher};
use relevo::{ErrorClass, Event, NewEvent};
use smartedify::db::Sql;
use smartedify::downstream::direct::{Direct, Trouble};
use smartedify::events::{Change, Governance, TenantEvent, Voting};
use smartedify::outbox::Settings;
use smartedify::outbox::backoff::{Backoff, Growth};
use smartedify::outbox::dead_letters::{self, Which};
use smartedify::tenants::{Refused, Tenants};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

on_both! {
    a_change_and_its_event_are_one_transaction,
    the_tables_and_their_indices_are_as_documented,
    temporary_failures_are_told_in_the_row_and_grow_until_it_is_published,
    a_permanent_failure_is_a_dead_letter_at_once_and_reprocessing_sends_it,
    a_dead_letter_that_dies_again_is_still_one,
    transient_failures_die_only_where_attempts_are_limited,
    an_event_sent_twice_takes_effect_once,
    an_event_that_comes_after_newer_ones_takes_nothing_back,
    writers_of_one_tenant_keep_its_order,
    a_claim_and_a_batch_have_fifty_rows_at_most,
    a_broker_that_is_down_is_nobodys_failure,
    a_failed_event_holds_back_its_tenant_and_nobody_else,
}

fn governance(quorum_percent: u8) -> Governance {
    Governance { quorum_percent, voting: Voting::ByShare, president: Some("Ana".into()) }
}

async fn a_change_and_its_event_are_one_transaction(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let made = tenants.create("Mirador").await.unwrap();
    tenants.add_user(&made.tenant_id, "ana@example.org", "owner").await.unwrap();
    assert_eq!(place.pending().await, 2);
    // The tenant is updated, then the user is refused: nothing of it stays, and no event.
    let again = tenants.add_user(&made.tenant_id, "ana@example.org", "owner").await;
    assert!(matches!(again, Err(Refused::Conflict(_))), "{again:?}");
    let nobody = tenants.rename("018f0000-0000-7000-8000-000000000000", "x").await;
    assert!(matches!(nobody, Err(Refused::NotFound(_))), "{nobody:?}");
    let ids = [made.tenant_id.clone(), "018f0000-0000-7000-8000-000000000000".into()];
    assert!(tenants.change_governance_of_all(&ids, &governance(60)).await.is_err(), "all or none");
    assert_eq!(place.pending().await, 2);
    assert_eq!(tenants.show(&made.tenant_id).await.unwrap().version, 2);
    let row = Sql::each(
        "SELECT id::text, aggregate_type, aggregate_id, event_type, payload ->> 'version', retry_count::bigint
           FROM outbox_events ORDER BY created_at LIMIT 1",
        "SELECT id, aggregate_type, aggregate_id, event_type, payload ->> '$.version' || '', retry_count
           FROM outbox_events ORDER BY _rowid_ LIMIT 1",
    );
    let rows: Vec<(String, String, String, String, String, i64)> =
        place.db.rows(&row, &[]).await.unwrap();
    let expected = (
        made.event_id.clone(),
        "tenant".into(),
        made.tenant_id,
        "tenant.created".into(),
        "1".into(),
        0,
    );
    assert_eq!(rows, [expected]);
    let id: uuid::Uuid = made.event_id.parse().unwrap();
    assert_eq!(id.get_version_num(), 7, "ids are UUIDv7");
}

const COLUMNS: Sql = Sql::each(
    "SELECT column_name::text, data_type::text FROM information_schema.columns WHERE table_name = $1 ORDER BY 1",
    "SELECT name, lower(type) FROM pragma_table_info($1) ORDER BY 1",
);
const INDICES: Sql = Sql::each(
    "SELECT indexname::text, indexdef FROM pg_indexes WHERE tablename = $1",
    "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = $1",
);

async fn the_tables_and_their_indices_are_as_documented(place: Place) {
    let documented = "aggregate_id aggregate_type created_at error_class event_type id last_error last_error_at next_retry_at \
                      payload published_at retry_count updated_at";
    for table in ["outbox_events", "outbox_events_dlq"] {
        let columns: Vec<(String, String)> =
            place.db.rows(&COLUMNS, &[table.into()]).await.unwrap();
        let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.join(" "), documented, "{table}");
        if place.service.starts_with("postgres") {
            let types: HashMap<&str, &str> =
                columns.iter().map(|(name, sort)| (name.as_str(), sort.as_str())).collect();
            let time = "timestamp with time zone";
            assert_eq!((types["id"], types["payload"]), ("uuid", "jsonb"));
            assert_eq!((types["retry_count"], types["next_retry_at"]), ("integer", time));
        }
    }
    let indices: Vec<(String, String)> =
        place.db.rows(&INDICES, &["outbox_events".into()]).await.unwrap();
    let indices: HashMap<String, String> = indices.into_iter().collect();
    let ready = indices["idx_outbox_ready"].to_lowercase();
    assert!(ready.contains("(next_retry_at)"), "{ready}");
    assert!(ready.contains("published_at is null"), "of what is not published: {ready}");
    let published = indices["idx_outbox_published_at"].to_lowercase();
    assert!(published.contains("(published_at)"), "{published}");
}

/// What a row tells: attempts, and milliseconds from its last error to its next attempt.
const TOLD: Sql = Sql::each(
    "SELECT retry_count::bigint, (extract(epoch FROM next_retry_at - last_error_at) * 1000)::float8, coalesce(error_class, ''), coalesce(last_error, '')
       FROM outbox_events WHERE id = $1::uuid AND last_error_at IS NOT NULL",
    "SELECT retry_count, (julianday(next_retry_at) - julianday(last_error_at)) * 86400000.0, error_class, last_error
       FROM outbox_events WHERE id = $1 AND last_error_at IS NOT NULL",
);

async fn temporary_failures_are_told_in_the_row_and_grow_until_it_is_published(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let broker = Told::new(|_, attempt| match attempt {
        1..=3 => refused(ErrorClass::Transient),
        _ => Confirm::Stored,
    });
    let base = Duration::from_millis(400);
    let backoff = Backoff { growth: Growth::Linear, base, ..Backoff::default() };
    let (_, relay) = relay(&place, &Settings { backoff, ..quick() }, broker.clone()).await;
    let event = tenants.create("Mirador").await.unwrap().event_id;
    let mut delays: HashMap<i64, f64> = HashMap::new();
    eventually("it is published", async || {
        let told: Vec<(i64, f64, String, String)> =
            place.db.rows(&TOLD, &[event.clone().into()]).await.unwrap();
        for (retry_count, delay, class, error) in told {
            assert_eq!((class.as_str(), error.as_str()), ("transient", "503 from the broker"));
            delays.insert(retry_count, delay);
        }
        (place.published().await == 1).then_some(())
    })
    .await;
    assert_eq!(broker.stored(), [event]);
    assert!(delays.contains_key(&3), "{delays:?}");
    for (retry_count, delay) in delays {
        let expected = 400.0 * retry_count as f64;
        assert!(
            (delay - expected).abs() < 5.0,
            "after {retry_count}: {delay} instead of {expected}"
        );
    }
    relay.stop().await.unwrap();
}

async fn a_permanent_failure_is_a_dead_letter_at_once_and_reprocessing_sends_it(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let broker = Told::new(|event, attempt| match (&*event.topic, attempt) {
        ("governance.changed", 1) => refused(ErrorClass::Permanent),
        _ => Confirm::Stored,
    });
    let (outbox, relay) = relay(&place, &quick(), broker.clone()).await;
    let tenant = tenants.create("Mirador").await.unwrap();
    let bad = tenants.change_governance(&tenant.tenant_id, governance(51)).await.unwrap();
    let later = tenants.rename(&tenant.tenant_id, "Alameda").await.unwrap();
    until("published", 2, || place.published()).await;
    assert_eq!(broker.stored(), [tenant.event_id, later.event_id], "what follows goes on");
    let dead = dead_letters::list(&place.db, 10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].id.as_str(), dead[0].retry_count), (bad.event_id.as_str(), 1));
    assert_eq!(dead[0].error_class.as_deref(), Some("permanent"));
    assert!(dead[0].last_error_at.as_deref().unwrap().ends_with('Z'), "{dead:?}");

    let which = Which { event_id: Some(bad.event_id.parse().unwrap()), ..Which::default() };
    assert_eq!(dead_letters::reprocess(&outbox, &which).await.unwrap().total, 1);
    until("published", 3, || place.published()).await;
    assert_eq!(place.dead().await, 0, "its row is back where it came from");
    assert_eq!(broker.stored().last(), Some(&bad.event_id));
    assert_eq!(dead_letters::reprocess(&outbox, &which).await.unwrap().total, 0, "once");
    relay.stop().await.unwrap();
}

async fn a_dead_letter_that_dies_again_is_still_one(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let broker = Told::new(|_, attempt| match attempt {
        1 | 2 => refused(ErrorClass::Permanent),
        _ => Confirm::Stored,
    });
    let (outbox, running) = relay(&place, &quick(), broker.clone()).await;
    let event = tenants.create("Mirador").await.unwrap().event_id;
    until("dead", 1, || place.dead()).await;
    assert_eq!(dead_letters::reprocess(&outbox, &Which::default()).await.unwrap().total, 1);
    let attempts = || broker.attempts(&event);
    eventually("the second attempt", async || (attempts() == 2).then_some(())).await;
    running.stop().await.unwrap();
    let dead = dead_letters::list(&place.db, 10).await.unwrap();
    assert_eq!(dead.len(), 1, "its row is where its owner looks for it");
    assert_eq!((&dead[0].id, place.pending().await), (&event, 0));
    let (outbox, running) = relay(&place, &quick(), broker.clone()).await;
    assert_eq!(dead_letters::reprocess(&outbox, &Which::default()).await.unwrap().total, 1);
    until("published", 1, || place.published()).await;
    assert_eq!((place.dead().await, broker.stored().len()), (0, 1));
    running.stop().await.unwrap();
}

async fn transient_failures_die_only_where_attempts_are_limited(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let broker = Told::new(|_, _| refused(ErrorClass::Transient));
    let base = Duration::from_millis(1);
    let endless = Backoff { growth: Growth::Linear, base, ..Backoff::default() };
    let (_, running) =
        relay(&place, &Settings { backoff: endless, ..quick() }, broker.clone()).await;
    let event = tenants.create("Mirador").await.unwrap().event_id;
    let attempts = || broker.attempts(&event);
    eventually("many attempts", async || (attempts() > 8).then_some(())).await;
    assert_eq!((place.pending().await, place.dead().await), (1, 0));
    running.stop().await.unwrap();
    let five = Backoff { max_attempts: Some(5), ..endless };
    let (_, running) = relay(&place, &Settings { backoff: five, ..quick() }, broker.clone()).await;
    until("dead", 1, || place.dead()).await;
    assert_eq!(place.pending().await, 0);
    running.stop().await.unwrap();
}

/// Written while the broker is down, and sent when it is back: nobody counts that against a row.
const BLAMED: Sql =
    Sql::both("SELECT count(*) FROM outbox_events WHERE retry_count > 0 OR last_error IS NOT NULL");

async fn a_broker_that_is_down_is_nobodys_failure(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let back = Arc::new(AtomicBool::new(false));
    let is_back = back.clone();
    let broker = Told::new(move |_, _| match is_back.load(Ordering::SeqCst) {
        true => Confirm::Stored,
        false => Confirm::Down { error: "connection refused".into() },
    });
    let (_, relay) = relay(&place, &quick(), broker.clone()).await;
    let first = tenants.create("Mirador").await.unwrap();
    for n in 0..20 {
        tenants.rename(&first.tenant_id, &format!("Mirador {n}")).await.unwrap();
    }
    eventually("it is asked again and again", async || {
        (broker.attempts(&first.event_id) > 3).then_some(())
    })
    .await;
    assert_eq!((place.pending().await, number(&place.db, BLAMED).await), (21, 0));
    back.store(true, Ordering::SeqCst);
    until("published", 21, || place.published()).await;
    assert_eq!((number(&place.db, BLAMED).await, place.dead().await), (0, 0));
    assert_eq!(broker.stored().len(), 21);
    relay.stop().await.unwrap();
}

/// By `next_retry_at` the third event, which is due, would come before the second, which is not.
async fn a_failed_event_holds_back_its_tenant_and_nobody_else(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = mended.clone();
    let broker = Told::new(move |event, _| match &*event.topic {
        "governance.changed" if !is_mended.load(Ordering::SeqCst) => refused(ErrorClass::Transient),
        _ => Confirm::Stored,
    });
    let (_, relay) = relay(&place, &quick(), broker.clone()).await;
    let first = tenants.create("Mirador").await.unwrap();
    let second = tenants.change_governance(&first.tenant_id, governance(51)).await.unwrap();
    let third = tenants.rename(&first.tenant_id, "Bellavista").await.unwrap();
    let failed_twice = async || (broker.attempts(&second.event_id) >= 2).then_some(());
    eventually("the second fails", failed_twice).await;
    let another = tenants.create("Alameda").await.unwrap();
    until("published", 2, || place.published()).await;
    assert_eq!(broker.stored(), [&*first.event_id, &*another.event_id]);
    assert_eq!(broker.attempts(&third.event_id), 0, "it waits behind the second");
    mended.store(true, Ordering::SeqCst);
    until("published", 4, || place.published()).await;
    assert_eq!(broker.stored()[2..], [second.event_id, third.event_id]);
    relay.stop().await.unwrap();
}

async fn an_event_sent_twice_takes_effect_once(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let trouble = Arc::new(Trouble::default());
    trouble.lost_answers.store(3, Ordering::SeqCst);
    let direct = Direct::to(place.directory.clone()).troubled_by(trouble.clone());
    let (_, relay) = relay(&place, &quick(), direct).await;
    let tenant = tenants.create("Mirador").await.unwrap().tenant_id;
    tenants.add_user(&tenant, "ana@example.org", "owner").await.unwrap();
    tenants.schedule_assembly(&tenant, "Asamblea", Utc::now()).await.unwrap();
    until("published", 3, || place.published()).await;
    assert_eq!(trouble.lost_answers.load(Ordering::SeqCst), 0, "answers were lost: it came again");
    assert_eq!(place.effects().await, 3);
    let counted = Sql::both("SELECT users + assemblies FROM tenant_directory");
    assert_eq!(number(&place.directory, counted).await, 2);
    let ids = Sql::both("SELECT count(*) FROM processed_event_ids WHERE consumer = 'directory'");
    assert_eq!(number(&place.directory, ids).await, 3);
    relay.stop().await.unwrap();
}

const KNOWN: Sql = Sql::each(
    "SELECT name, (governance ->> 'quorum_percent')::bigint, users FROM tenant_directory",
    "SELECT name, governance ->> '$.quorum_percent', users FROM tenant_directory",
);

/// As a dead letter that is sent again does, or what a dead consumer held: here all of a tenant's events come backwards.
async fn an_event_that_comes_after_newer_ones_takes_nothing_back(place: Place) {
    let user = Change::UserAdded {
        user_id: "u".into(),
        email: "ana@example.org".into(),
        role: "o".into(),
    };
    let changes = [
        Change::TenantCreated { name: "Mirador".into() },
        Change::GovernanceChanged { governance: governance(51) },
        Change::TenantUpdated { name: "Alameda".into() },
        user,
        Change::GovernanceChanged { governance: governance(67) },
    ];
    let events = changes.into_iter().zip(1..).map(|(change, version)| {
        let topic = change.event_type();
        let told = TenantEvent { tenant_id: "t".into(), version, change };
        let payload = serde_json::to_vec(&told).unwrap();
        Event::stored(NewEvent::bytes(topic, payload).key("t"), Utc::now())
    });
    let direct = Direct::to(place.directory.clone());
    for event in events.collect::<Vec<_>>().iter().rev() {
        assert_eq!(direct.publish(&[event]).await, [Confirm::Stored]);
    }
    let known: Vec<(String, i64, i64)> = place.directory.rows(&KNOWN, &[]).await.unwrap();
    assert_eq!(known, [("Alameda".into(), 67, 1)]);
    assert_eq!(place.effects().await, 5, "each of them is in the audit");
}

/// Many at once, all of one tenant: whoever waited for the tenant's row comes later.
async fn writers_of_one_tenant_keep_its_order(place: Place) {
    let tenants = Tenants::on(place.db.clone());
    let (_, relay) = relay(&place, &quick(), Direct::to(place.directory.clone())).await;
    let tenant = tenants.create("Mirador").await.unwrap().tenant_id;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..6 {
        let (tenants, tenant) = (tenants.clone(), tenant.clone());
        writers.spawn(async move {
            for n in 0..20 {
                tenants.rename(&tenant, &format!("Edificio {writer}-{n}")).await.unwrap();
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    until("effects", 121, || place.effects()).await;
    let order = Sql::both("SELECT version FROM audit_log ORDER BY number");
    let versions: Vec<(i64,)> = place.directory.rows(&order, &[]).await.unwrap();
    assert_eq!(versions, (1..=121).map(|version| (version,)).collect::<Vec<_>>());
    let name = tenants.show(&tenant).await.unwrap().name;
    let known = Sql::both("SELECT count(*) FROM tenant_directory WHERE name = $1");
    assert_eq!(place.directory.number(&known, &[name.into()]).await.unwrap(), 1);
    relay.stop().await.unwrap();
}

/// As compose.yaml starts the server. Here `created_at` says anything at all: the server's record of commits tells the
/// order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_one_tenant_keep_its_order_by_the_servers_record_of_commits() {
    let Some(place) = Place::with_commit_times().await else { return };
    let lies = "ALTER TABLE outbox_events ALTER COLUMN created_at
                  SET DEFAULT clock_timestamp() - random() * interval '1 hour'";
    common::run(&place.db, Sql::each(lies, ""), &[]).await;
    writers_of_one_tenant_keep_its_order(place).await;
}

/// Stores everything, and remembers how much it was handed at once.
#[derive(Clone, Default)]
struct Sizes(Arc<Mutex<Vec<usize>>>);

#[async_trait]
impl Publisher for Sizes {
    fn name(&self) -> &'static str {
        "sizes"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        self.0.lock().unwrap().push(events.len());
        vec![Confirm::Stored; events.len()]
    }
}

/// A claim is a transaction, and the log knows which one a row came with.
const LARGEST_CLAIM: &str =
    "SELECT max(rows) FROM (SELECT count(*) AS rows FROM relevo.outbox GROUP BY xid) AS claims";

async fn a_claim_and_a_batch_have_fifty_rows_at_most(place: Place) {
    const ROWS: i64 = 330;
    let tenants = Tenants::on(place.db.clone());
    let made = tenants.create("Mirador").await.unwrap();
    for n in 1..ROWS {
        match n % 2 {
            0 => tenants.rename(&made.tenant_id, &format!("Mirador {n}")).await.map(drop).unwrap(),
            _ => tenants.create(&format!("Edificio {n}")).await.map(drop).unwrap(),
        }
    }
    let sizes = Sizes::default();
    let (_, relay) = relay(&place, &quick(), sizes.clone()).await;
    until("published", ROWS, || place.published()).await;
    relay.stop().await.unwrap();
    let sizes = sizes.0.lock().unwrap().clone();
    assert_eq!(sizes.iter().sum::<usize>() as i64, ROWS);
    assert!(sizes.iter().all(|size| *size <= 50), "{sizes:?}");
    if place.service.starts_with("postgres") {
        assert_eq!(number(&place.db, Sql::each(LARGEST_CLAIM, "")).await, 50);
    }
}
