use crate::error::{Error, ErrorClass};
use std::time::Duration;

/// What became of an event at its destination.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// Its effect happened, or the destination stored it.
    Done,
    /// It was not worked on, on purpose.
    Skip {
        /// Why.
        reason: String,
    },
    /// It failed; the retry policy decides.
    Failed {
        /// Try again?
        class: ErrorClass,
        /// What happened.
        error: String,
        /// Not before this long, if the destination said so.
        after: Option<Duration>,
    },
    /// It failed for good, whatever the policy says.
    Dead {
        /// Its class.
        class: ErrorClass,
        /// Why.
        error: String,
    },
}

/// What a handler answers when it did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The effect is in the transaction.
    Done,
    /// Nothing to do, for this reason; it is counted and kept.
    Skip(String),
}

/// What a handler answers when it failed. Any error turns into a transient failure by `?`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Try again after this long.
    RetryAfter(Duration, String),
    /// Never try again: a dead letter.
    ForGood(String),
    /// Failed; the policy decides by the class.
    Error(ErrorClass, Box<dyn std::error::Error + Send + Sync>),
}

/// What a handler answers.
pub type Answer = Result<Settled, Failure>;

impl Failure {
    /// Try again after `delay`.
    pub fn retry_after(delay: Duration, why: impl Into<String>) -> Self {
        Self::RetryAfter(delay, why.into())
    }

    /// A dead letter, now.
    pub fn for_good(why: impl Into<String>) -> Self {
        Self::ForGood(why.into())
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    /// Relevo's own errors keep their class (an undecodable payload is poison); all others are transient.
    fn from(error: E) -> Self {
        let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
        let class = boxed.downcast_ref::<Error>().map_or(ErrorClass::Transient, Error::class);
        Self::Error(class, boxed)
    }
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        match answer {
            Ok(Settled::Done) => Self::Done,
            Ok(Settled::Skip(reason)) => Self::Skip { reason },
            Err(Failure::RetryAfter(delay, error)) => {
                Self::Failed { class: ErrorClass::Transient, error, after: Some(delay) }
            }
            Err(Failure::ForGood(error)) => Self::Dead { class: ErrorClass::Permanent, error },
            Err(Failure::Error(class, error)) => {
                Self::Failed { class, error: chain(error.as_ref()), after: None }
            }
        }
    }
}

/// An error with everything behind it, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use std::fmt;

    /// An error with another behind it.
    #[derive(Debug)]
    struct Behind(&'static str, Option<Box<Self>>);

    impl fmt::Display for Behind {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Behind {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|source| source as _)
        }
    }

    #[test]
    fn every_answer_of_a_handler_has_its_outcome() {
        let (second, why) = (Duration::from_secs(1), || "why".to_owned());
        let outcome = |answer: Answer| Outcome::from(answer);
        assert_eq!(outcome(Ok(Settled::Done)), Outcome::Done);
        assert_eq!(outcome(Ok(Settled::Skip(why()))), Outcome::Skip { reason: why() });
        let class = ErrorClass::Transient;
        let later = Outcome::Failed { class, error: why(), after: Some(second) };
        assert_eq!(outcome(Err(Failure::retry_after(second, "why"))), later);
        let dead = Outcome::Dead { class: ErrorClass::Permanent, error: why() };
        assert_eq!(outcome(Err(Failure::for_good("why"))), dead);
    }

    #[test]
    fn an_error_of_relevo_keeps_its_class_and_any_other_is_transient() {
        let class = |failure: Failure| match Outcome::from(Err(failure)) {
            Outcome::Failed { class, after: None, .. } => Some(class),
            _ => None,
        };
        let own = Error::new(Kind::InvalidPayload, "no JSON");
        assert_ne!(own.class(), ErrorClass::Transient);
        assert_eq!(class(own.into()), Some(Kind::InvalidPayload.class()));
        assert_eq!(class(Behind("odd", None).into()), Some(ErrorClass::Transient));
    }

    #[test]
    fn an_error_tells_everything_behind_it_once() {
        let root = Behind("refused", None);
        let middle = Behind("no connection", Some(Box::new(root)));
        let said_already = Behind("mail", Some(Box::new(middle)));
        let error = Behind("mail not sent", Some(Box::new(said_already)));
        assert_eq!(chain(&error), "mail not sent: no connection: refused");
    }
}
