//! What a delivery report means for the event.

use super::watch::Report;
use rdkafka::error::RDKafkaErrorCode as Code;
use relevo_core::broker::Confirm;
use relevo_core::error::ErrorClass;

/// The meaning of a report.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// It is about this message.
    Own(Confirm),
    /// The brokers refuse a whole batch for one of its messages: only alone it gets an answer of its own.
    Batch(Confirm),
}

impl Answer {
    /// What is known of a message that travelled alone.
    pub(super) fn alone(self) -> Confirm {
        match self {
            Self::Own(confirm) | Self::Batch(confirm) => confirm,
        }
    }
}

/// The meaning of a delivery report. Only what the brokers certainly did not store is called refused.
pub(super) fn meaning(report: Report) -> Answer {
    let code = match report {
        Ok(_) => return Answer::Own(Confirm::Stored),
        Err(code) => code,
    };
    let error = format!("{code}");
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidRecord
        | Code::InvalidMessage
        | Code::InvalidMessageSize => Answer::Batch(refused(ErrorClass::Poison, error)),
        Code::PolicyViolation | Code::InvalidTimestamp | Code::UnsupportedForMessageFormat => {
            Answer::Batch(refused(ErrorClass::Permanent, error))
        }
        Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopicId
        | Code::InvalidTopic => Answer::Own(refused(ErrorClass::Permanent, error)),
        // Somebody may permit it, or make room.
        code if is_forbidden(code, false) => Answer::Own(refused(ErrorClass::Transient, error)),
        Code::NotEnoughReplicas | Code::ThrottlingQuotaExceeded => {
            Answer::Own(refused(ErrorClass::Transient, error))
        }
        Code::PurgeQueue => {
            Answer::Own(Confirm::Unknown { error: "given up before its confirm came".into() })
        }
        // Whatever else it was: it may be in the log.
        _ => Answer::Own(Confirm::Unknown { error }),
    }
}

/// Whether it was not permitted. A producer that may write to no topic ends, and then drops what it never sent.
pub(super) fn is_forbidden(code: Code, ended_for_that: bool) -> bool {
    matches!(code, Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed)
        || ended_for_that && matches!(code, Code::PurgeQueue | Code::Fatal)
}

/// What the client did not even take.
pub(super) fn untaken(code: Option<Code>, error: String) -> Confirm {
    match code {
        Some(Code::MessageSizeTooLarge) => refused(ErrorClass::Poison, error),
        Some(Code::UnknownTopic | Code::UnknownPartition) => refused(ErrorClass::Permanent, error),
        _ => Confirm::Down { error: format!("it was never sent: {error}") },
    }
}

pub(super) fn refused(class: ErrorClass, error: String) -> Confirm {
    Confirm::Refused { class, error, after: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(code: Code) -> Option<ErrorClass> {
        match meaning(Err(code)).alone() {
            Confirm::Refused { class, .. } => Some(class),
            _ => None,
        }
    }

    #[test]
    fn a_report_without_an_error_is_stored() {
        assert_eq!(meaning(Ok((3, 17))), Answer::Own(Confirm::Stored));
    }

    #[test]
    fn what_may_be_in_the_log_is_unknown() {
        for code in [
            Code::MessageTimedOut,
            Code::RequestTimedOut,
            Code::BrokerTransportFailure,
            Code::NotEnoughReplicasAfterAppend,
            Code::KafkaStorageError,
            Code::PurgeInflight,
            Code::PurgeQueue,
            Code::OutOfOrderSequenceNumber,
            Code::Fatal,
            Code::Fail,
        ] {
            assert_eq!(class(code), None, "{code:?}");
            let unknown = matches!(meaning(Err(code)), Answer::Own(Confirm::Unknown { .. }));
            assert!(unknown, "{code:?}");
        }
    }

    #[test]
    fn every_refusal_has_its_class() {
        assert_eq!(class(Code::MessageSizeTooLarge), Some(ErrorClass::Poison));
        assert!(matches!(meaning(Err(Code::MessageSizeTooLarge)), Answer::Batch(_)));
        assert_eq!(class(Code::UnknownTopicOrPartition), Some(ErrorClass::Permanent));
        assert_eq!(class(Code::TopicAuthorizationFailed), Some(ErrorClass::Transient));
        assert_eq!(class(Code::NotEnoughReplicas), Some(ErrorClass::Transient));
    }

    #[test]
    fn a_producer_that_may_write_nowhere_was_forbidden_what_it_never_sent() {
        assert!(is_forbidden(Code::PurgeQueue, true) && !is_forbidden(Code::PurgeQueue, false));
        assert!(!is_forbidden(Code::PurgeInflight, true), "it may be in the log");
    }
}
