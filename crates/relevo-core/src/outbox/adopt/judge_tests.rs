//! What a mapping is told of its table: problems, notes, the order, the index that is missing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn name(text: &str) -> TableName {
    TableName::parse(text).unwrap()
}

fn column(name: &str) -> ColumnShape {
    ColumnShape {
        name: name.into(),
        sort: Sort::Text,
        times: Times::Holds,
        type_name: "text".into(),
        nullable: true,
        default: None,
        sequence_step: None,
        generated: false,
    }
}

fn index(columns: &[&str], unique: bool, condition: Option<&str>) -> IndexShape {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    IndexShape { columns, unique, condition: condition.map(str::to_owned) }
}

/// A table of these columns, known by its `id`.
fn table(columns: &[&str]) -> TableShape {
    let mut shape = TableShape::named(name("shop.outbox"));
    shape.columns = columns.iter().map(|name| column(name)).collect();
    shape.columns.iter_mut().filter(|it| it.name == "id").for_each(|id| id.nullable = false);
    shape.indices = vec![index(&["id"], true, None)];
    shape
}

fn plain() -> Mapping {
    Mapping::new(name("shop.outbox"))
}

fn marking() -> Mapping {
    plain().with(Role::PublishedAt, "sent_at")
}

fn with_states(mapping: Mapping) -> Mapping {
    mapping.status(Status::new("state", ["NEW", "it's"], "SENT"))
}

fn deleting() -> Mapping {
    plain().delete()
}

fn all() -> TableShape {
    table(&["id", "topic", "payload", "key", "sent_at", "made_at", "seq", "state", "tries"])
}

fn problems(mapping: &Mapping, table: &TableShape) -> Vec<String> {
    judge(mapping, table, None).problems
}

#[test]
fn only_an_order_by_times_or_ids_is_no_promise() {
    let sequence = KeyOrder::Sequence { column: "seq".into() };
    let approximate = KeyOrder::Approximate { columns: vec!["made_at".into(), "id".into()] };
    for (order, sound, says) in [
        (sequence, true, "kept per key: seq is drawn from a sequence"),
        (
            KeyOrder::CommitTime,
            true,
            "kept per key: by the time of the commit (track_commit_timestamp)",
        ),
        (KeyOrder::RowNumber, true, "kept per key: one transaction writes at a time"),
        (approximate, false, "APPROXIMATE, by made_at, id: "),
    ] {
        assert_eq!(order.is_sound(), sound, "{order:?}");
        assert!(order.describe().starts_with(says), "{}", order.describe());
    }
}

#[test]
fn what_an_order_stands_on_is_said_with_it() {
    let numbers = "as long as nobody gives a row a number of its own";
    let times = "as long as the server's clock is not set back and rows stay as they were inserted until they are claimed";
    for (order, says) in [
        (KeyOrder::Sequence { column: "seq".into() }, numbers),
        (KeyOrder::RowNumber, numbers),
        (KeyOrder::CommitTime, times),
    ] {
        assert!(order.describe().ends_with(says), "{}", order.describe());
    }
}

#[test]
fn what_becomes_of_a_confirmed_row_is_said() {
    for (mapping, kept) in [
        (plain(), "is noted beside the table in the transaction"),
        (marking(), "is marked in the transaction"),
        (deleting(), "is deleted in the transaction"),
    ] {
        let loss = judge(&mapping, &all(), None).loss;
        assert!(loss.starts_with("none: ") && loss.contains(kept), "{loss}");
    }
}

#[test]
fn a_row_must_be_known_by_a_unique_index() {
    assert_eq!(problems(&plain(), &all()), [""; 0]);
    let unknown = [
        vec![],
        vec![index(&["id"], false, None)],
        vec![index(&["topic"], true, None)],
        vec![index(&["id"], false, None), index(&["topic"], true, None)],
    ];
    for indices in unknown {
        let shape = TableShape { indices, ..all() };
        let problems = problems(&plain(), &shape);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("no unique index has its column \"id\""), "{problems:?}");
    }
}

