use super::mapping::{KeyFrom, Mapping, Role};
use super::names::{literal, quoted_name};
use super::shape::{ColumnShape, IndexShape, Sort, TableShape, Times};
use crate::error::{Error, Kind, Result, quoted};
use serde::Serialize;

/// What an order by numbers stands on.
const NOBODY_NUMBERS: &str = "nobody gives a row a number of its own";

/// In which order rows of one key are claimed, and what that is worth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
#[non_exhaustive]
pub enum KeyOrder {
    /// By a number that each row draws from a sequence when it is inserted.
    Sequence {
        /// Its column.
        column: String,
    },
    /// By the time of the commit, which the server keeps.
    CommitTime,
    /// By the number a row gets where only one transaction writes at a time, unless its INSERT gives it one.
    RowNumber,
    /// By a time or an id: two writers of one key that commit between two looks may be taken in the wrong order.
    Approximate {
        /// Their columns.
        columns: Vec<String>,
    },
}

impl KeyOrder {
    /// If one transaction had committed when another inserted, do its rows of that key come first?
    pub fn is_sound(&self) -> bool {
        !matches!(self, Self::Approximate { .. })
    }

    /// In a sentence.
    pub fn describe(&self) -> String {
        match self {
            Self::Sequence { column } => {
                format!(
                    "kept per key: {column} is drawn from a sequence when a row is inserted, as long as \
                     {NOBODY_NUMBERS}"
                )
            }
            Self::CommitTime => {
                "kept per key: by the time of the commit (track_commit_timestamp), as long as the server's clock is not \
                 set back and rows stay as they were inserted until they are claimed"
                    .into()
            }
            Self::RowNumber => format!(
                "kept per key: one transaction writes at a time, rows are numbered as they come, as long as \
                 {NOBODY_NUMBERS}"
            ),
            Self::Approximate { columns } => format!(
                "APPROXIMATE, by {}: neither a time nor an id tells which of two transactions inserted first (now() is \
                 the transaction's start), so two writers of one key that commit between two looks may be delivered in \
                 the wrong order",
                columns.join(", ")
            ),
        }
    }
}

/// What can be said of a table and its mapping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The order of a key.
    pub order: KeyOrder,
    /// What can be lost or come twice.
    pub loss: String,
    /// What keeps the mapping from working, each with what to do.
    pub problems: Vec<String>,
    /// Worth knowing.
    pub notes: Vec<String>,
    /// Statements that make an index which is missing.
    pub missing_indices: Vec<String>,
}

impl Verdict {
    /// The order, unless something keeps the mapping from working.
    pub fn require(&self, table: &TableShape) -> Result<KeyOrder> {
        match self.problems.as_slice() {
            [] => Ok(self.order.clone()),
            problems => {
                let why = format!("table {}: {}", table.name, problems.join("; "));
                Err(Error::new(Kind::UnfitTable, why))
            }
        }
    }
}

/// Looks whether a mapping fits its table (and the owner's table of dead letters), and what it can promise.
pub fn judge(mapping: &Mapping, table: &TableShape, dead: Option<&TableShape>) -> Verdict {
    let order = order(mapping, table);
    let mut verdict = Verdict {
        loss: loss(mapping),
        problems: problems(mapping, table),
        notes: notes(mapping, table),
        missing_indices: missing_indices(mapping, table, &order),
        order,
    };
    if let Some(dead) = dead {
        verdict.problems.extend(dead_table_problems(mapping, table, dead));
    }
    verdict
}

fn loss(mapping: &Mapping) -> String {
    let kept = match (mapping.delete, mapping.marks_published()) {
        (true, _) => "deleted",
        (false, true) => "marked",
        (false, false) => "noted beside the table",
    };
    format!(
        "none: a committed row stays pending until the broker confirmed it, and is {kept} in the transaction that records \
         the confirm; a crash between the two brings a copy with the same id"
    )
}

fn order(mapping: &Mapping, table: &TableShape) -> KeyOrder {
    if table.rows_are_in_commit_order {
        return KeyOrder::RowNumber;
    }
    let sequence = mapping.column(Role::Sequence).and_then(|name| table.column(name));
    if let Some(column) = sequence.filter(|column| column.sequence_step == Some(1)) {
        return KeyOrder::Sequence { column: column.name.clone() };
    }
    if table.commit_times {
        return KeyOrder::CommitTime;
    }
    let (sequence, id) = (mapping.column(Role::Sequence), mapping.column(Role::Id));
    let columns = [sequence, created_at(mapping, table), id].into_iter().flatten();
    KeyOrder::Approximate { columns: columns.map(str::to_owned).collect() }
}

