//! `relevo why EVENT_ID`: one sentence per subscription.

use super::Globals;
use super::failure::{Outcome, exit};
use super::output::Output;
use super::show::{self, age, escaped, until};
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::{Answer, OpenTransaction, Why};
use relevo_core::error::quoted;
use relevo_core::{Error, EventId, Result};
use serde_json::{Value, json};
use std::process::ExitCode;

/// A relay that was silent for so many seconds is not at work.
const SILENT_S: f64 = 30.0;

/// Why is this event where it is?
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It answers for each subscription: delivered, waiting (for what, until when),
dead, filtered out, held by whom. An event that is not there may still be
inside an open transaction: the sessions that might hold it are named.
A row of an adopted table is answered for before it is claimed, too; where its
id is no UUID, say the row's own.

Examples:
  relevo why 01990f6a-7d3c-7b53-9f0e-3f6f6f5f2a11
  relevo why 42
  relevo tail -n 1 --json | jq -r .id | xargs relevo why")]
pub(super) struct WhyArgs {
    /// The event's id, a UUID; or the id of a row of an adopted table
    event: String,
}

impl WhyArgs {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let (event, answer) = self.ask(globals).await?;
        match out.json {
            true => out.json(&view(event, &answer))?,
            false => print(event, &answer, out)?,
        }
        Ok(match answer {
            Answer::Unknown { .. } => ExitCode::from(exit::NOT_FOUND),
            _ => ExitCode::SUCCESS,
        })
    }
}

impl WhyArgs {
    async fn ask(&self, globals: &Globals) -> Result<(EventId, Answer)> {
        match self.event.parse::<EventId>() {
            Ok(event) => Ok((event, globals.open_existing().await?.operate.why(event).await?)),
            Err(no_id) => self.ask_of_row(globals, no_id).await,
        }
    }

    /// What no table has is what it was: no id.
    async fn ask_of_row(&self, globals: &Globals, no_id: Error) -> Result<(EventId, Answer)> {
        let opened = globals.open_existing().await?;
        opened.adopt.why_row(&self.event).await?.ok_or(no_id)
    }
}

fn print(event: EventId, answer: &Answer, out: &Output) -> std::io::Result<()> {
    match answer {
        Answer::InTable { .. } => print_row(event, answer, out)?,
        Answer::Unknown { suspects, past_retention } => {
            for line in unknown(event, suspects, *past_retention) {
                out.line(line)?;
            }
        }
        Answer::Known { topic, key, lane, seq, created_at, subscriptions } => {
            let place = seq.map(|seq| format!("#{seq}, ")).unwrap_or_default();
            let key =
                key.as_deref().map(|key| format!(", key {}", escaped(key))).unwrap_or_default();
            out.line(format!(
                "{event}: {}{key} ({place}lane {lane}), published {}",
                escaped(topic),
                show::time(*created_at)
            ))?;
            if subscriptions.is_empty() {
                out.line("  no subscription reads this log yet")?;
            }
            for (name, why) in subscriptions {
                out.labelled(&format!("  {}:", escaped(name)), &sentence(name, why))?;
            }
        }
        other => out.line(format!("{event}: {other:?}"))?,
    }
    Ok(())
}

fn print_row(event: EventId, answer: &Answer, out: &Output) -> std::io::Result<()> {
    let Answer::InTable { table, row, topic, key, created_at, subscription, why, .. } = answer
    else {
        return Ok(());
    };
    let said = |word: &str, value: &Option<String>| {
        value.as_deref().map(|value| format!(", {word}{}", escaped(value))).unwrap_or_default()
    };
    let made = created_at.map(|at| format!(", written {}", show::time(at))).unwrap_or_default();
    out.line(format!(
        "{event}: row {} of the adopted table {}{}{}{made}",
        escaped(row),
        escaped(table),
        said("", topic),
        said("key ", key)
    ))?;
    let name = subscription.as_deref().unwrap_or("(nobody)");
    out.labelled(&format!("  {}:", escaped(name)), &sentence(name, why))
}

