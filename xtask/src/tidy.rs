//! The repository's own rules, each a function from the tree to a list of complaints.

use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file longer than this is several files.
const LINES_MAX: usize = 800;

/// Crates that must not come in by any road; the same list is in deny.toml for those who have cargo-deny.
const BANNED_CRATES: [(&str, &str); 1] =
    [("ring", "TLS uses one cryptographic library, aws-lc-rs; two of them panic at first use")];

/// What only tests may use: the crate that has it, and its name.
const TEST_HOOKS: [(&str, &str); 2] =
    [("crates/relevo-stores", "next_change"), ("crates/relevo-stores", "open_as_next_version")];

/// A code that tests may use as one that will never be assigned.
const NEVER_ASSIGNED: &str = "R9999";

pub(crate) fn run() -> Result<()> {
    let files = Files::of_repository()?;
    let complaints: Vec<String> = [
        long_files(&files),
        machine_paths(&files),
        broken_links(&files),
        error_pages(&files),
        named_tests(&files),
        named_hunters(&files),
        used_hooks(&files),
        banned_crates(&dependencies()?),
    ]
    .concat();
    if complaints.is_empty() {
        return Ok(());
    }
    for complaint in &complaints {
        eprintln!("tidy: {complaint}");
    }
    bail!("{} to mend", complaints.len())
}

/// Every text file that git knows or would add.
struct Files(Vec<(PathBuf, String)>);

impl Files {
    fn of_repository() -> Result<Files> {
        let mut git = Command::new("git");
        git.args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
        let names = crate::shell::quietly(&mut git)?;
        let read = |name: &str| Some((PathBuf::from(name), std::fs::read_to_string(name).ok()?));
        Ok(Files(names.split('\0').filter(|name| !name.is_empty()).filter_map(read).collect()))
    }

    fn with_extension(&self, extension: &str) -> impl Iterator<Item = &(PathBuf, String)> {
        self.0.iter().filter(move |(path, _)| path.extension().is_some_and(|e| e == extension))
    }

    /// The shipped sources: `crates/*/src/**/*.rs`.
    fn sources(&self) -> impl Iterator<Item = &(PathBuf, String)> {
        self.with_extension("rs").filter(|(path, _)| {
            let mut parts = path.iter();
            parts.next().is_some_and(|p| p == "crates") && parts.nth(1).is_some_and(|p| p == "src")
        })
    }
}

fn long_files(files: &Files) -> Vec<String> {
    files
        .sources()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| format!("{}: {lines} lines, more than {LINES_MAX}", path.display()))
        .collect()
}

fn machine_paths(files: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in &files.0 {
        for (number, line) in text.lines().enumerate() {
            if let Some(found) = machine_path(line) {
                let at = number + 1;
                complaints.push(format!("{}:{at}: a path of one machine: {found}", path.display()));
            }
        }
    }
    complaints
}

/// The first folder in a line that only exists on somebody's own machine.
fn machine_path(line: &str) -> Option<&str> {
    // Written in two parts so that this file does not complain about itself.
    let homes = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/Us", "ers/"),
    ];
    homes.iter().find_map(|home| {
        line.match_indices(home)
            .filter(|(at, _)| starts_a_path(line, *at))
            .map(|(at, _)| &line[at..])
            .find(|rest| rest[home.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()))
            .map(|rest| {
                rest.split(|c: char| c.is_whitespace() || "\"'`)".contains(c))
                    .next()
                    .unwrap_or(rest)
            })
    })
}

/// Whether the slash at this place begins an absolute path, and is no part of a URL or a longer one.
fn starts_a_path(line: &str, at: usize) -> bool {
    let before = line[..at].chars().next_back();
    before.is_none_or(|c| !(c.is_alphanumeric() || "/.-_}~*>".contains(c)))
}