/// The column of the time a row was made, if times can be read there.
fn created_at<'m>(mapping: &'m Mapping, table: &TableShape) -> Option<&'m str> {
    let holds = |name: &&str| table.column(name).is_none_or(|it| it.times == Times::Holds);
    mapping.column(Role::CreatedAt).filter(holds)
}

fn problems(mapping: &Mapping, table: &TableShape) -> Vec<String> {
    let mut problems: Vec<String> =
        mapping.check().err().map(|error| error.message().to_owned()).into_iter().collect();
    let status = mapping.status.iter().map(|status| ("status", status.column.as_str()));
    let columns = mapping.columns.iter().map(|(role, name)| (role.as_str(), name.as_str()));
    for (role, name) in columns.chain(status) {
        if table.column(name).is_none() {
            problems.push(format!("it has no column {} ({role})", quoted(name)));
        }
    }
    problems.extend(unknowable(mapping, table));
    problems.extend(numbered_again(mapping, table));
    problems.extend(lacking(table, |right| match right {
        "SELECT" => true,
        "UPDATE" => mapping.changes_rows(),
        "DELETE" => deletes(mapping),
        // A replayed dead letter goes back where it came from.
        _ => mapping.dead_letters.is_some(),
    }));
    problems.extend(generated(mapping, table));
    problems.extend(timeless(mapping, table));
    problems
}

/// Does anything keep two rows from having the same id?
#[derive(PartialEq)]
enum Identity {
    /// A unique index.
    Alone,
    /// A unique index of it and other columns, or of some rows.
    Together,
    Nothing,
}

fn identity(id: &str, table: &TableShape) -> Identity {
    let alone = |index: &&IndexShape| index.columns == [id] && index.condition.is_none();
    let with_id = |index: &&IndexShape| index.columns.iter().any(|column| column == id);
    let unique = table.indices.iter().filter(|index| index.unique).filter(with_id);
    let unique: Vec<&IndexShape> = unique.collect();
    match unique.as_slice() {
        [] => Identity::Nothing,
        some if some.iter().any(alone) => Identity::Alone,
        _ => Identity::Together,
    }
}

/// Two rows of one id would make one event: the second would be taken for a copy, and marked with the first. Partitioned
/// tables have no index of the id alone; UUIDs and the numbers of a sequence come once without.
fn unknowable(mapping: &Mapping, table: &TableShape) -> Option<String> {
    let id = mapping.column(Role::Id).unwrap_or_default();
    let comes_once =
        |column: &ColumnShape| column.sort == Sort::Uuid || column.sequence_step.is_some();
    match identity(id, table) {
        Identity::Alone => None,
        Identity::Together if table.column(id).is_some_and(comes_once) => None,
        Identity::Together => Some(format!(
            "its column {} is unique only together with others, or for some rows: two rows of one id would be one event \
             (give it a unique index of its own, numbers of a sequence, or UUIDs in a column of that type)",
            quoted(id)
        )),
        Identity::Nothing => Some(format!(
            "no unique index has its column {}: marking one row could mark another",
            quoted(id)
        )),
    }
}

/// The column of the id, if a row may have none. SQLite allows that in any key that is not the row's own number.
fn id_that_may_be_missing<'m>(mapping: &'m Mapping, table: &TableShape) -> Option<&'m str> {
    let id = mapping.column(Role::Id)?;
    let numbers_rows = table.row_number.as_ref().is_some_and(|number| number.column == id);
    let nullable = table.column(id).is_some_and(|column| column.nullable);
    (nullable && !numbers_rows).then_some(id)
}

/// Does a row leave its table, when it is confirmed or has failed for good?
fn deletes(mapping: &Mapping) -> bool {
    mapping.delete || mapping.dead_letters.is_some()
}

/// An id that comes again makes an event that is taken for a copy of the first.
fn numbered_again(mapping: &Mapping, table: &TableShape) -> Option<String> {
    let id = mapping.column(Role::Id);
    let again = table.row_number.as_ref().filter(|number| number.comes_again);
    let again = again.filter(|number| id == Some(&*number.column) && deletes(mapping));
    again.map(|number| {
        format!(
            "its column {} gives the numbers of deleted rows again, and rows are deleted: it needs AUTOINCREMENT",
            quoted(&number.column)
        )
    })
}

/// Which of these rights this user would have to be given.
fn lacking(table: &TableShape, needed: impl Fn(&str) -> bool) -> Option<String> {
    let denied: Vec<&str> =
        table.denied.iter().map(String::as_str).filter(|right| needed(right)).collect();
    let rights = denied.join(", ");
    (!denied.is_empty())
        .then(|| format!("this user lacks {rights}: GRANT {rights} ON {}", table.name.sql()))
}