fn unknown(event: EventId, suspects: &[OpenTransaction], past_retention: bool) -> Vec<String> {
    if past_retention {
        return vec![format!(
            "{event}: not in the log any more; it is older than what retention has dropped, \
             and only what every subscription was past is dropped"
        )];
    }
    if suspects.is_empty() {
        return vec![format!(
            "{event}: not in the log; it was never published here, or its transaction was rolled back"
        )];
    }
    let mut lines = vec![format!(
        "{event}: not in the log; never published, rolled back, or still inside one of these open transactions:"
    )];
    lines.extend(suspects.iter().map(|it| format!("  {}", open_transaction(it))));
    lines
}

fn open_transaction(it: &OpenTransaction) -> String {
    let application = match it.application.is_empty() {
        true => String::new(),
        false => format!(" ({})", escaped(&it.application)),
    };
    let (pid, open, state) = (it.pid, age(it.open_s), escaped(&it.state));
    format!("pid {pid}{application}, open for {open}, {state}: {}", escaped(&it.query))
}

fn due(due: Option<DateTime<Utc>>) -> String {
    match due {
        Some(at) => format!("{} ({})", show::time(at), until(at)),
        None => "when a person replays or archives the dead letter that holds its key".into(),
    }
}

fn ago(seconds: f64) -> DateTime<Utc> {
    Utc::now() - chrono::Duration::milliseconds((seconds * 1000.0) as i64)
}

/// How many of its key come first, if any do.
fn behind(before: i64) -> String {
    match before {
        0 => String::new(),
        before => format!(", with {} of its key before it", show::counted(before, "event")),
    }
}

/// What a state in this subscription means, in one sentence.
pub(super) fn sentence(subscription: &str, why: &Why) -> String {
    match why {
        Why::Delivered => "delivered".into(),
        Why::Skipped { reason } => format!("skipped by its handler: {}", escaped(reason)),
        Why::FilteredOut { topics } => {
            format!("not wanted: the subscription reads {}", escaped(&topics.join(" ")))
        }
        Why::BeforeStart => "before its start: the subscription begins after this event".into(),
        Why::Parked { attempts, due: at, class, error } => format!(
            "parked after {} ({}: {}); tried again {}",
            show::counted((*attempts).into(), "attempt"),
            escaped(class),
            escaped(error),
            due(*at)
        ),
        Why::ParkedBehind { event, before, due: at, error } => format!(
            "parked behind {event}{} ({}); that one is tried again {}",
            behind(*before),
            escaped(error),
            due(*at)
        ),
        Why::Held { dead_letter, event, before, class, error } => format!(
            "held behind {event}, which is dead letter {dead_letter} ({}: {}){}; `relevo dead-letters replay --id \
             {dead_letter}` or `relevo dead-letters archive --id {dead_letter}` lets its key go on",
            escaped(class),
            escaped(error),
            behind(*before)
        ),
        Why::Dead { dead_letter, dead_state, class, error } => format!(
            "dead letter {dead_letter} ({}), {}: {}; `relevo dead-letters show {dead_letter}`",
            escaped(dead_state),
            escaped(class),
            escaped(error)
        ),
        Why::Paused { by, then } => format!(
            "waits: the subscription was paused by {}; `relevo subscriptions resume {}` lets it go on{}",
            escaped(by),
            escaped(subscription),
            then.as_ref()
                .map_or(String::new(), |why| format!("; then: {}", sentence(subscription, why)))
        ),
        Why::BreakerOpen { reason, open_s } => format!(
            "waits: the destination is down since {} ({}), and is probed: {}",
            show::time(ago(*open_s)),
            age(*open_s),
            escaped(reason)
        ),
        Why::LaneLeased { lane, owner, silent_s } => format!(
            "waits its turn: lane {lane} is worked by {}, last heard of {} ago",
            escaped(owner),
            age(*silent_s)
        ),
        Why::NobodyWorks { lane } => {
            format!("waits: nobody works lane {lane}; is a daemon running for this subscription?")
        }
        Why::WaitsForTick => {
            "waits: it is newer than the newest tick, the next one takes it".into()
        }
        of_a_row => row_sentence(of_a_row),
    }
}

