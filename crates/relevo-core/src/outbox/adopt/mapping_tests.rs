//! What mappings and names say of themselves, what changes mean for rows, and how rows are claimed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::error::{ErrorClass, Kind};
use crate::event::header;
use crate::outbox::{Death, EventRef, LaneChange, LaneId, ParkKey, Position, Skip, TickRef};
use std::collections::HashSet;
use std::time::Duration;

fn plain() -> Mapping {
    Mapping::new(TableName::parse("t").unwrap())
}

fn with_states(dead: Option<&str>) -> Mapping {
    let status = Status::new("state", ["NEW"], "SENT");
    plain().status(dead.map_or(status.clone(), |word| status.dead(word)))
}

fn deleting() -> Mapping {
    plain().delete()
}

fn burying() -> Mapping {
    plain().dead_letters(TableName::parse("dead").unwrap())
}

#[test]
fn what_is_written_into_a_row_is_a_mark() {
    let failures = [Role::Attempts, Role::Error, Role::ErrorClass, Role::ErrorAt];
    let others = [Role::PublishedAt, Role::NextAttemptAt, Role::UpdatedAt];
    for role in Role::ALL {
        assert_eq!(role.is_failure(), failures.contains(role), "{role:?}");
        assert_eq!(role.is_mark(), failures.contains(role) || others.contains(role), "{role:?}");
    }
}

#[test]
fn a_table_tells_what_was_relayed_by_a_time_a_state_or_a_row_that_is_gone() {
    assert!(!plain().marks_published());
    assert!(!burying().marks_published());
    for telling in [deleting(), with_states(None), plain().with(Role::PublishedAt, "p")] {
        assert!(telling.marks_published(), "{telling:?}");
    }
}

#[test]
fn a_table_tells_what_failed_for_good_by_a_state_or_a_table_beside_it() {
    for silent in [plain(), deleting(), with_states(None)] {
        assert!(!silent.marks_dead(), "{silent:?}");
    }
    for telling in [burying(), with_states(Some("DEAD"))] {
        assert!(telling.marks_dead(), "{telling:?}");
    }
}

#[test]
fn rows_are_left_alone_only_where_nothing_is_to_be_written() {
    assert!(!plain().with(Role::Key, "k").changes_rows());
    let marking = plain().with(Role::Error, "e");
    for changing in [marking, deleting(), with_states(None), burying()] {
        assert!(changing.changes_rows(), "{changing:?}");
    }
}

#[test]
fn a_topic_that_is_always_the_same_needs_no_column_and_everything_else_still_does() {
    let always = || plain().topic("t");
    assert_eq!(always().column(Role::Topic), None);
    assert!(always().check().is_ok());
    for role in [Role::Id, Role::Payload] {
        let error = always().without(role).check().unwrap_err();
        assert_eq!(error.kind(), Kind::UnfitTable);
        assert!(error.message().contains(role.as_str()), "{error}");
    }
}

#[test]
fn whatever_a_mapping_can_say_it_can_be_told_in_words() {
    let dead = TableName::parse("dead").unwrap();
    let told = plain()
        .topic_prefix("shop.")
        .content_type("avro/binary")
        .status(Status::new("state", ["NEW", "RETRY"], "SENT").dead("FAILED"))
        .dead_letters(DeadTable::new(dead.clone()).with(Role::ErrorAt, "died_at"));
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let status = Status {
        column: "state".into(),
        pending: words(&["NEW", "RETRY"]),
        published: "SENT".into(),
        dead: Some("FAILED".into()),
    };
    let columns = [(Role::ErrorAt, "died_at".to_owned())].into();
    let meant = Mapping {
        topic: TopicFrom::Column { prefix: "shop.".into() },
        content_type: Some("avro/binary".into()),
        status: Some(status),
        dead_letters: Some(DeadTable { table: dead, columns }),
        ..plain()
    };
    assert_eq!(told, meant);
    assert!(plain().delete().delete && !plain().delete);
    assert_eq!(plain().topic("t").topic, TopicFrom::Always("t".into()));
}

#[test]
fn a_name_is_shown_as_it_is_written_and_may_be_as_long_as_the_server_takes() {
    for written in ["Outbox", "shop.Outbox"] {
        assert_eq!(TableName::parse(written).unwrap().to_string(), written);
    }
    assert!(TableName::parse(&"n".repeat(63)).is_ok());
    assert!(TableName::parse(&"n".repeat(64)).is_err());
}

#[test]
fn a_preset_knows_its_tables_usual_name() {
    let usual = Preset::ALL.map(Preset::table);
    assert_eq!(usual, ["Outbox", "outbox_events", "outboxevent"]);
}

