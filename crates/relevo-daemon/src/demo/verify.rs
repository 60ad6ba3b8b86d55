//! The proof at the end: orders and parcels joined by id in the database, whatever the relay says of itself.

use super::journal::Tally;
use super::shop::{Place, SUBSCRIPTION, sql};
use proof::{Report, Verdict};
use relevo_core::dead_letters::{Answer, Operate, Why};
use relevo_core::{EventId, Result};
use rusqlite::Connection;

/// Orders with neither a parcel nor a dead letter.
const UNACCOUNTED: &str = "
    SELECT o.id FROM shop_order o
    WHERE NOT EXISTS (SELECT 1 FROM shop_parcel p WHERE p.order_id = o.id)
      AND NOT EXISTS (SELECT 1 FROM relevo_dead_letter d WHERE d.event_id = o.id AND d.subscription = ?1)";

/// Parcels packed before a parcel of the same customer's earlier order.
const OUT_OF_ORDER: &str = "
    SELECT count(*) FROM (
        SELECT n, lag(n) OVER (PARTITION BY customer ORDER BY number) AS before FROM shop_parcel
    ) WHERE before >= n";

fn count(connection: &Connection, statement: &str) -> Result<u64> {
    connection
        .query_row(statement, [], |row| row.get::<_, i64>(0))
        .map(|n| n.unsigned_abs())
        .map_err(sql)
}

/// What is neither delivered nor dead: still on its way, or lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) pending: u64,
    pub(super) lost: u64,
}

/// Asks the log, event by event, why each unaccounted order is where it is.
pub(super) async fn open_orders(place: &Place, operate: &dyn Operate) -> Result<Open> {
    let connection = place.connect()?;
    let (mut pending, mut ended) = (0, Vec::new());
    for id in unaccounted(&connection)? {
        match is_on_its_way(&operate.why(id).await?) {
            true => pending += 1,
            false => ended.push(id),
        }
    }
    Ok(Open { pending, lost: still_unaccounted(&connection, &ended)? })
}

/// What was delivered between the two questions came to its end, and has its parcel by now.
fn still_unaccounted(connection: &Connection, ended: &[EventId]) -> Result<u64> {
    if ended.is_empty() {
        return Ok(0);
    }
    let unaccounted = unaccounted(connection)?;
    Ok(ended.iter().filter(|id| unaccounted.contains(id)).count() as u64)
}

fn unaccounted(connection: &Connection) -> Result<Vec<EventId>> {
    let mut statement = connection.prepare(UNACCOUNTED).map_err(sql)?;
    let rows = statement.query_map([SUBSCRIPTION], |row| row.get::<_, String>(0)).map_err(sql)?;
    rows.map(|row| row.map_err(sql).and_then(|id| id.parse())).collect()
}

/// Before the first worker is up there is no subscription yet; it will begin with the first order.
fn is_on_its_way(answer: &Answer) -> bool {
    let Answer::Known { subscriptions, .. } = answer else { return false };
    let why = subscriptions.iter().find(|(name, _)| name == SUBSCRIPTION).map(|(_, why)| why);
    !matches!(
        why,
        Some(Why::Delivered | Why::Skipped { .. } | Why::FilteredOut { .. } | Why::BeforeStart)
    )
}

/// Counts everything in the database and checks every promise: an order is delivered once it has a parcel, and a parcel is
/// its effect.
pub(super) fn verdict(place: &Place, open: &Open) -> Result<Verdict> {
    let connection = place.connect()?;
    let tally = Tally::of(&place.journal())?;
    let dead = "SELECT count(DISTINCT o.id) FROM shop_order o JOIN relevo_dead_letter d ON d.event_id = o.id";
    let delivered =
        "SELECT count(DISTINCT o.id) FROM shop_order o JOIN shop_parcel p ON p.order_id = o.id";
    let report = Report {
        committed: count(&connection, "SELECT count(*) FROM shop_order")?,
        delivered: count(&connection, delivered)?,
        effects: count(&connection, "SELECT count(*) FROM shop_parcel")?,
        duplicates_seen: tally.duplicates,
        retried: tally.retried,
        dead: count(&connection, dead)?,
        lost: open.lost,
    };
    let facts = Facts {
        ghosts: count(
            &connection,
            "SELECT count(*) FROM shop_parcel WHERE order_id NOT IN (SELECT id FROM shop_order)",
        )?,
        out_of_order: count(&connection, OUT_OF_ORDER)?,
        both: count(
            &connection,
            &format!("{delivered} JOIN relevo_dead_letter d ON d.event_id = o.id"),
        )?,
        pending: open.pending,
    };
    let broken = broken(&report, &facts);
    Ok(Verdict { report, broken })
}

/// What the report has no column for.
struct Facts {
    /// Parcels of orders that were never committed.
    ghosts: u64,
    out_of_order: u64,
    /// Orders with a parcel and a dead letter.
    both: u64,
    pending: u64,
}

