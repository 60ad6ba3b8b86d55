//! The SQL for one mapping. Every name in it is quoted; every value is an argument, but for the owner's own words for
//! states, which are literals so that they take the column's type.

use super::super::rows::now_ms;
use relevo_core::outbox::adopt::{
    ColumnShape, DeadTable, Mapping, Role, Sort, TableShape, literal, quoted_name,
};

/// What is asked of the adopted table. Arguments: `?1` adoption; `?2` an event, or a number of rows; of failures `?3`
/// attempts, `?4` milliseconds, `?5` error, `?6` class.
pub(super) struct Statements {
    pub(super) look: String,
    /// What was moved to the dead-letter table comes back.
    pub(super) restore: Vec<String>,
    pub(super) published: Vec<String>,
    pub(super) failed: Option<String>,
    pub(super) dead: Vec<String>,
    pub(super) pending: String,
    /// `?2` milliseconds: what is kept of rows that are done with and gone.
    pub(super) forget: String,
    /// The mapping it was made of.
    pub(super) mapping: Mapping,
    /// The payload's media type, as its column's type tells.
    pub(super) content_type: &'static str,
}

/// The row of an event.
const ROW: &str = "(SELECT row_id FROM relevo_claim WHERE adoption = ?1 AND event = ?2)";

pub(super) struct Maker<'m> {
    mapping: &'m Mapping,
    table: &'m TableShape,
    /// The column of the id, as SQL names it.
    id: String,
}

impl Statements {
    pub(super) fn new(mapping: &Mapping, table: &TableShape, dead: Option<&TableShape>) -> Self {
        let maker = Maker::new(mapping, table);
        let tables = dead.zip(mapping.dead_letters.as_ref());
        let restore: Vec<String> =
            dead.map(|dead| maker.restore(dead)).into_iter().flatten().collect();
        // What was replayed and dies again is still among the dead letters: from there it comes back to be moved anew.
        let dead = [restore.clone(), maker.dead(tables)].concat();
        Self {
            look: maker.look(),
            restore,
            published: maker.published(),
            failed: maker.failed(),
            dead,
            pending: maker.pending(),
            forget: maker.forget(),
            mapping: mapping.clone(),
            content_type: maker.content_type(),
        }
    }
}

impl<'m> Maker<'m> {
    pub(super) fn new(mapping: &'m Mapping, table: &'m TableShape) -> Self {
        let id = quoted_name(mapping.column(Role::Id).unwrap_or_default());
        Self { mapping, table, id }
    }