const TOGETHER: &str = "its column \"id\" is unique only together with others, or for some rows";

#[test]
fn an_id_that_two_rows_may_have_is_refused_unless_ids_of_its_kind_come_once() {
    let with_id = |indices: &[IndexShape], change: fn(&mut ColumnShape)| {
        let mut shape = TableShape { indices: indices.to_vec(), ..all() };
        change(&mut shape.columns[0]);
        shape
    };
    let pair = index(&["topic", "id"], true, None);
    let some = index(&["id"], true, Some("sent_at IS NULL"));
    let alone = index(&["id"], true, None);
    for indices in [vec![pair.clone()], vec![some.clone()], vec![pair.clone(), some]] {
        let with_id = |change: fn(&mut ColumnShape)| with_id(&indices, change);
        let told = problems(&plain(), &with_id(|_| {}));
        assert!(told.len() == 1 && told[0].starts_with(TOGETHER), "{told:?}");
        let number = with_id(|id| id.sort = Sort::Integer);
        assert_eq!(problems(&plain(), &number).len(), 1);
        let uuid = with_id(|id| id.sort = Sort::Uuid);
        assert_eq!(problems(&plain(), &uuid), [""; 0]);
        assert_eq!(notes(&plain(), &uuid), notes(&plain(), &all()));
        let drawn = with_id(|id| id.sequence_step = Some(20));
        assert_eq!(problems(&plain(), &drawn), [""; 0]);
        let told = notes(&plain(), &drawn);
        assert!(told.iter().any(|note| note.starts_with("id is unique only together")), "{told:?}");
    }
    let both = with_id(&[pair, alone], |id| id.sequence_step = Some(1));
    assert_eq!(problems(&plain(), &both), [""; 0]);
    assert_eq!(notes(&plain(), &both), notes(&plain(), &all()), "one of its own suffices");
}

/// The table in the order of its rows' numbers, which are in this column.
fn numbered(column: &str, comes_again: bool) -> TableShape {
    let row_number = Some(RowNumber { column: column.into(), comes_again });
    TableShape { rows_are_in_commit_order: true, row_number, ..all() }
}

const IN_ORDER_OF: &str = " is the number of its row, in whose order rows come";
const AGAIN: &str = "where the last rows are deleted, id gives their numbers again, and what is new is taken for a copy";

#[test]
fn a_number_that_an_insert_may_give_is_worth_a_note() {
    let plainly = notes(&marking(), &all());
    let more = |shape: &TableShape| notes(&marking(), shape)[plainly.len()..].to_vec();
    let of = |column: &str| format!("{column}{IN_ORDER_OF}");
    assert_eq!(more(&numbered("id", false)), [of("id")]);
    assert_eq!(more(&numbered("seq", true)), [of("seq")], "its id is another column");
    assert_eq!(more(&numbered("id", true)), [of("id"), AGAIN.to_owned()]);
    let elsewhere = TableShape { rows_are_in_commit_order: false, ..numbered("id", true) };
    assert_eq!(more(&elsewhere), [""; 0]);
}

#[test]
fn an_id_that_comes_again_once_its_row_is_gone_is_refused_where_rows_go() {
    let burying = || marking().dead_letters(name("shop.dead"));
    for mapping in [deleting(), burying()] {
        let told = problems(&mapping, &numbered("id", true));
        assert!(told.len() == 1 && told[0].ends_with("it needs AUTOINCREMENT"), "{told:?}");
        assert_eq!(problems(&mapping, &numbered("id", false)), [""; 0]);
        assert_eq!(problems(&mapping, &numbered("seq", true)), [""; 0]);
    }
    assert_eq!(problems(&marking(), &numbered("id", true)), [""; 0], "a note does");
    let told = notes(&burying(), &numbered("id", true));
    assert!(!told.contains(&AGAIN.to_owned()), "not twice: {told:?}");
}

