use super::mapping::{Mapping, Role};
use super::presets::Preset;
use super::shape::{Sort, TableShape, Times};

/// Names that columns of each role have elsewhere, without case and underscores; the first that is there counts.
const NAMES: &[(Role, &[&str])] = &[
    (Role::Id, &["id", "eventid", "messageid", "uuid", "guid", "outboxid", "rowid"]),
    (
        Role::Topic,
        &[
            "topic",
            "routingkey",
            "subject",
            "channel",
            "eventtype",
            "type",
            "eventname",
            "messagetype",
            "name",
            "destination",
            "aggregatetype",
        ],
    ),
    (
        Role::Key,
        &[
            "key",
            "partitionkey",
            "messagekey",
            "orderkey",
            "aggregateid",
            "aggregaterootid",
            "entityid",
            "streamid",
            "streamname",
        ],
    ),
    (Role::Type, &["eventtype", "messagetype", "type"]),
    (
        Role::Payload,
        &[
            "payload",
            "payloadjson",
            "data",
            "body",
            "message",
            "content",
            "eventdata",
            "event",
            "value",
            "json",
        ],
    ),
    (Role::Headers, &["headers", "metadata", "attributes", "properties", "headersjson"]),
    (Role::CorrelationId, &["correlationid", "correlation", "traceid", "requestid"]),
    (Role::Tenant, &["tenant", "tenantid"]),
    (
        Role::CreatedAt,
        &[
            "createdat",
            "occurredat",
            "occurredon",
            "occurredonutc",
            "created",
            "createdon",
            "insertedat",
            "timestamp",
            "time",
            "eventtime",
        ],
    ),
    (
        Role::Sequence,
        &["sequence", "seq", "position", "number", "ordinal", "offset", "sequencenumber"],
    ),
    (
        Role::PublishedAt,
        &[
            "publishedat",
            "dispatchedat",
            "processedat",
            "sentat",
            "relayedat",
            "deliveredat",
            "processedonutc",
            "completedat",
            "publishedon",
        ],
    ),
    (
        Role::Attempts,
        &["retrycount", "attempts", "retries", "attemptcount", "tries", "failedattempts"],
    ),
    (
        Role::NextAttemptAt,
        &[
            "nextretryat",
            "nextattemptat",
            "availableat",
            "scheduledat",
            "retryat",
            "notbefore",
            "visibleat",
            "nextretry",
        ],
    ),
    (Role::Error, &["lasterror", "error", "errormessage", "failurereason", "lasterrormessage"]),
    (Role::ErrorClass, &["errorclass", "errortype", "errorkind", "errorcode"]),
    (Role::ErrorAt, &["lasterrorat", "errorat", "failedat", "lastfailedat"]),
    (Role::UpdatedAt, &["updatedat", "modifiedat", "lastmodified", "updated", "updatedon"]),
];

/// The mapping that the names and types of a table's columns suggest, and what was guessed: a proposal for a person to
/// read, never taken by itself.
pub fn propose(table: &TableShape) -> (Mapping, Vec<String>) {
    if let Some(preset) = known(table) {
        let note = format!("the columns are those of the preset {:?}", preset.as_str());
        return (having(preset.mapping(table.name.clone()), table), vec![note]);
    }
    let mut mapping = Mapping::new(table.name.clone());
    mapping.columns.clear();
    for (role, names) in NAMES {
        if let Some(column) = find(table, *role, names, &mapping) {
            mapping.columns.insert(*role, column);
        }
    }
    only_one_role(&mut mapping);
    if mapping.column(Role::Sequence).is_none() {
        let drawn = table.columns.iter().find(|column| column.sequence_step.is_some());
        mapping.columns.extend(drawn.map(|column| (Role::Sequence, column.name.clone())));
    }
    let mut notes = Vec::new();
    if mapping.column(Role::Topic).is_none() {
        mapping = mapping.topic(table.name.table.to_lowercase());
        notes.push(
            "no column looks like a topic: every event gets the table's name as its topic".into(),
        );
    }
    if let Some(status) = status_column(table) {
        notes.push(format!(
            "{status} looks like a column of states: name its states under [adopt.NAME.status]"
        ));
    }
    (mapping, notes)
}

/// The columns that the table has of those that the mapping names; what may be missing is left out.
fn having(mut mapping: Mapping, table: &TableShape) -> Mapping {
    mapping.columns.retain(|_, name| table.column(name).is_some());
    if mapping.column(Role::Sequence).is_none() {
        let drawn = table.columns.iter().find(|column| column.sequence_step.is_some());
        mapping.columns.extend(drawn.map(|column| (Role::Sequence, column.name.clone())));
    }
    mapping
}