fn broken_links(files: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in files.with_extension("md") {
        let folder = path.parent().unwrap_or(Path::new(""));
        for (line, target) in local_links(text) {
            if !folder.join(target).exists() {
                complaints
                    .push(format!("{}:{line}: the link to {target} leads nowhere", path.display()));
            }
        }
    }
    complaints
}

/// Targets of `[text](target)` outside of code, without their `#anchor`, with their line.
fn local_links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        // Odd pieces between backquotes are code.
        for prose in line.split('`').step_by(2) {
            for piece in prose.split("](").skip(1) {
                let target = piece.split([')', ' ', '#']).next().unwrap_or("");
                let elsewhere = target.contains("://") || target.starts_with("mailto:");
                if !target.is_empty() && !elsewhere {
                    links.push((number + 1, target));
                }
            }
        }
    }
    links
}

fn error_pages(files: &Files) -> Vec<String> {
    let used: BTreeSet<&str> = files
        .sources()
        .flat_map(|(_, text)| error_codes(text))
        .filter(|code| *code != NEVER_ASSIGNED)
        .collect();
    let pages: BTreeSet<&str> = files
        .with_extension("md")
        .filter(|(path, _)| path.starts_with("docs/errors"))
        .filter_map(|(path, _)| path.file_stem()?.to_str())
        .filter(|stem| is_error_code(stem))
        .collect();
    let missing = used.difference(&pages).map(|code| format!("docs/errors/{code}.md is missing"));
    let stale =
        pages.difference(&used).map(|code| format!("docs/errors/{code}.md: no code uses it"));
    missing.chain(stale).collect()
}

/// String literals of the form `"R0007"`.
fn error_codes(text: &str) -> Vec<&str> {
    text.split('"').filter(|piece| is_error_code(piece)).collect()
}

fn is_error_code(text: &str) -> bool {
    text.len() == 5 && text.starts_with('R') && text[1..].bytes().all(|b| b.is_ascii_digit())
}

/// What a page names as the proof of a promise must be there: tables under `| Test | Where |`.
fn named_tests(files: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in files.with_extension("md") {
        for (line, row) in rows_of_tests(text) {
            let complaint = match row.split('|').map(str::trim).collect::<Vec<_>>()[..] {
                [_, test, place, ..] => missing_test(files, test, place),
                _ => Some("a row without a place".to_owned()),
            };
            complaints.extend(complaint.map(|what| format!("{}:{line}: {what}", path.display())));
        }
    }
    complaints
}

/// The rows of such tables, with their lines.
fn rows_of_tests(text: &str) -> Vec<(usize, &str)> {
    let mut rows = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        inside = line == "| Test | Where |" || (inside && line.starts_with('|'));
        if inside && !line.starts_with("| Test ") && !line.starts_with("|---") {
            rows.push((number + 1, line));
        }
    }
    rows
}

/// A test is named `function` or `module::function`; its place is a file, or words for all that a suite runs on. A
/// module is a file or a folder of files.
fn missing_test(files: &Files, test: &str, place: &str) -> Option<String> {
    let name = test.trim_matches('`');
    let (module, function) = name.rsplit_once("::").unwrap_or(("", name));
    let (file, folder) = match place.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) {
        Some(file) => (format!("/{file}"), None),
        None => (format!("/{module}.rs"), Some(format!("/{module}/"))),
    };
    let heading = format!("fn {function}(");
    let is_place = |path: &str| {
        path.ends_with(&file) || folder.as_ref().is_some_and(|folder| path.contains(folder))
    };
    let found = files
        .with_extension("rs")
        .any(|(path, text)| is_place(&format!("/{}", path.display())) && text.contains(&heading));
    (!found).then(|| format!("there is no test {name} in {}", file.trim_start_matches('/')))
}

