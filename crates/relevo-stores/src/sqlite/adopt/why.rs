//! Why a row of an adopted table is no event of the log: not claimed yet, or done with and forgotten by the log.

use super::super::errors::{Fault, Sql};
use super::super::rows::{now, text, time};
use super::super::why::why;
use super::claim::{identity, raw};
use super::shapes;
use super::statements::Maker;
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::{Answer, Why};
use relevo_core::event::TopicFilter;
use relevo_core::outbox::MemberNote;
use relevo_core::outbox::adopt::{
    Mapping, Role, RowSeen, Sort, TableShape, event_id, inbox_of, quoted_name,
};
use relevo_core::{EventId, Kind};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use uuid::Uuid;

/// So many pending rows are gone through for one whose event has an id of another kind than the row.
const MOST_COMPARED: i64 = 100_000;

/// A table that was adopted, with what its columns mean.
struct Adoption {
    name: String,
    mapping: Mapping,
    table: TableShape,
    dead: Option<TableShape>,
}

/// The answer for an event that is a row of an adopted table and none of the log. Where the log has it, it says whose it is
/// (`inbox`), and only a row counts that its owner put back.
pub(in super::super) fn why_in_table(
    tx: &Transaction<'_>,
    event: EventId,
    in_log: bool,
    inbox: Option<&str>,
) -> Sql<Option<Answer>> {
    if in_log && inbox.is_none() {
        return Ok(None);
    }
    let may_be = |adoption: &Adoption| !in_log || inbox == Some(&*inbox_of(&adoption.name));
    for adoption in adoptions(tx)?.into_iter().filter(may_be) {
        let ids = adoption.ids_of(tx, event)?;
        if let Some(answer) = adoption.answer(tx, &ids, in_log)? {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

/// The answer for a row as its owner knows it.
pub(super) fn why_row(tx: &Transaction<'_>, row: &str) -> Sql<Option<(EventId, Answer)>> {
    for adoption in adoptions(tx)? {
        let row = adoption.written(row);
        let event = event_id(&adoption.name, &row);
        let known = why(tx, event)?;
        if !matches!(known, Answer::Unknown { .. }) {
            return Ok(Some((event, known)));
        }
        if let Some(answer) = adoption.answer(tx, &candidates(&row), false)? {
            return Ok(Some((event, answer)));
        }
    }
    Ok(None)
}

/// The adopted tables that are still there and whose columns are known.
fn adoptions(tx: &Transaction<'_>) -> Sql<Vec<Adoption>> {
    // A schema of the version before has no such column yet.
    let sql = "SELECT 1 FROM pragma_table_info('relevo_adopted') WHERE name = 'mapping'";
    if tx.query_row(sql, [], |_| Ok(())).optional()?.is_none() {
        return Ok(Vec::new());
    }
    let mut statement = tx.prepare("SELECT name, mapping FROM relevo_adopted ORDER BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut adoptions = Vec::new();
    for row in rows {
        let (name, mapping): (String, Option<String>) = row?;
        let Ok(mapping) = serde_json::from_str::<Mapping>(&mapping.unwrap_or_default()) else {
            continue;
        };
        match shapes(tx, &mapping) {
            Ok((table, dead)) => adoptions.push(Adoption { name, mapping, table, dead }),
            Err(Fault::Own(error)) if error.kind() == Kind::UnfitTable => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(adoptions)
}

/// How the row of this id may be written; SQLite compares a text with a number as the column wants it.
fn candidates(id: &str) -> Vec<Value> {
    let uuid = Uuid::parse_str(id).ok().into_iter();
    let written = |uuid: Uuid| {
        let (hyphens, simple) = (uuid.hyphenated().to_string(), uuid.simple().to_string());
        [hyphens.to_uppercase(), simple.to_uppercase(), hyphens, simple].map(Value::Text)
    };
    let blobs = uuid.clone().map(|uuid| Value::Blob(uuid.as_bytes().to_vec()));
    uuid.flat_map(written).chain(blobs).chain([Value::Text(id.to_owned())]).collect()
}

impl Adoption {
    /// An id as the table itself writes it.
    fn written(&self, id: &str) -> String {
        let column = self.mapping.column(Role::Id).and_then(|name| self.table.column(name));
        let number = id.parse::<i64>().ok();
        let number = number.filter(|_| column.is_some_and(|it| it.sort == Sort::Integer));
        number.map_or_else(|| id.to_owned(), |number| number.to_string())
    }

    /// The ids that the event's row may have. An id that is no UUID cannot be told from its event's: rows are compared.
    fn ids_of(&self, tx: &Transaction<'_>, event: EventId) -> Sql<Vec<Value>> {
        if event.0.get_version_num() != 8 {
            return Ok(candidates(&event.to_string()));
        }
        let sql = "SELECT row_id FROM relevo_claim WHERE event = ?1 AND adoption = ?2";
        let claimed = tx
            .query_row(sql, params![event.to_string(), self.name], |row| row.get(0))
            .optional()?;
        if let Some(id) = claimed {
            return Ok(vec![id]);
        }
        let mut statement = tx.prepare(&Maker::new(&self.mapping, &self.table).pending_ids())?;
        let mut rows = statement.query(params![self.name, MOST_COMPARED])?;
        while let Some(row) = rows.next()? {
            if event_id(&self.name, &identity(row)?) == event {
                return Ok(vec![row.get(0)?]);
            }
        }
        Ok(Vec::new())
    }

    fn answer(
        &self,
        tx: &Transaction<'_>,
        ids: &[Value],
        only_put_back: bool,
    ) -> Sql<Option<Answer>> {
        for id in ids {
            let answer = self.of_row(tx, id, only_put_back)?;
            if answer.is_some() {
                return Ok(answer);
            }
        }
        if only_put_back { Ok(None) } else { self.buried(tx, ids) }
    }

    fn of_row(&self, tx: &Transaction<'_>, id: &Value, only_put_back: bool) -> Sql<Option<Answer>> {
        let maker = Maker::new(&self.mapping, &self.table);
        let mut statement = tx.prepare(&maker.one())?;
        let mut rows = statement.query(params![self.name, id])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let ended = self.ended(row)?;
        if only_put_back && ended.is_some() {
            return Ok(None);
        }
        let mut seen = RowSeen { ended, ..RowSeen::default() };
        seen.subscription = self.subscription(tx)?;
        if let (None, Some((subscription, None))) = (&seen.ended, &seen.subscription) {
            seen.relay = relay(tx, subscription)?;
            seen.not_before = moment(row, 11)?;
            let most = RowSeen::MOST_BEFORE + 1;
            let place = |row: &Row<'_>| Ok((row.get::<_, i64>(0)? - 1, !row.get::<_, bool>(1)?));
            let place = tx.query_row(&maker.place(), params![self.name, id, most], place);
            (seen.before, seen.more_before) = place.optional()?.unwrap_or_default();
        }
        let raw = raw(row, maker.content_type())?;
        Ok(Some(seen.answer(&self.name, &self.mapping, &raw)))
    }

    /// What the row says became of it.
    fn ended(&self, row: &Row<'_>) -> Sql<Option<Why>> {
        let (pending, unclaimed): (bool, bool) = (row.get(9)?, row.get(10)?);
        let (at, says) = (moment(row, 12)?, text(row.get_ref(13)?));
        let status = self.mapping.status.as_ref();
        Ok(match (pending, unclaimed) {
            (true, true) => None,
            // Told beside the table, which itself cannot.
            (true, false) => Some(RowSeen::by_claim(text(row.get_ref(14)?).as_deref(), at)),
            (false, _) if status.is_some_and(|it| Some(&it.published) != says.as_ref()) => {
                Some(Why::OtherState { says })
            }
            (false, _) => Some(Why::Marked { at }),
        })
    }

    fn subscription(&self, tx: &Transaction<'_>) -> Sql<Option<(String, Option<String>)>> {
        let own = format!("{}{}", TopicFilter::INBOX, inbox_of(&self.name));
        let sql = "SELECT name, paused, topics FROM relevo_subscription ORDER BY name";
        let mut statement = tx.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if super::super::status::topics(&row.get::<_, String>(2)?).contains(&own) {
                return Ok(Some((row.get(0)?, row.get(1)?)));
            }
        }
        Ok(None)
    }

    /// In its owner's table of dead letters?
    fn buried(&self, tx: &Transaction<'_>, ids: &[Value]) -> Sql<Option<Answer>> {
        let Some(dead) = &self.dead else { return Ok(None) };
        let id = quoted_name(self.mapping.column(Role::Id).unwrap_or_default());
        let sql = format!("SELECT {id} FROM {} WHERE {id} = ?1", dead.name.sql());
        for wanted in ids {
            let found = tx.query_row(&sql, [wanted], identity).optional()?;
            if let Some(row) = found {
                let table = dead.name.to_string();
                return Ok(Some(RowSeen::buried(&self.name, &self.mapping, row, table)));
            }
        }
        Ok(None)
    }
}

fn moment(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<DateTime<Utc>>> {
    Ok(row.get::<_, Option<i64>>(index)?.map(time))
}

/// The relay of a subscription that was last heard of.
fn relay(tx: &Transaction<'_>, subscription: &str) -> Sql<Option<(String, f64, MemberNote)>> {
    let sql = "SELECT member, seen_at, note FROM relevo_member WHERE subscription = ?1 ORDER BY seen_at DESC LIMIT 1";
    let member = |row: &Row<'_>| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?))
    };
    let Some((name, seen_at, note)) = tx.query_row(sql, [subscription], member).optional()? else {
        return Ok(None);
    };
    let note = serde_json::from_str(&note).unwrap_or_default();
    let silent_s = (now(tx)? - seen_at).max(0) as f64 / 1000.0;
    Ok(Some((name, silent_s, MemberNote::read(&note))))
}