/// A preset all of whose telling columns are there.
fn known(table: &TableShape) -> Option<Preset> {
    let optional = |role: &Role| role.is_failure() || *role == Role::UpdatedAt;
    Preset::ALL.into_iter().find(|preset| {
        let mapping = preset.mapping(table.name.clone());
        let mut telling = mapping.columns.iter().filter(|(role, _)| !optional(role));
        telling.all(|(_, name)| table.column(name).is_some())
    })
}

fn find(table: &TableShape, role: Role, names: &[&str], so_far: &Mapping) -> Option<String> {
    let plain = |name: &str| -> String {
        name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let suits = |column: &&super::shape::ColumnShape| match role {
        Role::CreatedAt | Role::NextAttemptAt => column.times == Times::Holds,
        Role::PublishedAt | Role::ErrorAt | Role::UpdatedAt => column.times != Times::Refuses,
        Role::Sequence | Role::Attempts => column.sort == Sort::Integer,
        Role::Topic | Role::Type => matches!(column.sort, Sort::Text | Sort::Other),
        Role::Headers => matches!(column.sort, Sort::Text | Sort::Json),
        _ => true,
    };
    // The type is only told where something else is the topic.
    let taken = |name: &str| role == Role::Type && so_far.column(Role::Topic) == Some(name);
    names.iter().find_map(|wanted| {
        let found = table.columns.iter().find(|column| plain(&column.name) == *wanted);
        found.filter(suits).map(|column| column.name.clone()).filter(|name| !taken(name))
    })
}

/// Of two roles with the same column the first in the list keeps it.
fn only_one_role(mapping: &mut Mapping) {
    let mut taken = Vec::new();
    mapping.columns.retain(|_, name| {
        let first = !taken.contains(name);
        taken.push(name.clone());
        first
    });
}

fn status_column(table: &TableShape) -> Option<&str> {
    let looks = |name: &str| {
        matches!(
            name.to_lowercase().as_str(),
            "status" | "state" | "processed" | "published" | "sent"
        )
    };
    table.columns.iter().map(|column| column.name.as_str()).find(|name| looks(name))
}

#[cfg(test)]
mod tests {
    use super::super::shape::{ColumnShape, IndexShape};
    use super::super::{KeyOrder, TableName, judge};
    use super::*;

    fn table(name: &str, columns: &[(&str, Sort)]) -> TableShape {
        let mut shape = TableShape::named(TableName::parse(name).unwrap());
        shape.columns = columns
            .iter()
            .map(|(name, sort)| ColumnShape {
                name: (*name).into(),
                sort: *sort,
                times: match sort {
                    Sort::Time | Sort::NaiveTime | Sort::Integer => Times::Holds,
                    Sort::Text => Times::Takes,
                    _ => Times::Refuses,
                },
                type_name: "x".into(),
                nullable: true,
                default: None,
                sequence_step: None,
                generated: false,
            })
            .collect();
        let id = vec![shape.columns[0].name.clone()];
        shape.indices = vec![IndexShape { columns: id, unique: true, condition: None }];
        shape
    }

    #[test]
    fn a_strange_table_gets_a_mapping_that_can_be_read() {
        let mut strange = table(
            "msgs",
            &[
                ("MessageId", Sort::Integer),
                ("RoutingKey", Sort::Text),
                ("EventType", Sort::Text),
                ("AggregateId", Sort::Text),
                ("Body", Sort::Bytes),
                ("OccurredOnUtc", Sort::NaiveTime),
                ("ProcessedOnUtc", Sort::NaiveTime),
            ],
        );
        strange.columns[0].sequence_step = Some(1);
        let (mapping, notes) = propose(&strange);
        let named = |role| mapping.column(role);
        assert_eq!(named(Role::Topic), Some("RoutingKey"));
        assert_eq!(named(Role::Type), Some("EventType"));
        assert_eq!(named(Role::Key), Some("AggregateId"));
        assert_eq!(named(Role::PublishedAt), Some("ProcessedOnUtc"));
        assert_eq!(named(Role::Sequence), Some("MessageId"));
        assert!(notes.is_empty(), "{notes:?}");
        let verdict = judge(&mapping, &strange, None);
        assert_eq!(verdict.order, KeyOrder::Sequence { column: "MessageId".into() });
        assert_eq!(verdict.problems, [""; 0]);
        assert_eq!(verdict.missing_indices.len(), 1, "{verdict:?}");
    }

    #[test]
    fn the_documented_tables_are_known_again() {
        for preset in Preset::ALL {
            let mapping = preset.mapping(TableName::parse(preset.table()).unwrap());
            let columns: Vec<(&str, Sort)> =
                mapping.columns.values().map(|name| (name.as_str(), Sort::Text)).collect();
            let (proposed, notes) = propose(&table(preset.table(), &columns));
            assert_eq!(proposed, mapping);
            assert!(notes[0].contains(preset.as_str()), "{notes:?}");
        }
    }

    #[test]
    fn a_table_that_tells_no_order_is_said_to_tell_none() {
        let (mapping, _) = propose(&table(
            "outbox",
            &[("id", Sort::Uuid), ("type", Sort::Text), ("payload", Sort::Json)],
        ));
        let verdict = judge(&mapping, &table("outbox", &[("id", Sort::Uuid)]), None);
        assert!(!verdict.order.is_sound());
        assert!(
            verdict.problems.iter().any(|problem| problem.contains("no column")),
            "{verdict:?}"
        );
    }

    /// What is proposed for this role in a table of these columns.
    fn proposed(role: Role, columns: &[(&str, Sort)]) -> Option<String> {
        propose(&table("msgs", columns)).0.column(role).map(str::to_owned)
    }

    #[test]
    fn a_column_that_cannot_hold_what_its_name_says_is_passed_over() {
        for (role, name, suits, other) in [
            (Role::CreatedAt, "created_at", &[Sort::Time, Sort::Integer][..], &[Sort::Text][..]),
            (Role::NextAttemptAt, "next_retry_at", &[Sort::NaiveTime], &[Sort::Text, Sort::Uuid]),
            (Role::UpdatedAt, "updated_at", &[Sort::NaiveTime, Sort::Text], &[Sort::Uuid]),
            (Role::Sequence, "position", &[Sort::Integer], &[Sort::Text, Sort::Time]),
            (Role::Attempts, "attempts", &[Sort::Integer], &[Sort::Json]),
            (Role::Topic, "topic", &[Sort::Text, Sort::Other], &[Sort::Integer]),
            (Role::Headers, "headers", &[Sort::Text, Sort::Json], &[Sort::Integer]),
            (Role::Payload, "payload", &[Sort::Text, Sort::Bytes, Sort::Json], &[]),
        ] {
            for sort in suits {
                assert_eq!(proposed(role, &[(name, *sort)]).as_deref(), Some(name), "{sort:?}");
            }
            for sort in other {
                assert_eq!(proposed(role, &[(name, *sort)]), None, "{role:?} {sort:?}");
            }
        }
    }

    #[test]
    fn the_type_is_told_by_another_column_than_the_topic_or_not_at_all() {
        let both = [("event_type", Sort::Text), ("type", Sort::Text)];
        assert_eq!(proposed(Role::Topic, &both).as_deref(), Some("event_type"));
        assert_eq!(proposed(Role::Type, &both).as_deref(), Some("type"));
        assert_eq!(proposed(Role::Type, &both[..1]), None);
    }

    #[test]
    fn of_two_roles_with_the_same_column_the_first_keeps_it() {
        let mut mapping = Mapping::new(TableName::parse("t").unwrap()).with(Role::Type, "topic");
        only_one_role(&mut mapping);
        let roles: Vec<Role> = mapping.columns.keys().copied().collect();
        assert_eq!(roles, [Role::Id, Role::Topic, Role::Payload]);
    }

    #[test]
    fn a_column_of_states_is_pointed_out() {
        let with = |name| propose(&table("msgs", &[("id", Sort::Uuid), (name, Sort::Text)])).1;
        let notes = with("Status");
        assert!(notes.iter().any(|note| note.starts_with("Status looks like")), "{notes:?}");
        assert_eq!(with("topic"), [""; 0]);
    }

    #[test]
    fn a_documented_table_is_known_without_the_columns_it_may_lack() {
        let mapping = Preset::SmartEdify.mapping(TableName::parse("outbox_events").unwrap());
        let needed = |role: &Role| !role.is_failure() && *role != Role::UpdatedAt;
        let there = mapping.columns.iter().filter(|(role, _)| needed(role));
        let columns: Vec<_> = there.map(|(_, name)| (name.as_str(), Sort::Text)).collect();
        let (_, notes) = propose(&table("outbox_events", &columns));
        assert!(notes[0].contains("smartedify"), "{notes:?}");
        let (_, notes) = propose(&table("outbox_events", &columns[1..]));
        assert!(!notes.iter().any(|note| note.contains("preset")), "{notes:?}");
    }
}
