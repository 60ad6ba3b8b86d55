use crate::Input;
use relevo_stores::sqlite::fuzzing::{Column, Log};
use std::cell::RefCell;

thread_local! {
    static LOG: RefCell<Log> = RefCell::new(Log::new().expect("a log in memory"));
}

/// A row that the tables accept is read, in its lane, with the bytes that were written.
pub(crate) fn run(input: &[u8]) {
    LOG.with_borrow_mut(|log| {
        let mut input = Input::new(input);
        let columns = [(); 6].map(|()| column(input.field().unwrap_or_default()));
        log.empty().expect("an empty log");
        if log.insert(&columns).is_err() {
            return;
        }
        let rows = log.read().expect("what the tables accepted can be read");
        assert_eq!(rows.len(), 1, "{columns:?}");
        let event = &rows[0].event;
        assert_eq!(rows[0].lane, relevo_core::event::lane_of(&event.order_key()));
        assert!(!event.id.0.is_nil() || columns[0] == Column::Text(vec![b'0'; 36]), "{columns:?}");
        if let Column::Text(bytes) | Column::Blob(bytes) = &columns[4] {
            assert_eq!(event.payload, bytes);
        }
        assert!(!event.topic.is_empty() && event.topic.len() <= 3 * 255);
        for (name, value) in event.headers.iter() {
            assert_eq!(event.headers.get(name), Some(value));
        }
    });
}

/// A letter for the type, then the value; `d` and nothing more takes the column's default.
fn column(field: &[u8]) -> Column {
    let Some((kind, value)) = field.split_first() else { return Column::Null };
    let text = || String::from_utf8_lossy(value);
    match kind {
        b'i' => Column::Integer(text().trim().parse().unwrap_or_default()),
        b'r' => Column::Real(text().trim().parse().unwrap_or_default()),
        b't' => Column::Text(value.to_vec()),
        b'b' => Column::Blob(value.to_vec()),
        b'd' => Column::Default,
        _ => Column::Null,
    }
}
