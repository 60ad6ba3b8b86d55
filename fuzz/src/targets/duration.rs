use crate::expect;
use relevo_daemon::config::duration::{parse, written};

/// A time that is read is written so that it is read again as the same.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match parse(&text) {
        Ok(duration) => assert_eq!(parse(&written(duration)), Ok(duration), "{text:?}"),
        Err(message) => expect::one_line(&message),
    }
}
