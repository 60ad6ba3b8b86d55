//! What every decoder promises of its error messages and of what it gives away.

use relevo_core::Error;

/// No single message is longer, whatever it complains about.
const LONGEST_LINE: usize = 1200;
/// No list of complaints is longer.
const MOST_LINES: usize = 60;

/// A message for people: bounded, on one line, without anything that a terminal obeys.
pub(crate) fn one_line(message: &str) {
    assert!(!message.contains('\n'), "a message of several lines: {message:?}");
    lines(message);
}

/// A message of several bounded lines.
pub(crate) fn lines(message: &str) {
    assert!(!message.trim().is_empty(), "an error that says nothing");
    let mut count = 0;
    for line in message.split('\n') {
        count += 1;
        let length = line.chars().count();
        assert!(length <= LONGEST_LINE, "a line of {length} characters: {:.300}...", line);
        let hostile = line.chars().find(|c| c.is_control());
        assert_eq!(hostile, None, "a control character in {line:?}");
    }
    assert!(count <= MOST_LINES, "{count} lines");
}

/// An error whose message is for people.
pub(crate) fn error(error: &Error) {
    one_line(&error.to_string());
}