/// The same of what is a row of an adopted table.
fn row_sentence(why: &Why) -> String {
    match why {
        Why::NotRelayed => {
            "waits: no subscription relays this table yet; a [subscription.NAME] with adopt = ... \
                            and a daemon for it do"
                .into()
        }
        Why::NotDue { until: at } => {
            format!("waits for the time its row says: {}", due(Some(*at)))
        }
        Why::RowLocked { by } => {
            let by: Vec<String> = by.iter().map(open_transaction).collect();
            format!("not claimed yet: its row is locked by {}", by.join("; "))
        }
        Why::BehindRow { row } => format!(
            "not claimed yet: row {} of its key comes first, and somebody holds that one locked",
            escaped(row)
        ),
        Why::Unclaimed { relay, silent_s, .. } if *silent_s > SILENT_S => format!(
            "not claimed yet: no relay runs; the last one, {}, was last heard of {} ago",
            escaped(relay),
            age(*silent_s)
        ),
        Why::Unclaimed { relay, silent_s, before, more } => format!(
            "not claimed yet: {} takes it at one of its next looks{}; last heard of {} ago",
            escaped(relay),
            match (before, more) {
                (0, false) => String::new(),
                (before, false) => format!(", {} come first", show::counted(*before, "row")),
                (before, true) =>
                    format!(", more than {} come first", show::counted(*before, "row")),
            },
            age(*silent_s)
        ),
        Why::Marked { at } => {
            let at = at.map(|at| format!(" since {}", show::time(at))).unwrap_or_default();
            format!("delivered: its row is marked so{at}, and the log does not have it any more")
        }
        Why::GivenUp => {
            "failed for good: it was a dead letter, which is not kept any more; its row \
                         cannot tell, and is not relayed again"
                .into()
        }
        Why::Taken => {
            "claimed: it was put into the log, which does not have it; if that is so when \
                       asked again, the log has dropped it and its row was never marked"
                .into()
        }
        Why::Buried { table } => {
            format!("failed for good: its row is in the table of dead letters, {}", escaped(table))
        }
        Why::OtherState { says } => format!(
            "not to be relayed: its state is {}, none of those that are pending",
            says.as_deref().map_or_else(|| "null".into(), |says| escaped(&quoted(says)))
        ),
        other => format!("{other:?}"),
    }
}

