//! From Markdown to commands, and the rule by which shown output matches real output.

use anyhow::{Result, bail};

/// A part of a page that means something to the runner.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    Block(Vec<ShownCommand>),
    Skipped { line: usize, reason: String },
    File { name: String, text: String },
}

/// A command with what the page shows under it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShownCommand {
    pub(super) line: usize,
    pub(super) script: String,
    /// Empty: the page shows no output, and any will do.
    pub(super) output: Vec<String>,
    /// From a last line `(exit 3)`; 0 without it.
    pub(super) exit_code: i32,
}

/// All parts of a page, in order.
pub(super) fn parts(markdown: &str) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut note: Option<&str> = None;
    let mut lines = markdown.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let trimmed = line.trim_start();
        let Some(info) = trimmed.strip_prefix("```") else {
            if !trimmed.is_empty() {
                note = comment(trimmed);
            }
            continue;
        };
        let indent = line.len() - trimmed.len();
        let body: Vec<&str> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| line.trim() != "```")
            .map(|line| line.get(indent..).unwrap_or(""))
            .collect();
        parts.extend(part(index + 1, info.trim(), note.take(), &body)?);
    }
    Ok(parts)
}

fn comment(line: &str) -> Option<&str> {
    Some(line.strip_prefix("<!--")?.strip_suffix("-->")?.trim())
}

fn part(line: usize, info: &str, note: Option<&str>, body: &[&str]) -> Result<Option<Part>> {
    if let Some(name) = note.and_then(|note| note.strip_prefix("file:")) {
        let text = body.iter().map(|line| format!("{line}\n")).collect();
        return Ok(Some(Part::File { name: name.trim().to_owned(), text }));
    }
    if info != "console" {
        return Ok(None);
    }
    if let Some(reason) = note.and_then(|note| note.strip_prefix("skip:")) {
        return Ok(Some(Part::Skipped { line, reason: reason.trim().to_owned() }));
    }
    commands(line, body).map(|commands| Some(Part::Block(commands)))
}

/// `$ ` starts a command; `> `, or a backslash before, continues it; the rest is its output.
fn commands(block_line: usize, body: &[&str]) -> Result<Vec<ShownCommand>> {
    let mut commands: Vec<ShownCommand> = Vec::new();
    for (offset, text) in body.iter().enumerate() {
        let line = block_line + offset + 1;
        if let Some(script) = text.strip_prefix("$ ") {
            commands.push(ShownCommand {
                line,
                script: script.to_owned(),
                output: Vec::new(),
                exit_code: 0,
            });
            continue;
        }
        let Some(command) = commands.last_mut() else {
            bail!("line {line}: a console block starts with `$ `");
        };
        let continued = command.output.is_empty()
            && (text.starts_with("> ") || *text == ">" || command.script.ends_with('\\'));
        if continued {
            let rest = text.strip_prefix('>').map_or(*text, |t| t.strip_prefix(' ').unwrap_or(t));
            command.script += &format!("\n{rest}");
        } else if let Some(code) = shown_exit_code(text) {
            command.exit_code = code;
        } else {
            command.output.push((*text).to_owned());
        }
    }
    for command in &mut commands {
        // A blank line between commands is layout, not output.
        while command.output.last().is_some_and(|line| line.trim().is_empty()) {
            command.output.pop();
        }
    }
    Ok(commands)
}

fn shown_exit_code(line: &str) -> Option<i32> {
    line.strip_prefix("(exit ")?.strip_suffix(')')?.parse().ok()
}

/// Whether real lines are the shown ones. A line `...` stands for any number of lines, and `...`
/// within a line for any text.
pub(super) fn output_matches(shown: &[String], real: &[&str]) -> bool {
    match shown.split_first() {
        None => real.is_empty(),
        Some((first, rest)) if first.trim() == "..." => {
            (0..=real.len()).any(|skipped| output_matches(rest, &real[skipped..]))
        }
        Some((first, rest)) => real.split_first().is_some_and(|(line, others)| {
            line_matches(first.trim_end(), line.trim_end()) && output_matches(rest, others)
        }),
    }
}

