//! A test of the running binary, alone in another process: what it says past the test harness is heard.

use std::io;
use std::process::Command;

/// Runs the test of that very name; what it wrote to its standard error. It is an error if there is no such test, or if it
/// fails.
pub fn said_by(test: &str) -> io::Result<String> {
    let output = Command::new(std::env::current_exe()?).args(["--exact", test]).output()?;
    let [told, said] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if !told.contains("test result: ok. 1 passed") {
        return Err(io::Error::other(format!("{test} did not pass alone:\n{told}{said}")));
    }
    Ok(said)
}