    fn shape(&self, role: Role) -> Option<&'m ColumnShape> {
        self.mapping.column(role).and_then(|name| self.table.column(name))
    }

    /// The column of a role, or NULL.
    fn value(&self, role: Role) -> String {
        let column = self.shape(role).map(|column| format!("t.{}", quoted_name(&column.name)));
        column.unwrap_or_else(|| "NULL".into())
    }

    pub(super) fn content_type(&self) -> &'static str {
        match self.shape(Role::Payload).map(|column| column.sort) {
            Some(Sort::Json | Sort::Text) => "application/json",
            _ => "application/octet-stream",
        }
    }

    /// Milliseconds since 1970, whichever way the time is written; NULL for what is no time.
    fn millis(&self, role: Role) -> String {
        let value = self.value(role);
        format!(
            "CASE typeof({value}) WHEN 'integer' THEN {value}
                  ELSE CAST((julianday({value}) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER) END"
        )
    }

    fn due(&self) -> String {
        let (value, millis) = (self.value(Role::NextAttemptAt), self.millis(Role::NextAttemptAt));
        match self.shape(Role::NextAttemptAt) {
            Some(_) => format!("({value} IS NULL OR COALESCE({millis}, 0) <= {})", now_ms!()),
            None => "true".into(),
        }
    }

    /// Rows that are not in one of these states beside the table.
    fn not_beside(&self, states: &[&str]) -> String {
        let states: Vec<String> = states.iter().map(|state| literal(state)).collect();
        format!(
            "NOT EXISTS (SELECT 1 FROM relevo_claim c WHERE c.adoption = ?1 AND c.row_id = t.{} AND c.state IN ({}))",
            self.id,
            states.join(", ")
        )
    }

    /// What the table itself does not tell of rows that are done with.
    fn untold(&self) -> Vec<&'static str> {
        let told =
            [("published", self.mapping.marks_published()), ("dead", self.mapping.marks_dead())];
        told.iter().filter(|(_, told)| !told).map(|(state, _)| *state).collect()
    }

    fn order_by(&self) -> String {
        if self.table.rows_are_in_commit_order {
            let seen = self.table.row_number.as_ref().map(|number| quoted_name(&number.column));
            return format!("t.{}", seen.as_deref().unwrap_or("_rowid_"));
        }
        let roles = [Role::Sequence, Role::CreatedAt, Role::Id];
        let by = roles.iter().filter_map(|role| self.shape(*role).map(|_| self.value(*role)));
        by.collect::<Vec<_>>().join(", ")
    }

    fn look(&self) -> String {
        let unclaimed = self.not_beside(&[&["claimed"], self.untold().as_slice()].concat());
        format!(
            "SELECT t.{id}, {topic}, {key}, {kind}, {payload}, {headers}, {correlation}, {tenant}, {created}
               FROM {table} t WHERE {pending} AND {due} AND {unclaimed} ORDER BY {order} LIMIT ?2",
            id = self.id,
            topic = self.value(Role::Topic),
            key = self.value(Role::Key),
            kind = self.value(Role::Type),
            payload = self.value(Role::Payload),
            headers = self.value(Role::Headers),
            correlation = self.value(Role::CorrelationId),
            tenant = self.value(Role::Tenant),
            created = self.millis(Role::CreatedAt),
            table = self.table.name.sql(),
            pending = self.mapping.relayable_sql("t", self.table),
            due = self.due(),
            order = self.order_by(),
        )
    }

    /// `?1` adoption, `?2` an id: a row whatever its state, as [`Self::look`] reads it; then is it pending, is it unclaimed,
    /// not before when, published when, its state, and its claim's state.
    pub(super) fn one(&self) -> String {
        let unclaimed = self.not_beside(&[&["claimed"], self.untold().as_slice()].concat());
        let due = self.due();
        let status = self.mapping.status.as_ref();
        let status = status.map(|status| format!("t.{}", quoted_name(&status.column)));
        let published = match self.shape(Role::PublishedAt) {
            Some(_) => self.millis(Role::PublishedAt),
            None => "NULL".into(),
        };
        format!(
            "SELECT t.{id}, {topic}, {key}, {kind}, {payload}, {headers}, {correlation}, {tenant}, {created},
                    COALESCE({pending}, 0), {unclaimed}, CASE WHEN NOT {due} THEN {not_before} END, {published}, {status},
                    (SELECT c.state FROM relevo_claim c WHERE c.adoption = ?1 AND c.row_id = t.{id})
               FROM {table} t WHERE t.{id} = ?2",
            id = self.id,
            topic = self.value(Role::Topic),
            key = self.value(Role::Key),
            kind = self.value(Role::Type),
            payload = self.value(Role::Payload),
            headers = self.value(Role::Headers),
            correlation = self.value(Role::CorrelationId),
            tenant = self.value(Role::Tenant),
            created = self.millis(Role::CreatedAt),
            pending = self.mapping.pending_sql("t"),
            not_before = self.millis(Role::NextAttemptAt),
            status = status.unwrap_or_else(|| "NULL".into()),
            table = self.table.name.sql(),
        )
    }

    /// `?1` adoption, `?2` an id, `?3` most rows: the row's place in the order of claims, or the last of so many; and is it
    /// the row's?
    pub(super) fn place(&self) -> String {
        let unclaimed = self.not_beside(&[&["claimed"], self.untold().as_slice()].concat());
        format!(
            "SELECT place, COALESCE(row_id = ?2, 0) FROM (
                SELECT row_id, row_number() OVER () AS place FROM (
                    SELECT t.{id} AS row_id FROM {table} t WHERE {pending} AND {due} AND {unclaimed}
                     ORDER BY {order} LIMIT ?3))
              WHERE row_id = ?2 OR place = ?3 ORDER BY place LIMIT 1",
            id = self.id,
            order = self.order_by(),
            table = self.table.name.sql(),
            pending = self.mapping.relayable_sql("t", self.table),
            due = self.due(),
        )
    }

    /// `?1` adoption, `?2` most rows: the ids of what is pending.
    pub(super) fn pending_ids(&self) -> String {
        let (table, id) = (self.table.name.sql(), &self.id);
        let unclaimed = self.not_beside(&[&["claimed"], self.untold().as_slice()].concat());
        let pending = self.mapping.relayable_sql("t", self.table);
        format!("SELECT t.{id} FROM {table} t WHERE {pending} AND {unclaimed} LIMIT ?2")
    }

    fn published(&self) -> Vec<String> {
        if !self.mapping.marks_published() {
            return vec![
                "UPDATE relevo_claim SET state = 'published' WHERE adoption = ?1 AND event = ?2"
                    .into(),
            ];
        }
        let (table, id) = (self.table.name.sql(), &self.id);
        let mark = if self.mapping.delete {
            format!("DELETE FROM {table} WHERE {id} = {ROW}")
        } else {
            let stamp = |role: &Role| {
                let column = self.shape(*role)?;
                Some(format!("{} = {}", quoted_name(&column.name), moment(column, "0")))
            };
            let mut sets: Vec<String> =
                [Role::PublishedAt, Role::UpdatedAt].iter().filter_map(stamp).collect();
            let status = self.mapping.status.iter();
            sets.extend(status.map(|status| state(&status.column, &status.published)));
            format!("UPDATE {table} SET {} WHERE {id} = {ROW}", sets.join(", "))
        };
        vec![mark, "DELETE FROM relevo_claim WHERE adoption = ?1 AND event = ?2".into()]
    }

    /// A value of a failure as the column of its role takes it.
    fn failure(column: &ColumnShape, role: Role) -> Option<String> {
        Some(match role {
            Role::Attempts => "?3".into(),
            Role::Error => "?5".into(),
            Role::ErrorClass => "?6".into(),
            Role::ErrorAt | Role::UpdatedAt => moment(column, "0"),
            Role::NextAttemptAt => {
                let (later, name) = (moment(column, "?4"), quoted_name(&column.name));
                format!("iif(?4 IS NULL, {name}, {later})")
            }
            _ => return None,
        })
    }

    fn failed(&self) -> Option<String> {
        let roles = [
            Role::Attempts,
            Role::NextAttemptAt,
            Role::Error,
            Role::ErrorClass,
            Role::ErrorAt,
            Role::UpdatedAt,
        ];
        let set = |role: &Role| {
            let column = self.shape(*role)?;
            Some(format!("{} = {}", quoted_name(&column.name), Self::failure(column, *role)?))
        };
        let sets: Vec<String> = roles.iter().filter_map(set).collect();
        let (table, id) = (self.table.name.sql(), &self.id);
        (!sets.is_empty())
            .then(|| format!("UPDATE {table} SET {} WHERE {id} = {ROW}", sets.join(", ")))
    }

    fn dead(&self, tables: Option<(&TableShape, &DeadTable)>) -> Vec<String> {
        let mut list: Vec<String> = self.failed().into_iter().collect();
        let word =
            self.mapping.status.as_ref().and_then(|status| Some((status, status.dead.as_ref()?)));
        if let Some((shape, dead)) = tables {
            list.extend(self.bury(shape, dead));
        } else if let Some((status, word)) = word {
            let (table, set) = (self.table.name.sql(), state(&status.column, word));
            list.push(format!("UPDATE {table} SET {set} WHERE {} = {ROW}", self.id));
        }
        list.push(
            "UPDATE relevo_claim SET state = 'dead' WHERE adoption = ?1 AND event = ?2".into(),
        );
        list
    }

    /// Moves a row to the owner's table of dead letters; one of the same id that is there already gives way.
    fn bury(&self, shape: &TableShape, dead: &DeadTable) -> [String; 3] {
        let (table, there, id) = (self.table.name.sql(), shape.name.sql(), &self.id);
        let mut columns = self.common(shape);
        columns.retain(|name| !dead.columns.values().any(|extra| extra == name));
        let extra = dead.columns.iter().filter_map(|(role, name)| {
            Some((quoted_name(name), Self::failure(shape.column(name)?, *role)?))
        });
        let common = columns.iter().map(|name| (quoted_name(name), quoted_name(name)));
        let (into, from): (Vec<String>, Vec<String>) = common.chain(extra).unzip();
        let (into, from) = (into.join(", "), from.join(", "));
        [
            format!("DELETE FROM {there} WHERE {id} = {ROW}"),
            format!("INSERT INTO {there} ({into}) SELECT {from} FROM {table} WHERE {id} = {ROW}"),
            format!("DELETE FROM {table} WHERE {id} = {ROW}"),
        ]
    }

    /// Columns that both tables have and that may be written.
    fn common(&self, dead: &TableShape) -> Vec<String> {
        let writable = |column: &&ColumnShape| {
            !column.generated && dead.column(&column.name).is_some_and(|other| !other.generated)
        };
        self.table.columns.iter().filter(writable).map(|column| column.name.clone()).collect()
    }

    fn restore(&self, dead: &TableShape) -> [String; 2] {
        let columns: Vec<String> = self.common(dead).iter().map(|name| quoted_name(name)).collect();
        let columns = columns.join(", ");
        let (table, there, id) = (self.table.name.sql(), dead.name.sql(), &self.id);
        let died = "(SELECT row_id FROM relevo_claim WHERE adoption = ?1 AND event = ?2 AND state = 'dead')";
        [
            format!(
                "INSERT OR IGNORE INTO {table} ({columns}) SELECT {columns} FROM {there} WHERE {id} = {died}"
            ),
            format!("DELETE FROM {there} WHERE {id} = {died}"),
        ]
    }

    /// How many rows are pending as the owner sees it, and since when the oldest.
    fn pending(&self) -> String {
        let untold = self.untold();
        let beside = if untold.is_empty() { "?1 <> ''".into() } else { self.not_beside(&untold) };
        format!(
            "SELECT count(*), COALESCE(({now} - min(created)) / 1000.0, 0.0) FROM (
                SELECT {created} AS created FROM {table} t WHERE {pending} AND {beside} LIMIT ?2)",
            now = now_ms!(),
            created = self.millis(Role::CreatedAt),
            table = self.table.name.sql(),
            pending = self.mapping.pending_sql("t"),
        )
    }

    fn forget(&self) -> String {
        format!(
            "DELETE FROM relevo_claim AS c WHERE adoption = ?1
                AND (state = 'published' OR state = 'dead' AND claimed_at < {} - ?2)
                AND NOT EXISTS (SELECT 1 FROM {} t WHERE t.{} = c.row_id)",
            now_ms!(),
            self.table.name.sql(),
            self.id
        )
    }
}

fn state(column: &str, word: &str) -> String {
    format!("{} = {}", quoted_name(column), literal(word))
}

/// So many milliseconds from now, as this column takes it.
fn moment(column: &ColumnShape, ms: &str) -> String {
    match column.sort {
        Sort::Integer => format!("{} + {ms}", now_ms!()),
        _ => format!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ({ms} / 1000.0) || ' seconds')"),
    }
}
