use super::*;
use relevo_core::event::NewEvent;

fn ledger() -> Subscriber {
    Subscriber {
        name: "ledger",
        once: true,
        only_a: false,
        max_attempts: 1,
        behind: false,
        ordered: true,
    }
}

/// Of two events of a key the second one comes to its end first.
fn overtaken_at(about: Subscriber) -> Journal {
    let mut journal = Journal::new(vec![about]);
    let events = ["first", "second"].map(|bytes| NewEvent::bytes("a.made", bytes).key("k"));
    for (number, event) in (1..).zip(&events) {
        let began = journal.publishing();
        journal.published(TxId(number), event, began);
        journal.committed(TxId(number), &[]);
    }
    journal.effect(TxId(3), 0, events[1].id);
    journal.committed(TxId(3), &[]);
    journal
}

#[test]
fn whoever_overtakes_breaks_the_order_unless_order_does_not_matter() {
    let ordered = overtaken_at(ledger());
    let broken = ordered.violation.map(|violation| violation.invariant);
    assert_eq!((broken, ordered.overtakers), (Some(Invariant::Order), 0));
    let any = overtaken_at(Subscriber { ordered: false, ..ledger() });
    assert_eq!((any.violation.map(|violation| violation.text), any.overtakers), (None, 1));
}

fn journal_with_a_dead_event() -> (Journal, EventId) {
    let mut journal = Journal::new(vec![ledger()]);
    let (tx, event) = (TxId(1), NewEvent::bytes("a.made", "bytes"));
    let began = journal.publishing();
    journal.published(tx, &event, began);
    journal.committed(tx, &[]);
    journal.decided(0, event.id, began + 2, End::Dead);
    (journal, event.id)
}

#[test]
fn a_replayed_event_is_awaited_whatever_a_forward_rewind_leaves_out() {
    let (mut journal, event) = journal_with_a_dead_event();
    journal.put_back(0, event);
    journal.rewound(0, false, true);
    assert_eq!(journal.open, 1, "it waits behind its key, not in the log");
}

#[test]
fn a_parked_event_is_awaited_whatever_a_forward_rewind_leaves_out() {
    let (mut journal, event) = journal_with_a_dead_event();
    let published = journal.events.get_mut(&event).unwrap();
    published.at[0] = Delivered { awaited: true, ..Delivered::default() };
    journal.open = 1;
    journal.parked(0, event, true);
    journal.rewound(0, false, true);
    assert_eq!(journal.open, 1, "it waits behind its key, not in the log");
    journal.parked(0, event, false);
    journal.rewound(0, false, true);
    assert_eq!(journal.open, 0, "it stood in the log, and an operator left it out");
}

#[test]
fn a_replayed_event_that_a_rewind_returned_to_the_log_may_be_left_out_by_the_next_rewind() {
    let (mut journal, event) = journal_with_a_dead_event();
    journal.put_back(0, event);
    journal.rewound(0, true, false);
    assert_eq!(journal.open, 1, "the log brings it again");
    journal.rewound(0, false, true);
    assert_eq!(journal.open, 0, "an operator left it out");
}

#[test]
fn an_effect_whose_commit_is_lost_is_awaited_again_and_was_none() {
    let mut journal = Journal::new(vec![ledger()]);
    let event = NewEvent::bytes("a.made", "bytes");
    let began = journal.publishing();
    journal.published(TxId(1), &event, began);
    journal.committed(TxId(1), &[]);
    journal.effect(TxId(2), 0, event.id);
    let before = journal.undecided_before(TxId(2));
    journal.committed(TxId(2), &[]);
    assert_eq!((journal.open, journal.events[&event.id].at[0].applied), (0, 1));
    journal.take_back(before);
    let delivered = &journal.events[&event.id].at[0];
    assert_eq!((journal.open, delivered.applied, delivered.end), (1, 0, End::None));
    assert_eq!(delivered.first_decided, None, "what follows it must not come before it");
}

#[test]
fn an_edited_copy_that_was_put_back_is_awaited_whatever_rewinds_do() {
    let (mut journal, event) = journal_with_a_dead_event();
    let copy = NewEvent::bytes("a.made", "other bytes").id;
    journal.edited(0, event, copy, "edited".into());
    journal.put_back(0, copy);
    journal.rewound(0, true, false);
    journal.rewound(0, false, true);
    assert_eq!(journal.open, 1, "it stands in no log: no rewind brings it again, or leaves it out");
    assert_eq!(journal.events[&copy].at[0].rewinds, 0, "its effect happens once all the same");
}