fn generated(mapping: &Mapping, table: &TableShape) -> impl Iterator<Item = String> {
    let marks = mapping.columns.iter().filter(|(role, _)| role.is_mark());
    marks
        .filter(|(_, name)| table.column(name).is_some_and(|column| column.generated))
        .map(|(role, name)| format!("its column {} ({}) is generated", quoted(name), role.as_str()))
}

/// Columns of times that Relevo writes, and that take none: the first confirm would fail, and be tried for ever.
fn timeless(mapping: &Mapping, table: &TableShape) -> impl Iterator<Item = String> {
    let written = [Role::PublishedAt, Role::NextAttemptAt, Role::ErrorAt, Role::UpdatedAt];
    let mapped = written.into_iter().filter_map(|role| Some((role, mapping.column(role)?)));
    mapped.filter_map(|(role, name)| takes_no_time("its", role, table.column(name)?))
}

fn takes_no_time(whose: &str, role: Role, column: &ColumnShape) -> Option<String> {
    (column.times == Times::Refuses).then(|| {
        format!(
            "{whose} column {} ({}) takes no time, being {}: make it a timestamptz, or a bigint for milliseconds since 1970",
            quoted(&column.name),
            role.as_str(),
            column.type_name
        )
    })
}

/// Times that are there and not read.
fn unread(mapping: &Mapping, table: &TableShape) -> impl Iterator<Item = String> {
    let read = [
        (Role::CreatedAt, "it tells neither the order nor how long a row has waited"),
        (Role::NextAttemptAt, "a row is claimed before it, too"),
    ];
    let mapped = read.into_iter().filter_map(|(role, so)| Some((role, mapping.column(role)?, so)));
    mapped.filter_map(|(role, name, so)| {
        let column = table.column(name).filter(|column| column.times != Times::Holds)?;
        let (role, is) = (role.as_str(), &column.type_name);
        Some(format!("{name} ({role}) is {is}, of which no time is read: {so}"))
    })
}

fn notes(mapping: &Mapping, table: &TableShape) -> Vec<String> {
    let mut notes = Vec::new();
    if mapping.column(Role::Key).is_none() && mapping.key == KeyFrom::Column {
        notes.push("no key: every row has an order of its own, so rows come in any order".into());
    }
    if !mapping.marks_published() {
        notes.push(
            "the table does not tell what was relayed: that is kept beside it, for as long as its rows stay; each look \
             reads the whole table, so let old rows go (they may once they were relayed)"
                .into(),
        );
    }
    if !mapping.marks_dead() {
        notes.push(
            "rows that fail for good stay as they are; `relevo dead-letters list` has them with their reason".into(),
        );
    }
    notes.extend(id_that_may_be_missing(mapping, table).map(|id| {
        format!(
            "{id} may be NULL: a row without it cannot be marked, so it is not relayed and stays among the pending ones; NOT \
             NULL keeps such rows out"
        )
    }));
    notes.extend(unread(mapping, table));
    let sequence = mapping.column(Role::Sequence).and_then(|name| table.column(name));
    let sequence = sequence.filter(|_| !table.rows_are_in_commit_order);
    notes.extend(sequence.and_then(of_sequence));
    notes.extend(of_numbers(mapping, table));
    notes
}

/// Why a column that is named as the order is not.
fn of_sequence(column: &ColumnShape) -> Option<String> {
    let name = &column.name;
    match column.sequence_step {
        Some(1) => None,
        Some(step @ 2..) => Some(format!(
            "sessions take {step} numbers of {name} at once: it does not tell the order (ALTER SEQUENCE ... CACHE 1)"
        )),
        Some(_) => Some(format!(
            "the numbers of {name} go down: it does not tell the order (ALTER SEQUENCE ... INCREMENT 1)"
        )),
        None => Some(format!(
            "{name} has no sequence, or one that begins again: it does not tell the order"
        )),
    }
}

/// What numbers stand on that an INSERT may give.
fn of_numbers(mapping: &Mapping, table: &TableShape) -> Vec<String> {
    let id = mapping.column(Role::Id).unwrap_or_default();
    let drawn = table.column(id).is_some_and(|column| column.sequence_step.is_some());
    let mut notes = Vec::new();
    if drawn && identity(id, table) == Identity::Together {
        notes.push(format!(
            "{id} is unique only together with others, or for some rows: two rows of one number would be one event, so \
             let its sequence give it"
        ));
    }
    let Some(number) = table.row_number.as_ref().filter(|_| table.rows_are_in_commit_order) else {
        return notes;
    };
    let column = &number.column;
    notes.push(format!(
        "{column} is the number of its row, in whose order rows come: let SQLite give it, or give each a higher one than all \
         before"
    ));
    if number.comes_again && column == id && !deletes(mapping) {
        notes.push(format!(
            "where the last rows are deleted, {column} gives their numbers again, and what is new is taken for a copy: \
             AUTOINCREMENT keeps it from that"
        ));
    }
    notes
}

