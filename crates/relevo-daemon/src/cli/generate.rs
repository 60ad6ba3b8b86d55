//! `relevo completions` and `relevo man`: made from the same definition as `--help`.

use super::failure::{Outcome, wrong};
use super::output::Output;
use clap::Command;
use clap_complete::Shell;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  relevo completions bash > /etc/bash_completion.d/relevo
  relevo completions zsh > ~/.zfunc/_relevo
  relevo completions fish > ~/.config/fish/completions/relevo.fish")]
pub(super) struct Completions {
    /// Which shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self, mut command: Command) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "relevo", &mut script);
        std::io::Write::write_all(&mut std::io::stdout().lock(), &script)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Write the manual pages
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  relevo man man1 && man -l man1/relevo.1")]
pub(super) struct Man {
    /// The folder to write into; it is made if it is not there
    folder: PathBuf,
}

impl Man {
    pub(super) fn run(self, command: Command, out: &Output) -> Outcome {
        let unwritable = |error: std::io::Error| {
            wrong(format!("{} cannot be written: {error}", self.folder.display()))
        };
        std::fs::create_dir_all(&self.folder).map_err(unwritable)?;
        clap_mangen::generate_to(command.disable_help_subcommand(true), &self.folder)
            .map_err(unwritable)?;
        let pages = std::fs::read_dir(&self.folder).map_err(unwritable)?.count();
        let folder = self.folder.display().to_string();
        match out.json {
            true => out.json(&json!({"folder": folder, "pages": pages}))?,
            false => out.line(format!("{pages} pages in {}", super::show::escaped(&folder)))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
