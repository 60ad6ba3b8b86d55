//! `[adopt.NAME]`, and a subscription's `adopt`

use super::{Check, Known};
use crate::config::file::{AdoptTable, DeadLettersTable, StatusTable, SubscriptionTable};
use crate::config::suggest::did_you_mean;
use crate::config::{Adopted, Secret, SubscriptionConfig};
use relevo_core::error::quoted;
use relevo_core::outbox::adopt::{DeadTable, Mapping, Preset, Role, Status, TableName, TopicFrom};
use std::collections::BTreeMap;

/// Columns that a table of dead letters may have for itself.
const OF_DEAD: [Role; 4] = [Role::Attempts, Role::Error, Role::ErrorClass, Role::ErrorAt];

impl Check {
    pub(super) fn adopted(
        &mut self,
        tables: BTreeMap<String, AdoptTable>,
        stores: &BTreeMap<String, Secret>,
    ) -> BTreeMap<String, Adopted> {
        let mut adopted = BTreeMap::new();
        for (name, table) in tables {
            self.name("adopt", &name);
            let path = ["adopt", &name, "store"];
            let store = self.reference(&path, table.store.clone(), stores.keys(), "store");
            let before = self.problems.len();
            let mapping = self.mapping(&name, table);
            if let (Some(mapping), true) = (&mapping, self.problems.len() == before)
                && let Err(error) = mapping.check()
            {
                self.bad(&["adopt", &name], error.message());
            }
            if let (Some(store), Some(mapping)) = (store, mapping) {
                adopted.insert(name, Adopted { store, mapping });
            }
        }
        adopted
    }

    fn mapping(&mut self, name: &str, table: AdoptTable) -> Option<Mapping> {
        let preset = self.preset(name, table.preset.as_deref());
        let called = table.table.as_deref().or(preset.map(Preset::table));
        let Some(called) = called else {
            self.bad(&["adopt", name], "table is missing: which table is relayed?");
            return None;
        };
        let called = self.table_name(&["adopt", name, "table"], called)?;
        let mut mapping =
            preset.map_or_else(|| Mapping::new(called.clone()), |it| it.mapping(called.clone()));
        for (word, column) in &table.columns {
            if let Some(role) = self.role(&["adopt", name, "columns", word], word, Role::ALL) {
                mapping = match column.is_empty() {
                    true => mapping.without(role),
                    false => mapping.with(role, column),
                };
            }
        }
        self.topic_of(name, &table, &mut mapping);
        if let Some(path) = &table.key_path {
            mapping = mapping.without(Role::Key).key_in_payload(path.split('.'));
        }
        mapping.content_type = table.content_type.or(mapping.content_type);
        mapping.delete = table.delete.unwrap_or(mapping.delete);
        if let Some(status) = table.status {
            mapping.status = self.status(name, status);
        }
        if let Some(dead) = table.dead_letters {
            mapping.dead_letters = self.dead_table(name, dead, &mapping);
        }
        Some(mapping)
    }

    fn preset(&mut self, name: &str, given: Option<&str>) -> Option<Preset> {
        let given = given?;
        let found = Preset::parse(given);
        if found.is_none() {
            let all = Preset::ALL.map(Preset::as_str);
            let near = did_you_mean(given, all);
            let text = format!("{} is not one of {}{near}", quoted(given), all.join(", "));
            self.bad(&["adopt", name, "preset"], text);
        }
        found
    }

    fn table_name(&mut self, path: &[&str], text: &str) -> Option<TableName> {
        TableName::parse(text).map_err(|error| self.bad(path, error.message())).ok()
    }

    fn role(&mut self, path: &[&str], word: &str, known: &[Role]) -> Option<Role> {
        let found = known.iter().copied().find(|role| role.as_str() == word);
        if found.is_none() {
            let all: Vec<&str> = known.iter().map(|role| role.as_str()).collect();
            let near = did_you_mean(word, all.iter().copied());
            self.bad(
                path,
                format!("unknown key {}{near} (known here: {})", quoted(word), all.join(", ")),
            );
        }
        found
    }

