use super::mapping::{KeyFrom, Mapping, TopicFrom};
use crate::error::{Error, Kind, Result};
use crate::event::{EventId, Headers, NewEvent, header, order_key};
use crate::limits::Limits;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use md5::{Digest, Md5};
use std::collections::HashSet;
use uuid::{Builder, Uuid};

/// A row of an adopted table, column by role, before anybody looked whether it makes an event.
#[derive(Debug, Clone, PartialEq)]
pub struct RawRow<I> {
    /// Its identity as the store finds it again.
    pub row: I,
    /// Its identity as text.
    pub id: String,
    /// The topic's column.
    pub topic: Option<String>,
    /// The key's column.
    pub key: Option<String>,
    /// The type's column.
    pub kind: Option<String>,
    /// The payload.
    pub payload: Option<Bytes>,
    /// The payload's media type as its column's type tells it.
    pub content_type: &'static str,
    /// The headers, a JSON object.
    pub headers: Option<String>,
    /// The correlation id.
    pub correlation_id: Option<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// When it happened.
    pub created_at: Option<DateTime<Utc>>,
    /// Could it be had, or does somebody hold it?
    pub locked_by_others: bool,
}

/// A row that makes an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit<I> {
    /// The row.
    pub row: I,
    /// The event.
    pub event: NewEvent,
    /// When it happened, if the table tells.
    pub created_at: Option<DateTime<Utc>>,
}

/// A row that makes no event: nobody could be handed it.
#[derive(Debug)]
pub struct Unfit<I> {
    /// The row.
    pub row: I,
    /// The id its event would have.
    pub id: EventId,
    /// Its key, as far as there is one.
    pub key: Option<String>,
    /// Its topic, as far as there is one.
    pub topic: String,
    /// Its bytes.
    pub payload: Bytes,
    /// The headers under which it is kept: whose it is.
    pub headers: Headers,
    /// Why not.
    pub error: Error,
}

/// What a look at the table brought.
#[derive(Debug)]
pub struct Harvest<I> {
    /// Rows to claim, in order.
    pub fit: Vec<Fit<I>>,
    /// Rows that are dead letters at once.
    pub unfit: Vec<Unfit<I>>,
    /// Rows left for later: somebody holds them, or one of their key before them.
    pub held: usize,
}

/// How many rows to claim at a time: one claim after another, until there are no more rows or enough are claimed.
#[derive(Debug)]
pub struct Claims {
    wanted: usize,
    most: usize,
}

impl Claims {
    /// `wanted` rows in all, at most `most` of them in one claim.
    pub fn new(wanted: usize, most: usize) -> Self {
        Self { wanted, most }
    }

    /// How many the next claim asks for, if there is to be one.
    pub fn next_claim(&self) -> Option<usize> {
        (self.wanted > 0).then(|| self.most.min(self.wanted))
    }

    /// The claim got this many. One that got fewer than it asked for was the last.
    pub fn got(&mut self, rows: usize) {
        self.wanted = if rows < self.most { 0 } else { self.wanted.saturating_sub(rows) };
    }
}

/// What the log's rows of this adoption carry, so that no other subscription takes them for its own.
pub fn inbox_of(adoption: &str) -> String {
    format!("adopt:{adoption}")
}

/// Sorts rows, given in the table's order, into those to claim, those that make no event, and those to leave: a row
/// that somebody holds is passed over (`SKIP LOCKED`), and with it everything of its key, or order would be lost: also in
/// what comes after these rows, if it is given the same `held_keys`.
pub fn sort_out<I>(
    mapping: &Mapping,
    adoption: &str,
    rows: Vec<RawRow<I>>,
    held_keys: &mut HashSet<String>,
) -> Harvest<I> {
    let mut harvest = Harvest { fit: Vec::new(), unfit: Vec::new(), held: 0 };
    for row in rows {
        let id = event_id(adoption, &row.id);
        let key = key_of(mapping, &row);
        let order_key = order_key(key.as_deref(), id);
        if row.locked_by_others || held_keys.contains(&order_key) {
            held_keys.insert(order_key);
            harvest.held += 1;
            continue;
        }
        match event(mapping, adoption, id, key.clone(), &row) {
            Ok(event) => harvest.fit.push(Fit { row: row.row, event, created_at: row.created_at }),
            Err(error) => harvest.unfit.push(Unfit {
                row: row.row,
                id,
                key,
                topic: row.topic.unwrap_or_default(),
                payload: row.payload.unwrap_or_default(),
                headers: [(header::INBOX, inbox_of(adoption))].into_iter().collect(),
                error,
            }),
        }
    }
    harvest
}

/// The id of a row's event: the row's own if it is a UUID; otherwise one that is always the same for this row.
pub fn event_id(adoption: &str, id: &str) -> EventId {
    EventId(Uuid::parse_str(id).unwrap_or_else(|_| {
        let digest =
            Md5::new().chain_update(adoption).chain_update([0]).chain_update(id).finalize();
        Builder::from_custom_bytes(digest.into()).into_uuid()
    }))
}

