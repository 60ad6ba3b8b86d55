//! `relevo init`

use super::failure::{Failure, Outcome, wrong};
use super::output::Output;
use super::show::escaped;
use super::{Globals, STORE_VARIABLE};
use crate::config::{Config, FILE_NAME, Secret, example};
use crate::store;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write a commented relevo.toml
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  relevo init                                       a store in relevo.db
  relevo init --store postgres://app@localhost/shop
  relevo init -c etc/relevo.toml                    another place")]
pub(super) struct Init {
    /// Replace a file that is there already
    #[arg(long)]
    force: bool,
}

impl Init {
    pub(super) fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let path = globals.config.clone().unwrap_or_else(|| PathBuf::from(FILE_NAME));
        let variable = std::env::var(STORE_VARIABLE).ok().filter(|url| !url.is_empty());
        let url = globals.store.clone().or(variable).unwrap_or_else(|| example::FIRST_STORE.into());
        store::check_url(&Secret::new(url.as_str()))?;
        let text = example::first(&url);
        Config::read(FILE_NAME, &text, std::iter::empty())?;
        self.write(&path, &text)?;
        let shown = path.display().to_string();
        if out.json {
            out.json(&json!({"written": shown, "store": Secret::new(url).to_string()}))?;
        } else {
            out.line(format!(
                "{} is written, with the store {}",
                escaped(&shown),
                escaped(&Secret::new(url).to_string())
            ))?;
            let c = match &globals.config {
                Some(path) => format!(" -c {}", escaped(&path.display().to_string())),
                None => String::new(),
            };
            out.line(format!("next: `relevo migrate{c}` makes its tables, `relevo run{c}` prints what is published"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn write(&self, path: &Path, text: &str) -> Outcome<()> {
        let mut options = OpenOptions::new();
        options.write(true);
        match self.force {
            true => options.create(true).truncate(true),
            false => options.create_new(true),
        };
        private(&mut options);
        let mut file = options.open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::NotConfirmed(format!(
                "{} is there already; --force replaces it",
                path.display()
            )),
            _ => wrong(format!("{} cannot be written: {error}", path.display())),
        })?;
        Ok(file.write_all(text.as_bytes())?)
    }
}

/// The file will hold a URL, and a URL may hold a password.
#[cfg(unix)]
fn private(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn private(_options: &mut OpenOptions) {}
