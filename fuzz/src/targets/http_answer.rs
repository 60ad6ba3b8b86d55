use crate::{Input, expect};
use relevo_brokers::http::fuzzing::{confirm, first_words};
use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;
use std::time::Duration;

/// Whatever an endpoint answers becomes one bounded line, a class, and a delay that ends.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let status = 100 + (input.number() % 900).unsigned_abs() as u16;
    let retry_after = input.some_text();
    let words = first_words(input.rest());
    assert!(words.chars().count() <= 300 && !words.chars().any(char::is_control), "{words:?}");
    match confirm(status, &words, retry_after.as_deref()) {
        Some(Confirm::Stored) => assert!((200..300).contains(&status)),
        Some(Confirm::Down { error }) => expect::one_line(&error),
        Some(Confirm::Refused { class, error, after }) => {
            expect::one_line(&error);
            assert!(after.is_none_or(|after| after <= Duration::from_secs(24 * 3600)));
            assert!(after.is_none() || class == ErrorClass::Transient);
        }
        other => panic!("{status}: {other:?}"),
    }
}
