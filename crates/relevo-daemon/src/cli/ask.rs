//! Questions before something that cannot be taken back.

use super::failure::{Failure, Outcome};
use std::io::{self, BufRead, IsTerminal, Write};

/// Goes on only if somebody says yes, on the command line or at the terminal.
pub(crate) fn confirm(question: &str, yes: bool) -> Outcome<()> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::NotConfirmed(format!(
            "{question} Nobody is there to answer; --yes says yes"
        )));
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::NotConfirmed("the answer was no; nothing changed".into())),
    }
}
