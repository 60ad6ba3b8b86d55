//! Runs the commands of one page in one bash and compares what they printed.

use super::extract::{Part, ShownCommand, output_matches};
use crate::group::Group;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A page that takes longer hangs.
const PAGE_LIMIT: Duration = Duration::from_secs(300);

/// Begins the line that bash prints after each command.
const MARK: char = '\u{1e}';

pub(super) struct Page<'a> {
    pub(super) file: &'a Path,
    pub(super) parts: &'a [Part],
    pub(super) folder: PathBuf,
    pub(super) path: &'a OsStr,
}

impl Page<'_> {
    /// The number of commands that did what the page shows.
    pub(super) fn run(&self, variables: &[(&str, String)], environment: &Command) -> Result<usize> {
        let commands: Vec<&ShownCommand> = self.commands().collect();
        self.write_files()?;
        let script = self.write_script(&commands)?;
        let printed = self.run_script(&script, variables, environment)?;
        self.compare(&commands, &printed)?;
        Ok(commands.len())
    }

    fn commands(&self) -> impl Iterator<Item = &ShownCommand> {
        self.parts.iter().flat_map(|part| match part {
            Part::Block(commands) => commands.as_slice(),
            _ => &[],
        })
    }

    fn write_files(&self) -> Result<()> {
        for part in self.parts {
            if let Part::File { name, text } = part {
                let plain = Path::new(name)
                    .components()
                    .all(|c| matches!(c, std::path::Component::Normal(_)));
                ensure!(
                    plain,
                    "{}: {name:?} is no file name inside the page's folder",
                    self.file.display()
                );
                let place = self.folder.join(name);
                fs::create_dir_all(place.parent().unwrap_or(&self.folder))?;
                fs::write(place, text)?;
            }
        }
        Ok(())
    }

    /// Each command is a file of its own, so that a quote left open spoils only that command.
    fn write_script(&self, commands: &[&ShownCommand]) -> Result<PathBuf> {
        let sources = self.folder.join(".commands");
        fs::create_dir_all(&sources)?;
        let mut script = String::from("exec 2>&1 </dev/null\n");
        for (index, command) in commands.iter().enumerate() {
            let source = sources.join(index.to_string());
            fs::write(&source, &command.script)?;
            script += &format!(
                "source '{}'\n__code=$?\nprintf '\\n\\036%s\\n' $__code\n[ $__code = {} ] || exit 1\n",
                source.display(),
                command.exit_code
            );
        }
        let file = sources.join("page");
        fs::write(&file, script)?;
        Ok(file)
    }

    fn run_script(
        &self,
        script: &Path,
        variables: &[(&str, String)],
        environment: &Command,
    ) -> Result<String> {
        // A file and not a pipe: what a page leaves running in the background must not hold us up.
        let output = self.folder.join(".output");
        let mut bash = Command::new("bash");
        bash.arg(script).current_dir(&self.folder).env("PATH", self.path);
        let group = Group::new()?;
        group.take_in(&mut bash);
        bash.stdin(Stdio::null()).stdout(File::create(&output)?);
        for (name, value) in environment.get_envs() {
            bash.env(name, value.unwrap_or_default());
        }
        bash.envs(variables.iter().map(|(name, value)| (name, value)));
        let mut running = bash.spawn().context("cannot start bash")?;
        let in_time = wait(&mut running, PAGE_LIMIT)?;
        // With it goes whatever the page left running.
        drop(group);
        let _ = running.wait();
        let printed = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
        ensure!(
            in_time,
            "{}: still running after {PAGE_LIMIT:?}; printed:\n{printed}",
            self.file.display()
        );
        Ok(printed)
    }

    fn compare(&self, commands: &[&ShownCommand], printed: &str) -> Result<()> {
        let mut rest = printed;
        for command in commands {
            let at = format!(
                "{}:{}: `{}`",
                self.file.display(),
                command.line,
                first_line(&command.script)
            );
            let Some((output, after)) = rest.split_once(&format!("\n{MARK}")) else {
                bail!("{at} never ended; printed:\n{rest}");
            };
            let (code, after) = after.split_once('\n').unwrap_or((after, ""));
            rest = after;
            if code.trim() != command.exit_code.to_string() {
                bail!("{at} ended with {code}, not {}; printed:\n{output}", command.exit_code);
            }
            let real: Vec<&str> = output.trim_end().lines().collect();
            if !command.output.is_empty() && !output_matches(&command.output, &real) {
                bail!("{at} shows\n{}\nbut prints\n{}", command.output.join("\n"), real.join("\n"));
            }
        }
        Ok(())
    }
}

fn first_line(script: &str) -> &str {
    script.lines().next().unwrap_or("")
}

fn wait(child: &mut Child, limit: Duration) -> Result<bool> {
    let deadline = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::extract::parts;
    use super::*;

    /// Runs a page written in Markdown with nothing but the system's programs.
    fn run(name: &str, markdown: &str) -> Result<usize> {
        let folder =
            std::env::temp_dir().join(format!("relevo-page-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let parts = parts(markdown)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let page =
            Page { file: Path::new("page.md"), parts: &parts, folder: folder.clone(), path: &path };
        let variables = [("RELEVO_TEST_PG", "postgres://nowhere".to_owned())];
        let result = page.run(&variables, &Command::new("true"));
        let _ = fs::remove_dir_all(folder);
        result
    }

    #[test]
    fn commands_of_a_page_share_folder_variables_and_files() {
        let page = "<!-- file: conf/a.txt -->\n```\nhello\n```\n```console\n$ x=1; cd conf\n```\n\
                    ```console\n$ cat a.txt; echo $x $RELEVO_TEST_PG\nhello\n1 postgres://...\n```";
        assert_eq!(run("shared", page).unwrap(), 2);
    }

    #[test]
    fn other_output_than_shown_fails_with_both() {
        let error = run("other", "```console\n$ echo b\na\n```").unwrap_err().to_string();
        assert!(
            error.contains("page.md:2") && error.contains("shows\na\nbut prints\nb"),
            "{error}"
        );
    }

    #[test]
    fn a_failing_command_stops_the_page_unless_its_exit_code_is_shown() {
        let error = run("fails", "```console\n$ echo no; false\n$ echo never\n```").unwrap_err();
        assert!(error.to_string().contains("ended with 1, not 0"), "{error}");
        assert_eq!(run("shown", "```console\n$ false\n(exit 1)\n$ true\n```").unwrap(), 2);
    }

    #[test]
    fn an_open_quote_is_the_fault_of_its_own_command() {
        let error = run("quote", "```console\n$ true\n$ echo 'open\n$ true\n```").unwrap_err();
        assert!(error.to_string().contains("page.md:3"), "{error}");
    }

    #[test]
    fn what_runs_in_the_background_neither_blocks_nor_outlives_the_page() {
        let start = Instant::now();
        assert_eq!(run("background", "```console\n$ sleep 600 &\n$ echo on\non\n```").unwrap(), 2);
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_file_outside_of_the_folder_is_refused() {
        let page = "<!-- file: ../x -->\n```\n\n```\n```console\n$ true\n```";
        assert!(run("outside", page).is_err());
    }
}
