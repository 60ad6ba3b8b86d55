//! `relevo subscriptions list | add | pause | resume | rewind | remove`

use super::Globals;
use super::ask::confirm;
use super::failure::{Outcome, wrong};
use super::output::Output;
use super::show::{age, counted, escaped};
use super::status::{print_remarks, print_subscriptions};
use crate::config::{did_you_mean, parse_start};
use chrono::{SecondsFormat, Utc};
use relevo_core::dead_letters::{Operate, SubscriptionStatus, Unproven};
use relevo_core::event::TopicFilter;
use relevo_core::outbox::{Start, Subscription};
use relevo_core::relay::AfterDead;
use relevo_core::{Error, Kind};
use serde_json::json;
use std::process::ExitCode;

/// List, add, pause, resume, rewind or remove subscriptions
#[derive(Debug, clap::Subcommand)]
pub(super) enum SubscriptionsCommand {
    /// Every subscription of this log
    #[command(after_help = "Example:\n  relevo subscriptions list --json | jq '.[].name'")]
    List,
    /// Make a subscription known before anything works it
    #[command(after_help = "\
A daemon or a library makes its subscriptions known by itself. Add one by hand
to keep the log for it from now on.

Examples:
  relevo subscriptions add audit
  relevo subscriptions add billing --topic 'order.*' --start now")]
    Add {
        /// Its name
        name: String,
        /// Which topics: * is one word, # is the rest; may be repeated [default: #]
        #[arg(short, long, value_name = "FILTER")]
        topic: Vec<String>,
        /// Where it begins: beginning, now, or a time such as 2026-01-31T08:00:00Z
        #[arg(long, default_value = "beginning", value_name = "START", value_parser = parse_start)]
        start: Start,
        /// A dead letter holds its key until it is replayed or archived
        #[arg(long)]
        hold_after_dead: bool,
    },
    /// Stop handing events to a subscription; its owners are fenced off at once
    #[command(
        after_help = "Example:\n  relevo subscriptions pause billing --reason 'the bank is down'"
    )]
    Pause {
        /// Its name
        name: String,
        /// Why, for whoever looks at `status` later
        #[arg(long)]
        reason: Option<String>,
    },
    /// Let a paused subscription go on
    #[command(after_help = "Example:\n  relevo subscriptions resume billing")]
    Resume {
        /// Its name
        name: String,
    },
    /// Move a subscription to another place of the log
    #[command(after_help = "\
Backwards, events are delivered again and effects happen again. Forwards,
events are left out. It asks first.

What goes to a broker or an endpoint comes twice there, and consumers tell by
their inbox. Where its rows are gone already (R0042), it is refused.

