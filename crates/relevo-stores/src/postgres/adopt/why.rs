//! Why a row of an adopted table is no event of the log: not claimed yet, or done with and forgotten by the log.

use super::super::PostgresStore;
use super::super::session::{Session, args};
use super::claim::raw;
use super::shapes;
use super::statements::Maker;
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::{Answer, OpenTransaction, Why};
use relevo_core::event::{TopicFilter, order_key};
use relevo_core::outbox::MemberNote;
use relevo_core::outbox::adopt::{
    KeyOrder, Mapping, RawRow, Role, RowSeen, Sort, TableShape, event_id, inbox_of, judge, key_of,
    quoted_name,
};
use relevo_core::{EventId, Kind, Result};
use tokio_postgres::Row;
use uuid::Uuid;

/// So many pending rows are gone through for one whose event has an id of another kind than the row.
const MOST_COMPARED: i64 = 100_000;

/// A table that was adopted, with what its columns mean.
struct Adoption {
    name: String,
    mapping: Mapping,
    table: TableShape,
    dead: Option<TableShape>,
    order: KeyOrder,
}

impl PostgresStore {
    /// The answer for an event that is a row of an adopted table and none of the log. Where the log has it, it says whose
    /// it is (`inbox`), and only a row counts that its owner put back.
    pub(in super::super) async fn why_in_table(
        &self,
        session: &Session,
        event: EventId,
        in_log: bool,
        inbox: Option<&str>,
    ) -> Result<Option<Answer>> {
        if in_log && inbox.is_none() {
            return Ok(None);
        }
        let may_be = |adoption: &Adoption| !in_log || inbox == Some(&*inbox_of(&adoption.name));
        for adoption in adoptions(session).await?.into_iter().filter(may_be) {
            let answer = readable(adoption.answer_event(session, event, in_log).await)?;
            if answer.is_some() {
                return Ok(answer);
            }
        }
        Ok(None)
    }

    pub(super) async fn answer_why_row(&self, row: &str) -> Result<Option<(EventId, Answer)>> {
        let session = self.session().await?;
        for adoption in adoptions(&session).await? {
            let ids = adoption.candidates(row);
            // The last is as the table itself writes it.
            let Some(event) = ids.last().map(|id| event_id(&adoption.name, id)) else { continue };
            let known = self.why_on(&session, event).await?;
            if !matches!(known, Answer::Unknown { .. }) {
                return Ok(Some((event, known)));
            }
            if let Some(answer) = readable(adoption.answer(&session, &ids, false).await)? {
                return Ok(Some((event, answer)));
            }
        }
        Ok(None)
    }
}

/// A table that this user may not read has no answer; others may have one.
fn readable<T>(asked: Result<Option<T>>) -> Result<Option<T>> {
    match asked {
        Err(error) if error.kind() == Kind::MissingPrivilege => Ok(None),
        asked => asked,
    }
}

