//! `dead-letters list | show`

use super::{Filter, one};
use crate::cli::failure::Outcome;
use crate::cli::output::{Column, Output};
use crate::cli::show::{self, DeadLetterView, escaped};
use crate::config::did_you_mean;
use relevo_core::dead_letters::{DeadLetter, DeadLetterId, DeadState, Operate};

/// Dead letters, newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  relevo dead-letters list
  relevo dead-letters list --subscription billing --class poison
  relevo dead-letters list --state all --text timeout -n 100
  relevo dead-letters list --json | jq '.[].event.payload'")]
pub(crate) struct List {
    #[command(flatten)]
    filter: Filter,
    /// What became of them: dead, requested, replayed, archived, all
    #[arg(long, default_value = "dead", value_parser = state)]
    state: State,
    /// How many at most
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
    lines: usize,
    /// Only those below this number, to read on
    #[arg(long, value_name = "ID")]
    before: Option<DeadLetterId>,
}

#[derive(Debug, Clone, Copy)]
struct State(Option<DeadState>);

fn state(text: &str) -> Result<State, String> {
    if text == "all" {
        return Ok(State(None));
    }
    let words = DeadState::ALL.map(DeadState::as_str);
    DeadState::parse(text).map(|state| State(Some(state))).ok_or_else(|| {
        format!("it is not one of {}, all{}", words.join(", "), did_you_mean(text, words))
    })
}

impl List {
    pub(crate) async fn run(self, operate: &dyn Operate, out: &Output) -> Outcome<()> {
        let states = self.state.0.map_or(DeadState::ALL.to_vec(), |state| vec![state]);
        let mut found = Vec::new();
        for state in states {
            found.extend(
                operate
                    .dead_letters(&self.filter.core(Some(state))?, self.before, self.lines)
                    .await?,
            );
        }
        found.sort_by_key(|dead| std::cmp::Reverse(dead.id));
        found.truncate(self.lines);
        if found.is_empty() {
            self.filter.refuse_mistyped(operate).await?;
        }
        if out.json {
            out.json(&found.iter().map(DeadLetterView::from).collect::<Vec<_>>())?;
        } else if found.is_empty() {
            out.line("no dead letters")?;
        } else {
            table(&found, out)?;
            if let Some(last) = found.last().filter(|_| found.len() == self.lines) {
                out.line(format!("there may be more: --before {}", last.id))?;
            }
        }
        Ok(())
    }
}

/// Narrower terminals leave out what is the same for most rows.
const WIDE: u16 = 110;

fn table(found: &[DeadLetter], out: &Output) -> std::io::Result<()> {
    let wide = out.width.is_none_or(|width| width >= WIDE);
    let columns = [
        (Column::Number("ID"), true),
        (Column::Whole("SUBSCRIPTION"), true),
        (Column::Whole("STATE"), wide || found.iter().any(|it| it.state != DeadState::Dead)),
        (Column::Whole("CLASS"), true),
        (Column::Number("TRIES"), wide),
        (Column::Whole("DIED"), wide),
        (Column::Cut("TOPIC"), true),
        (Column::Cut("KEY"), true),
        (Column::Cut("ERROR"), true),
    ];
    let row = |it: &DeadLetter| {
        cells(it)
            .into_iter()
            .zip(&columns)
            .filter(|(_, (_, shown))| *shown)
            .map(|(cell, _)| cell)
            .collect()
    };
    let rows = found.iter().map(row).collect();
    let shown: Vec<Column> =
        columns.iter().filter(|(_, shown)| *shown).map(|(column, _)| *column).collect();
    out.table(&shown, rows)
}

fn cells(it: &DeadLetter) -> Vec<String> {
    vec![
        it.id.to_string(),
        escaped(&it.subscription),
        it.state.as_str().to_owned(),
        it.class.as_str().to_owned(),
        it.attempts.to_string(),
        it.died_at.format("%m-%d %H:%M").to_string(),
        escaped(&it.event.topic),
        show::key(it.event.key.as_deref()),
        escaped(&it.error),
    ]
}

/// One dead letter with its bytes, headers and reason
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  relevo dead-letters show 7\n  relevo dead-letters show 7 --json | jq .event.payload"
)]
pub(crate) struct Show {
    /// Its number
    id: DeadLetterId,
}

impl Show {
    pub(crate) async fn run(self, operate: &dyn Operate, out: &Output) -> Outcome<()> {
        let dead = one(operate, self.id).await?;
        match out.json {
            true => out.json(&DeadLetterView::from(&dead))?,
            false => out.line(described(&dead))?,
        }
        Ok(())
    }
}

fn described(dead: &DeadLetter) -> String {
    let event = &dead.event;
    let mut lines = vec![
        format!("dead letter   {} ({})", dead.id, dead.state.as_str()),
        format!("subscription  {}, lane {}", escaped(&dead.subscription), dead.lane),
        format!("event         {}", event.id),
        format!("topic         {}", escaped(&event.topic)),
        format!("key           {}", show::key(event.key.as_deref())),
        format!("published     {}", show::time(event.created_at)),
        format!("first failed  {}", show::time(dead.first_failed_at)),
        format!(
            "died          {}, after {}",
            show::time(dead.died_at),
            show::counted(dead.attempts.into(), "attempt")
        ),
        format!("error         {}: {}", dead.class.as_str(), escaped(&dead.error)),
    ];
    lines.extend(dead.copy_of.map(|id| format!("copy of       dead letter {id}")));
    lines.extend(
        event
            .headers
            .iter()
            .map(|(name, value)| format!("header        {}: {}", escaped(name), escaped(value))),
    );
    lines.push(format!(
        "payload       {}",
        show::bytes(i64::try_from(event.payload.len()).unwrap_or(i64::MAX))
    ));
    lines.extend(show::payload_lines(event).lines().map(|line| format!("  {line}")));
    lines.join("\n")
}