/// A count with the words for one and for any other number.
fn told(n: u64, one: &str, many: &str) -> (bool, String) {
    (n > 0, format!("{n} {}", if n == 1 { one } else { many }))
}

fn broken(report: &Report, facts: &Facts) -> Vec<String> {
    let checks = [
        told(report.lost, "committed order was lost", "committed orders were lost"),
        told(
            facts.pending,
            "order was still on its way when the patience ended",
            "orders were still on their way when the patience ended",
        ),
        (
            report.effects > report.delivered + facts.ghosts,
            "some effects happened twice".to_owned(),
        ),
        told(
            facts.ghosts,
            "parcel belongs to an order that never committed",
            "parcels belong to orders that never committed",
        ),
        told(
            facts.out_of_order,
            "parcel was packed out of the order of its customer",
            "parcels were packed out of the order of their customer",
        ),
        told(
            facts.both,
            "order has a parcel and a dead letter",
            "orders have a parcel and a dead letter",
        ),
        (
            report.delivered + report.dead != report.committed + facts.both
                && report.lost == 0
                && facts.pending == 0,
            "delivered and dead do not add up to committed".to_owned(),
        ),
        (report.committed == 0, "nothing was committed at all".to_owned()),
    ];
    checks.into_iter().filter(|(is_broken, _)| *is_broken).map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            committed: 10,
            delivered: 9,
            effects: 9,
            duplicates_seen: 2,
            retried: 3,
            dead: 1,
            lost: 0,
        }
    }

    fn facts() -> Facts {
        Facts { ghosts: 0, out_of_order: 0, both: 0, pending: 0 }
    }

    #[test]
    fn only_what_has_no_parcel_in_the_end_is_lost() {
        let connection = Connection::open_in_memory().unwrap();
        let (packed, missing) = (EventId::fresh(), EventId::fresh());
        let tables = format!(
            "CREATE TABLE shop_order (id TEXT); CREATE TABLE shop_parcel (order_id TEXT);
             CREATE TABLE relevo_dead_letter (event_id TEXT, subscription TEXT);
             INSERT INTO shop_order VALUES ('{packed}'), ('{missing}');
             INSERT INTO shop_parcel VALUES ('{packed}')"
        );
        connection.execute_batch(&tables).unwrap();
        // Both were without a parcel when the log was asked about them.
        assert_eq!(still_unaccounted(&connection, &[packed, missing]).unwrap(), 1);
        assert_eq!(still_unaccounted(&connection, &[packed]).unwrap(), 0);
    }

    #[test]
    fn a_run_in_which_everything_arrived_once_or_died_keeps_its_promises() {
        assert!(broken(&report(), &facts()).is_empty());
    }

    #[test]
    fn every_broken_promise_is_named() {
        assert_eq!(
            broken(&Report { delivered: 8, effects: 8, lost: 1, ..report() }, &facts()).len(),
            1
        );
        assert_eq!(
            broken(&Report { effects: 10, ..report() }, &facts()),
            ["some effects happened twice"]
        );
        assert_eq!(broken(&report(), &Facts { out_of_order: 1, ..facts() }).len(), 1);
        assert_eq!(
            broken(&Report { effects: 10, ..report() }, &Facts { ghosts: 1, ..facts() }).len(),
            1
        );
        assert_eq!(broken(&Report { delivered: 8, effects: 8, ..report() }, &facts()).len(), 1);
        assert_eq!(
            broken(
                &Report { delivered: 8, effects: 8, ..report() },
                &Facts { pending: 1, ..facts() }
            )
            .len(),
            1
        );
    }

    #[test]
    fn one_is_told_as_one_and_two_as_two() {
        let of = |n: u64| {
            let report = Report { committed: 9 + n, lost: n, ..report() };
            broken(&report, &Facts { ghosts: n, out_of_order: n, both: n, pending: n })
        };
        assert_eq!(
            of(1),
            [
                "1 committed order was lost",
                "1 order was still on its way when the patience ended",
                "1 parcel belongs to an order that never committed",
                "1 parcel was packed out of the order of its customer",
                "1 order has a parcel and a dead letter",
            ]
        );
        assert_eq!(of(2)[0], "2 committed orders were lost");
        assert_eq!(of(2)[4], "2 orders have a parcel and a dead letter");
    }

    #[test]
    fn parcels_out_of_order_are_found_by_the_database() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE shop_parcel (number INTEGER PRIMARY KEY, order_id, customer TEXT, n INTEGER)").unwrap();
        let pack = |customer: &str, n: i64| {
            connection
                .execute("INSERT INTO shop_parcel (customer, n) VALUES (?1, ?2)", (customer, n))
                .unwrap();
        };
        pack("a", 1);
        pack("b", 1);
        pack("a", 3);
        assert_eq!(count(&connection, OUT_OF_ORDER).unwrap(), 0);
        pack("a", 2);
        assert_eq!(count(&connection, OUT_OF_ORDER).unwrap(), 1);
    }
}
