//! `relevo topology plan | apply | check`

use super::Globals;
use super::failure::{Outcome, error_json, error_text, exit, exit_code};
use super::output::{Column, Output};
use super::show::{counted, escaped};
use crate::config::{Config, did_you_mean};
use relevo_core::broker::{Act, Plan, Step, Topology};
use relevo_core::{Error, Kind, Result};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// One broker may take so long to answer everything.
const PATIENCE: Duration = Duration::from_secs(120);

/// Compare exchanges, queues and streams with the configuration, and make them so
#[derive(Debug, clap::Subcommand)]
pub(super) enum TopologyCommand {
    /// Show what differs from [topology.BROKER], and change nothing
    #[command(after_help = "\
create   it is not there
ensure   the broker does not tell; applying makes sure of it
change   it differs and can be changed; nothing stored is lost
replace  it differs and would be made anew: WHAT IT STORES IS LOST
delete   it is not wanted and would go

Examples:
  relevo topology plan
  relevo topology plan --broker rabbit --all
  relevo topology plan --json | jq '.brokers[].steps[]'")]
    Plan(Which),
    /// Make the broker as [topology.BROKER] says; again does nothing more
    #[command(after_help = "\
Nothing of a broker is touched if one of its steps would lose messages; the
exit code is 5 then. --force does it all the same.

Examples:
  relevo topology apply
  relevo topology apply --broker rabbit --force")]
    Apply {
        #[command(flatten)]
        which: Which,
        /// Also do what loses messages
        #[arg(long)]
        force: bool,
    },
    /// Exit with code 1 if anything differs, for pipelines
    #[command(after_help = "Example:\n  relevo topology check || relevo topology plan")]
    Check(Which),
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// Only this broker; may be repeated [default: every broker that has a topology]
    #[arg(long, value_name = "NAME")]
    broker: Vec<String>,
    /// Also show what is as wanted
    #[arg(long)]
    all: bool,
}

/// What is asked of each broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Plan,
    Apply { force: bool },
    Check,
}

/// What came of one broker.
struct Answer {
    broker: String,
    adapter: &'static str,
    result: Result<Plan>,
}

impl TopologyCommand {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let (ask, which) = match self {
            Self::Plan(which) => (Ask::Plan, which),
            Self::Apply { which, force } => (Ask::Apply { force }, which),
            Self::Check(which) => (Ask::Check, which),
        };
        let config = globals.require_config()?;
        let mut answers = Vec::new();
        for name in chosen(&config, &which.broker)? {
            let answer = ask_one(&config, name, ask, out).await?;
            if !out.json {
                print(&answer, ask, &which, out)?;
            }
            answers.push(answer);
        }
        if out.json {
            let brokers: Vec<Value> = answers.iter().map(view).collect();
            out.json(&json!({ "brokers": brokers }))?;
        }
        Ok(ExitCode::from(worst(&answers, ask)))
    }
}

/// The brokers that are meant, by name; every one of them has a topology.
fn chosen<'c>(config: &'c Config, names: &'c [String]) -> Result<Vec<&'c str>> {
    let known: Vec<&str> = config.topologies.keys().map(String::as_str).collect();
    if known.is_empty() {
        let why = "the configuration has no [topology.BROKER]: there is nothing to compare";
        return Err(Error::new(Kind::InvalidConfig, why));
    }
    if names.is_empty() {
        return Ok(known);
    }
    let missing = |name: &String| {
        let near = did_you_mean(name, known.iter().copied());
        let why = format!("there is no [topology.{name}]{near} (there are: {})", known.join(", "));
        Error::new(Kind::InvalidArgument, why)
    };
    let find = |name: &'c String| match known.contains(&name.as_str()) {
        true => Ok(name.as_str()),
        false => Err(missing(name)),
    };
    names.iter().map(find).collect()
}

/// One broker that cannot be reached does not keep the others from being asked.
async fn ask_one(config: &Config, name: &str, ask: Ask, out: &Output) -> Result<Answer> {
    let missing = || Error::new(Kind::InvalidConfig, format!("there is no [broker.{name}]"));
    let broker = config.brokers.get(name).ok_or_else(missing)?;
    let wanted = config.topologies.get(name).ok_or_else(missing)?;
    let admin = wanted.admin(broker, &config.service)?;
    let late = || Error::new(Kind::DestinationDown, format!("no answer within {PATIENCE:?}"));
    let asked = tokio::time::timeout(PATIENCE, asked(&*admin, name, ask, out)).await;
    let result = asked.unwrap_or_else(|_| Err(late()));
    Ok(Answer { broker: name.to_owned(), adapter: admin.name(), result })
}

async fn asked(admin: &dyn Topology, name: &str, ask: Ask, out: &Output) -> Result<Plan> {
    let Ask::Apply { force } = ask else { return admin.plan().await };
    let mut told = Ok(());
    let mut done = |step: &Step| {
        if step.act != Act::Ok && !out.json && told.is_ok() {
            told = out.line(escaped(&format!("{name}: {}", in_the_past(step))));
        }
    };
    let plan = admin.apply_telling(force, &mut done).await?;
    // Nobody reads what is printed: what was to be done is done.
    drop(told);
    Ok(plan)
}

/// A step that was carried out, in words.
fn in_the_past(step: &Step) -> String {
    let did = match step.act {
        Act::Create => "created",
        Act::Ensure => "made sure of",
        Act::Change => "changed",
        Act::Replace => "replaced",
        Act::Delete => "deleted",
        _ => "left",
    };
    let text = if step.text.is_empty() { String::new() } else { format!(": {}", step.text) };
    format!("{did} {} {}{text}", step.what, step.name)
}

