use super::event;
use crate::{Input, expect};
use relevo_core::limits::Limits;

/// What passes the limits keeps them; what does not is told why.
pub(crate) fn run(input: &[u8]) {
    let event = event(&mut Input::new(input));
    let limits = Limits::default();
    if let Err(error) = limits.check(&event) {
        return expect::error(&error);
    }
    let line = |text: &str| !text.chars().any(|c| c.is_control() && c != '\t');
    assert!((1..=255).contains(&event.topic.len()) && line(&event.topic));
    assert!(!event.topic.contains(['*', '#', '>', ' ', '\t']) && !event.topic.contains(".."));
    assert!(event.key.as_ref().is_none_or(|key| (1..=255).contains(&key.len()) && line(key)));
    let bytes: usize = event.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(bytes <= limits.headers_bytes && event.payload.len() <= limits.payload_bytes);
    assert!(
        event.headers.iter().all(|(name, value)| !name.is_empty() && line(name) && line(value))
    );
}
