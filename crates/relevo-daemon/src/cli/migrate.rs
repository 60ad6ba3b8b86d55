//! `relevo migrate`

use super::Globals;
use super::failure::Outcome;
use super::output::Output;
use super::show::escaped;
use crate::store::{self, Missing};
use serde_json::json;
use std::process::ExitCode;

/// Make or update Relevo's tables, or print the SQL and the GRANTs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Safe to run again, and when two processes run it at once. It needs no superuser.

Examples:
  relevo migrate                              the store of ./relevo.toml
  relevo migrate --store sqlite:relevo.db     makes the file, too
  relevo migrate --print > relevo.sql         for another migration tool; the
                                              server is not even asked")]
pub(super) struct Migrate {
    /// Print the SQL, with the GRANTs for a writer and a relay role, and change nothing
    #[arg(long)]
    print: bool,
}

impl Migrate {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        if self.print {
            let sql = store::migrations_sql(store::check_url(&globals.store_url()?)?);
            match out.json {
                true => out.json(&json!({"sql": sql}))?,
                false => out.line(sql.trim_end())?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        let opened = globals.open(Missing::Create).await?;
        let applied = opened.operate.migrate().await?;
        let probe = opened.store.probe().await?;
        if out.json {
            out.json(&json!({"applied": applied, "schema": probe.schema, "server": probe.server}))?;
            return Ok(ExitCode::SUCCESS);
        }
        for name in &applied {
            out.line(format!("applied {}", escaped(name)))?;
        }
        let state = if applied.is_empty() { "is up to date" } else { "is ready" };
        out.line(format!(
            "the schema {state}: version {} on {}",
            probe.schema,
            escaped(&probe.server)
        ))?;
        for note in &probe.notes {
            out.line(format!("note: {}", escaped(note)))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
