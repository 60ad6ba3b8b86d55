use relevo_core::broker::Capabilities;

/// A capability: its name, what it means, and how to ask for it.
pub type BrokerCapability = (&'static str, &'static str, fn(&Capabilities) -> bool);

/// Every capability, in the order of the table.
pub const BROKER_CAPABILITIES: &[BrokerCapability] = &[
    ("publishes", "events can be published to it", |can| can.publishes),
    ("consumes", "events can be consumed from it", |can| can.consumes),
    ("durable", "what it stores survives its restart", |can| can.durable),
    ("refuses_unroutable", "a message that nobody would receive is refused, not lost", |can| {
        can.refuses_unroutable
    }),
    ("refuses_when_full", "it bounds what it stores and refuses more", |can| can.refuses_when_full),
    (
        "windowed",
        "messages go out before earlier ones are answered, in a window of messages and bytes",
        |can| can.windowed,
    ),
    (
        "failure_fails_later",
        "a publish that fails makes all later ones of its key fail, so several may be under way",
        |can| can.failure_fails_later,
    ),
    (
        "down_if_nothing_is_taken",
        "several events in a row that are refused for now or not answered, and none stored, mean that it is down",
        |can| can.down_if_nothing_is_taken,
    ),
    ("drops_duplicates", "a second copy of an id, soon after the first, is dropped", |can| {
        can.drops_duplicates
    }),
    ("ordered", "messages of one source arrive in the order in which they were stored", |can| {
        can.ordered
    }),
    ("order_on_retry", "what is delivered again comes before what followed it", |can| {
        can.order_on_retry
    }),
    (
        "delays_at_broker",
        "what is to come again later waits at the broker, whoever consumes it then",
        |can| can.delays_at_broker,
    ),
    ("several_sources", "a receiver may have several sources, and pauses each for itself", |can| {
        can.several_sources
    }),
    (
        "exclusive_sources",
        "consumers share the work while each source has one consumer at a time",
        |can| can.exclusive_sources,
    ),
    ("stable_position", "the place where a message is stored is a stable id of it", |can| {
        can.stable_position
    }),
];

/// The table of what adapters can do, as Markdown: a row for each capability, a column for each adapter.
pub fn broker_capability_table(adapters: &[(&str, Capabilities)]) -> String {
    let names: Vec<&str> = adapters.iter().map(|(name, _)| *name).collect();
    let mut table = format!("| Capability | Meaning | {} |\n", names.join(" | "));
    table += &format!("|---|---|{}\n", "---|".repeat(adapters.len()));
    for (name, meaning, can) in BROKER_CAPABILITIES {
        let answer = |has: &Capabilities| if can(has) { "yes" } else { "no" };
        let answers: Vec<&str> = adapters.iter().map(|(_, has)| answer(has)).collect();
        table += &format!("| `{name}` | {meaning} | {} |\n", answers.join(" | "));
    }
    table
}
