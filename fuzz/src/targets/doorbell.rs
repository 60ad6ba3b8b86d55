use crate::{Input, expect};
use relevo_stores::postgres::fuzzing::doorbell;

/// Whatever a server sends is heard or refused, and it ends with what it sent.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let logs_in = input.field().is_some_and(|field| field == b"log in");
    let stream = input.rest();
    let heard = doorbell(stream, logs_in);
    // A frame has five bytes at least.
    assert!(heard.commits + heard.questions + heard.others <= stream.len() / 5);
    assert!(
        heard.commits == 0 || heard.others > 0,
        "a commit without a begin or an insert before it"
    );
    expect::one_line(&heard.end);
}
