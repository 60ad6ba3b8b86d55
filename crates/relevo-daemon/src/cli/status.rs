//! `relevo status`

use super::Globals;
use super::failure::Outcome;
use super::output::{Column, Output};
use super::show::{self, escaped};
use relevo_core::dead_letters::{LogStatus, MemberStatus, SubscriptionStatus};
use relevo_core::outbox::MemberNote;
use std::process::ExitCode;

/// How every subscription stands
#[derive(Debug, clap::Args)]
#[command(after_help = "\
STATE    working, paused, breaker open (its destination is down), nobody works,
         or forgotten (nobody works though something is due)
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
    } else if alive(subscription).any(is_down) {
        "breaker open"
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
        for (_, trouble) in it.troubles() {
            out.labelled(&format!("{}:", escaped(&it.name)), &escaped(&trouble))?;
        }
    }
    Ok(())
}

fn alive(it: &SubscriptionStatus) -> impl Iterator<Item = &MemberStatus> {
    it.members.iter().filter(|member| member.is_alive())
}

fn is_down(member: &MemberStatus) -> bool {
    MemberNote::read(&member.note).breaker.is_some()
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
    fn a_subscription_whose_destination_is_down_does_not_count_as_working() {
        let mut status = SubscriptionStatus::named("billing");
        let note = json!({"breaker": {"reason": "refused", "open_s": 3.0}, "stopped": {}});
        status.members.push(MemberStatus::new("new", 64, 0.2, note));
        assert_eq!(state(&status), "breaker open");
    }
}