/// The adopted tables that are still there, that this user may see, and whose columns are known.
async fn adoptions(session: &Session) -> Result<Vec<Adoption>> {
    // A schema of the version before has no such column yet.
    let sql = "SELECT name, to_jsonb(a) ->> 'mapping' FROM relevo.adopted a ORDER BY name";
    let mut adoptions = Vec::new();
    for row in session.query(sql, args![]).await? {
        let mapping = row.get::<_, Option<&str>>(1).unwrap_or_default();
        let Ok(mapping) = serde_json::from_str::<Mapping>(mapping) else { continue };
        let (table, dead) = match shapes(session, &mapping).await {
            Ok(shapes) => shapes,
            Err(error) if matches!(error.kind(), Kind::UnfitTable | Kind::MissingPrivilege) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        let order = judge(&mapping, &table, dead.as_ref()).order;
        adoptions.push(Adoption { name: row.get(0), mapping, table, dead, order });
    }
    Ok(adoptions)
}

impl Adoption {
    /// How the row of this id may be written, as far as the column can hold it.
    fn candidates(&self, id: &str) -> Vec<String> {
        let uuid = Uuid::parse_str(id).ok();
        let written = |uuid: Uuid| {
            let (hyphens, simple) = (uuid.hyphenated().to_string(), uuid.simple().to_string());
            [hyphens.to_uppercase(), simple.to_uppercase(), hyphens, simple]
        };
        let Some(column) = self.mapping.column(Role::Id).and_then(|name| self.table.column(name))
        else {
            return Vec::new();
        };
        let number = match &*column.type_name {
            "smallint" => id.parse::<i16>().map(i64::from),
            "integer" => id.parse::<i32>().map(i64::from),
            _ => id.parse::<i64>(),
        };
        match column.sort {
            Sort::Uuid => uuid.map(|uuid| uuid.to_string()).into_iter().collect(),
            Sort::Integer => number.iter().map(ToString::to_string).collect(),
            Sort::Text => uuid.map(written).into_iter().flatten().chain([id.to_owned()]).collect(),
            _ => Vec::new(),
        }
    }

    /// The ids that the event's row may have. An id that is no UUID cannot be told from its event's: rows are compared.
    async fn ids_of(&self, session: &Session, event: EventId) -> Result<Vec<String>> {
        if event.0.get_version_num() != 8 {
            return Ok(self.candidates(&event.to_string()));
        }
        let sql = "SELECT row_id FROM relevo.claim WHERE event = $1 AND adoption = $2";
        if let Some(row) = session.query_opt(sql, args![event.0, self.name]).await? {
            return Ok(vec![row.get(0)]);
        }
        let sql = Maker::new(&self.mapping, &self.table)?.pending_ids();
        let rows = session.query(&sql, args![self.name, MOST_COMPARED]).await?;
        let ids = rows.iter().map(|row| row.get::<_, String>(0));
        Ok(ids.filter(|id| event_id(&self.name, id) == event).collect())
    }

    async fn answer_event(
        &self,
        session: &Session,
        event: EventId,
        only_put_back: bool,
    ) -> Result<Option<Answer>> {
        let ids = self.ids_of(session, event).await?;
        self.answer(session, &ids, only_put_back).await
    }

    async fn answer(
        &self,
        session: &Session,
        ids: &[String],
        only_put_back: bool,
    ) -> Result<Option<Answer>> {
        if ids.is_empty() {
            return Ok(None);
        }
        let maker = Maker::new(&self.mapping, &self.table)?;
        let found = session.query_opt(&maker.one(), args![self.name, ids.to_vec()]).await?;
        let Some(row) = found else {
            return if only_put_back { Ok(None) } else { self.buried(session, ids).await };
        };
        let (pending, unclaimed): (bool, bool) = (row.get(10), row.get(11));
        if only_put_back && !(pending && unclaimed) {
            return Ok(None);
        }
        let raw = raw(&row, maker.content_type());
        let mut seen = RowSeen { ended: self.ended(&row), ..RowSeen::default() };
        seen.subscription = self.subscription(session).await?;
        if let (None, Some((subscription, None))) = (&seen.ended, &seen.subscription) {
            seen.relay = relay(session, subscription).await?;
            seen.not_before = row.get(12);
            if raw.locked_by_others {
                seen.locked_by = holders(session, row.get(15)).await?;
            }
            self.look_ahead(session, &maker, &raw, &mut seen).await?;
        }
        Ok(Some(seen.answer(&self.name, &self.mapping, &raw)))
    }

    /// What the row says became of it.
    fn ended(&self, row: &Row) -> Option<Why> {
        let (pending, unclaimed): (bool, bool) = (row.get(10), row.get(11));
        let at: Option<DateTime<Utc>> = row.get(13);
        let says: Option<String> = row.get(14);
        let status = self.mapping.status.as_ref();
        match (pending, unclaimed) {
            (true, true) => None,
            // Told beside the table, which itself cannot.
            (true, false) => Some(RowSeen::by_claim(row.get(16), at)),
            (false, _) if status.is_some_and(|it| Some(&it.published) != says.as_ref()) => {
                Some(Why::OtherState { says })
            }
            (false, _) => Some(Why::Marked { at }),
        }
    }

    async fn subscription(&self, session: &Session) -> Result<Option<(String, Option<String>)>> {
        let own = format!("{}{}", TopicFilter::INBOX, inbox_of(&self.name));
        let sql = "SELECT name, paused FROM relevo.subscription WHERE $1 = ANY (topics) LIMIT 1";
        let row = session.query_opt(sql, args![own]).await?;
        Ok(row.map(|row| (row.get(0), row.get(1))))
    }

    /// What is claimed before the row: how much, and does somebody hold one of its key?
    async fn look_ahead(
        &self,
        session: &Session,
        maker: &Maker<'_>,
        row: &RawRow<String>,
        seen: &mut RowSeen,
    ) -> Result<()> {
        let key_of_row = |row: &RawRow<String>| {
            order_key(key_of(&self.mapping, row).as_deref(), event_id(&self.name, &row.id))
        };
        let own = key_of_row(row);
        let args = args![self.name, row.row, RowSeen::MOST_BEFORE + 1];
        for ahead in session.query(&maker.queue(&self.order), args).await? {
            let other = raw(&ahead, maker.content_type());
            // Where the row itself does not come, it comes after the last of these.
            seen.before = ahead.get::<_, i64>(10) - 1;
            seen.more_before = other.row != row.row;
            if !seen.more_before {
                break;
            }
            if seen.behind.is_none() && other.locked_by_others && key_of_row(&other) == own {
                seen.behind = Some(other.row);
            }
        }
        Ok(())
    }

    /// In its owner's table of dead letters?
    async fn buried(&self, session: &Session, ids: &[String]) -> Result<Option<Answer>> {
        let id = self.mapping.column(Role::Id).unwrap_or_default();
        let Some((dead, column)) =
            self.dead.as_ref().and_then(|dead| Some((dead, dead.column(id)?)))
        else {
            return Ok(None);
        };
        let (table, name, id_type) = (dead.name.sql(), quoted_name(id), &column.type_name);
        let sql = format!(
            "SELECT d.{name}::text FROM {table} d WHERE d.{name} = ANY ($1::text[]::{id_type}[])"
        );
        let row = session.query_opt(&sql, args![ids.to_vec()]).await?;
        let table = dead.name.to_string();
        Ok(row.map(|row| RowSeen::buried(&self.name, &self.mapping, row.get(0), table)))
    }
}

/// The relay of a subscription that was last heard of.
async fn relay(session: &Session, subscription: &str) -> Result<Option<(String, f64, MemberNote)>> {
    let sql = "SELECT member, extract(epoch FROM clock_timestamp() - seen_at)::float8, note::text FROM relevo.member
                WHERE subscription = $1 ORDER BY seen_at DESC LIMIT 1";
    let row = session.query_opt(sql, args![subscription]).await?;
    Ok(row.map(|row| {
        let note = serde_json::from_str(row.get(2)).unwrap_or_default();
        (row.get(0), row.get(1), MemberNote::read(&note))
    }))
}

/// The sessions of a transaction that holds a row.
async fn holders(session: &Session, transaction: &str) -> Result<Vec<OpenTransaction>> {
    let sql = "SELECT coalesce(l.pid, 0), coalesce(a.application_name, ''),
                      coalesce(extract(epoch FROM clock_timestamp() - a.xact_start)::float8, 0),
                      CASE WHEN l.pid IS NULL THEN 'prepared' ELSE coalesce(a.state, 'not shown to this user') END,
                      coalesce(left(a.query, 200), '')
                 FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
                WHERE l.locktype = 'transactionid' AND l.granted AND l.transactionid::text = $1";
    let rows = session.query(sql, args![transaction]).await?;
    let open = |row: &Row| {
        OpenTransaction::new(row.get(0), row.get(1), row.get(2), row.get(3), row.get(4))
    };
    Ok(rows.iter().map(open).collect())
}