fn print(answer: &Answer, ask: Ask, which: &Which, out: &Output) -> std::io::Result<()> {
    let name = escaped(&answer.broker);
    let plan = match &answer.result {
        Ok(plan) => plan,
        Err(error) => {
            eprint!("{name}: {}", error_text(error));
            return Ok(());
        }
    };
    let applied = matches!(ask, Ask::Apply { .. });
    let shown: Vec<&Step> =
        plan.steps.iter().filter(|step| which.all || step.act != Act::Ok && !applied).collect();
    if !shown.is_empty() {
        let columns = [Column::Whole("BROKER"), Column::Whole("ACT"), Column::Whole("WHAT")];
        let columns = columns.into_iter().chain([Column::Whole("NAME"), Column::Wrapped("HOW")]);
        let row = |step: &&Step| row(&answer.broker, step);
        out.table(&columns.collect::<Vec<_>>(), shown.iter().map(row).collect())?;
    }
    out.line(format!("{name}: {}", summary(plan, applied)))
}

fn row(broker: &str, step: &Step) -> Vec<String> {
    let texts = [broker, step.act.as_str(), step.what, &step.name, &step.text];
    texts.into_iter().map(escaped).collect()
}

/// How a plan stands, in one sentence.
fn summary(plan: &Plan, applied: bool) -> String {
    let count = |wanted: fn(Act) -> bool| {
        let found = plan.steps.iter().filter(|step| wanted(step.act)).count();
        i64::try_from(found).unwrap_or(i64::MAX)
    };
    let (same, untold) = (count(|act| act == Act::Ok), count(|act| act == Act::Ensure));
    let differ = count(|act| !matches!(act, Act::Ok | Act::Ensure));
    let lossy = count(|act| !act.is_safe());
    let things = |n| counted(n, "thing");
    let untold = match untold {
        0 => String::new(),
        n => format!(", {} that the broker does not tell of", things(n)),
    };
    match (applied, differ) {
        (_, 0) => format!("{} as wanted{untold}", things(same)),
        (true, n) => format!("{} put right, {} as wanted before{untold}", things(n), things(same)),
        (false, n) => {
            let force = match lossy {
                0 => String::new(),
                n => format!("; {} would lose messages and needs --force", things(n)),
            };
            format!("{} to put right, {} as wanted{untold}{force}", things(n), things(same))
        }
    }
}

fn view(answer: &Answer) -> Value {
    let mut value = json!({ "broker": answer.broker, "adapter": answer.adapter });
    match &answer.result {
        Ok(plan) => {
            value["is_as_wanted"] = json!(plan.is_done());
            value["steps"] = json!(plan.steps);
        }
        Err(error) => value["error"] = error_json(error)["error"].take(),
    }
    value
}

/// The exit code: a broker that failed counts more than a difference.
fn worst(answers: &[Answer], ask: Ask) -> u8 {
    let code = |answer: &Answer| match &answer.result {
        Err(error) => exit_code(error.kind()),
        Ok(plan) if ask == Ask::Check && !plan.is_done() => exit::FOUND,
        Ok(_) => 0,
    };
    let codes: Vec<u8> = answers.iter().map(code).collect();
    let is_error = |code: &u8| *code > exit::FOUND;
    codes.iter().copied().filter(is_error).min().or(codes.iter().copied().max()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(result: Result<Plan>) -> Answer {
        Answer { broker: "b".into(), adapter: "memory", result }
    }

    fn of(act: Act) -> Answer {
        answer(Ok(Plan::new(vec![Step::new(act, "queue", "jobs", "quorum")])))
    }

    fn failed(kind: Kind) -> Answer {
        answer(Err(Error::new(kind, "no")))
    }

    #[test]
    fn a_check_fails_for_a_difference_and_a_broker_that_failed_counts_more() {
        assert_eq!(worst(&[of(Act::Ok), of(Act::Ensure)], Ask::Check), 0);
        assert_eq!(worst(&[of(Act::Ok), of(Act::Create)], Ask::Check), exit::FOUND);
        assert_eq!(worst(&[of(Act::Create)], Ask::Plan), 0, "a plan only shows");
        let down = || failed(Kind::DestinationDown);
        assert_eq!(worst(&[of(Act::Create), down()], Ask::Check), exit::STORE);
        let refused = || failed(Kind::LosesMessages);
        assert_eq!(worst(&[refused(), of(Act::Ok)], Ask::Apply { force: false }), exit::REFUSED);
        assert_eq!(worst(&[refused(), down()], Ask::Apply { force: false }), exit::STORE);
    }

    #[test]
    fn a_plan_is_summed_up_in_a_sentence() {
        let steps = [Act::Ok, Act::Create, Act::Replace, Act::Ensure];
        let plan = Plan::new(steps.map(|act| Step::new(act, "queue", "a", "")).to_vec());
        assert_eq!(
            summary(&plan, false),
            "2 things to put right, 1 thing as wanted, 1 thing that the broker does not tell of; \
             1 thing would lose messages and needs --force"
        );
        assert!(summary(&plan, true).starts_with("2 things put right, 1 thing as wanted before"));
        let plan = Plan::new(vec![Step::new(Act::Ok, "queue", "a", "")]);
        assert_eq!(summary(&plan, false), "1 thing as wanted");
    }
}
