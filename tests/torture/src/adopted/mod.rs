//! An outbox table of somebody else's, with names and states nobody would guess.
//!
//! - `draw`: a table and its mapping, from a seed
//!
//! Relays know the table only by a file of configuration, in the words of `relevo.toml`. Its owner is played by the
//! writers, which insert rows, and by the test, which looks at the end what became of each.

mod draw;

use crate::story::Published;
use anyhow::{Context, Result};
use relevo::Event;
use relevo::adopt::{KeyFrom, Mapping, Role, literal, quoted_name};
use relevo_daemon::config::{Config, adopt};
use serde_json::{Value, json};
use std::path::Path;
use uuid::Uuid;

/// The name under which it is adopted.
pub const NAME: &str = "torture";

/// The one part of a topic that rows do not have: the mapping says it.
const PREFIX: &str = "torture.";

/// The table of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    mapping: Mapping,
    /// What makes it; only whoever drew it needs to know.
    statements: String,
}

/// What a row's owner sees in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Waits to be relayed.
    Pending,
    /// Failed for good.
    Dead,
}

impl Table {
    /// The table that a seed says.
    pub fn drawn(seed: u64, postgres: bool) -> Self {
        let (statements, mapping) = draw::table(seed, postgres);
        Self { mapping, statements }
    }

    /// The table as a process knows it that was given a file of configuration and nothing else.
    pub fn configured(file: &Path) -> Result<Self> {
        let config = Config::load(file)?;
        let adopted = config.adopted.get(NAME).context("the file adopts nothing")?;
        Ok(Self { mapping: adopted.mapping.clone(), statements: String::new() })
    }

    /// The file of configuration, as an operator would write it.
    pub fn configuration(&self, store: &str) -> String {
        let store = Value::from(store);
        let mapping = adopt::written(NAME, None, &self.mapping);
        format!(
            "[store.main]\nurl = {store}\n\n[broker.out]\nurl = \"stdout:\"\n\n{mapping}\n[subscription.{NAME}]\nadopt = \"{NAME}\"\n"
        )
    }

    /// What makes it.
    pub fn statements(&self) -> &str {
        &self.statements
    }

    /// What its columns mean.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The same with a column fewer: what was configured by somebody who overlooked it.
    pub fn without_key(mut self) -> Self {
        self.mapping = self.mapping.without(Role::Key);
        self.mapping.key = KeyFrom::Column;
        self
    }

    /// The owner's insert.
    pub fn insert(&self, events: &[Published]) -> String {
        let columns: Vec<String> = self.inserted().map(|(_, column)| quoted_name(column)).collect();
        let row = |event: &Published| {
            let values: Vec<String> =
                self.inserted().map(|(role, _)| literal(&self.value(role, event))).collect();
            format!("({})", values.join(", "))
        };
        let rows: Vec<String> = events.iter().map(row).collect();
        let table = self.mapping.table.sql();
        format!("INSERT INTO {table} ({}) VALUES {}", columns.join(", "), rows.join(", "))
    }

    /// The columns an owner fills; numbers and times come by default, marks are the relay's.
    fn inserted(&self) -> impl Iterator<Item = (Role, &str)> {
        let wanted = [Role::Id, Role::Topic, Role::Key, Role::Payload, Role::Headers];
        let numbered = self.mapping.column(Role::Id) == self.mapping.column(Role::Sequence);
        let mine = move |role: &Role| !(*role == Role::Id && numbered);
        let column = |role: Role| self.mapping.column(role).map(|column| (role, column));
        wanted.into_iter().filter(mine).filter_map(column)
    }

    fn value(&self, role: Role, event: &Published) -> String {
        match role {
            Role::Id => event.id.to_string(),
            Role::Topic => event.fate.topic().trim_start_matches(PREFIX).to_owned(),
            Role::Key => event.key.clone(),
            Role::Headers => json!({ "place": event.place.to_string() }).to_string(),
            _ => self.payload(event),
        }
    }

    /// The event's identity, which the row's own id may not be, and its key where the mapping looks for it there.
    fn payload(&self, event: &Published) -> String {
        let mut payload = json!({ "event": event.id });
        if let KeyFrom::Payload(path) = &self.mapping.key {
            let key = Value::from(event.key.as_str());
            let nested = path[1..].iter().rev().fold(key, |inner, word| json!({ word: inner }));
            payload[&path[0]] = nested;
        }
        payload.to_string()
    }

    /// Asks for the ids of the newest rows that wait, the newest first.
    pub fn newest_pending(&self, most: usize) -> Option<String> {
        let [id, number] = [Role::Id, Role::Sequence].map(|role| self.mapping.column(role));
        let (id, number) = (quoted_name(id?), quoted_name(number?));
        let (table, pending) = (self.mapping.table.sql(), self.mapping.pending_sql("t"));
        Some(format!(
            "SELECT CAST(t.{id} AS text) FROM {table} AS t WHERE {pending} ORDER BY t.{number} DESC LIMIT {most}"
        ))
    }

