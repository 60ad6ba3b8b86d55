//! The SQL for one mapping. Every name in it is quoted; every value is an argument, but for the owner's own words for
//! states, which are literals so that they take the column's type.

use relevo_core::outbox::adopt::{
    ColumnShape, DeadTable, KeyFrom, KeyOrder, Mapping, Role, Sort, TableShape, Times, literal,
    quoted_name,
};
use relevo_core::{Error, Kind, Result};

/// What is asked of the adopted table.
pub(super) struct Statements {
    /// `$1` adoption, `$2` most rows: the ids of what may be claimed, in order.
    pub(super) look: String,
    /// `$1` adoption, `$2` ids, `$3` payload bytes.
    pub(super) claim: String,
    /// `$1` adoption, `$2` events: what was moved to the dead-letter table comes back.
    pub(super) restore: Option<String>,
    /// `$1` adoption, `$2` events.
    pub(super) published: String,
    /// `$1` adoption, `$2` events, `$3` attempts, `$4` seconds, `$5` errors, `$6` classes.
    pub(super) failed: Option<String>,
    /// The same arguments.
    pub(super) dead: Vec<String>,
    /// `$1` adoption, `$2` most rows counted.
    pub(super) pending: String,
    /// `$1` adoption, `$2` seconds: what is kept of rows that are done with and gone.
    pub(super) forget: String,
    /// The mapping it was made of.
    pub(super) mapping: Mapping,
    /// The payload's media type, as its column's type tells.
    pub(super) content_type: &'static str,
}

/// What the failures of several events are joined as.
const FAILURES: &str = "unnest($2::uuid[], $3::int[], $4::float8[], $5::text[], $6::text[]) AS p (event, attempts, retry_in, error, class)";

/// Does the transaction that last wrote into a row, or locked it, still run? (Of several that share a lock, none is told.)
const HELD: &str = "coalesce(t.xmax IN (SELECT l.transactionid FROM pg_locks l WHERE l.locktype = 'transactionid' AND l.granted
     AND l.pid IS DISTINCT FROM pg_backend_pid()), false)";
/// Where rows are never changed, a lock keeps nobody from claiming them.
const NOT_HELD: &str = "false";

pub(super) struct Maker<'m> {
    mapping: &'m Mapping,
    table: &'m TableShape,
    /// The column of the id, as SQL names it, and its type.
    id: String,
    id_type: &'m str,
}

impl Statements {
    pub(super) fn new(
        mapping: &Mapping,
        table: &TableShape,
        dead: Option<&TableShape>,
        order: &KeyOrder,
    ) -> Result<Self> {
        let maker = Maker::new(mapping, table)?;
        let tables = dead.zip(mapping.dead_letters.as_ref());
        let restore = dead.map(|dead| maker.restore(dead));
        // What was replayed and dies again is still among the dead letters: from there it comes back to be moved anew.
        let dead = restore.iter().cloned().chain(maker.dead(tables)).collect();
        Ok(Self {
            look: maker.look(order),
            claim: maker.claim(),
            restore,
            published: maker.published(),
            failed: maker.failed(),
            dead,
            pending: maker.pending(),
            forget: maker.forget(),
            mapping: mapping.clone(),
            content_type: maker.content_type(),
        })
    }
}

impl<'m> Maker<'m> {
    pub(super) fn new(mapping: &'m Mapping, table: &'m TableShape) -> Result<Self> {
        let id = mapping.column(Role::Id).and_then(|name| table.column(name));
        let missing = || Error::new(Kind::UnfitTable, format!("{} has no id", table.name));
        let id = id.ok_or_else(missing)?;
        Ok(Self { mapping, table, id: quoted_name(&id.name), id_type: &id.type_name })
    }