/// What a page of `docs` says hunts a fault must be there: the last column of tables under `| ... | Here |` names mutants,
/// tests and files of tests.
fn named_hunters(files: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in files.with_extension("md").filter(|(path, _)| path.starts_with("docs")) {
        for (line, row) in rows_of_hunters(text) {
            let here = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
            // Odd pieces between backquotes are code.
            let named = here.split('`').skip(1).step_by(2);
            complaints.extend(
                named
                    .filter(|name| !is_hunter(files, name))
                    .map(|name| format!("{}:{line}: there is no {name}", path.display())),
            );
        }
    }
    complaints
}

/// The rows of such tables, with their lines.
fn rows_of_hunters(text: &str) -> Vec<(usize, &str)> {
    let mut rows = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        let heading = line.starts_with('|') && line.ends_with("| Here |");
        inside = heading || (inside && line.starts_with('|'));
        if inside && !heading && !line.starts_with("|---") {
            rows.push((number + 1, line));
        }
    }
    rows
}

/// A mutant is written `LikeThis`, a test `like_this`, a file of tests `like_this.rs`; anything else is no name of ours.
fn is_hunter(files: &Files, name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if let Some(stem) = name.strip_suffix(".rs") {
        let file = format!("/{stem}.rs");
        return files.0.iter().any(|(path, _)| format!("/{}", path.display()).ends_with(&file));
    }
    let is = |home: &str, heading: &str| {
        let at = |path: &Path| path.display().to_string().ends_with(home);
        files.with_extension("rs").any(|(path, text)| at(path) && text.contains(heading))
    };
    match name.chars().next() {
        _ if !name.chars().all(word) => true,
        Some(first)
            if first.is_ascii_uppercase() && name.chars().any(|c| c.is_ascii_lowercase()) =>
        {
            is("relevo-core/src/mutants.rs", &format!(" {name} = \""))
        }
        Some(first) if first.is_ascii_lowercase() && name.contains('_') => {
            is("", &format!("fn {name}("))
        }
        _ => true,
    }
}

/// A hook for tests that shipped code calls is no hook for tests.
fn used_hooks(files: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in files.sources() {
        for (home, hook) in TEST_HOOKS {
            if !path.starts_with(home) && text.contains(hook) {
                complaints.push(format!("{}: {hook} is for tests only", path.display()));
            }
        }
    }
    complaints
}

fn banned_crates(tree: &str) -> Vec<String> {
    let is_there = |name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    BANNED_CRATES
        .iter()
        .filter(|(name, _)| is_there(name))
        .map(|(name, why)| format!("Cargo.toml: the crate {name} is banned: {why}"))
        .collect()
}

