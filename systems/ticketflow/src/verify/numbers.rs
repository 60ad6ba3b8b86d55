use crate::database::Database;
use crate::ticket::{TicketEvent, topic};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// What each metric stands at, by its name and label.
pub type Totals = BTreeMap<(String, String), i64>;

/// The numbers that were kept, and the same added up anew.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    /// `TicketMetrics`.
    pub kept: Totals,
    /// Out of `TicketActivity`, and of what its events say.
    pub recounted: Totals,
}

impl Numbers {
    /// Of the whole database: numbers do not tell whose run a ticket is of.
    pub(super) async fn of(database: &Database) -> Result<Self> {
        // One statement, so that both sides are of one moment.
        const BOTH: &str = r#"SELECT 'kept', "Metric", "Label", "Value" FROM "TicketMetrics"
            UNION ALL SELECT 'seen', a."Type", o."PayloadJson", 1
            FROM "TicketActivity" a LEFT JOIN "Outbox" o ON o."Id" = a."EventId""#;
        let mut connection = database.connect().await?;
        let mut numbers = Self::default();
        let mut some_are_gone = false;
        for row in connection.session().query(BOTH, &[]).await? {
            let (side, name) = (row.text(0)?, row.text(1)?);
            match (side.as_str(), row.maybe_text(2)?) {
                ("kept", label) => {
                    numbers.kept.insert((name, label.unwrap_or_default()), row.number(3)?);
                }
                (_, Some(payload)) => numbers.recount(&name, &serde_json::from_str(&payload)?),
                (_, None) => {
                    some_are_gone = true;
                    numbers.add("events", &name, 1);
                }
            }
        }
        if some_are_gone {
            numbers.only_events();
        }
        Ok(numbers)
    }

    fn recount(&mut self, topic: &str, told: &TicketEvent) {
        self.add("events", topic, 1);
        match (topic, &told.assignee) {
            (topic::ASSIGNED, Some(assignee)) => self.add("assigned", assignee, 1),
            (topic::ASSIGNED, None) => (),
            _ => self.add("tickets", told.status.as_str(), 1),
        }
        if let Some(before) = told.previous_status {
            self.add("tickets", before.as_str(), -1);
        }
    }

    fn add(&mut self, metric: &str, label: &str, by: i64) {
        *self.recounted.entry((metric.to_owned(), label.to_owned())).or_default() += by;
    }

    /// Retention took what some of the events said; how many of each type there were is still known.
    fn only_events(&mut self) {
        self.kept.retain(|(metric, _), _| metric == "events");
        self.recounted.retain(|(metric, _), _| metric == "events");
    }

    /// How many of the numbers that were kept are not what they should be.
    pub(super) fn wrong(&self) -> usize {
        let at = |totals: &Totals, name: &(String, String)| {
            totals.get(name).copied().unwrap_or_default()
        };
        let names: BTreeSet<&(String, String)> =
            self.kept.keys().chain(self.recounted.keys()).collect();
        names.into_iter().filter(|name| at(&self.kept, name) != at(&self.recounted, name)).count()
    }
}