Examples:
  relevo subscriptions rewind audit --to beginning
  relevo subscriptions rewind audit --to 2026-01-31T08:00:00Z --yes")]
    Rewind {
        /// Its name
        name: String,
        /// beginning, now, or a time such as 2026-01-31T08:00:00Z
        #[arg(long, value_name = "PLACE", value_parser = parse_start)]
        to: Start,
        /// Also events whose proof in the inbox is gone: their effects may happen twice
        #[arg(long)]
        even_if_done_before: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// End a subscription: its cursors and parked events go, its dead letters stay
    #[command(after_help = "Example:\n  relevo subscriptions remove audit --yes")]
    Remove {
        /// Its name
        name: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

impl SubscriptionsCommand {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let opened = globals.open_existing().await?;
        let operate = opened.operate.as_ref();
        match self {
            Self::List => list(operate, out).await?,
            Self::Add { name, topic, start, hold_after_dead } => {
                let start = not_ahead(start)?;
                let subscription = new_subscription(&name, &topic, start, hold_after_dead)?;
                refuse_known(operate, &name).await?;
                opened.store.subscribe(&subscription).await?;
                done(out, &name, "added", "it is known now, and the log is kept for it")?;
            }
            Self::Pause { name, reason } => {
                known(operate, &name).await?;
                operate.pause(&name, &signature(reason.as_deref())).await?;
                done(
                    out,
                    &name,
                    "paused",
                    "no event goes there until it is resumed; the log is kept for it",
                )?;
            }
            Self::Resume { name } => {
                known(operate, &name).await?;
                operate.resume(&name).await?;
                done(out, &name, "resumed", "it goes on where it stood")?;
            }
            Self::Rewind { name, to, even_if_done_before, yes } => {
                let to = not_ahead(to)?;
                known(operate, &name).await?;
                confirm(
                    &format!(
                        "Move {} to {}? Backwards, effects happen again; forwards, events are left out.",
                        escaped(&name),
                        place(to)
                    ),
                    yes,
                )?;
                operate.rewind_with(&name, to, unproven(even_if_done_before)).await?;
                done(out, &name, "rewound", &format!("it goes on from {}", place(to)))?;
            }
            Self::Remove { name, yes } => {
                let status = known(operate, &name).await?;
                confirm(&removal(&status), yes)?;
                operate.remove(&name).await?;
                done(
                    out,
                    &name,
                    "removed",
                    "its cursors and parked events are gone, its dead letters stay",
                )?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What `--even-if-done-before` says.
pub(super) fn unproven(even_if_done_before: bool) -> Unproven {
    match even_if_done_before {
        true => Unproven::Repeat,
        false => Unproven::Refuse,
    }
}

async fn list(operate: &dyn Operate, out: &Output) -> Outcome<()> {
    let subscriptions = operate.status().await?.subscriptions;
    if out.json {
        out.json(&subscriptions)?;
    } else if subscriptions.is_empty() {
        out.line("no subscriptions")?;
    } else {
        print_subscriptions(&subscriptions, out)?;
        print_remarks(&subscriptions, out)?;
    }
    Ok(())
}

fn new_subscription(
    name: &str,
    topics: &[String],
    start: Start,
    hold: bool,
) -> Outcome<Subscription> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 100 || !name.chars().all(plain) {
        return Err(wrong(format!(
            "{name:?} is not a name: letters, digits, '-', '_' and '.', at most 100 of them"
        )));
    }
    let topics: Vec<TopicFilter> =
        topics.iter().map(|topic| TopicFilter::parse(topic)).collect::<Result<_, _>>()?;
    let topics = if topics.is_empty() { vec![TopicFilter::all()] } else { topics };
    let after_dead = if hold { AfterDead::Hold } else { AfterDead::Continue };
    Ok(Subscription::new(name)
        .topics(topics)
        .start(start)
        .after_dead(after_dead)
        .destination("nobody yet"))
}

async fn refuse_known(operate: &dyn Operate, name: &str) -> Outcome<()> {
    let there = operate.status().await?.subscriptions.iter().any(|it| it.name == name);
    match there {
        true => Err(wrong(format!(
            "there is a subscription {name:?} already; `relevo subscriptions rewind` moves it"
        ))),
        false => Ok(()),
    }
}

/// A time that has not come yet is a slip of the pen: it would mean no more than `now`.
fn not_ahead(place: Start) -> Outcome<Start> {
    match place {
        Start::Time(time) if time > Utc::now() => Err(wrong(format!(
            "{} has not come yet; \"now\" means what commits from now on",
            time.to_rfc3339_opts(SecondsFormat::Secs, true)
        ))),
        place => Ok(place),
    }
}

/// The subscription of that name, or an error that names the nearest one.
pub(super) async fn known(operate: &dyn Operate, name: &str) -> Outcome<SubscriptionStatus> {
    let mut subscriptions = operate.status().await?.subscriptions;
    if let Some(at) = subscriptions.iter().position(|it| it.name == name) {
        return Ok(subscriptions.swap_remove(at));
    }
    let names: Vec<&str> = subscriptions.iter().map(|it| it.name.as_str()).collect();
    let near = did_you_mean(name, names.iter().copied());
    let there = if names.is_empty() { "none".into() } else { names.join(", ") };
    Err(Error::new(
        Kind::UnknownSubscription,
        format!("{name:?} is not one{near} (there are: {there})"),
    )
    .into())
}

fn done(out: &Output, name: &str, what: &str, meaning: &str) -> std::io::Result<()> {
    match out.json {
        true => out.json(&json!({"subscription": name, "done": what})),
        false => out.line(format!("{}: {what}; {meaning}", escaped(name))),
    }
}

/// Who, when and why.
fn signature(reason: Option<&str>) -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user =
        variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| "somebody".into());
    let at = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
    match reason {
        Some(reason) => format!("{user} at {at}: {reason}"),
        None => format!("{user} at {at}"),
    }
}

fn place(to: Start) -> String {
    match to {
        Start::Beginning => "the beginning of the log".into(),
        Start::Now => "now".into(),
        Start::Time(time) => format!(
            "{} ({} ago)",
            time.to_rfc3339_opts(SecondsFormat::Secs, true),
            age((Utc::now() - time).num_seconds() as f64)
        ),
    }
}

fn removal(status: &SubscriptionStatus) -> String {
    format!(
        "Remove {}? Up to {} and {} will never be delivered to it.",
        escaped(&status.name),
        counted(status.backlog, "waiting event"),
        counted(status.parked_events, "parked event")
    )
}
