use crate::expect;
use relevo_core::NewEvent;
use relevo_core::event::header;
use relevo_core::inbox::Outcome;
use relevo_core::inbox::consume::fuzzing as landed;
use relevo_core::limits::Limits;
use relevo_core::outbox::adopt::Mapping;
use relevo_core::outbox::{MemberNote, TickRef};
use relevo_stores::postgres::fuzzing::kept_tick;
use serde_json::json;

/// What stores keep as JSON with events and beside them: any client of the database may have written something else there.
pub(crate) fn run(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        answer(text);
        tick(text);
    }
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(input) else { return };
    note(&json);
    mapping(json);
}

/// Tells nothing, or why the work is not done; what is told fits into a header and comes back out of it.
fn answer(text: &str) {
    let Some(told) = landed::answer(text) else { return };
    assert_ne!(told, Outcome::Done, "only the work itself says that it is done");
    let written = landed::header(&told).unwrap_or_default();
    let event = NewEvent::bytes("a", vec![]).header(header::INBOX_ANSWER, written.clone());
    let refused = Limits::default().landing().check(&event).err();
    assert!(refused.is_none(), "{refused:?}: {written}");
    // A long text was cut, but only once.
    let again = landed::answer(&written).and_then(|told| landed::header(&told));
    assert_eq!(again, Some(written));
}

/// Refused in a line, or the same when it is kept and read again.
fn tick(text: &str) {
    let tick = match kept_tick(text) {
        Ok(tick) => tick,
        Err(error) => return expect::error(&error),
    };
    let TickRef { number, nonce } = tick.tick;
    let kept = json!({
        "number": number,
        "nonce": nonce,
        "generation": tick.generation,
        "snapshot": tick.snapshot.to_string(),
        "low": tick.low,
        "top": tick.top,
        "floor": tick.floor,
    });
    assert_eq!(kept_tick(&kept.to_string()).ok(), Some(tick));
}

/// Says nothing, or something that is the same when it is written and read again.
fn note(json: &serde_json::Value) {
    let note = MemberNote::read(json);
    let written = note.to_string();
    let again = serde_json::from_str(&written).map(|json| MemberNote::read(&json)).ok();
    assert_eq!(again.as_ref().map(ToString::to_string), Some(written), "{note:?}");
    let before = note.breaker.as_ref().map(|breaker| breaker.open_s);
    let after = note.breaker_after(-1.0).map(|breaker| breaker.open_s);
    assert_eq!(before, after, "a clock that was set back makes nothing younger");
}

/// Taken or refused; what is taken is the same when it is written and read again.
fn mapping(json: serde_json::Value) {
    let Ok(mapping) = serde_json::from_value::<Mapping>(json) else { return };
    let again = serde_json::to_value(&mapping).and_then(serde_json::from_value::<Mapping>).ok();
    assert_eq!(again.as_ref(), Some(&mapping));
    mapping.check().err().iter().for_each(expect::error);
}