/// The key of a row's event.
pub fn key_of<I>(mapping: &Mapping, row: &RawRow<I>) -> Option<String> {
    let KeyFrom::Payload(path) = &mapping.key else { return row.key.clone() };
    let mut json: serde_json::Value = serde_json::from_slice(row.payload.as_deref()?).ok()?;
    for word in path {
        json = json.get_mut(word)?.take();
    }
    match json {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn event<I>(
    mapping: &Mapping,
    adoption: &str,
    id: EventId,
    key: Option<String>,
    row: &RawRow<I>,
) -> Result<NewEvent> {
    let mut event = NewEvent::with_id(id, topic(mapping, row)?, payload(row)?);
    event.key = key;
    event.headers = row.headers.as_deref().map(Headers::from_json_text).unwrap_or_default();
    // Bytes of which nothing is known need no word for it.
    let told = Some(row.content_type).filter(|told| *told != "application/octet-stream");
    for (name, value) in [
        (header::CONTENT_TYPE, mapping.content_type.as_deref().or(told)),
        (header::TYPE, row.kind.as_deref()),
        (header::CORRELATION_ID, row.correlation_id.as_deref()),
        (header::TENANT, row.tenant.as_deref()),
    ] {
        if let (Some(value), None) = (value, event.headers.get(name)) {
            event.headers.set(name, value);
        }
    }
    Limits::default().check(&event)?;
    event.headers.set(header::INBOX, inbox_of(adoption));
    Ok(event)
}

fn topic<I>(mapping: &Mapping, row: &RawRow<I>) -> Result<String> {
    let missing = || Error::new(Kind::InvalidTopic, "the column of the topic is null");
    match &mapping.topic {
        TopicFrom::Always(topic) => Ok(topic.clone()),
        TopicFrom::Column { prefix } => {
            Ok(format!("{prefix}{}", row.topic.as_deref().ok_or_else(missing)?))
        }
    }
}

fn payload<I>(row: &RawRow<I>) -> Result<Bytes> {
    let missing = || Error::new(Kind::InvalidPayload, "the column of the payload is null");
    row.payload.clone().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::adopt::{Preset, TableName};

    fn row(id: &str, topic: &str, payload: &str, locked: bool) -> RawRow<u8> {
        RawRow {
            row: 0,
            id: id.into(),
            topic: Some(topic.into()),
            key: None,
            kind: None,
            payload: Some(payload.to_owned().into()),
            content_type: "application/json",
            headers: None,
            correlation_id: Some("c-1".into()),
            tenant: Some("acme".into()),
            created_at: None,
            locked_by_others: locked,
        }
    }

    fn ticketflow() -> Mapping {
        Preset::TicketFlow.mapping(TableName::parse("Outbox").unwrap())
    }

    #[test]
    fn a_row_that_somebody_holds_keeps_its_key_and_no_other() {
        let rows = vec![
            row("1", "ticket.created", r#"{"ticketId": 7}"#, true),
            row("2", "ticket.created", r#"{"ticketId": 8}"#, false),
            row("3", "ticket.assigned", r#"{"ticketId": 7}"#, false),
        ];
        let mut held_keys = HashSet::new();
        let harvest = sort_out(&ticketflow(), "tickets", rows, &mut held_keys);
        let keys: Vec<_> = harvest.fit.iter().map(|fit| fit.event.key.as_deref()).collect();
        assert_eq!((keys, harvest.held), (vec![Some("8")], 2));
        let event = &harvest.fit[0].event;
        assert_eq!(event.headers.get(header::CORRELATION_ID), Some("c-1"));
        assert_eq!(event.headers.get(header::TENANT), Some("acme"));
        assert_eq!(event.headers.get(header::INBOX), Some("adopt:tickets"));
        let later = vec![row("4", "ticket.assigned", r#"{"ticketId": 7}"#, false)];
        let harvest = sort_out(&ticketflow(), "tickets", later, &mut held_keys);
        assert_eq!((harvest.fit.len(), harvest.held), (0, 1), "in the next claim, too");
    }

    #[test]
    fn a_header_that_a_row_brings_itself_is_not_written_over_by_a_column() {
        let headers = Some(r#"{"tenant": "umbrella"}"#.into());
        let rows = vec![
            RawRow { headers, ..row("1", "a", "{}", false) },
            RawRow { tenant: None, ..row("2", "a", "{}", false) },
        ];
        let harvest = sort_out(&ticketflow(), "tickets", rows, &mut HashSet::new());
        let of = |n: usize| harvest.fit[n].event.headers.get(header::TENANT);
        assert_eq!((of(0), of(1)), (Some("umbrella"), None));
        assert_eq!(harvest.fit[0].event.headers.get(header::CORRELATION_ID), Some("c-1"));
    }

    #[test]
    fn what_makes_no_event_is_told_apart_and_keeps_nobody_back() {
        let rows = vec![
            row("1", "ticket created", "{}", false),
            row("2", "ticket.created", "not JSON", false),
            RawRow { payload: None, ..row("0", "a", "", false) },
            row("3", "a", &"x".repeat(2 << 20), false),
            RawRow { headers: Some(r#"{"relevo-inbox": "x"}"#.into()), ..row("4", "a", "", false) },
        ];
        let harvest = sort_out(&ticketflow(), "tickets", rows, &mut HashSet::new());
        let kinds: Vec<Kind> = harvest.unfit.iter().map(|unfit| unfit.error.kind()).collect();
        assert_eq!(
            kinds,
            [Kind::InvalidTopic, Kind::InvalidPayload, Kind::PayloadTooLarge, Kind::InvalidHeaders]
        );
        assert_eq!(harvest.fit.len(), 1, "a payload that is no JSON has no key, and travels");
    }

    #[test]
    fn an_id_that_is_no_uuid_gets_one_that_stays() {
        let uuid = Uuid::now_v7();
        assert_eq!(event_id("a", &uuid.to_string().to_uppercase()), EventId(uuid));
        assert_eq!(event_id("a", "42"), event_id("a", "42"));
        assert_ne!(event_id("a", "42"), event_id("b", "42"));
    }
}
