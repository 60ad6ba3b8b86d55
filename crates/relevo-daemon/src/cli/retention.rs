//! `relevo retention`

use super::Globals;
use super::failure::Outcome;
use super::output::{Column, Output};
use super::show::{age, bytes, counted, escaped};
use relevo_core::dead_letters::{Holder, RetentionPlan};
use relevo_core::outbox::{Retention as Kept, Store, Upkeep};
use serde_json::json;
use std::process::ExitCode;

/// One round of upkeep is short on purpose; so many of them are made at most.
const MOST_ROUNDS: usize = 1_000;

/// What of the log would go now, and what holds the rest
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An event goes when every subscription is past it and it is old enough after
that; [retention] in relevo.toml says how old. A subscription that is paused,
or that nobody works, holds the log: resume it, run it, or end it with
`relevo subscriptions remove NAME`. Parked events keep their bytes.
A daemon does all this about every minute; --apply does it now.

Examples:
  relevo retention
  relevo retention --apply
  relevo retention --json | jq '.holders[0]'")]
pub(super) struct Retention {
    /// Drop what is past its time now
    #[arg(long)]
    apply: bool,
}

impl Retention {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let kept = globals.load_config()?.map(|config| config.retention).unwrap_or_default();
        let opened = globals.open_existing().await?;
        opened.store.probe().await?;
        let done = match self.apply {
            true => Some(apply(&*opened.store, &kept).await?),
            false => None,
        };
        let plan = opened.operate.retention(&kept).await?;
        if out.json {
            out.json(&as_json(&kept, &plan, done.as_ref()))?;
        } else {
            print(&kept, &plan, done.as_ref(), out)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Round after round, until one finds nothing more to drop.
async fn apply(store: &dyn Store, kept: &Kept) -> relevo_core::Result<Upkeep> {
    let mut all = Upkeep::default();
    for _ in 0..MOST_ROUNDS {
        let round = store.upkeep(kept).await?;
        let more = round.rows_dropped + round.segments_dropped + round.dead_letters_dropped > 0;
        all.segments_dropped += round.segments_dropped;
        all.rows_dropped += round.rows_dropped;
        all.segments_made += round.segments_made;
        all.ticks_pruned += round.ticks_pruned;
        all.dead_letters_dropped += round.dead_letters_dropped;
        all.warnings = round.warnings;
        if !more {
            break;
        }
    }
    Ok(all)
}

fn as_json(kept: &Kept, plan: &RetentionPlan, done: Option<&Upkeep>) -> serde_json::Value {
    let mut value = json!(plan);
    value["keep"] = json!({
        "events_s": kept.events.as_secs(),
        "dead_letters_s": kept.dead_letters.as_secs(),
        "inbox_s": kept.inbox.as_secs(),
    });
    value["applied"] = json!(done);
    value
}

fn print(
    kept: &Kept,
    plan: &RetentionPlan,
    done: Option<&Upkeep>,
    out: &Output,
) -> std::io::Result<()> {
    let keep = format!(
        "events {} after every subscription is past them, dead letters {}, inbox {}",
        age(kept.events.as_secs_f64()),
        age(kept.dead_letters.as_secs_f64()),
        age(kept.inbox.as_secs_f64())
    );
    out.labelled("keep  ", &keep)?;
    if let Some(done) = done {
        out.labelled("gone  ", &what_went(done))?;
        for warning in &done.warnings {
            out.labelled("note  ", &escaped(warning))?;
        }
    }
    let letters = counted(plan.dead_letters, "dead letter");
    let goes = at_most(plan.droppable_events, plan.droppable_bytes);
    out.labelled("goes  ", &format!("{goes}, {letters}"))?;
    let young = at_most(plan.young_events, plan.young_bytes);
    out.labelled("young ", &format!("{young}: past every subscription, not old enough"))?;
    if plan.parked_events > 0 {
        let parked = counted(plan.parked_events, "parked event");
        out.labelled("parked", &format!("{parked} behind that keep their bytes"))?;
    }
    if plan.unread {
        return out.line("nobody subscribes: all of the log is kept");
    }
    out.line("")?;
    let columns = [
        Column::Whole("HELD BY"),
        Column::Number("EVENTS"),
        Column::Number("BYTES"),
        Column::Wrapped("STATE"),
    ];
    out.table(&columns, plan.holders.iter().map(row).collect())
}

fn what_went(done: &Upkeep) -> String {
    let events = counted(i64::try_from(done.rows_dropped).unwrap_or(i64::MAX), "event");
    let letters =
        counted(i64::try_from(done.dead_letters_dropped).unwrap_or(i64::MAX), "dead letter");
    format!("about {events}, {letters}")
}

fn at_most(events: i64, size: Option<i64>) -> String {
    let size = size.map(|n| format!(" ({})", bytes(n))).unwrap_or_default();
    format!("at most {}{size}", counted(events, "event"))
}

fn row(holder: &Holder) -> Vec<String> {
    vec![
        escaped(&holder.subscription),
        holder.events.to_string(),
        holder.bytes.map_or_else(|| "-".to_owned(), bytes),
        escaped(&holder.state),
    ]
}
