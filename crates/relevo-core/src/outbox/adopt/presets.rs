use super::mapping::{Mapping, Role};
use super::names::TableName;

/// Mappings of tables that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// TicketFlow's `Outbox`.
    TicketFlow,
    /// SmartEdify's `outbox_events`.
    SmartEdify,
    /// The columns of Debezium's outbox event router, which forbids UPDATE: state lives beside the table.
    Debezium,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 3] = [Self::TicketFlow, Self::SmartEdify, Self::Debezium];

    /// The word used in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TicketFlow => "ticketflow",
            Self::SmartEdify => "smartedify",
            Self::Debezium => "debezium",
        }
    }

    /// Reads the word that [`Self::as_str`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.as_str() == text)
    }

    /// The table's usual name.
    pub fn table(self) -> &'static str {
        match self {
            Self::TicketFlow => "Outbox",
            Self::SmartEdify => "outbox_events",
            Self::Debezium => "outboxevent",
        }
    }

    /// The mapping, for a table of this name.
    pub fn mapping(self, table: TableName) -> Mapping {
        let mut mapping = Mapping::new(table);
        mapping.columns =
            self.columns().iter().map(|(role, column)| (*role, (*column).into())).collect();
        match self {
            Self::TicketFlow => mapping.key_in_payload(["ticketId"]),
            Self::SmartEdify => {
                let dead = format!("{}_dlq", mapping.table.table);
                let dead = TableName { schema: mapping.table.schema.clone(), table: dead };
                mapping.dead_letters(dead)
            }
            Self::Debezium => mapping.topic_prefix("outbox.event."),
        }
    }

    fn columns(self) -> &'static [(Role, &'static str)] {
        match self {
            Self::TicketFlow => &[
                (Role::Id, "Id"),
                (Role::Topic, "Type"),
                (Role::Payload, "PayloadJson"),
                (Role::CorrelationId, "CorrelationId"),
                (Role::CreatedAt, "OccurredAt"),
                (Role::PublishedAt, "DispatchedAt"),
            ],
            Self::SmartEdify => &[
                (Role::Id, "id"),
                (Role::Topic, "event_type"),
                (Role::Key, "aggregate_id"),
                (Role::Payload, "payload"),
                (Role::CreatedAt, "created_at"),
                (Role::PublishedAt, "published_at"),
                (Role::Attempts, "retry_count"),
                (Role::NextAttemptAt, "next_retry_at"),
                (Role::Error, "last_error"),
                (Role::ErrorClass, "error_class"),
                (Role::ErrorAt, "last_error_at"),
                (Role::UpdatedAt, "updated_at"),
            ],
            Self::Debezium => &[
                (Role::Id, "id"),
                (Role::Topic, "aggregatetype"),
                (Role::Key, "aggregateid"),
                (Role::Type, "type"),
                (Role::Payload, "payload"),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_mapping_that_holds() {
        for preset in Preset::ALL {
            let mapping = preset.mapping(TableName::parse(preset.table()).unwrap());
            assert!(mapping.check().is_ok(), "{preset:?}");
            assert_eq!(mapping.changes_rows(), preset != Preset::Debezium);
            assert_eq!(Preset::parse(preset.as_str()), Some(preset));
        }
    }
}