fn at(key: &str, seq: i64) -> EventRef {
    let id = event_id("a", &format!("{key}-{seq}"));
    EventRef { key: key.into(), to: TickRef::default(), seq, id }
}

fn change() -> LaneChange {
    let lane = LaneId { subscription: "s".into(), lane: 1 };
    LaneChange::moving(lane, 1, Position::default(), Position::default())
}

fn parked(key: &str, attempts: u32) -> ParkKey {
    let (retry_in, class) = (Some(Duration::from_secs(attempts.into())), ErrorClass::Transient);
    let error = format!("no {key}");
    ParkKey { key: key.into(), attempts, deaths: 0, retry_in, class, error }
}

#[test]
fn what_changes_of_lanes_mean_is_marked_in_the_rows() {
    let (class, error) = (ErrorClass::Permanent, "refused".to_owned());
    let first = LaneChange {
        done: vec![at("d", 1).id],
        skips: vec![Skip { event: at("s", 2), reason: "not ours".into() }],
        deaths: vec![Death { event: at("x", 3), attempts: 9, class, error }],
        ..change()
    };
    let second = LaneChange {
        failed: vec![at("b", 4)],
        parked: vec![parked("a", 1), parked("b", 2)],
        ..change()
    };
    let marks = Marks::of(&[first, second]);
    assert_eq!(marks.published, [at("d", 1).id, at("s", 2).id]);
    let [failed] = &marks.failed[..] else { panic!("{marks:?}") };
    assert_eq!((failed.event, failed.attempts), (at("b", 4).id, 2));
    assert_eq!((failed.retry_in, &*failed.error), (Some(Duration::from_secs(2)), "no b"));
    let [dead] = &marks.dead[..] else { panic!("{marks:?}") };
    assert_eq!((dead.event, dead.attempts, dead.retry_in), (at("x", 3).id, 9, None));
    assert_eq!((dead.class, &*dead.error), (ErrorClass::Permanent, "refused"));
}

#[test]
fn marks_are_empty_only_if_no_row_is_concerned() {
    let event = at("k", 1).id;
    let failure = || vec![Failure::poison(event, "no")];
    assert!(Marks::of(&[change()]).is_empty());
    for concerned in [
        Marks { published: vec![event], ..Marks::default() },
        Marks { failed: failure(), ..Marks::default() },
        Marks { dead: failure(), ..Marks::default() },
    ] {
        assert!(!concerned.is_empty(), "{concerned:?}");
    }
}

#[test]
fn claims_go_on_until_enough_is_claimed_or_one_got_less_than_it_asked_for() {
    let mut claims = Claims::new(250, 100);
    for asked in [100, 100, 50] {
        assert_eq!(claims.next_claim(), Some(asked));
        claims.got(asked);
    }
    assert_eq!(claims.next_claim(), None, "enough");
    let mut claims = Claims::new(250, 100);
    claims.got(99);
    assert_eq!(claims.next_claim(), None, "there were no more");
    let mut claims = Claims::new(200, 100);
    claims.got(100);
    claims.got(100);
    assert_eq!(claims.next_claim(), None, "enough, and all claims were full");
}

fn row(payload: &str, content_type: &'static str) -> RawRow<u8> {
    RawRow {
        row: 0,
        id: "1".into(),
        topic: Some("a.b".into()),
        key: None,
        kind: None,
        payload: Some(payload.to_owned().into()),
        content_type,
        headers: None,
        correlation_id: None,
        tenant: None,
        created_at: None,
        locked_by_others: false,
    }
}

#[test]
fn a_key_in_the_payload_is_a_text_or_a_number() {
    let mapping = plain().key_in_payload(["ticket", "id"]);
    for (payload, key) in [
        (r#"{"ticket": {"id": "T-7"}}"#, Some("T-7")),
        (r#"{"ticket": {"id": 7}}"#, Some("7")),
        (r#"{"ticket": {"id": [7]}}"#, None),
        (r#"{"ticket": 7}"#, None),
    ] {
        assert_eq!(key_of(&mapping, &row(payload, "")).as_deref(), key, "{payload}");
    }
}

#[test]
fn bytes_of_which_nothing_is_known_get_no_media_type() {
    let told = |mapping: &Mapping, content_type| {
        let rows = vec![row("x", content_type)];
        let harvest = sort_out(mapping, "a", rows, &mut HashSet::new());
        harvest.fit[0].event.headers.get(header::CONTENT_TYPE).map(str::to_owned)
    };
    assert_eq!(told(&plain(), "application/json").as_deref(), Some("application/json"));
    assert_eq!(told(&plain(), "application/octet-stream"), None);
    let avro = plain().content_type("avro/binary");
    assert_eq!(told(&avro, "application/octet-stream").as_deref(), Some("avro/binary"));
}