/// An index of what is pending, in its order where that is a column's: otherwise whoever claims a few rows of a large
/// backlog sorts all of it.
fn missing_indices(mapping: &Mapping, table: &TableShape, order: &KeyOrder) -> Vec<String> {
    if !mapping.marks_published() || mapping.delete {
        return Vec::new();
    }
    let time_or_id = created_at(mapping, table).or(mapping.column(Role::Id));
    let column = match order {
        KeyOrder::Sequence { column } => column,
        _ => time_or_id.unwrap_or_default(),
    };
    let by_column = matches!(order, KeyOrder::Sequence { .. } | KeyOrder::Approximate { .. });
    let marks = mapping.column(Role::PublishedAt).into_iter();
    let marks = marks.chain(mapping.status.as_ref().map(|status| &*status.column));
    let marks: Vec<&str> = marks.collect();
    let serves = |index: &IndexShape| {
        let first = index.columns.first().map_or("", String::as_str);
        match index.condition.is_some() {
            true => !by_column || first == column,
            false => !by_column && marks.contains(&first),
        }
    };
    if table.indices.iter().any(serves) {
        return Vec::new();
    }
    let name = quoted_name(&format!("{}_pending", table.name.table));
    let (table, column) = (table.name.sql(), quoted_name(column));
    let pending = pending_condition(mapping, "");
    vec![format!("CREATE INDEX {name} ON {table} ({column}) WHERE {pending}")]
}

/// The condition of rows to be relayed; `alias` is the table's, with its dot.
pub(super) fn pending_condition(mapping: &Mapping, alias: &str) -> String {
    let published = mapping.column(Role::PublishedAt);
    let published = published.map(|name| format!("{alias}{} IS NULL", quoted_name(name)));
    let status = mapping.status.as_ref().map(|status| {
        let states: Vec<String> = status.pending.iter().map(|state| literal(state)).collect();
        format!("{alias}{} IN ({})", quoted_name(&status.column), states.join(", "))
    });
    let conditions: Vec<String> = published.into_iter().chain(status).collect();
    if conditions.is_empty() { "true".into() } else { conditions.join(" AND ") }
}

impl Mapping {
    /// The condition of rows to be relayed, as SQL; `alias` is the table's.
    pub fn pending_sql(&self, alias: &str) -> String {
        pending_condition(self, &format!("{alias}."))
    }

    /// The same of those that can be relayed, which is all of them where each has an id: without one a row cannot be marked.
    pub fn relayable_sql(&self, alias: &str, table: &TableShape) -> String {
        let pending = self.pending_sql(alias);
        match id_that_may_be_missing(self, table) {
            Some(id) => format!("{pending} AND {alias}.{} IS NOT NULL", quoted_name(id)),
            None => pending,
        }
    }
}

/// A row must fit into the dead-letter table, whatever else that one has.
fn dead_table_problems(mapping: &Mapping, table: &TableShape, dead: &TableShape) -> Vec<String> {
    let extra = mapping.dead_letters.iter().flat_map(|dead| &dead.columns);
    let mut problems: Vec<String> = extra
        .clone()
        .filter(|(_, name)| dead.column(name).is_none())
        .map(|(role, name)| {
            format!("{} has no column {} ({})", dead.name, quoted(name), role.as_str())
        })
        .collect();
    let died_at = extra.clone().filter(|(role, _)| **role == Role::ErrorAt);
    let whose = format!("{}'s", dead.name);
    problems.extend(
        died_at.filter_map(|(role, name)| takes_no_time(&whose, *role, dead.column(name)?)),
    );
    let filled = |column: &ColumnShape| {
        table.column(&column.name).is_some() || extra.clone().any(|(_, name)| *name == column.name)
    };
    let unfilled = dead.columns.iter().filter(|column| {
        !column.nullable && column.default.is_none() && !column.generated && !filled(column)
    });
    problems.extend(unfilled.map(|column| {
        format!(
            "{} needs {}, which the table has not: give it a default, or name it as error, error_class, error_at or \
             attempts under dead_letters",
            dead.name,
            quoted(&column.name)
        )
    }));
    let id = mapping.column(Role::Id).unwrap_or_default();
    if dead.column(id).is_none() {
        problems.push(format!("{} has no column {} to know a row by", dead.name, quoted(id)));
    }
    // Whoever is replayed comes back from there, and one that dies again gives way to itself.
    problems.extend(lacking(dead, |right| right != "UPDATE"));
    problems
}