    fn topic_of(&mut self, name: &str, table: &AdoptTable, mapping: &mut Mapping) {
        match (&table.topic, &table.topic_prefix) {
            (Some(_), Some(_)) => {
                let text = "topic is the same for every row, topic_prefix stands before the column's: keep one";
                self.bad(&["adopt", name, "topic_prefix"], text);
            }
            (Some(topic), None) => {
                mapping.topic = TopicFrom::Always(topic.clone());
                mapping.columns.remove(&Role::Topic);
            }
            (None, Some(prefix)) => mapping.topic = TopicFrom::Column { prefix: prefix.clone() },
            (None, None) => {}
        }
    }

    fn status(&mut self, name: &str, table: StatusTable) -> Option<Status> {
        let StatusTable { column, pending, published, dead } = table;
        for (key, given) in [("column", column.is_some()), ("published", published.is_some())] {
            if !given {
                self.bad(&["adopt", name, "status"], format!("{key} is missing"));
            }
        }
        Some(Status { column: column?, pending, published: published?, dead })
    }

    /// An empty table means that there is none.
    fn dead_table(
        &mut self,
        name: &str,
        given: DeadLettersTable,
        mapping: &Mapping,
    ) -> Option<DeadTable> {
        let path = ["adopt", name, "dead_letters", "table"];
        let table = match given.table.as_deref() {
            Some("") => return None,
            Some(table) => self.table_name(&path, table)?,
            None => match &mapping.dead_letters {
                Some(dead) => dead.table.clone(),
                None => {
                    self.bad(&path, "which table do rows go to that failed for good?");
                    return None;
                }
            },
        };
        let mut columns = BTreeMap::new();
        for (word, column) in given.columns {
            let path = ["adopt", name, "dead_letters", "columns", &word];
            columns.extend(self.role(&path, &word, &OF_DEAD).map(|role| (role, column)));
        }
        Some(DeadTable { table, columns })
    }

    /// The table that a subscription relays instead of the log.
    pub(super) fn adopt(
        &mut self,
        name: &str,
        table: &SubscriptionTable,
        known: &Known<'_>,
    ) -> Option<(String, Adopted)> {
        let given = table.adopt.clone()?;
        let at = |key| ["subscription", name, key];
        let found = self.reference(&at("adopt"), Some(given), known.adopted.keys(), "adopt")?;
        let adopted = known.adopted.get(&found)?;
        if table.store.as_ref().is_some_and(|store| *store != adopted.store) {
            let text =
                format!("[adopt.{found}] is in store {:?}; leave it out here", adopted.store);
            self.bad(&at("store"), text);
        }
        let whole = "an adopted table is relayed whole, from its first pending row: leave it out";
        for (key, given) in [("topics", table.topics.is_some()), ("start", table.start.is_some())] {
            if given {
                self.bad(&at(key), whole);
            }
        }
        Some((found, adopted.clone()))
    }

    /// A table is relayed once: two subscriptions would both mark it.
    pub(super) fn adopted_once(
        &mut self,
        adopted: &BTreeMap<String, Adopted>,
        subscriptions: &BTreeMap<String, SubscriptionConfig>,
    ) {
        for name in adopted.keys() {
            let by = |it: &&String| subscriptions[*it].adopt.as_ref() == Some(name);
            let relayed: Vec<&String> = subscriptions.keys().filter(by).collect();
            match relayed.as_slice() {
                [] => self.warnings.push(format!(
                    "[adopt.{name}] is relayed by no subscription: give one adopt = {name:?}"
                )),
                [_] => {}
                [first, second, ..] => self.bad(
                    &["subscription", second, "adopt"],
                    format!("{name} is relayed by subscription {first} already"),
                ),
            }
        }
    }
}
