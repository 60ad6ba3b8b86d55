//! Runs the console blocks of README.md and docs/: what a page shows is what the programs do.
//!
//! Commands of one page run in order, in one bash, in one empty folder, with servers of their own:
//! - `relevo` is the binary just built, and `cargo run -- ARGS` runs the same binary;
//! - `RELEVO_TEST_PG` and `DATABASE_URL` hold the address of an empty PostgreSQL database, `RELEVO_TEST_RABBITMQ` that of
//!   an empty virtual host, `RELEVO_TEST_NATS` that of a NATS server, on pages whose commands mention them;
//! - `<!-- skip: reason -->` right above a block keeps it from running, and the reason is printed;
//! - `<!-- file: NAME -->` right above a block of any language writes that block into the folder.

mod extract;
mod page;
mod server;

use crate::servers::Prepared;
use anyhow::{Context, Result, bail};
use extract::Part;
use page::Page;
use server::Servers;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs every page; `environment` carries the variables that all tests get.
pub(crate) fn run(programs: &Path, prepared: &Prepared, environment: &Command) -> Result<String> {
    let scratch = Scratch::new(programs)?;
    let mut servers = Servers::new(programs, environment);
    let path = search_path(&scratch.shims(programs)?, programs, prepared)?;
    let (mut commands, mut skipped, mut failures) = (0, 0, Vec::new());
    for file in markdown_files() {
        let text = fs::read_to_string(&file)?;
        let parts = extract::parts(&text).with_context(|| file.display().to_string())?;
        skipped += report_skips(&file, &parts);
        if !parts.iter().any(|part| matches!(part, Part::Block(_))) {
            continue;
        }
        let page = Page { file: &file, parts: &parts, folder: scratch.page(&file)?, path: &path };
        let variables = servers.variables_of(&parts).with_context(|| file.display().to_string());
        match variables.and_then(|variables| page.run(&variables, environment)) {
            Ok(count) => commands += count,
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    for failure in &failures {
        eprintln!("docs: {failure}");
    }
    if !failures.is_empty() {
        bail!("{} pages do not do what they show", failures.len());
    }
    Ok(format!("{commands} commands as shown, {skipped} blocks skipped"))
}

fn report_skips(file: &Path, parts: &[Part]) -> usize {
    let mut count = 0;
    for part in parts {
        if let Part::Skipped { line, reason } = part {
            eprintln!("docs: {}:{line} not run: {reason}", file.display());
            count += 1;
        }
    }
    count
}

fn markdown_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("README.md")];
    collect_markdown(Path::new("docs"), &mut files);
    files.retain(|file| file.exists());
    files.sort();
    files
}

fn collect_markdown(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            collect_markdown(&path, into);
        } else if path.extension().is_some_and(|e| e == "md") {
            into.push(path);
        }
    }
}

fn search_path(shims: &Path, programs: &Path, prepared: &Prepared) -> Result<OsString> {
    let mut folders = vec![shims.to_path_buf(), programs.to_path_buf()];
    folders.extend(prepared.place("RELEVO_PG_CLIENT_BIN").cloned());
    let python = prepared.place("RELEVO_PYTHON").and_then(|python| python.parent());
    folders.extend(python.map(Path::to_path_buf));
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    Ok(std::env::join_paths(folders)?)
}

/// The folder in which pages run; gone when the stage ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(programs: &Path) -> Result<Scratch> {
        let folder = programs.join(format!("docs-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Scratch(folder))
    }

    fn page(&self, file: &Path) -> Result<PathBuf> {
        let folder = self.0.join(file.to_string_lossy().replace(['/', '.'], "-"));
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// A `cargo` whose `run` starts the binary that is already built.
    fn shims(&self, programs: &Path) -> Result<PathBuf> {
        let folder = self.0.join("shims");
        fs::create_dir_all(&folder)?;
        let real = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let script = format!(
            "#!/bin/bash\nif [ \"$1\" = run ]; then\n  while [ $# -gt 0 ] && [ \"$1\" != -- ]; do shift; done\n  \
             shift\n  exec '{}' \"$@\"\nfi\nexec '{real}' \"$@\"\n",
            programs.join("relevo").display()
        );
        let shim = folder.join("cargo");
        fs::write(&shim, script)?;
        fs::set_permissions(&shim, fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
