//! `relevo dead-letters list | show | replay | progress | cancel | edit | archive`

pub(super) mod change;
pub(super) mod edit;
mod look;
mod replay;

use super::Globals;
use super::ask::confirm;
use super::failure::{Outcome, missing, wrong};
use super::output::Output;
use super::show::counted;
use super::subscriptions::known;
use crate::config::did_you_mean;
use relevo_core::dead_letters::{DeadFilter, DeadLetter, DeadLetterId, DeadState, Operate};
use relevo_core::limits::Limits;
use relevo_core::{Error, ErrorClass, EventId, NewEvent};
use serde_json::json;
use std::process::ExitCode;

/// List, show, replay, edit or archive what failed for good
#[derive(Debug, clap::Subcommand)]
pub(super) enum DeadLettersCommand {
    /// Dead letters, newest first
    List(look::List),
    /// One dead letter with its bytes, headers and reason
    Show(look::Show),
    /// Put dead letters back into delivery
    Replay(replay::Replay),
    /// How far a replay is
    Progress(replay::Progress),
    /// Take out of a replay what was not put back yet
    Cancel(replay::Cancel),
    /// Replay an edited copy
    Edit(edit::Edit),
    /// Set dead letters aside; a held key goes on
    Archive(Archive),
}

impl DeadLettersCommand {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let opened = globals.open_existing().await?;
        let operate = opened.operate.as_ref();
        match self {
            Self::List(args) => args.run(operate, out).await?,
            Self::Show(args) => args.run(operate, out).await?,
            Self::Replay(args) => args.run(operate, out).await?,
            Self::Progress(args) => args.run(operate, out).await?,
            Self::Cancel(args) => args.run(operate, out).await?,
            Self::Edit(args) => args.run(operate, &globals.limits()?, out).await?,
            Self::Archive(args) => args.run(operate, out).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Which dead letters are meant; all conditions together.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Filter {
    /// These numbers only; may be repeated
    #[arg(long, value_name = "ID", help_heading = "Which dead letters")]
    id: Vec<DeadLetterId>,
    /// Of this subscription only
    #[arg(short, long, value_name = "NAME", help_heading = "Which dead letters")]
    subscription: Option<String>,
    /// With exactly this topic only
    #[arg(short, long, help_heading = "Which dead letters")]
    topic: Option<String>,
    /// Of this key only
    #[arg(short, long, help_heading = "Which dead letters")]
    key: Option<String>,
    /// Of this class only: transient, permanent, poison, unknown
    #[arg(long, value_parser = class, help_heading = "Which dead letters")]
    class: Option<ErrorClass>,
    /// Whose error contains this text
    #[arg(long, help_heading = "Which dead letters")]
    text: Option<String>,
    /// Of this event only
    #[arg(long, value_name = "UUID", help_heading = "Which dead letters")]
    event: Option<uuid::Uuid>,
}

impl Filter {
    fn core(&self, state: Option<DeadState>) -> Outcome<DeadFilter> {
        self.topic.as_deref().map_or(Ok(()), exact)?;
        Ok(self.unchecked(state))
    }

    fn unchecked(&self, state: Option<DeadState>) -> DeadFilter {
        let mut filter = DeadFilter::default();
        filter.ids = self.id.clone();
        filter.subscription = self.subscription.clone();
        filter.topic = self.topic.clone();
        filter.key = self.key.clone();
        filter.class = self.class;
        filter.text = self.text.clone();
        filter.event = self.event.map(EventId);
        filter.state = state;
        filter
    }

    fn is_empty(&self) -> bool {
        self.unchecked(None) == DeadFilter::default()
    }

    /// What matches, with a refusal where nothing is meant: everything must be asked for by name.
    fn meant(&self, all: bool) -> Outcome<DeadFilter> {
        if self.is_empty() && !all {
            return Err(wrong(
                "say which: --id, --subscription, --topic, --key, --class, --text, --event, or --all",
            ));
        }
        self.core(None)
    }
}

impl Filter {
    /// Nothing matched: perhaps because the subscription is mistyped. One that was removed may still have letters.
    async fn refuse_mistyped(&self, operate: &dyn Operate) -> Outcome<()> {
        match &self.subscription {
            Some(name) => known(operate, name).await.map(|_| ()),
            None => Ok(()),
        }
    }
}

/// Here a topic is no filter: what no event can have would quietly match nothing.
fn exact(topic: &str) -> Outcome<()> {
    let refused = |error: Error| {
        let message = format!("{}; --topic takes one whole topic here", error.message());
        Error::new(error.kind(), message).into()
    };
    Limits::default().check(&NewEvent::bytes(topic, "")).map_err(refused)
}

fn class(text: &str) -> Result<ErrorClass, String> {
    let words = ErrorClass::ALL.map(ErrorClass::as_str);
    ErrorClass::parse(text).ok_or_else(|| {
        format!("it is not one of {}{}", words.join(", "), did_you_mean(text, words))
    })
}

/// The dead letter of that number, whatever became of it.
async fn one(operate: &dyn Operate, id: DeadLetterId) -> Outcome<DeadLetter> {
    for state in DeadState::ALL {
        let mut filter = DeadFilter::default();
        filter.ids = vec![id];
        filter.state = Some(state);
        if let Some(found) = operate.dead_letters(&filter, None, 1).await?.pop() {
            return Ok(found);
        }
    }
    Err(missing(format!(
        "there is no dead letter {id}; `relevo dead-letters list --state all` shows them"
    )))
}

/// A set that was looked at: exactly these, or too many to name one by one.
struct Set {
    filter: DeadFilter,
    count: usize,
    /// There are more than were counted.
    more: bool,
}

/// More than this are not counted one by one before a question is asked.
const COUNTED_AT_MOST: usize = 10_000;

/// Counts what matches and freezes it, by its numbers or by the newest of them, so that nothing else is done than what
/// was confirmed.
async fn frozen(operate: &dyn Operate, filter: &DeadFilter) -> Outcome<Set> {
    let mut ids: Vec<DeadLetterId> = Vec::new();
    loop {
        let page = operate.dead_letters(filter, ids.last().copied(), 200).await?;
        if page.is_empty() {
            let mut filter = filter.clone();
            let count = ids.len();
            filter.ids = ids;
            return Ok(Set { filter, count, more: false });
        }
        ids.extend(page.iter().map(|dead| dead.id));
        if ids.len() >= COUNTED_AT_MOST {
            // Numbers only grow: what dies from now on has a higher one than the newest that was seen.
            let mut filter = filter.clone();
            filter.up_to = ids.first().copied();
            return Ok(Set { filter, count: ids.len(), more: true });
        }
    }
}

impl Set {
    fn described(&self) -> String {
        let count = counted(i64::try_from(self.count).unwrap_or(i64::MAX), "dead letter");
        if self.more { format!("more than {count}") } else { count }
    }
}

/// Set dead letters aside; a held key goes on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An archived dead letter is kept until its retention ends, and is never replayed.

Examples:
  relevo dead-letters archive --id 7
  relevo dead-letters archive --subscription billing --class poison --yes")]
pub(super) struct Archive {
    #[command(flatten)]
    filter: Filter,
    /// All that are dead
    #[arg(long)]
    all: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

impl Archive {
    async fn run(self, operate: &dyn Operate, out: &Output) -> Outcome<()> {
        let set = frozen(operate, &self.filter.meant(self.all)?).await?;
        if set.count == 0 {
            self.filter.refuse_mistyped(operate).await?;
            return Err(missing("no dead letter in state dead matches"));
        }
        confirm(&format!("Archive {}?", set.described()), self.yes)?;
        let archived = operate.archive(&set.filter).await?;
        match out.json {
            true => out.json(&json!({"archived": archived}))?,
            false => out.line(format!(
                "archived {}",
                counted(i64::try_from(archived).unwrap_or(i64::MAX), "dead letter")
            ))?,
        }
        Ok(())
    }
}
