use super::{event, stored};
use crate::{Input, expect};
use relevo_daemon::cli::fuzzing::{edit_check, edit_read, edit_written};

/// Any text that an editor left is read or refused; what was written for the editor is read back unchanged, or
/// not handed to the editor at all.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Err(message) = edit_read(&text) {
        expect::one_line(&message);
    }
    let event = stored(event(&mut Input::new(input)));
    match edit_written(&event.headers, &event.payload) {
        Ok(written) => assert_eq!(
            edit_read(&written),
            Ok((event.headers.clone(), event.payload.to_vec())),
            "{written:?}"
        ),
        Err(message) => expect::one_line(&message),
    }
    if let Err(message) = edit_check(&event.topic, &event.headers, &event.payload) {
        expect::one_line(&message);
    }
}
