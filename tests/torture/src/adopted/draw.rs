//! Tables from a seed: names with quotes, spaces and letters of anywhere, and every way in which a row may end.

use relevo::adopt::{
    DeadTable, KeyFrom, Mapping, Role, Status, TableName, TopicFrom, literal, quoted_name,
};
use relevo_core::clock::Rng;

/// What names and states are put together from; whoever quotes or binds carelessly stumbles over some of it.
const PIECES: [&str; 16] = [
    "Outbox", "état", "\"", "'", ";--", " ", "%s", "$1", "?1", ":x", "SELECT", "ß", "\\", "/*",
    "{}", "名",
];

/// How rows end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// A time when they were published; what fails for good goes into a table of its own.
    TimeAndDeadTable,
    /// Words for all of it.
    States,
    /// A time and a word; what fails for good goes into a table of its own.
    TimeStateAndDeadTable,
    /// They are deleted; what fails for good goes into a table of its own.
    Deleted,
    /// A time, and no word for what fails for good.
    TimeAlone,
}

const ENDS: [Ends; 5] = [
    Ends::TimeAndDeadTable,
    Ends::States,
    Ends::TimeStateAndDeadTable,
    Ends::Deleted,
    Ends::TimeAlone,
];

/// Draws names, each once.
struct Names {
    rng: Rng,
    drawn: usize,
}

impl Names {
    fn word(&mut self) -> String {
        self.drawn += 1;
        let pieces = 1 + self.rng.below(3);
        let mut word = String::new();
        for _ in 0..pieces {
            word.push_str(PIECES[self.rng.below(PIECES.len() as u64) as usize]);
        }
        format!("{word}{}", self.drawn)
    }

    fn table(&mut self) -> TableName {
        TableName { schema: None, table: self.word() }
    }

    fn one_of<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.rng.below(among.len() as u64) as usize]
    }
}

/// The columns of a table, as SQL and as roles.
#[derive(Default)]
struct Columns {
    sql: Vec<String>,
    roles: Vec<(Role, String)>,
}

impl Columns {
    fn add(&mut self, names: &mut Names, role: Role, kind: &str) {
        let column = names.word();
        self.sql.push(format!("{} {kind}", quoted_name(&column)));
        self.roles.push((role, column));
    }
}

/// The statements that make a table, and what its columns mean.
pub(super) fn table(seed: u64, postgres: bool) -> (String, Mapping) {
    let mut names = Names { rng: Rng::seeded(seed ^ 0xAD0B_7ED0), drawn: 0 };
    // The generator's first value still resembles its seed.
    names.rng.next_u64();
    let ends = names.one_of(&ENDS);
    let mut mapping = Mapping::new(names.table());
    mapping.topic = TopicFrom::Column { prefix: super::PREFIX.into() };
    let mut columns = Columns::default();
    if !names.one_of(&[true, false, false]) {
        columns.add(&mut names, Role::Key, "text");
        mapping.key = KeyFrom::Column;
    } else {
        mapping.key = KeyFrom::Payload(vec!["order".into(), names.word()]);
    }
    what_travels(&mut names, &mut columns, postgres);
    marks(&mut names, &mut columns, ends, postgres);
    if matches!(ends, Ends::States | Ends::TimeStateAndDeadTable) {
        mapping.status = Some(states(&mut names, &mut columns, ends));
    }
    mapping.delete = ends == Ends::Deleted;
    let statements = statements(&mut names, &mut mapping, &mut columns, ends, postgres);
    mapping.columns = columns.roles.into_iter().collect();
    (statements, mapping)
}

fn what_travels(names: &mut Names, columns: &mut Columns, postgres: bool) {
    let payload = if postgres { names.one_of(&["json", "jsonb", "text"]) } else { "text" };
    columns.add(names, Role::Topic, "text NOT NULL");
    columns.add(names, Role::Payload, payload);
    if names.one_of(&[true, false]) {
        columns.add(names, Role::Headers, if postgres { "jsonb" } else { "text" });
    }
}

fn marks(names: &mut Names, columns: &mut Columns, ends: Ends, postgres: bool) {
    let times: &[&str] =
        if postgres { &["timestamptz", "timestamp"] } else { &["text", "integer"] };
    let time = names.one_of(times);
    if !matches!(ends, Ends::States | Ends::Deleted) {
        columns.add(names, Role::PublishedAt, time);
    }
    for (role, kind) in [
        (Role::Attempts, "smallint"),
        (Role::NextAttemptAt, time),
        (Role::Error, "varchar(12)"),
        (Role::ErrorClass, "text"),
        (Role::UpdatedAt, time),
    ] {
        if names.one_of(&[true, false]) {
            columns.add(names, role, kind);
        }
    }
}

fn states(names: &mut Names, columns: &mut Columns, ends: Ends) -> Status {
    let (column, fresh) = (names.word(), names.word());
    let kind = format!("text NOT NULL DEFAULT {}", literal(&fresh));
    columns.sql.push(format!("{} {kind}", quoted_name(&column)));
    Status {
        column,
        pending: vec![names.word(), fresh],
        published: names.word(),
        dead: (ends == Ends::States).then(|| names.word()),
    }
}

/// The row's id, and the number that tells the order: one column for both, or two.
fn statements(
    names: &mut Names,
    mapping: &mut Mapping,
    columns: &mut Columns,
    ends: Ends,
    postgres: bool,
) -> String {
    let (id, number) = (names.word(), names.word());
    let numbered = names.one_of(&[true, false]);
    // Where confirmed rows are deleted, a number must not be given twice: its row would be taken for a copy.
    let serial =
        if postgres { "bigserial PRIMARY KEY" } else { "integer PRIMARY KEY AUTOINCREMENT" };
    let plain = if postgres { names.one_of(&["uuid", "text"]) } else { "text" };
    let (own, kept) = match numbered {
        true => (format!("{} {serial}", quoted_name(&id)), "bigint"),
        false => (format!("{} {plain} PRIMARY KEY", quoted_name(&id)), plain),
    };
    let order = match (numbered, postgres) {
        (false, true) => format!(", {} bigint GENERATED ALWAYS AS IDENTITY", quoted_name(&number)),
        _ => String::new(),
    };
    let rest = columns.sql.join(", ");
    let mut made = format!("CREATE TABLE {} ({own}, {rest}{order});", mapping.table.sql());
    if !matches!(ends, Ends::States | Ends::TimeAlone) {
        let (table, died) = (names.table(), names.word());
        let time = if postgres { "timestamptz" } else { "text" };
        let (id, died_column) = (quoted_name(&id), quoted_name(&died));
        let dead = table.sql();
        made.push_str(&format!(
            "CREATE TABLE {dead} ({id} {kept} PRIMARY KEY, {rest}, {died_column} {time} NOT NULL);"
        ));
        mapping.dead_letters = Some(DeadTable { table, columns: [(Role::ErrorAt, died)].into() });
    }
    columns.roles.push((Role::Id, id.clone()));
    if numbered {
        columns.roles.push((Role::Sequence, id));
    } else if postgres {
        columns.roles.push((Role::Sequence, number));
    }
    made
}
