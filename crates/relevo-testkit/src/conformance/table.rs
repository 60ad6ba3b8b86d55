use relevo_core::outbox::Capabilities;

/// A capability: its name, what it means, and how to ask for it.
pub type Capability = (&'static str, &'static str, fn(&Capabilities) -> bool);

/// Every capability, in the order of the table.
pub const CAPABILITIES: &[Capability] = &[
    (
        "concurrent_writers",
        "several transactions publish at once, and commit out of the order of their numbers",
        |can| can.concurrent_writers,
    ),
    ("shared_by_processes", "other processes may work the same log", |can| can.shared_by_processes),
    ("doorbell", "it tells that something came without being asked", |can| can.doorbell),
    ("parallel_effects", "handlers of different lanes commit at the same time", |can| {
        can.parallel_effects
    }),
    ("publish_by_sql", "other languages publish by plain SQL", |can| can.publish_by_sql),
    ("durable", "the log survives the end of the process", |can| can.durable),
    ("direct_effects", "a handler's own transaction may record its progress", |can| {
        can.direct_effects
    }),
    (
        "own_log",
        "events are in the log when their transactions commit, for every subscription",
        |can| can.own_log,
    ),
    ("key_order", "events of a key come in the order of their transactions", |can| can.key_order),
];

/// The table of what stores can do, as Markdown: a row for each capability, a column for each store.
pub fn capability_table(stores: &[(&str, Capabilities)]) -> String {
    let names: Vec<&str> = stores.iter().map(|(name, _)| *name).collect();
    let mut table = format!("| Capability | Meaning | {} |\n", names.join(" | "));
    table += &format!("|---|---|{}\n", "---|".repeat(stores.len()));
    for (name, meaning, can) in CAPABILITIES {
        let answers: Vec<&str> = stores.iter().map(|(_, has)| answer(can(has))).collect();
        table += &format!("| `{name}` | {meaning} | {} |\n", answers.join(" | "));
    }
    table
}

fn answer(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}
