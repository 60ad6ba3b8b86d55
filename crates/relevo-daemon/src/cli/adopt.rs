//! `relevo adopt`

use super::Globals;
use super::failure::{Outcome, exit};
use super::output::Output;
use super::show::escaped;
use crate::config::adopt::written;
use crate::config::{Adopted, did_you_mean};
use relevo_core::error::quoted;
use relevo_core::outbox::adopt::{Mapping, Preset, TableName, Verdict, propose};
use relevo_core::{Error, Kind, Result};
use serde_json::json;
use std::process::ExitCode;

/// Outbox tables that are there already
#[derive(Debug, clap::Subcommand)]
pub(super) enum AdoptCommand {
    /// Look at a table: a mapping for it, missing indices, and what can be promised
    Check(Check),
}

impl AdoptCommand {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        match self {
            Self::Check(args) => args.run(globals, out).await,
        }
    }
}

/// Look at a table: a mapping for it, missing indices, and what can be promised
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It changes nothing, and needs none of Relevo's tables. A name of [adopt.NAME]
in the configuration is looked at as it is mapped there; for any other table a
mapping is proposed, to be read before it is used.
Exit code 1: the mapping does not fit.

Examples:
  relevo adopt check outbox_events --store postgres://app@host/app
  relevo adopt check Outbox --preset ticketflow
  relevo adopt check public.messages --json | jq .order")]
pub(super) struct Check {
    /// The table, as it is written (schema.table), or a name of the configuration
    table: String,

    /// Take this mapping instead of proposing one: ticketflow, smartedify or debezium
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
}

/// A mapping and where it is from.
struct Candidate {
    name: String,
    store: Option<String>,
    mapping: Mapping,
    notes: Vec<String>,
}

impl Check {
    async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let opened = globals.open_existing().await?;
        let candidate = match self.configured(globals)? {
            Some((name, Adopted { store, mapping, .. })) => {
                Candidate { name, store: Some(store), mapping, notes: Vec::new() }
            }
            None => self.proposed(&*opened.adopt).await?,
        };
        let mut verdict = opened.adopt.judge_mapping(&candidate.mapping).await?;
        verdict.notes.splice(0..0, candidate.notes.clone());
        let toml = written(&candidate.name, candidate.store.as_deref(), &candidate.mapping);
        match out.json {
            true => out.json(&json!({
                "table": candidate.mapping.table.to_string(), "fits": verdict.problems.is_empty(),
                "sound_order": verdict.order.is_sound(), "verdict": verdict, "mapping": toml,
            }))?,
            false => print(&candidate, &verdict, &toml, out)?,
        }
        Ok(ExitCode::from(if verdict.problems.is_empty() { 0 } else { exit::FOUND }))
    }

    fn configured(&self, globals: &Globals) -> Result<Option<(String, Adopted)>> {
        if self.preset.is_some() {
            return Ok(None);
        }
        let config = globals.load_config()?;
        let found = config.as_ref().and_then(|config| config.adopted.get(&self.table));
        Ok(found.map(|adopted| (self.table.clone(), adopted.clone())))
    }

    async fn proposed(&self, adopt: &dyn relevo_core::outbox::adopt::Adopt) -> Result<Candidate> {
        let table = TableName::parse(&self.table)?;
        let name = table.table.to_lowercase();
        let shape = adopt.table_shape(&table).await?;
        let (mapping, notes) = match &self.preset {
            Some(preset) => (preset_named(preset)?.mapping(table), Vec::new()),
            None => propose(&shape),
        };
        Ok(Candidate { name, store: None, mapping, notes })
    }
}

fn preset_named(word: &str) -> Result<Preset> {
    Preset::parse(word).ok_or_else(|| {
        let all = Preset::ALL.map(Preset::as_str);
        let near = did_you_mean(word, all);
        let why = format!("{} is no preset{near} (there are: {})", quoted(word), all.join(", "));
        Error::new(Kind::InvalidArgument, why)
    })
}

fn print(
    candidate: &Candidate,
    verdict: &Verdict,
    toml: &str,
    out: &Output,
) -> std::io::Result<()> {
    out.line(format!("table   {}", escaped(&candidate.mapping.table.to_string())))?;
    for problem in &verdict.problems {
        out.labelled("PROBLEM", &escaped(problem))?;
    }
    out.labelled("order ", &escaped(&verdict.order.describe()))?;
    out.labelled("loss  ", &escaped(&verdict.loss))?;
    for index in &verdict.missing_indices {
        out.labelled("index ", &escaped(&format!("missing: {index}")))?;
    }
    for note in &verdict.notes {
        out.labelled("note  ", &escaped(note))?;
    }
    if verdict.problems.is_empty() {
        out.line("")?;
        out.line(toml.trim_end().lines().map(escaped).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(())
}
