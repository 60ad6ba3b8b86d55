//! The demo as a process, and what it printed.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// What the object of each part has, and nothing else.
pub(crate) const FIELDS: [&str; 7] =
    ["committed", "delivered", "effects", "duplicates_seen", "retried", "dead", "lost"];

/// `relevo demo`, in memory where there is such a folder: a disk that is busy elsewhere makes every commit wait for seconds.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
    command.arg("demo").args(arguments).stdin(Stdio::null());
    if std::path::Path::new("/dev/shm").is_dir() {
        command.env("TMPDIR", "/dev/shm");
    }
    // Whoever runs the tests may have servers of their own.
    for variable in ["DATABASE_URL", "RABBITMQ_URL", "SMTP_URL", "DOWNSTREAM_DATABASE_URL"] {
        command.env_remove(variable);
    }
    command
}

/// Runs it to its end. However slow the disk: there are enough orders to judge by.
pub(crate) fn demo(arguments: &[&str], sabotage: Option<&str>) -> Output {
    let mut command = command(arguments);
    command.args(["--at-least", "100"]);
    if let Some(how) = sabotage {
        command.env("RELEVO_DEMO_SABOTAGE", how);
    }
    command.output().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}\n{}", said(output)))
}

pub(crate) fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("{name} is missing in {report}"))
}
