//! What a client of librdkafka reports beside its answers.

use super::rights;
use super::window::Room;
use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, NoCustomPartitioner, ProducerContext};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// Hears what the client has to say.
#[derive(Default)]
pub(super) struct Watch {
    complaint: Mutex<Option<Complaint>>,
    trouble: AtomicBool,
    /// The brokers have stored something of this client.
    stored: AtomicBool,
    /// Rings with every delivery report: there is room in the client's queue again.
    pub(super) delivered: Notify,
}

/// Something the client said beside its answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) reason: String,
    /// It is about who we are.
    pub(super) is_login: bool,
}

impl Watch {
    /// What the client complained about since it was last answered: an authentication that fails is told in no other
    /// way.
    pub(super) fn complaint(&self) -> Option<Complaint> {
        self.said().clone()
    }

    /// Somebody answered: what was said before explains nothing that comes.
    pub(super) fn answered(&self) {
        *self.said() = None;
    }

    fn said(&self) -> MutexGuard<'_, Option<Complaint>> {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something went wrong since this was asked last: better look whether anybody is there.
    pub(super) fn take_trouble(&self) -> bool {
        self.trouble.swap(false, Ordering::SeqCst)
    }

    pub(super) fn has_stored(&self) -> bool {
        self.stored.load(Ordering::Relaxed)
    }

    pub(super) fn note_trouble(&self) {
        self.trouble.store(true, Ordering::SeqCst);
    }

    pub(super) fn complain(&self, error: &KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        tracing::debug!(%reason, "Kafka: {error}");
        let is_login = code.is_some_and(|code| rights::is_login(code, reason));
        let reason =
            if is_login { format!("{reason}; {}", rights::CHECK_LOGIN) } else { reason.to_owned() };
        let complaint = Complaint { reason, is_login };
        if matches!(code, Some(RDKafkaErrorCode::AllBrokersDown)) {
            self.note_trouble();
            // It follows from what was said before, which says more.
            self.said().get_or_insert(complaint);
        } else {
            *self.said() = Some(complaint);
        }
    }
}

/// The client's own lines; it never writes a password.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, line: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::warn!(facility, "librdkafka: {line}");
        }
        // Each connection that fails is one: what follows from it is reported where it is noticed.
        _ => tracing::debug!(facility, "librdkafka: {line}"),
    }
}

impl ClientContext for Watch {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.complain(&error, reason);
    }
}

/// A message under way: who waits for its report, and the room it takes.
pub(super) struct Ticket {
    pub(super) answer: oneshot::Sender<Report>,
    pub(super) _room: Option<Room>,
}

/// A delivery report: its place, or why it has none.
pub(super) type Report = Result<(i32, i64), RDKafkaErrorCode>;

impl ProducerContext<NoCustomPartitioner> for Watch {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let report = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)),
        };
        match report {
            Ok(_) => self.stored.store(true, Ordering::Relaxed),
            Err(_) => self.note_trouble(),
        }
        // Who was not interested any more has dropped the other end; the ticket's room goes with it.
        let _ = ticket.answer.send(report);
        self.delivered.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(watch: &Watch, code: RDKafkaErrorCode, reason: &str) {
        watch.complain(&KafkaError::Global(code), reason);
    }

    #[test]
    fn that_nobody_is_left_does_not_hide_why() {
        let watch = Watch::default();
        said(&watch, RDKafkaErrorCode::Authentication, "wrong password");
        said(&watch, RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");
        let why = watch.complaint().unwrap();
        assert!(why.is_login && why.reason.starts_with("wrong password; check"), "{why:?}");
        watch.answered();
        said(&watch, RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");
        let why = watch.complaint().unwrap();
        assert!(!why.is_login && why.reason.contains("are down"), "{why:?}");
    }
}