#[test]
fn a_right_is_asked_for_only_where_it_is_needed() {
    let denied = ["SELECT", "UPDATE", "DELETE", "INSERT"].map(str::to_owned).to_vec();
    let shape = TableShape { denied, ..all() };
    let lacks = |mapping: Mapping| {
        let found = problems(&mapping, &shape);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    };
    let lacking =
        |rights| format!("this user lacks {rights}: GRANT {rights} ON \"shop\".\"outbox\"");
    assert_eq!(lacks(plain()), lacking("SELECT"));
    assert_eq!(lacks(marking()), lacking("SELECT, UPDATE"));
    assert_eq!(lacks(deleting()), lacking("SELECT, UPDATE, DELETE"));
    let burying = plain().dead_letters(name("shop.dead"));
    assert_eq!(lacks(burying), lacking("SELECT, UPDATE, DELETE, INSERT"));
    let only = TableShape { denied: vec!["DELETE".into(), "INSERT".into()], ..all() };
    assert_eq!(problems(&marking(), &only), [""; 0]);
}

#[test]
fn a_computed_column_cannot_be_a_mark() {
    let mut shape = all();
    for column in &mut shape.columns {
        column.generated = ["sent_at", "topic"].contains(&column.name.as_str());
    }
    let told = problems(&marking().with(Role::Attempts, "tries"), &shape);
    assert_eq!(told, ["its column \"sent_at\" (published_at) is generated"]);
}

/// The beginnings of what is worth knowing.
fn notes(mapping: &Mapping, table: &TableShape) -> Vec<String> {
    let start = |note: String| note.split([':', ';']).next().unwrap_or_default().to_owned();
    judge(mapping, table, None).notes.into_iter().map(start).collect()
}

const NO_KEY: &str = "no key";
const NOT_TOLD: &str = "the table does not tell what was relayed";
const DEAD_STAY: &str = "rows that fail for good stay as they are";

#[test]
fn what_a_table_does_not_tell_is_worth_a_note() {
    assert_eq!(notes(&plain(), &all()), [NO_KEY, NOT_TOLD, DEAD_STAY]);
    assert_eq!(notes(&marking(), &all()), [NO_KEY, DEAD_STAY]);
    let keyed = marking().with(Role::Key, "key");
    assert_eq!(notes(&keyed, &all()), [DEAD_STAY]);
    assert_eq!(notes(&marking().key_in_payload(["id"]), &all()), [DEAD_STAY]);
    assert_eq!(notes(&keyed.dead_letters(name("shop.dead")), &all()), [""; 0]);
}

#[test]
fn a_sequence_that_tells_no_order_is_worth_a_note_unless_rows_tell_it() {
    let mapping =
        marking().with(Role::Key, "key").with(Role::Sequence, "seq").dead_letters(name("dead"));
    let of_step = |sequence_step, rows_are_in_commit_order| {
        let mut shape = TableShape { rows_are_in_commit_order, ..all() };
        for column in shape.columns.iter_mut().filter(|column| column.name == "seq") {
            column.sequence_step = sequence_step;
        }
        notes(&mapping, &shape)
    };
    assert_eq!(of_step(None, false), ["seq has no sequence, or one that begins again"]);
    assert_eq!(of_step(Some(32), false), ["sessions take 32 numbers of seq at once"]);
    assert_eq!(of_step(Some(-1), false), ["the numbers of seq go down"]);
    for (step, in_order) in [(Some(1), false), (None, true), (Some(32), true)] {
        assert_eq!(of_step(step, in_order), [""; 0], "{step:?} {in_order}");
    }
}

fn missing(mapping: &Mapping, table: &TableShape) -> Vec<String> {
    judge(mapping, table, None).missing_indices
}

fn of(columns: &str, pending: &str) -> [String; 1] {
    let name = r#"CREATE INDEX "outbox_pending" ON "shop"."outbox""#;
    [format!("{name} ({columns}) WHERE {pending}")]
}

const UNSENT: &str = r#""sent_at" IS NULL"#;

/// The table with this index beside that of its `id`.
fn indexed(shape: TableShape, more: IndexShape) -> TableShape {
    let mut shape = shape;
    shape.indices.push(more);
    shape
}