    /// The owner's change of a row that leaves it as it was, and locks it.
    pub fn touch(&self, row: &str) -> Option<String> {
        let [id, payload] = [Role::Id, Role::Payload].map(|role| self.mapping.column(role));
        let (id, payload, row) = (quoted_name(id?), quoted_name(payload?), literal(row));
        let table = self.mapping.table.sql();
        Some(format!("UPDATE {table} SET {payload} = {payload} WHERE {id} = {row}"))
    }

    /// Asks for the payloads of all rows that the owner sees so; `None` where the table has no word for it.
    pub fn look(&self, seen: Seen) -> Option<String> {
        let payload = quoted_name(self.mapping.column(Role::Payload)?);
        let select = |table: String, condition: &str| {
            format!("SELECT CAST(t.{payload} AS text) FROM {table} AS t WHERE {condition}")
        };
        let table = self.mapping.table.sql();
        match (seen, &self.mapping.dead_letters, &self.mapping.status) {
            (Seen::Pending, ..) => Some(select(table, &self.mapping.pending_sql("t"))),
            (Seen::Dead, Some(dead), _) => Some(select(dead.table.sql(), "1 = 1")),
            (Seen::Dead, None, Some(status)) => {
                let dead = literal(status.dead.as_ref()?);
                Some(select(table, &format!("t.{} = {dead}", quoted_name(&status.column))))
            }
            (Seen::Dead, None, None) => None,
        }
    }
}

/// The event that a payload is of.
pub fn identity(payload: &[u8]) -> Option<Uuid> {
    let payload: Value = serde_json::from_slice(payload).ok()?;
    payload.get("event")?.as_str()?.parse().ok()
}

/// The identity of an event that was relayed from an adopted table.
pub(crate) fn identity_of(event: &Event) -> Uuid {
    identity(&event.payload).unwrap_or(event.id.0)
}

/// What an owner should see at the end: nothing waits, and exactly what failed for good is called so. Where the table has
/// no word for that, it goes on waiting.
pub(crate) fn wrong_in_owners_eyes(
    poison: &[Uuid],
    pending: &[Uuid],
    dead: Option<&[Uuid]>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |what: &str, expected: &[Uuid], found: &[Uuid]| {
        let sorted = |ids: &[Uuid]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        if sorted(expected) != sorted(found) {
            let (expected, found) = (expected.len(), found.len());
            wrong.push(format!(
                "the owner sees {found} rows {what}, which are not the {expected} it should see"
            ));
        }
    };
    match dead {
        Some(dead) => {
            compare("pending", &[], pending);
            compare("dead", poison, dead);
        }
        None => compare("pending", poison, pending),
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Fate;
    use std::collections::HashSet;

    fn event() -> Published {
        Published {
            id: Uuid::now_v7(),
            key: "key-7".into(),
            fate: Fate::Flaky,
            version: 1,
            place: 2,
            locked: true,
            begun_ns: 0,
        }
    }

    #[test]
    fn a_process_knows_a_drawn_table_by_its_configuration_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("relevo.toml");
        let mut texts = HashSet::new();
        for seed in 0..200 {
            let table = Table::drawn(seed, seed % 2 == 0);
            let text = table.configuration("sqlite:it's.db");
            std::fs::write(&file, &text).unwrap();
            let configured = Table::configured(&file).unwrap_or_else(|e| panic!("{e:#}\n{text}"));
            assert_eq!(configured.mapping, table.mapping, "{text}");
            let events = [event()];
            assert_eq!(configured.insert(&events), table.insert(&events));
            texts.insert(text);
        }
        assert!(texts.len() > 195, "only {} different tables", texts.len());
    }

    #[test]
    fn a_row_carries_its_event_whatever_its_own_id_is() {
        for seed in 0..40 {
            let (table, event) = (Table::drawn(seed, true), event());
            assert_eq!(identity(table.payload(&event).as_bytes()), Some(event.id));
            let topic = format!("{PREFIX}{}", table.value(Role::Topic, &event));
            assert_eq!(Fate::of_topic(&topic), Some(event.fate));
        }
    }

    #[test]
    fn the_owner_sees_exactly_what_failed_for_good() {
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert!(wrong_in_owners_eyes(&[a], &[], Some(&[a])).is_empty());
        assert!(wrong_in_owners_eyes(&[a], &[a], None).is_empty());
        assert_eq!(wrong_in_owners_eyes(&[a], &[], Some(&[b])).len(), 1);
        assert_eq!(wrong_in_owners_eyes(&[a], &[b], Some(&[a, a])).len(), 2);
        assert_eq!(wrong_in_owners_eyes(&[a], &[], None).len(), 1);
    }
}
