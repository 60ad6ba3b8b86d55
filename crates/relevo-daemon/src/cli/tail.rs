//! `relevo tail`: a look at the log, not a delivery.

use super::Globals;
use super::failure::{Outcome, wrong};
use super::output::Output;
use super::show::{self, EventView, escaped};
use relevo_core::Event;
use relevo_core::dead_letters::Operate;
use relevo_core::event::TopicFilter;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

/// Rows of one look.
const PAGE: usize = 500;

/// Looking for the last events of a rare topic ends after this many rows.
const LOOKED_AT_MOST: i64 = 100_000;

/// Transactions commit out of order: a row this many numbers behind the newest one is still noticed.
const BEHIND: i64 = 1_000;

/// A narrower terminal shows the id on a line of its own.
const ONE_LINE: u16 = 120;

/// How often `--follow` looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Look at the newest events of the log
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It shows events in the order of their numbers, whoever has or has not received
them yet, and changes nothing.

Examples:
  relevo tail -n 20
  relevo tail --follow --topic 'order.*' --topic 'ticket.#'
  relevo tail --key order-1 --json | jq .payload")]
pub(super) struct Tail {
    /// How many events
    #[arg(short = 'n', long, default_value_t = 10, value_name = "N")]
    lines: usize,
    /// Go on with what comes, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Only topics that match: * is one word, # is the rest; may be repeated
    #[arg(short, long, value_name = "FILTER")]
    topic: Vec<String>,
    /// Only events of this key
    #[arg(short, long)]
    key: Option<String>,
}

impl Tail {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let wanted = Wanted::new(&self.topic, self.key.clone())?;
        if self.lines > 10_000 {
            return Err(wrong("-n shows at most 10000 events; --follow goes on with what comes"));
        }
        let opened = globals.open_existing().await?;
        let operate = opened.operate.as_ref();
        let newest = operate.status().await?.last_seq;
        let last = last_events(operate, newest, self.lines, &wanted).await?;
        for (seq, event) in &last {
            print(out, *seq, event)?;
        }
        if self.follow {
            let seen = last.iter().map(|(seq, _)| *seq).collect();
            follow(operate, newest, seen, &wanted, out).await?;
        } else if last.is_empty() && !out.json {
            out.line("no events")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

struct Wanted {
    topics: Vec<TopicFilter>,
    key: Option<String>,
}

impl Wanted {
    fn new(topics: &[String], key: Option<String>) -> Outcome<Self> {
        let topics =
            topics.iter().map(|topic| TopicFilter::parse(topic)).collect::<Result<_, _>>()?;
        Ok(Self { topics, key })
    }

    fn is(&self, event: &Event) -> bool {
        let topic =
            self.topics.is_empty() || self.topics.iter().any(|filter| filter.matches(&event.topic));
        topic && self.key.as_ref().is_none_or(|key| event.key.as_ref() == Some(key))
    }
}

/// Walks back from the newest event, in ever larger steps, until enough are found.
async fn last_events(
    operate: &dyn Operate,
    newest: i64,
    lines: usize,
    wanted: &Wanted,
) -> Outcome<Vec<(i64, Event)>> {
    let mut found: Vec<(i64, Event)> = Vec::new();
    let mut upper = newest;
    let mut span = i64::try_from(lines).unwrap_or(i64::MAX).max(10);
    while upper > 0 && found.len() < lines && newest - upper < LOOKED_AT_MOST {
        let lower = (upper - span).max(0);
        let mut step = between(operate, lower, upper, wanted).await?;
        step.append(&mut found);
        found = step;
        upper = lower;
        span = (span * 2).min(5_000);
    }
    Ok(found.split_off(found.len().saturating_sub(lines)))
}

/// Wanted events with `lower < seq <= upper`.
async fn between(
    operate: &dyn Operate,
    lower: i64,
    upper: i64,
    wanted: &Wanted,
) -> Outcome<Vec<(i64, Event)>> {
    let mut found = Vec::new();
    let mut after = lower;
    while after < upper {
        let page = operate.peek(after, PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        after = *last;
        found.extend(page.into_iter().filter(|(seq, event)| *seq <= upper && wanted.is(event)));
    }
    Ok(found)
}

async fn follow(
    operate: &dyn Operate,
    mut newest: i64,
    mut seen: BTreeSet<i64>,
    wanted: &Wanted,
    out: &Output,
) -> Outcome<()> {
    // What was there before and is not shown stays not shown: only late commits and new events are news.
    let floor = (newest - BEHIND).max(0);
    for (seq, _) in
        between(operate, floor, newest, &Wanted { topics: Vec::new(), key: None }).await?
    {
        seen.insert(seq);
    }
    loop {
        let mut after = (newest - BEHIND).max(0);
        loop {
            let page = operate.peek(after, PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            after = *last;
            for (seq, event) in page.iter().filter(|(seq, _)| seen.insert(*seq)) {
                if wanted.is(event) {
                    print(out, *seq, event)?;
                }
            }
        }
        newest = newest.max(after);
        seen = seen.split_off(&(newest - BEHIND));
        tokio::time::sleep(PAUSE).await;
    }
}

fn print(out: &Output, seq: i64, event: &Event) -> std::io::Result<()> {
    if out.json {
        return out.json(&EventView::of(event, Some(seq)));
    }
    let at = event.created_at.format("%H:%M:%S%.3f");
    let (topic, key) = (escaped(&event.topic), show::key(event.key.as_deref()));
    let (id, payload) = (event.id, show::payload_line(event));
    if out.width.is_some_and(|width| width < ONE_LINE) {
        out.line_cut(&format!("{seq:>6}  {at}  {topic}  {key}  {payload}"))?;
        return out.line_cut(&format!("        {id}"));
    }
    out.line_cut(&format!("{seq:>6}  {at}  {id}  {topic}  {key}  {payload}"))
}