    pub(super) fn shape(&self, role: Role) -> Option<&'m ColumnShape> {
        self.mapping.column(role).and_then(|name| self.table.column(name))
    }

    /// The column of a role as text, or NULL.
    fn text(&self, role: Role) -> String {
        let column =
            self.shape(role).map(|column| format!("t.{}::text", quoted_name(&column.name)));
        column.unwrap_or_else(|| "NULL::text".into())
    }

    fn held(&self) -> &'static str {
        if self.mapping.changes_rows() { HELD } else { NOT_HELD }
    }

    fn payload(&self) -> String {
        match self.shape(Role::Payload) {
            Some(column) if column.sort == Sort::Bytes => {
                format!("t.{}", quoted_name(&column.name))
            }
            _ => format!("convert_to({}, 'UTF8')", self.text(Role::Payload)),
        }
    }

    pub(super) fn content_type(&self) -> &'static str {
        match self.shape(Role::Payload).map(|column| column.sort) {
            Some(Sort::Json | Sort::Text) => "application/json",
            _ => "application/octet-stream",
        }
    }

    /// The time in a column, if it holds times.
    fn time(&self, role: Role) -> Option<String> {
        let column = self.shape(role).filter(|column| column.times == Times::Holds)?;
        let name = format!("t.{}", quoted_name(&column.name));
        match column.sort {
            Sort::Time => Some(name),
            Sort::NaiveTime => Some(format!("({name} AT TIME ZONE 'UTC')")),
            Sort::Integer => {
                Some(format!("to_timestamp(least(greatest({name}, 0), 253402300799000) / 1000.0)"))
            }
            _ => None,
        }
    }

    /// When a row was made, within what every calendar has.
    fn created(&self) -> String {
        self.time(Role::CreatedAt).map_or_else(|| "NULL::timestamptz".into(), |time| bounded(&time))
    }

    fn due(&self) -> String {
        let due = |time: String| format!("({time} IS NULL OR {time} <= clock_timestamp())");
        self.time(Role::NextAttemptAt).map_or_else(|| "true".into(), due)
    }

    /// Rows that are not ours already, or done with where the table cannot tell. OFFSET keeps it from becoming a join,
    /// which the planner, who never knows how many claims there are just now, makes of every pair of rows.
    fn unclaimed(&self) -> String {
        let (published, dead) = (self.mapping.marks_published(), self.mapping.marks_dead());
        let states = [("'claimed'", true), ("'published'", !published), ("'dead'", !dead)];
        let states: Vec<&str> =
            states.iter().filter(|(_, hides)| *hides).map(|(state, _)| *state).collect();
        format!(
            "NOT EXISTS (SELECT FROM relevo.claim c WHERE c.adoption = $1 AND c.row_id = t.{}::text AND c.state IN ({}) OFFSET 0)",
            self.id,
            states.join(", ")
        )
    }

    fn order_by(&self, order: &KeyOrder) -> String {
        let created = self.time(Role::CreatedAt);
        let by: Vec<String> = match order {
            KeyOrder::Sequence { column } => vec![format!("t.{}", quoted_name(column))],
            // Inside a transaction its own commands tell.
            KeyOrder::CommitTime => {
                let inside = ["t.xmin::text::bigint", "t.cmin::text::bigint"].map(str::to_owned);
                let commit = "pg_xact_commit_timestamp(t.xmin) NULLS FIRST".to_owned();
                std::iter::once(commit).chain(inside).chain(created).collect()
            }
            _ => created.into_iter().chain(["t.cmin::text::bigint".to_owned()]).collect(),
        };
        format!("{}, t.{}", by.join(", "), self.id)
    }

    /// What may be claimed, in order. Each look goes past all that is claimed and not settled yet, so there is one for many
    /// claims. What commits later than it and belongs before something in it was not there when that was inserted.
    fn look(&self, order: &KeyOrder) -> String {
        let (table, id) = (self.table.name.sql(), &self.id);
        let (pending, due) = (self.mapping.relayable_sql("t", self.table), self.due());
        let (unclaimed, order) = (self.unclaimed(), self.order_by(order));
        format!(
            "SELECT t.{id}::text FROM {table} t WHERE {pending} AND {due} AND {unclaimed} ORDER BY {order} LIMIT $2"
        )
    }

    /// Of these rows those that may still be claimed, in this order, with what others hold told apart. A transaction that
    /// changes rows locks what it claims; where rows must never be changed, nothing is locked.
    ///
    /// They are found by their ids alone: an index of what is pending looks small to the planner, and has the whole
    /// backlog. Within CASE a condition finds no index.
    fn claim(&self) -> String {
        let (table, id, id_type) = (self.table.name.sql(), &self.id, self.id_type);
        let (pending, due) = (self.mapping.pending_sql("t"), self.due());
        let had = if self.mapping.changes_rows() {
            format!(
                "SELECT t.{id}::text AS row_id FROM {table} t
                  WHERE t.{id} = ANY (ARRAY(SELECT b.row_id::{id_type} FROM bounded b)) AND CASE WHEN {pending} THEN true END
                    FOR UPDATE SKIP LOCKED"
            )
        } else {
            "SELECT row_id FROM bounded".to_owned()
        };
        format!(
            "WITH seen AS MATERIALIZED (
                SELECT t.{id}::text AS row_id, {topic} AS topic, {key} AS key, {kind} AS kind, {payload} AS payload,
                       {headers} AS headers, {correlation} AS correlation_id, {tenant} AS tenant, {created} AS created_at, w.place
                  FROM unnest($2::text[]) WITH ORDINALITY AS w (id, place) JOIN {table} t ON t.{id} = w.id::{id_type}
                 WHERE CASE WHEN {pending} AND {due} THEN true END AND {unclaimed}),
            bounded AS MATERIALIZED (
                SELECT s.* FROM (
                    SELECT q.*, sum(octet_length(q.payload)) OVER (ORDER BY q.place) AS so_far FROM seen q) s
                 WHERE s.so_far IS NULL OR s.so_far - octet_length(s.payload) <= $3 OR s.payload IS NULL),
            had AS MATERIALIZED ({had})
            SELECT b.row_id, b.topic, b.key, b.kind, b.payload, b.headers, b.correlation_id, b.tenant, b.created_at, h.row_id IS NULL
              FROM bounded b LEFT JOIN had h ON h.row_id = b.row_id ORDER BY b.place",
            topic = self.text(Role::Topic),
            key = self.text(Role::Key),
            kind = self.text(Role::Type),
            payload = self.payload(),
            headers = self.text(Role::Headers),
            correlation = self.text(Role::CorrelationId),
            tenant = self.text(Role::Tenant),
            created = self.created(),
            unclaimed = self.unclaimed(),
        )
    }

    /// `$1` adoption, `$2` ids as text: a row whatever its state, as [`Self::claim`] reads it; then is it pending, is it
    /// unclaimed, not before when, published when, its state, whose transaction holds it, and its claim's state.
    pub(super) fn one(&self) -> String {
        let (table, id, id_type) = (self.table.name.sql(), &self.id, self.id_type);
        let time = |role| self.time(role).unwrap_or_else(|| "NULL::timestamptz".into());
        let (due, published) = (time(Role::NextAttemptAt), time(Role::PublishedAt));
        let status = self.mapping.status.as_ref().map_or_else(
            || "NULL::text".into(),
            |status| format!("t.{}::text", quoted_name(&status.column)),
        );
        format!(
            "SELECT t.{id}::text, {topic}, {key}, {kind}, {payload}, {headers}, {correlation}, {tenant}, {created}, {held},
                    coalesce({pending}, false), {unclaimed}, CASE WHEN {due} > clock_timestamp() THEN {due_shown} END,
                    {published_shown}, {status}, t.xmax::text,
                    (SELECT c.state FROM relevo.claim c WHERE c.adoption = $1 AND c.row_id = t.{id}::text)
               FROM {table} t WHERE t.{id} = ANY ($2::text[]::{id_type}[])",
            topic = self.text(Role::Topic),
            key = self.text(Role::Key),
            kind = self.text(Role::Type),
            payload = self.payload(),
            headers = self.text(Role::Headers),
            correlation = self.text(Role::CorrelationId),
            tenant = self.text(Role::Tenant),
            created = self.created(),
            held = self.held(),
            pending = self.mapping.pending_sql("t"),
            unclaimed = self.unclaimed(),
            due_shown = bounded(&due),
            published_shown = bounded(&published),
        )
    }

    /// `$1` adoption, `$2` a row's id, `$3` most rows: that row, those that somebody holds, and the last of so many, as
    /// [`Self::one`] begins, with their places in the order of claims. Only of these more than the id is read.
    pub(super) fn queue(&self, order: &KeyOrder) -> String {
        let in_payload = matches!(self.mapping.key, KeyFrom::Payload(_));
        format!(
            "SELECT t.{id}::text, NULL::text, {key}, NULL::text, {payload}, NULL::text, NULL::text, NULL::text, NULL::timestamptz,
                    q.held, q.place FROM (
                SELECT n.* FROM (
                    SELECT t.id, {held} AS held, row_number() OVER () AS place FROM (
                        SELECT t.{id} AS id, t.xmax AS xmax FROM {table} t WHERE {pending} AND {due} AND {unclaimed}
                         ORDER BY {order} LIMIT $3) t) n
                 WHERE n.held OR n.id::text = $2 OR n.place = $3 ORDER BY n.place LIMIT 1000) q
               JOIN {table} t ON t.{id} = q.id ORDER BY q.place",
            id = self.id,
            table = self.table.name.sql(),
            held = self.held(),
            key = self.text(Role::Key),
            payload = if in_payload { self.payload() } else { "NULL::bytea".into() },
            pending = self.mapping.relayable_sql("t", self.table),
            due = self.due(),
            unclaimed = self.unclaimed(),
            order = self.order_by(order),
        )
    }

    /// `$1` adoption, `$2` most rows: the ids of what is pending.
    pub(super) fn pending_ids(&self) -> String {
        let (table, id) = (self.table.name.sql(), &self.id);
        let (pending, unclaimed) = (self.mapping.relayable_sql("t", self.table), self.unclaimed());
        format!("SELECT t.{id}::text FROM {table} t WHERE {pending} AND {unclaimed} LIMIT $2")
    }

    /// `column = now` for each of these roles that there is.
    fn stamps(&self, roles: &[Role]) -> Vec<String> {
        let stamp = |role: &Role| {
            let column = self.shape(*role)?;
            Some(format!("{} = {}", quoted_name(&column.name), now(column)))
        };
        roles.iter().filter_map(stamp).collect()
    }

    fn published(&self) -> String {
        let (table, id, id_type) = (self.table.name.sql(), &self.id, self.id_type);
        if !self.mapping.marks_published() {
            return "UPDATE relevo.claim SET state = 'published' WHERE adoption = $1 AND event = ANY ($2)".into();
        }
        let done = "WITH done AS (DELETE FROM relevo.claim c WHERE c.adoption = $1 AND c.event = ANY ($2) RETURNING c.row_id)";
        if self.mapping.delete {
            return format!(
                "{done} DELETE FROM {table} t USING done WHERE t.{id} = done.row_id::{id_type}"
            );
        }
        let mut sets = self.stamps(&[Role::PublishedAt, Role::UpdatedAt]);
        sets.extend(
            self.mapping.status.iter().map(|status| state(&status.column, &status.published)),
        );
        format!(
            "{done} UPDATE {table} t SET {} FROM done WHERE t.{id} = done.row_id::{id_type}",
            sets.join(", ")
        )
    }

    /// A value of a failure as the column of its role takes it; an explicit cast cuts what is too long for it.
    fn failure(column: &ColumnShape, role: Role) -> Option<String> {
        let cast = |value: &str| Some(format!("{value}::{}", column.type_name));
        match role {
            Role::Attempts => cast("p.attempts"),
            Role::Error => cast("p.error"),
            Role::ErrorClass => cast("p.class"),
            Role::ErrorAt | Role::UpdatedAt => Some(now(column)),
            Role::NextAttemptAt => {
                let later = later(column);
                Some(format!(
                    "CASE WHEN p.retry_in IS NULL THEN t.{} ELSE {later} END",
                    quoted_name(&column.name)
                ))
            }
            _ => None,
        }
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
        let (table, id, id_type) = (self.table.name.sql(), &self.id, self.id_type);
        (!sets.is_empty()).then(|| {
            format!(
                "UPDATE {table} t SET {} FROM {FAILURES} JOIN relevo.claim c ON c.adoption = $1 AND c.event = p.event
                  WHERE t.{id} = c.row_id::{id_type}",
                sets.join(", ")
            )
        })
    }

    fn dead(&self, tables: Option<(&TableShape, &DeadTable)>) -> Vec<String> {
        let (table, id, id_type) = (self.table.name.sql(), &self.id, self.id_type);
        let mut list: Vec<String> = self.failed().into_iter().collect();
        if let Some((shape, dead)) = tables {
            list.extend(self.bury(shape, dead));
        } else if let Some((status, word)) =
            self.mapping.status.as_ref().and_then(|status| Some((status, status.dead.as_ref()?)))
        {
            list.push(format!(
                "UPDATE {table} t SET {} FROM relevo.claim c
                  WHERE c.adoption = $1 AND c.event = ANY ($2) AND t.{id} = c.row_id::{id_type}",
                state(&status.column, word)
            ));
        }
        list.push(
            "UPDATE relevo.claim SET state = 'dead' WHERE adoption = $1 AND event = ANY ($2)"
                .into(),
        );
        list
    }

    /// Moves rows to the owner's table of dead letters; one of the same id that is there already gives way.
    fn bury(&self, shape: &TableShape, dead: &DeadTable) -> [String; 2] {
        let (table, id, id_type) = (self.table.name.sql(), &self.id, self.id_type);
        let there = shape.name.sql();
        let mut columns = self.common(shape);
        columns.retain(|name| !dead.columns.values().any(|extra| extra == name));
        let extra = dead.columns.iter().filter_map(|(role, name)| {
            Some((quoted_name(name), Self::failure(shape.column(name)?, *role)?))
        });
        let common =
            columns.iter().map(|name| (quoted_name(name), format!("g.{}", quoted_name(name))));
        let (into, from): (Vec<String>, Vec<String>) = common.chain(extra).unzip();
        let claimed = |alias: &str| {
            format!("c.adoption = $1 AND c.event = ANY ($2) AND {alias}.{id} = c.row_id::{id_type}")
        };
        let clear = format!("DELETE FROM {there} d USING relevo.claim c WHERE {}", claimed("d"));
        let bury = format!(
            "WITH gone AS (DELETE FROM {table} t USING relevo.claim c WHERE {gone} RETURNING t.*)
             INSERT INTO {there} ({into}) OVERRIDING SYSTEM VALUE SELECT {from} FROM gone g
               JOIN relevo.claim c ON c.adoption = $1 AND c.row_id = g.{id}::text JOIN {FAILURES} ON p.event = c.event",
            gone = claimed("t"),
            into = into.join(", "),
            from = from.join(", "),
        );
        [clear, bury]
    }

    /// Columns that both tables have and that may be written.
    fn common(&self, dead: &TableShape) -> Vec<String> {
        let writable = |column: &&ColumnShape| {
            !column.generated && dead.column(&column.name).is_some_and(|other| !other.generated)
        };
        self.table.columns.iter().filter(writable).map(|column| column.name.clone()).collect()
    }

    fn restore(&self, dead: &TableShape) -> String {
        let columns: Vec<String> = self.common(dead).iter().map(|name| quoted_name(name)).collect();
        let columns = columns.join(", ");
        let (table, there, id, id_type) =
            (self.table.name.sql(), dead.name.sql(), &self.id, self.id_type);
        format!(
            "WITH back AS (DELETE FROM {there} d USING relevo.claim c WHERE c.adoption = $1 AND c.event = ANY ($2)
                AND c.state = 'dead' AND d.{id} = c.row_id::{id_type} RETURNING d.*)
             INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM back ON CONFLICT DO NOTHING"
        )
    }

    /// How many rows are pending as the owner sees it, and since when the oldest.
    fn pending(&self) -> String {
        let mut condition = self.mapping.pending_sql("t");
        let done =
            [("published", self.mapping.marks_published()), ("dead", self.mapping.marks_dead())];
        for (state, _) in done.iter().filter(|(_, told)| !told) {
            condition.push_str(&format!(
                " AND NOT EXISTS (SELECT FROM relevo.claim c WHERE c.adoption = $1 AND c.row_id = t.{}::text AND c.state = '{state}')",
                self.id
            ));
        }
        let created = self.created();
        format!(
            "SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(x.created_at)), 0)::float8
               FROM (SELECT {created} AS created_at FROM {} t WHERE {condition} LIMIT $2) x WHERE $1 <> ''",
            self.table.name.sql()
        )
    }

    fn forget(&self) -> String {
        let gone = format!(
            "NOT EXISTS (SELECT FROM {} t WHERE t.{} = c.row_id::{})",
            self.table.name.sql(),
            self.id,
            self.id_type
        );
        format!(
            "DELETE FROM relevo.claim c WHERE c.adoption = $1 AND {gone} AND (c.state = 'published'
                OR c.state = 'dead' AND c.claimed_at < clock_timestamp() - make_interval(secs => $2))"
        )
    }
}

fn state(column: &str, word: &str) -> String {
    format!("{} = {}", quoted_name(column), literal(word))
}

/// A time within what every calendar has; none stays none.
fn bounded(time: &str) -> String {
    format!(
        "CASE WHEN {time} IS NOT NULL THEN least(greatest({time}, '0001-01-01Z'), '9999-12-31Z') END"
    )
}

/// Now, as this column takes it.
fn now(column: &ColumnShape) -> String {
    moment(column, "clock_timestamp()")
}

/// So many seconds from now.
fn later(column: &ColumnShape) -> String {
    moment(column, "(clock_timestamp() + make_interval(secs => p.retry_in))")
}

fn moment(column: &ColumnShape, at: &str) -> String {
    match column.sort {
        Sort::Time => at.to_owned(),
        Sort::NaiveTime => format!("({at} AT TIME ZONE 'UTC')"),
        Sort::Integer => format!("(extract(epoch FROM {at}) * 1000)::bigint"),
        _ => format!(
            "to_char({at} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')::{}",
            column.type_name
        ),
    }
}
