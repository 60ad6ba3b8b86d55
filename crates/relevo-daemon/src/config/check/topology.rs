//! `[topology.BROKER]`

use super::Check;
use crate::broker::Adapter;
use crate::broker::topology::{self, Refused, Wanted};
use crate::config::Broker;
use crate::config::problem::{Problem, located};
use crate::config::suggest::did_you_mean;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Check {
    pub(super) fn topologies(
        &mut self,
        tables: BTreeMap<String, toml::Table>,
        brokers: &BTreeMap<String, Broker>,
    ) -> BTreeMap<String, Arc<dyn Wanted>> {
        let mut topologies = BTreeMap::new();
        for (name, table) in tables {
            let Some(broker) = brokers.get(&name) else {
                self.no_such_broker(&name, brokers);
                continue;
            };
            // What is wrong with the broker's own table is told there.
            let Ok(adapter) = Adapter::of(&broker.url) else { continue };
            if let Some(wanted) = self.topology(&name, adapter, table) {
                topologies.insert(name, wanted);
            }
        }
        topologies
    }

    fn no_such_broker(&mut self, name: &str, brokers: &BTreeMap<String, Broker>) {
        let there: Vec<&str> = brokers.keys().map(String::as_str).collect();
        let near = did_you_mean(name, there.iter().copied());
        let there = if there.is_empty() { "none".into() } else { there.join(", ") };
        let text = format!(
            "a topology is that of a broker, and there is no [broker.{name}]{near} (there are: {there})"
        );
        self.bad(&["topology", name], text);
    }

    fn topology(
        &mut self,
        name: &str,
        adapter: Adapter,
        table: toml::Table,
    ) -> Option<Arc<dyn Wanted>> {
        match topology::read(adapter, table) {
            Ok(wanted) => Some(wanted),
            Err(Refused::HasNone) => {
                let schemes = adapter.schemes().join(", ");
                let text = format!("a destination of the kind {schemes} has no topology");
                self.bad(&["topology", name], text);
                None
            }
            Err(Refused::Unread(error)) => {
                let (inside, text) = located(&error);
                let path = ["topology", name].map(str::to_owned).into_iter().chain(inside);
                self.problems.push(Problem { path: path.collect(), text });
                None
            }
        }
    }
}
