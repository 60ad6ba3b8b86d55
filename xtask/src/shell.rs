//! Small helpers around `std::process` and paths.

use crate::group::end_with_xtask;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The root of the repository: the folder above xtask's own.
pub(crate) fn repository() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    own.parent().map_or_else(|| own.clone(), Path::to_path_buf)
}

/// The cargo that started xtask, so that a `cargo +toolchain xtask` stays on its toolchain.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Set by `cargo run` for xtask itself; inherited, they would make cargo rebuild what reads them.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    std::path::absolute(&chosen).unwrap_or_else(|_| chosen.into())
}

/// Runs a command whose output nobody needs unless it fails. The first line of the error is short
/// enough for a table, the others tell the rest.
pub(crate) fn quietly(command: &mut Command) -> Result<String> {
    to_its_end(end_with_xtask(command)?)
}

/// The same, also if xtask ends before it.
pub(crate) fn to_its_end(command: &mut Command) -> Result<String> {
    let (shown, name) = (format!("{command:?}"), name_of(command));
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{name} cannot be started"))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        bail!("{name}: {}\n{shown}\n{}", output.status, last_lines(&text, 15));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The program and its first plain argument: `apt-get download`.
fn name_of(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let mut words = command.get_args().map(|word| word.to_string_lossy());
    let verb = words.find(|word| !word.starts_with('-')).unwrap_or_default();
    format!("{} {verb}", program.to_string_lossy())
}

/// Runs a command with its output on the terminal.
pub(crate) fn loudly(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status =
        end_with_xtask(command)?.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("ended with {status}");
    }
    Ok(())
}

/// Where a program is, if `PATH` has it.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| is_program(file))
}

pub(crate) fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Whether a variable is set to something that means yes.
pub(crate) fn env_is_true(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "true" || value == "1")
}

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    // The owner of our own /proc entry is the effective user; std has no geteuid.
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

pub(crate) fn minutes(time: Duration) -> String {
    format!("{:.1} min", time.as_secs_f64() / 60.0)
}

fn last_lines(bytes: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::tests::{ends_with_a_killed_run, to_be_killed};

    #[test]
    fn a_run_that_waits_in_silence() {
        if let Some(programs) = to_be_killed() {
            quietly(&mut Command::new(programs.join("family"))).unwrap();
        }
    }

    #[test]
    fn what_runs_quietly_ends_with_xtask_even_if_that_is_killed_alone() {
        ends_with_a_killed_run("shell::tests::a_run_that_waits_in_silence");
    }
}
