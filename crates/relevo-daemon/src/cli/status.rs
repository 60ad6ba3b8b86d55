//! `relevo status`

use super::Globals;
use super::failure::Outcome;
use super::output::{Column, Output};
use super::show::{self, escaped};
use relevo_core::dead_letters::{LogStatus, MemberStatus, SubscriptionStatus};
use std::process::ExitCode;

/// How every subscription stands
#[derive(Debug, clap::Args)]
#[command(after_help = "\
BACKLOG  an upper bound of what is not decided yet; the log is never counted
OLDEST   the age of the oldest event not decided yet
KEYS     keys that wait after a failure, and WAIT their events
DEAD     dead letters
LANES    lanes that somebody works, and BY how many processes

Examples:
  relevo status
  relevo status --json | jq '.subscriptions[] | {name, backlog}'")]
pub(super) struct Status {}

impl Status {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let opened = globals.open_existing().await?;
        let status = opened.operate.status().await?;
        if out.json {
            out.json(&status)?;
            return Ok(ExitCode::SUCCESS);
        }
        print_log(&status, out)?;
        if status.subscriptions.is_empty() {
            out.line("no subscriptions: nothing reads this log yet")?;
        } else {
            out.line("")?;
            print_subscriptions(&status.subscriptions, out)?;
            print_remarks(&status.subscriptions, out)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print_log(status: &LogStatus, out: &Output) -> std::io::Result<()> {
    let size = status.bytes.map(|n| format!(", {}", show::bytes(n))).unwrap_or_default();
    let segments = show::counted(status.segments, "segment");
    out.labelled(
        "store ",
        &format!("{}, schema {}", escaped(&status.probe.server), status.probe.schema),
    )?;
    out.labelled(
        "log   ",
        &format!(
            "newest event #{}, {segments}{size}, newest tick {}",
            status.last_seq, status.newest_tick
        ),
    )?;
    out.labelled("waking", &escaped(&status.probe.waking))?;
    for note in &status.probe.notes {
        out.labelled("note  ", &escaped(note))?;
    }
    Ok(())
}

/// What a subscription is doing, in one word.
pub(super) fn state(subscription: &SubscriptionStatus) -> &'static str {
    if subscription.paused.is_some() {
        "paused"
    } else if subscription.forgotten_for_s.is_some() {
        "forgotten"
    } else if alive(subscription).count() == 0 {
        "nobody works"
    } else {
        "working"
    }
}

/// Narrower terminals show where a subscription reads and writes below the table.
const WIDE: u16 = 110;

pub(super) fn print_subscriptions(
    subscriptions: &[SubscriptionStatus],
    out: &Output,
) -> std::io::Result<()> {
    let wide = out.width.is_none_or(|width| width >= WIDE);
    let columns = [
        if wide { Column::Whole("SUBSCRIPTION") } else { Column::Cut("SUBSCRIPTION") },
        Column::Whole("STATE"),
        Column::Number("BACKLOG"),
        Column::Number("OLDEST"),
        Column::Number("KEYS"),
        Column::Number("WAIT"),
        Column::Number("DEAD"),
        Column::Number("LANES"),
        Column::Number("BY"),
        Column::Cut("TOPICS -> TO"),
    ];
    let shown = if wide { columns.len() } else { columns.len() - 1 };
    let row = |it: &SubscriptionStatus| cells(it).into_iter().take(shown).collect();
    out.table(&columns[..shown], subscriptions.iter().map(row).collect())?;
    if !wide {
        for it in subscriptions {
            out.labelled(&escaped(&it.name), &direction(it))?;
        }
    }
    Ok(())
}

fn cells(it: &SubscriptionStatus) -> Vec<String> {
    vec![
        escaped(&it.name),
        state(it).to_owned(),
        it.backlog.to_string(),
        show::age(it.oldest_pending_s),
        it.parked_keys.to_string(),
        it.parked_events.to_string(),
        it.dead_letters.to_string(),
        it.lanes_owned.to_string(),
        alive(it).count().to_string(),
        direction(it),
    ]
}

fn direction(it: &SubscriptionStatus) -> String {
    escaped(&format!("{} -> {}", it.topics.join(" "), it.destination))
}

/// What needs a person, in sentences.
pub(super) fn print_remarks(
    subscriptions: &[SubscriptionStatus],
    out: &Output,
) -> std::io::Result<()> {
    for it in subscriptions {
        for remark in remarks(it) {
            out.labelled(&format!("{}:", escaped(&it.name)), &remark)?;
        }
    }
    Ok(())
}

fn remarks(it: &SubscriptionStatus) -> Vec<String> {
    let mut remarks = Vec::new();
    let name = escaped(&it.name);
    if let Some(by) = &it.paused {
        remarks.push(format!(
            "paused by {}; `relevo subscriptions resume {name}` lets it go on",
            escaped(by)
        ));
    }
    if let Some(seconds) = it.forgotten_for_s {
        remarks.push(format!(
            "nobody has worked on it for {} though something is due, and the log is kept for it; start its daemon, \
             or end it with `relevo subscriptions remove {name}`",
            show::age(seconds)
        ));
    }
    if it.parked_keys > 0 {
        let (keys, events) =
            (show::counted(it.parked_keys, "key"), show::counted(it.parked_events, "event"));
        let wait = if it.parked_keys == 1 { "waits" } else { "wait" };
        remarks.push(format!("{keys} {wait} after a failure, with {events}"));
    }
    if it.dead_letters > 0 {
        remarks.push(format!(
            "{}; `relevo dead-letters list --subscription {name}`",
            show::counted(it.dead_letters, "dead letter")
        ));
    }
    for member in alive(it) {
        if let Some(note) = trouble(&member.note) {
            remarks.push(format!("{} says: {note}", escaped(&member.member)));
        }
    }
    remarks
}

/// A process that has been silent for several leases is not at work, though its row is kept for a while.
const SILENT_S: f64 = 30.0;

fn alive(it: &SubscriptionStatus) -> impl Iterator<Item = &MemberStatus> {
    it.members.iter().filter(|member| member.silent_s < SILENT_S)
}

/// What a member says of itself, without what is as it should be.
fn trouble(note: &serde_json::Value) -> Option<String> {
    use serde_json::Value;
    let is_fine = |value: &Value| match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    let told = match note {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !is_fine(value))
            .map(|(name, value)| format!("{name}: {value}"))
            .collect(),
        other if is_fine(other) => Vec::new(),
        other => vec![other.to_string()],
    };
    (!told.is_empty()).then(|| show::cut(&escaped(&told.join(", ")), 300))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_members_that_signed_life_lately_are_at_work() {
        let mut status = SubscriptionStatus::named("billing");
        assert_eq!(state(&status), "nobody works");
        status.members.push(MemberStatus::new("old", 0, 400.0, json!({})));
        assert_eq!((state(&status), cells(&status)[8].as_str()), ("nobody works", "0"));
        status.members.push(MemberStatus::new("new", 64, 0.2, json!({})));
        assert_eq!((state(&status), cells(&status)[8].as_str()), ("working", "1"));
    }

    #[test]
    fn a_note_is_shown_only_if_something_is_wrong() {
        assert_eq!(trouble(&json!({"breaker": null, "stopped": {}})), None);
        let note = trouble(&json!({"breaker": "open", "stopped": {"3": "R0025"}})).unwrap();
        assert_eq!(note, r#"breaker: "open", stopped: {"3":"R0025"}"#);
    }
}