/// The answer with the name of each subscription beside its state.
fn view(event: EventId, answer: &Answer) -> Value {
    let mut value = serde_json::to_value(answer).unwrap_or(Value::Null);
    if let (Value::Object(map), Answer::Known { subscriptions, .. }) = (&mut value, answer) {
        let one = |(name, why): &(String, Why)| {
            let mut state = serde_json::to_value(why).unwrap_or(Value::Null);
            if let Value::Object(fields) = &mut state {
                fields.insert("subscription".into(), json!(name));
                fields.insert("sentence".into(), json!(sentence(name, why)));
            }
            state
        };
        map.insert("subscriptions".into(), subscriptions.iter().map(one).collect());
    }
    if let (Value::Object(map), Answer::InTable { subscription, why, .. }) = (&mut value, answer) {
        let mut state = map.remove("why").unwrap_or(Value::Null);
        if let Value::Object(fields) = &mut state {
            let name = subscription.as_deref().unwrap_or_default();
            fields.insert("subscription".into(), map.remove("subscription").unwrap_or_default());
            fields.insert("sentence".into(), json!(sentence(name, why)));
        }
        map.insert("subscriptions".into(), json!([state]));
    }
    if let Value::Object(map) = &mut value {
        map.insert("event".into(), json!(event.to_string()));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(pid: i32, open_s: f64) -> OpenTransaction {
        let state = "idle in transaction".into();
        OpenTransaction::new(pid, "shop".into(), open_s, state, "INSERT\nINTO".into())
    }

    #[test]
    fn every_state_is_one_clear_sentence() {
        let id = EventId::fresh();
        let soon = Utc::now() + chrono::Duration::seconds(90);
        let text = |word: &str| word.to_owned();
        for (why, part) in [
            (Why::Delivered, "delivered"),
            (Why::Skipped { reason: text("old") }, "skipped by its handler: old"),
            (Why::FilteredOut { topics: vec![text("a.*")] }, "reads a.*"),
            (Why::BeforeStart, "begins after this event"),
            (
                Why::Parked {
                    attempts: 2,
                    due: Some(soon),
                    class: text("transient"),
                    error: text("503"),
                },
                "parked after 2 attempts (transient: 503); tried again",
            ),
            (
                Why::Parked { attempts: 1, due: None, class: text("poison"), error: text("x") },
                "when a person",
            ),
            (
                Why::ParkedBehind { event: id, before: 1, due: Some(soon), error: text("503") },
                "with 1 event of its key before it",
            ),
            (
                Why::Dead {
                    dead_letter: 7,
                    dead_state: text("dead"),
                    class: text("poison"),
                    error: text("x\ny"),
                },
                "dead letter 7 (dead), poison: x\\ny",
            ),
            (
                Why::Paused { by: text("ana"), then: None },
                "paused by ana; `relevo subscriptions resume s` lets it go on",
            ),
            (
                Why::Parked { attempts: 2, due: None, class: text("x"), error: text("503") }
                    .while_paused(Some("ana")),
                "resume s` lets it go on; then: parked after 2 attempts (x: 503)",
            ),
            (
                Why::BreakerOpen { reason: text("refused"), open_s: 75.0 },
                "(1m 15s), and is probed: refused",
            ),
            (
                Why::Held {
                    dead_letter: 7,
                    event: id,
                    before: 0,
                    class: text("poison"),
                    error: text("x"),
                },
                "which is dead letter 7 (poison: x); `relevo dead-letters replay --id 7` or",
            ),
            (
                Why::LaneLeased { lane: 3, owner: text("host-1"), silent_s: 1.5 },
                "lane 3 is worked by host-1, last heard of 1.5s ago",
            ),
            (Why::NobodyWorks { lane: 3 }, "nobody works lane 3"),
            (Why::WaitsForTick, "newer than the newest tick"),
            (Why::NotRelayed, "no subscription relays this table"),
            (Why::NotDue { until: soon }, "waits for the time its row says: "),
            (
                Why::RowLocked { by: vec![session(42, 65.0)] },
                "its row is locked by pid 42 (shop), open for 1m 5s",
            ),
            (Why::BehindRow { row: text("r\n1") }, "row r\\n1 of its key comes first"),
            (
                Why::Unclaimed { relay: text("host-1"), silent_s: 1.5, before: 7, more: false },
                "host-1 takes it at one of its next looks, 7 rows come first; last heard of 1.5s ago",
            ),
            (
                Why::Unclaimed { relay: text("host-1"), silent_s: 7200.0, before: 0, more: false },
                "no relay runs; the last one, host-1, was last heard of 2h",
            ),
            (
                Why::Unclaimed { relay: text("host-1"), silent_s: 1.5, before: 9, more: true },
                "looks, more than 9 rows come first; last",
            ),
            (Why::GivenUp, "failed for good: it was a dead letter"),
            (Why::Taken, "claimed: it was put into the log"),
            (Why::Marked { at: Some(soon) }, "delivered: its row is marked so since "),
            (Why::Buried { table: text("dlq") }, "in the table of dead letters, dlq"),
            (Why::OtherState { says: Some(text("HELD")) }, "its state is \"HELD\", none of those"),
        ] {
            let sentence = sentence("s", &why);
            assert!(sentence.contains(part) && !sentence.contains('\n'), "{sentence}");
        }
    }

    #[test]
    fn an_unknown_event_names_the_sessions_that_may_hold_it() {
        let held = session(42, 65.0);
        let lines = unknown(EventId::fresh(), &[held], false).join("\n");
        assert!(
            lines.contains("pid 42 (shop), open for 1m 5s, idle in transaction: INSERT\\nINTO"),
            "{lines}"
        );
        assert!(unknown(EventId::fresh(), &[], true)[0].contains("retention"));
    }

    #[test]
    fn the_json_names_each_subscription_beside_its_state() {
        let answer = Answer::Known {
            topic: "a".into(),
            key: None,
            lane: 1,
            seq: Some(2),
            created_at: Utc::now(),
            subscriptions: vec![("audit".into(), Why::Delivered)],
        };
        let value = view(EventId::fresh(), &answer);
        assert_eq!(value["subscriptions"][0]["subscription"], "audit");
        assert_eq!(value["subscriptions"][0]["state"], "delivered");
        assert_eq!(value["found"], "known");
    }
}
