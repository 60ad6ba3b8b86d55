use super::mapping::{KeyFrom, Mapping, Role};
use super::names::{literal, quoted_name};
use super::shape::{ColumnShape, IndexShape, Sort, TableShape};
use crate::error::{Error, Kind, Result, quoted};
use serde::Serialize;

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
    /// By the number a row gets where only one transaction writes at a time.
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
                format!("kept per key: {column} is drawn from a sequence when a row is inserted")
            }
            Self::CommitTime => {
                "kept per key: by the time of the commit (track_commit_timestamp), as long as the \
                                 server's clock is not set back"
                    .into()
            }
            Self::RowNumber => {
                "kept per key: one transaction writes at a time, rows are numbered as they come"
                    .into()
            }
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
    let columns = [Role::Sequence, Role::CreatedAt, Role::Id];
    let columns = columns.iter().filter_map(|role| mapping.column(*role)).map(str::to_owned);
    KeyOrder::Approximate { columns: columns.collect() }
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
    let id = mapping.column(Role::Id).unwrap_or_default();
    let with_id = |unique: &[String]| unique.iter().any(|column| column == id);
    if !table.indices.iter().any(|index| index.unique && with_id(&index.columns)) {
        problems.push(format!(
            "no unique index has its column {}: marking one row could mark another",
            quoted(id)
        ));
    }
    problems.extend(denied(mapping, table));
    problems.extend(generated(mapping, table));
    problems
}

/// What this user would have to be allowed.
fn denied(mapping: &Mapping, table: &TableShape) -> Option<String> {
    let needed = |right: &str| match right {
        "SELECT" => true,
        "UPDATE" => mapping.changes_rows(),
        "DELETE" => mapping.delete || mapping.dead_letters.is_some(),
        // A replayed dead letter goes back where it came from.
        _ => mapping.dead_letters.is_some(),
    };
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
    if let Some(column) = mapping.column(Role::Sequence).and_then(|name| table.column(name))
        && !table.rows_are_in_commit_order
    {
        match column.sequence_step {
            Some(1) => {}
            Some(step) => notes.push(format!(
                "sessions take {step} numbers of {} at once: it does not tell the order (ALTER SEQUENCE ... CACHE 1)",
                column.name
            )),
            None => notes.push(format!("{} has no sequence: it does not tell the order", column.name)),
        }
    }
    notes
}

/// An index of what is pending, in its order where that is a column's: otherwise whoever claims a few rows of a large
/// backlog sorts all of it.
fn missing_indices(mapping: &Mapping, table: &TableShape, order: &KeyOrder) -> Vec<String> {
    if !mapping.marks_published() || mapping.delete {
        return Vec::new();
    }
    let time_or_id = [Role::CreatedAt, Role::Id].iter().find_map(|role| mapping.column(*role));
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
    problems
}

/// Is it a column a time can be read from and written to?
pub(super) fn is_time(column: &ColumnShape) -> bool {
    matches!(column.sort, Sort::Time | Sort::NaiveTime)
}
