//! The verdict itself: what is wrong in the databases must turn it red, each thing by its name, and nothing else may.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use common::outbox::{on_both, quick, relay};
use common::{Kind, Place, run, until};
use smartedify::db::Sql;
use smartedify::downstream::direct::Direct;
use smartedify::embedded::journal::{Tally, Told};
use smartedify::embedded::verify::{self, Order};
use smartedify::tenants::{Changed, Tenants};

on_both! {
    effects_that_are_missing_or_double_or_of_nothing_or_late_are_each_named,
    a_change_that_was_acknowledged_and_taken_back_is_lost,
    what_waits_or_is_a_dead_letter_is_not_lost,
}

const GREEN: [&str; 0] = [];

/// An effect as the audit has it: its event, its tenant, and which version of it.
type Effect = (String, String, i64);

/// Three changes of one tenant, which all took effect, and what their client was told.
async fn three_changes(place: &Place) -> Vec<Told> {
    let tenants = Tenants::on(place.db.clone());
    let (_, relay) = relay(place, &quick(), Direct::to(place.directory.clone())).await;
    let made = tenants.create("Mirador").await.unwrap();
    let renamed = tenants.rename(&made.tenant_id, "Alameda").await.unwrap();
    let joined = tenants.add_user(&made.tenant_id, "ana@example.org", "owner").await.unwrap();
    until("published", 3, || place.published()).await;
    relay.stop().await.unwrap();
    let told = |Changed { tenant_id, version, event_id }| Told { tenant_id, version, event_id };
    [made, renamed, joined].map(told).to_vec()
}

/// What the verdict finds broken.
async fn broken(place: &Place, told: &[Told]) -> Vec<String> {
    let (db, directory) = (&place.db, &place.directory);
    let verdict = verify::judge(db, directory, Tally::default(), told, Order::Kept).await.unwrap();
    assert_eq!(verdict.holds(), verdict.broken.is_empty());
    verdict.broken
}

async fn effects(place: &Place) -> Vec<Effect> {
    const EFFECTS: Sql =
        Sql::both("SELECT event_id, tenant_id, version FROM audit_log ORDER BY number");
    place.directory.rows(&EFFECTS, &[]).await.unwrap()
}

/// Writes the audit anew, with these effects in this order.
async fn tamper(place: &Place, effects: &[Effect]) {
    const ADD: Sql = Sql::both(
        "INSERT INTO audit_log (event_id, tenant_id, version, event_type) VALUES ($1, $2, $3, 'x')",
    );
    run(&place.directory, Sql::both("DELETE FROM audit_log"), &[]).await;
    for (event, tenant, version) in effects {
        let args = [event.as_str().into(), tenant.as_str().into(), (*version).into()];
        assert_eq!(run(&place.directory, ADD, &args).await, 1);
    }
}

async fn effects_that_are_missing_or_double_or_of_nothing_or_late_are_each_named(place: Place) {
    let told = three_changes(&place).await;
    assert_eq!(broken(&place, &told).await, GREEN);
    let whole = effects(&place).await;
    assert_eq!(whole.iter().map(|(.., version)| *version).collect::<Vec<_>>(), [1, 2, 3]);
    let (event, tenant, _) = whole[2].clone();
    let and = |one_more: Effect| [whole.clone(), vec![one_more]].concat();
    let missing = whole[..2].to_vec();
    let double = and(whole[2].clone());
    let of_no_version = and((event.clone(), tenant, 4));
    let of_no_tenant = and((event, "nobody".into(), 1));
    let late = vec![whole[1].clone(), whole[0].clone(), whole[2].clone()];
    for (effects, red) in [
        (missing, "1 changes were lost"),
        (double, "1 effects happened twice"),
        (of_no_version, "1 effects belong to changes that never committed"),
        (of_no_tenant, "1 effects belong to changes that never committed"),
        (late, "1 effects came out of the order of their tenant"),
    ] {
        tamper(&place, &effects).await;
        assert_eq!(broken(&place, &told).await, [red]);
    }
    tamper(&place, &whole).await;
    assert_eq!(broken(&place, &told).await, GREEN, "nothing else had changed");
}

/// Told of, and not in the service's table: whether the client heard too much or the service forgot it.
async fn a_change_that_was_acknowledged_and_taken_back_is_lost(place: Place) {
    let mut told = three_changes(&place).await;
    let taken_back = ["1 changes were lost", "1 changes were acknowledged and never committed"];
    let never = Told { version: 4, ..told[2].clone() };
    told.push(never);
    assert_eq!(broken(&place, &told).await, taken_back);
    told.pop();
    assert_eq!(broken(&place, &told).await, GREEN);

    let forget = Sql::both("UPDATE tenants SET version = version - 1");
    assert_eq!(run(&place.db, forget, &[]).await, 1);
    let whole = effects(&place).await;
    tamper(&place, &whole[..2]).await;
    assert_eq!(broken(&place, &told).await, taken_back);
}

const UNPUBLISH: Sql = Sql::each(
    "UPDATE outbox_events SET published_at = NULL WHERE id = $1::uuid",
    "UPDATE outbox_events SET published_at = NULL WHERE id = $1",
);
const BURY: Sql = Sql::each(
    "INSERT INTO outbox_events_dlq (id, aggregate_type, aggregate_id, event_type, payload, next_retry_at, created_at, updated_at)
     SELECT id, aggregate_type, aggregate_id, event_type, payload, next_retry_at, created_at, updated_at
       FROM outbox_events WHERE id = $1::uuid",
    "INSERT INTO outbox_events_dlq (id, aggregate_type, aggregate_id, event_type, payload, next_retry_at, created_at, updated_at)
     SELECT id, aggregate_type, aggregate_id, event_type, payload, next_retry_at, created_at, updated_at
       FROM outbox_events WHERE id = $1",
);

async fn what_waits_or_is_a_dead_letter_is_not_lost(place: Place) {
    let told = three_changes(&place).await;
    let (whole, last) = (effects(&place).await, told[2].event_id.as_str());
    tamper(&place, &whole[..2]).await;
    assert_eq!(run(&place.db, UNPUBLISH, &[last.into()]).await, 1);
    let waits = "1 changes were still on their way when the patience ended";
    assert_eq!(broken(&place, &told).await, [waits]);
    assert_eq!(run(&place.db, BURY, &[last.into()]).await, 1);
    assert_eq!(broken(&place, &told).await, GREEN, "a dead letter is kept with its reason");
    tamper(&place, &whole).await;
    let both = "1 changes took effect and are dead letters";
    assert_eq!(broken(&place, &told).await, [both]);
}