fn line_matches(shown: &str, real: &str) -> bool {
    let mut pieces = shown.split("...");
    let first = pieces.next().unwrap_or("");
    let Some(mut rest) = real.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(markdown: &str) -> Vec<ShownCommand> {
        match parts(markdown).unwrap().pop() {
            Some(Part::Block(commands)) => commands,
            other => panic!("no block but {other:?}"),
        }
    }

    fn matches(shown: &str, real: &str) -> bool {
        let shown: Vec<String> = shown.lines().map(str::to_owned).collect();
        output_matches(&shown, &real.lines().collect::<Vec<_>>())
    }

    #[test]
    fn commands_and_their_output_are_told_apart() {
        let commands = block("text\n```console\n$ relevo status\nlanes 64\n\n$ true\n```\n");
        assert_eq!(commands.len(), 2);
        assert_eq!((commands[0].line, commands[0].script.as_str()), (3, "relevo status"));
        assert_eq!(commands[0].output, ["lanes 64"]);
        assert!(commands[1].output.is_empty());
    }

    #[test]
    fn a_command_goes_on_after_a_prompt_or_a_backslash() {
        let commands = block("```console\n$ cat <<END\n> a > b\n>\n> END\na > b\n```");
        assert_eq!(commands[0].script, "cat <<END\na > b\n\nEND");
        assert_eq!(commands[0].output, ["a > b"]);
        let commands = block("```console\n$ echo a \\\n    b\na b\n```");
        assert_eq!(commands[0].script, "echo a \\\n    b");
    }

    #[test]
    fn an_exit_code_can_be_shown() {
        let commands = block("```console\n$ false\n(exit 1)\n```");
        assert_eq!(commands[0].exit_code, 1);
        assert!(commands[0].output.is_empty());
    }

    #[test]
    fn a_skipped_block_keeps_its_reason_and_only_its_own() {
        let found =
            parts("<!-- skip: needs a screen -->\n\n```console\n$ a\n```\n```console\n$ b\n```")
                .unwrap();
        assert_eq!(found[0], Part::Skipped { line: 3, reason: "needs a screen".to_owned() });
        assert!(matches!(found[1], Part::Block(_)));
    }

    #[test]
    fn text_between_a_note_and_a_block_ends_the_note() {
        let found = parts("<!-- skip: x -->\nBut this runs:\n```console\n$ a\n```").unwrap();
        assert!(matches!(found[0], Part::Block(_)));
    }

    #[test]
    fn a_named_file_is_kept_whatever_its_language() {
        let found = parts("<!-- file: relevo.toml -->\n```toml\n[http]\nx = 1\n```").unwrap();
        let text = "[http]\nx = 1\n".to_owned();
        assert_eq!(found, [Part::File { name: "relevo.toml".to_owned(), text }]);
    }

    #[test]
    fn other_languages_and_blocks_without_a_command_are_not_run() {
        assert!(parts("```rust\n$ no\n```").unwrap().is_empty());
        assert!(parts("```console\nno prompt\n```").is_err());
    }

    #[test]
    fn a_block_inside_a_list_loses_its_indentation() {
        let commands = block("1. first\n   ```console\n   $ a\n   out\n   ```\n");
        assert_eq!(commands[0].script, "a");
        assert_eq!(commands[0].output, ["out"]);
    }

    #[test]
    fn dots_stand_for_lines_and_for_text_within_a_line() {
        assert!(matches("a\n...\nd", "a\nb\nc\nd"));
        assert!(matches("...\nd", "d"));
        assert!(matches("took ... ms, ... rows", "took 12 ms, 3 rows"));
        assert!(matches("id ...", "id 0192"));
        assert!(!matches("a\n...\nd", "a\nb"));
        assert!(!matches("took ... ms", "took 12 s"));
    }

    #[test]
    fn without_dots_every_line_must_be_there_and_no_other() {
        assert!(matches("a\nb  ", "a\nb"));
        assert!(!matches("a", "a\nb"));
        assert!(!matches("a\nb", "a"));
    }
}