/// Every crate that any build of the workspace compiles, one a line. The lock file would not do: it also has what no
/// build compiles, such as optional dependencies behind a weak feature.
fn dependencies() -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["tree", "--workspace", "--all-features", "--target", "all"]);
    cargo.args(["--prefix", "none", "--format", "{p}"]);
    crate::shell::quietly(&mut cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(of: &[(&str, &str)]) -> Files {
        Files(of.iter().map(|(p, t)| (PathBuf::from(p), (*t).to_owned())).collect())
    }

    #[test]
    fn a_long_source_is_named_and_a_long_test_is_not() {
        let long = "x\n".repeat(LINES_MAX + 1);
        let found =
            long_files(&files(&[("crates/a/src/b.rs", &long), ("crates/a/tests/b.rs", &long)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/a/src/b.rs: 801 lines"), "{found:?}");
    }

    #[test]
    fn a_folder_of_one_machine_is_seen_and_a_url_is_not() {
        let home = concat!("/ho", "me/ana/x");
        assert_eq!(machine_path(&format!("cd {home} now")), Some(home));
        assert_eq!(machine_path(&format!("https://example.org{home}")), None);
        assert_eq!(machine_path("docs/work/item"), None);
        assert_eq!(machine_path(concat!("protects /ho", "me/ from writes")), None);
    }

    #[test]
    fn links_are_found_outside_of_code_and_lose_their_anchor() {
        let text =
            "see [a](b.md#part) and `[c](d)`\n```\n[e](f)\n```\n[g](https://h) [i](#j) ![k](l.svg)";
        assert_eq!(local_links(text), [(1, "b.md"), (5, "l.svg")]);
    }

    #[test]
    fn codes_and_pages_must_meet() {
        let tree = files(&[
            (
                "crates/a/src/error.rs",
                r#"const A: &str = "R0001"; const B: &str = "R0002"; "R9999""#,
            ),
            ("docs/errors/R0002.md", ""),
            ("docs/errors/R0003.md", ""),
            ("docs/errors/README.md", ""),
        ]);
        assert_eq!(
            error_pages(&tree),
            ["docs/errors/R0001.md is missing", "docs/errors/R0003.md: no code uses it"]
        );
    }

    #[test]
    fn a_test_that_a_page_names_must_be_where_it_says() {
        let table = |rows: &str| format!("| Test | Where |\n|---|---|\n{rows}\n\n| `x` | `y.rs` |");
        let of = |rows: &str| {
            let tests = ("a/tests/kills.rs", "async fn nothing_is_lost() {}\nfn nothing() {}");
            let suite = ("k/src/suite/outbox.rs", "pub async fn late(rig: &Rig) {}");
            let part = ("k/src/suite/relay/lease.rs", "pub async fn taken(rig: &Rig) {}");
            named_tests(&files(&[("docs/g.md", &table(rows)), tests, suite, part]))
        };
        assert!(
            of("| `nothing_is_lost` | `kills.rs` |\n| `outbox::late` | every store |").is_empty()
        );
        assert_eq!(of("| `relay::taken` | every store |"), Vec::<String>::new());
        for wrong in [
            "| `nothing_is` | `kills.rs` |",
            "| `nothing_is_lost` | `skills.rs` |",
            "| `inbox::late` | every store |",
            "| `relay::late` | every store |",
            "| why: all of them | every store |",
        ] {
            assert_eq!(of(wrong).len(), 1, "{wrong}");
            assert!(of(wrong)[0].starts_with("docs/g.md:3: there is no test"), "{:?}", of(wrong));
        }
    }

    #[test]
    fn what_hunts_a_fault_by_name_must_be_there() {
        let of = |row: &str| {
            let table = format!("| Trap | Here |\n|---|---|\n{row}\n\n| a | `Nobody` |");
            let mutants = ("crates/relevo-core/src/mutants.rs", "    NoFence = \"none\";");
            let tests = ("a/tests/kills.rs", "async fn nothing_is_lost() {}");
            named_hunters(&files(&[("docs/h.md", &table), mutants, tests]))
        };
        let good = "| `x` | `NoFence`, `nothing_is_lost` in `kills.rs`; `SIGKILL`, `kill -9` |";
        assert_eq!(of(good), Vec::<String>::new());
        for wrong in ["| x | `NoFences` |", "| x | `nothing_is` |", "| x | `skills.rs` |"] {
            assert_eq!(of(wrong).len(), 1, "{wrong}");
            assert!(of(wrong)[0].starts_with("docs/h.md:3: there is no "), "{:?}", of(wrong));
        }
    }

    #[test]
    fn a_hook_for_tests_stays_out_of_shipped_code() {
        let calls = "options.next_change = Some(sql);";
        let found = used_hooks(&files(&[
            ("crates/relevo-daemon/src/run.rs", calls),
            ("crates/relevo-stores/src/postgres/migrate.rs", calls),
            ("tests/torture/src/database.rs", calls),
        ]));
        assert_eq!(found, ["crates/relevo-daemon/src/run.rs: next_change is for tests only"]);
    }

    #[test]
    fn a_banned_crate_that_is_compiled_is_named_with_the_reason() {
        assert!(banned_crates("rustls v0.23.1\nring v0.17.14 (*)\n")[0].contains("aws-lc-rs"));
        assert!(banned_crates("stringray v1.0.0\nring-buffer v0.1.0\n").is_empty());
    }
}
