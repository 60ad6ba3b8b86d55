use crate::{Input, expect};
use bytes::Bytes;
use relevo_core::event::header;
use relevo_core::limits::Limits;
use relevo_core::outbox::adopt::{Preset, RawRow, TableName, inbox_of, sort_out};
use std::collections::HashSet;

/// Whatever stands in an owner's table makes an event within the limits, or a dead letter that says why; a row that
/// somebody holds makes neither.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let row = RawRow {
        row: (),
        locked_by_others: input.number() % 5 == 0,
        id: input.text(),
        topic: input.some_text(),
        key: input.some_text(),
        kind: input.some_text(),
        payload: input.field().map(Bytes::copy_from_slice),
        content_type: "application/json",
        headers: input.some_text(),
        correlation_id: input.some_text(),
        tenant: input.some_text(),
        created_at: None,
    };
    for preset in [Preset::TicketFlow, Preset::SmartEdify, Preset::Debezium] {
        let table = TableName::parse("outbox").expect("a name");
        let rows = vec![row.clone()];
        let harvest = sort_out(&preset.mapping(table), "own", rows, &mut HashSet::new());
        judged(preset, harvest, &row);
    }
}

fn judged(preset: Preset, harvest: relevo_core::outbox::adopt::Harvest<()>, row: &RawRow<()>) {
    let count = harvest.fit.len() + harvest.unfit.len() + harvest.held;
    assert_eq!((count, harvest.held == 1), (1, row.locked_by_others), "{preset:?}: {row:?}");
    for fit in &harvest.fit {
        assert_eq!(fit.event.headers.get(header::INBOX), Some(inbox_of("own").as_str()));
        assert!(Limits::default().landing().check(&fit.event).is_ok(), "{preset:?}: {row:?}");
        assert_eq!(Some(&fit.event.payload), row.payload.as_ref());
    }
    for unfit in &harvest.unfit {
        expect::error(&unfit.error);
        assert_eq!(unfit.payload, row.payload.clone().unwrap_or_default());
    }
}
