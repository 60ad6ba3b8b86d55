use crate::{Input, expect};
use relevo_core::event::{EventId, TopicFilter};

/// A filter and a topic: what is read is written alike, and matches as the rules say it does.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let (text, topic) = (input.text(), input.text());
    if let Err(error) = topic.parse::<EventId>() {
        expect::error(&error);
    }
    let filter = match TopicFilter::parse(&text) {
        Ok(filter) => filter,
        Err(error) => return expect::error(&error),
    };
    assert_eq!(filter.as_str(), text);
    assert_eq!(TopicFilter::parse(&filter.to_string()).ok().as_ref(), Some(&filter));
    let words = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(filter.matches(&topic), matches(&words(&text), &words(&topic)), "{text} {topic}");
    assert!(TopicFilter::all().matches(&topic));
}

/// The rules once more, as plainly as possible.
fn matches(filter: &[String], topic: &[String]) -> bool {
    match (filter, topic) {
        ([], []) => true,
        ([hash], _) if hash == "#" => true,
        ([word, filter @ ..], [other, topic @ ..]) => {
            (word == "*" || word == other) && matches(filter, topic)
        }
        _ => false,
    }
}
