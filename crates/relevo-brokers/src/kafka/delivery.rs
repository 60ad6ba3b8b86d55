use super::headers;
use bytes::Bytes;
use chrono::DateTime;
use rdkafka::Message;
use rdkafka::message::{BorrowedMessage, OwnedHeaders};
use relevo_core::broker::{Incoming, Tag};

/// Where a record is stored in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) topic: String,
    pub(super) partition: i32,
}

impl Place {
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.topic, self.partition)
    }
}

/// A record as it came, with all its bytes.
#[derive(Debug, Clone)]
pub(super) struct Delivery {
    pub(super) place: Place,
    pub(super) offset: i64,
    pub(super) key: Option<Bytes>,
    /// None is a tombstone.
    pub(super) payload: Option<Bytes>,
    pub(super) headers: OwnedHeaders,
    /// Milliseconds since 1970.
    pub(super) timestamp: Option<i64>,
}

impl Delivery {
    pub(super) fn read(message: &BorrowedMessage<'_>) -> Self {
        let place = Place { topic: message.topic().to_owned(), partition: message.partition() };
        Self {
            place,
            offset: message.offset(),
            key: message.key().map(Bytes::copy_from_slice),
            payload: message.payload().map(Bytes::copy_from_slice),
            headers: message.headers().map_or_else(OwnedHeaders::new, |headers| headers.detach()),
            timestamp: message.timestamp().to_millis(),
        }
    }

    /// As everybody else sees it.
    pub(super) fn incoming(&self, tag: Tag, times: u32) -> Incoming {
        let payload = self.payload.clone().unwrap_or_default();
        let mut incoming = Incoming::new(tag, self.place.topic.clone(), payload);
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        incoming.key = self.key.as_ref().map(text);
        incoming.headers = headers::read(self.headers.as_borrowed());
        incoming.stored_at = self.timestamp.and_then(DateTime::from_timestamp_millis);
        incoming.position = Some(self.position());
        incoming.redelivered = times > 1;
        incoming.deliveries = times;
        incoming
    }

    /// Its place, the same with every delivery.
    pub(super) fn position(&self) -> String {
        format!("{}@{}", self.place.name(), self.offset)
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let headers: usize = headers::readable(&self.headers)
            .map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len))
            .sum();
        of(&self.key) + of(&self.payload) + headers + self.place.topic.len()
    }
}

impl Delivery {
    /// A record without anything in it.
    pub(super) fn empty(place: Place, offset: i64) -> Self {
        let headers = OwnedHeaders::new();
        Self { place, offset, key: None, payload: None, headers, timestamp: None }
    }
}
