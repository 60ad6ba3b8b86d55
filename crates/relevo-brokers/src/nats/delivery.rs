use super::headers;
use async_nats::{HeaderMap, Message, Subject};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use relevo_core::broker::{Incoming, Tag};

/// A message, as one delivery of it.
#[derive(Debug, Clone)]
pub(super) struct Delivery {
    /// Answers to this acknowledge it.
    pub(super) reply: Subject,
    pub(super) subject: String,
    /// Its place in the stream.
    pub(super) sequence: u64,
    /// How often it was delivered, this time included.
    pub(super) times: u64,
    pub(super) stored_at: Option<DateTime<Utc>>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) payload: Bytes,
}

impl Delivery {
    /// `None` for what is no delivery of a consumer.
    pub(super) fn read(message: Message) -> Option<Self> {
        let reply = message.reply?;
        let (times, sequence, stored_at) = place(&reply)?;
        let headers = message.headers.as_ref().map(headers::read).unwrap_or_default();
        Some(Self {
            reply,
            subject: message.subject.to_string(),
            sequence,
            times,
            stored_at,
            headers,
            payload: message.payload,
        })
    }

    /// As everybody else sees it. Commands to the server are no part of it.
    pub(super) fn incoming(&self, tag: Tag, stream: &str) -> Incoming {
        let mut incoming = Incoming::new(tag, self.subject.clone(), self.payload.clone());
        let (commands, own): (Vec<_>, Vec<_>) =
            self.headers.iter().cloned().partition(|(name, _)| headers::is_command(name));
        let is_id = |(name, _): &(String, String)| name.eq_ignore_ascii_case("nats-msg-id");
        incoming.message_id = commands.into_iter().find(is_id).map(|(_, value)| value);
        incoming.headers = own;
        incoming.stored_at = self.stored_at;
        incoming.position = Some(format!("{stream}@{}", self.sequence));
        incoming.redelivered = self.times > 1;
        incoming.deliveries = u32::try_from(self.times).unwrap_or(u32::MAX);
        incoming
    }

    pub(super) fn bytes(&self) -> usize {
        let headers: usize =
            self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.payload.len() + headers + self.subject.len()
    }

    /// The headers that are no commands, as they came.
    pub(super) fn own_headers(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in self.headers.iter().filter(|(name, _)| !headers::is_command(name)) {
            headers::insert(&mut map, name.clone(), value.clone());
        }
        map
    }
}

/// Deliveries, sequence in the stream and time of `$JS.ACK...`, in the older form of 9 words and the newer of 11 or
/// more.
fn place(reply: &str) -> Option<(u64, u64, Option<DateTime<Utc>>)> {
    let words: Vec<&str> = reply.split('.').collect();
    if words.first() != Some(&"$JS") || words.get(1) != Some(&"ACK") {
        return None;
    }
    let at = match words.len() {
        9 => 4,
        11.. => 6,
        _ => return None,
    };
    let nanos: i64 = words.get(at + 3)?.parse().ok()?;
    Some((
        words.get(at)?.parse().ok()?,
        words.get(at + 1)?.parse().ok()?,
        Some(DateTime::from_timestamp_nanos(nanos)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_read_from_both_forms_of_its_reply() {
        let old = place("$JS.ACK.ORDERS.billing.2.17.40.1700000000000000001.3").unwrap();
        let new = place("$JS.ACK._.HASH.ORDERS.billing.2.17.40.1700000000000000001.3").unwrap();
        let newest = place("$JS.ACK.hub.HASH.ORDERS.billing.2.17.40.1700000000000000001.3.token");
        assert_eq!((old.0, old.1), (2, 17));
        assert_eq!(old, new);
        assert_eq!(Some(old), newest);
        for odd in ["", "_INBOX.x", "$JS.ACK.a.b", "$JS.ACK.a.b.x.1.1.1.1"] {
            assert_eq!(place(odd), None, "{odd}");
        }
    }
}
