//! `relevo doctor`

use super::Globals;
use super::failure::{Outcome, exit, exit_code};
use super::output::{Column, Output};
use super::show::{counted, escaped};
use crate::config::redacted;
use relevo_core::dead_letters::{Finding, Level};
use relevo_core::{Error, Result};
use serde_json::json;
use std::process::ExitCode;

/// Look at everything that commonly goes wrong
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It looks at the configuration, the connection, the schema, privileges and
settings, and at subscriptions nobody works. It changes nothing.
Exit code 1: a problem must be mended; 3: the store cannot even be looked at.

Examples:
  relevo doctor
  relevo doctor --json | jq '.findings[] | select(.level!=\"ok\")'")]
pub(super) struct Doctor {}

impl Doctor {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let mut findings = configuration(globals)?;
        let mut code = 0;
        match store(globals).await {
            Ok(found) => findings.extend(found),
            Err(error) => {
                code = exit_code(error.kind());
                findings.push(refused(&error));
            }
        }
        let problems = findings.iter().filter(|finding| finding.level == Level::Problem).count();
        let warnings = findings.iter().filter(|finding| finding.level == Level::Warning).count();
        if code == 0 && problems > 0 {
            code = exit::FOUND;
        }
        if out.json {
            out.json(&json!({"healthy": problems == 0, "problems": problems, "warnings": warnings, "findings": findings}))?;
        } else {
            print(&findings, out)?;
            out.line(verdict(problems, warnings))?;
        }
        Ok(ExitCode::from(code))
    }
}

fn configuration(globals: &Globals) -> Result<Vec<Finding>> {
    let Some(config) = globals.load_config()? else { return Ok(Vec::new()) };
    let count = count(config.subscriptions.len(), "subscription");
    let mut findings =
        vec![Finding::new(Level::Ok, "configuration", format!("valid, with {count}"))];
    findings.extend(
        config.warnings.iter().map(|text| Finding::new(Level::Warning, "configuration", text)),
    );
    Ok(findings)
}

async fn store(globals: &Globals) -> Result<Vec<Finding>> {
    let opened = globals.open_existing().await?;
    opened.operate.doctor().await
}

/// A store that cannot be looked at is a finding, too.
fn refused(error: &Error) -> Finding {
    let text = format!("{}; `relevo explain {}`", redacted(&error.to_string()), error.code());
    Finding::new(Level::Problem, "store", text)
}

fn print(findings: &[Finding], out: &Output) -> std::io::Result<()> {
    let mark = |level| match level {
        Level::Ok => "ok",
        Level::Warning => "warning",
        Level::Problem => "PROBLEM",
    };
    let row = |it: &Finding| vec![mark(it.level).to_owned(), escaped(&it.check), escaped(&it.text)];
    let columns = [Column::Whole("LEVEL"), Column::Whole("CHECK"), Column::Wrapped("FOUND")];
    out.table(&columns, findings.iter().map(row).collect())
}

fn count(n: usize, word: &str) -> String {
    counted(i64::try_from(n).unwrap_or(i64::MAX), word)
}

fn verdict(problems: usize, warnings: usize) -> String {
    match (problems, warnings) {
        (0, 0) => "all is well".into(),
        (0, warnings) => format!("no problems, {}", count(warnings, "warning")),
        (problems, warnings) => {
            format!("{} to mend, {}", count(problems, "problem"), count(warnings, "warning"))
        }
    }
}