#[test]
fn an_index_is_missing_where_marked_rows_would_be_sorted_all() {
    assert_eq!(missing(&marking(), &all()), of(r#""id""#, UNSENT));
    let timed = marking().with(Role::CreatedAt, "made_at");
    assert_eq!(missing(&timed, &all()), of(r#""made_at""#, UNSENT));
    let states = r#""sent_at" IS NULL AND "state" IN ('NEW', 'it''s')"#;
    assert_eq!(missing(&with_states(marking()), &all()), of(r#""id""#, states));
    for mapping in [plain(), deleting()] {
        assert_eq!(missing(&mapping, &all()), [""; 0], "nothing stays that is not pending");
    }
}

#[test]
fn an_order_by_a_column_needs_an_index_of_what_is_pending_by_that_column() {
    let mut shape = all();
    shape.columns[6].sequence_step = Some(1);
    let mapping = marking().with(Role::Sequence, "seq").with(Role::CreatedAt, "made_at");
    assert_eq!(missing(&mapping, &shape), of(r#""seq""#, UNSENT));
    let with = |more| missing(&mapping, &indexed(shape.clone(), more));
    assert_eq!(with(index(&["seq"], false, Some(UNSENT))), [""; 0]);
    for other in [
        index(&["made_at"], false, Some(UNSENT)),
        index(&["seq"], false, None),
        index(&["sent_at"], false, None),
    ] {
        assert_eq!(with(other.clone()).len(), 1, "{other:?}");
    }
}

#[test]
fn where_no_column_tells_the_order_any_index_of_what_is_pending_serves() {
    let shape = TableShape { commit_times: true, ..all() };
    let mapping = with_states(marking());
    let with = |more| missing(&mapping, &indexed(shape.clone(), more));
    for serves in [
        index(&["topic"], false, Some(UNSENT)),
        index(&["sent_at"], false, None),
        index(&["state"], false, None),
    ] {
        assert_eq!(with(serves.clone()), [""; 0], "{serves:?}");
    }
    assert_eq!(with(index(&["topic"], false, None)).len(), 1);
}

#[test]
fn what_is_pending_is_said_as_sql() {
    assert_eq!(plain().pending_sql("t"), "true");
    assert_eq!(marking().pending_sql("t"), r#"t."sent_at" IS NULL"#);
    assert_eq!(with_states(plain()).pending_sql("t"), r#"t."state" IN ('NEW', 'it''s')"#);
}

#[test]
fn a_time_that_cannot_be_written_is_refused_and_one_that_is_not_read_is_no_order() {
    let made = |times| {
        let mut shape = all();
        for name in ["sent_at", "made_at"] {
            let column = shape.columns.iter_mut().find(|column| column.name == name).unwrap();
            (column.times, column.type_name) = (times, "some".into());
        }
        shape
    };
    let mapping = marking().with(Role::CreatedAt, "made_at");
    let by = |columns: &[&str]| {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        KeyOrder::Approximate { columns }
    };
    let holds = judge(&mapping, &made(Times::Holds), None);
    assert_eq!((holds.problems.len(), holds.order), (0, by(&["made_at", "id"])));
    let takes = judge(&mapping, &made(Times::Takes), None);
    assert_eq!((takes.problems.len(), takes.order), (0, by(&["id"])));
    assert_eq!(takes.missing_indices, of(r#""id""#, UNSENT));
    let unread = "made_at (created_at) is some, of which no time is read";
    assert!(takes.notes.iter().any(|note| note.starts_with(unread)), "{:?}", takes.notes);
    let refuses = judge(&mapping, &made(Times::Refuses), None);
    let why = "its column \"sent_at\" (published_at) takes no time, being some";
    assert!(refuses.problems.len() == 1 && refuses.problems[0].starts_with(why), "{refuses:?}");
}

#[test]
fn where_a_row_may_have_no_id_that_is_said_and_only_others_are_relayed() {
    let mut shape = all();
    assert_eq!(marking().relayable_sql("t", &shape), r#"t."sent_at" IS NULL"#);
    shape.columns[0].nullable = true;
    assert_eq!(
        marking().relayable_sql("t", &shape),
        r#"t."sent_at" IS NULL AND t."id" IS NOT NULL"#
    );
    let verdict = judge(&marking(), &shape, None);
    assert_eq!(verdict.problems, [""; 0]);
    assert!(verdict.notes.iter().any(|note| note.starts_with("id may be NULL")), "{verdict:?}");
    // The row's own number is never missing, whatever the file says of its column.
    shape.row_number = Some(RowNumber { column: "id".into(), comes_again: false });
    assert_eq!(marking().relayable_sql("t", &shape), r#"t."sent_at" IS NULL"#);
}

/// What keeps rows from being moved into a table of dead letters that has these columns.
fn burying(columns: Vec<ColumnShape>) -> Vec<String> {
    let mut dead = TableShape::named(name("shop.dead"));
    dead.columns = columns;
    burying_in(&dead)
}

fn burying_in(dead: &TableShape) -> Vec<String> {
    let there = DeadTable::new(name("shop.dead")).with(Role::Error, "why");
    judge(&plain().dead_letters(there), &all(), Some(dead)).problems
}

fn needed(name: &str) -> ColumnShape {
    ColumnShape { nullable: false, ..column(name) }
}

#[test]
fn a_table_of_dead_letters_must_have_the_rows_id_and_what_it_is_said_to_have() {
    assert_eq!(burying(vec![needed("id"), needed("why")]), [""; 0]);
    let told = burying(vec![needed("why")]);
    assert_eq!(told, ["shop.dead has no column \"id\" to know a row by"]);
    let told = burying(vec![column("id")]);
    assert_eq!(told, ["shop.dead has no column \"why\" (error)"]);
}

#[test]
fn rows_must_be_allowed_to_go_to_the_table_of_dead_letters_and_to_come_back() {
    let mut dead = TableShape::named(name("shop.dead"));
    dead.columns = vec![column("id"), column("why")];
    let denying = |rights: &[&str]| {
        let denied = rights.iter().map(|right| (*right).to_owned()).collect();
        burying_in(&TableShape { denied, ..dead.clone() })
    };
    assert_eq!(denying(&["UPDATE"]), [""; 0]);
    for rights in ["SELECT", "INSERT", "DELETE", "SELECT, INSERT, DELETE"] {
        let told = denying(&rights.split(", ").chain(["UPDATE"]).collect::<Vec<_>>());
        let lacking = format!("this user lacks {rights}: GRANT {rights} ON \"shop\".\"dead\"");
        assert_eq!(told, [lacking]);
    }
}

#[test]
fn a_table_of_dead_letters_must_have_room_for_the_time_of_a_death() {
    let told = |times| {
        let mut dead = TableShape::named(name("shop.dead"));
        dead.columns = vec![needed("id"), ColumnShape { times, ..column("died_at") }];
        let there = DeadTable::new(name("shop.dead")).with(Role::ErrorAt, "died_at");
        judge(&plain().dead_letters(there), &all(), Some(&dead)).problems
    };
    assert_eq!((told(Times::Holds), told(Times::Takes)), (vec![], vec![]));
    let told = told(Times::Refuses);
    assert!(told.len() == 1 && told[0].starts_with("shop.dead's column \"died_at\""), "{told:?}");
}

#[test]
fn a_table_of_dead_letters_must_not_need_what_nobody_fills() {
    let with = |more| burying(vec![needed("id"), needed("why"), needed("topic"), more]);
    let told = with(needed("buried_by"));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("shop.dead needs \"buried_by\", which the table has not"));
    for fine in [
        column("buried_by"),
        ColumnShape { default: Some("now()".into()), ..needed("buried_by") },
        ColumnShape { generated: true, ..needed("buried_by") },
    ] {
        assert_eq!(with(fine.clone()), [""; 0], "{fine:?}");
    }
}
