//! What compiling needs of the system: Kafka's client, librdkafka, is C and C++ and links OpenSSL and zlib.

use super::{install_packages, may_install};
use crate::shell::on_path;
use anyhow::{Result, bail};
use std::process::Command;

const TOOLS: [&str; 3] = ["g++", "make", "pkg-config"];
const LIBRARIES: [&str; 2] = ["openssl", "zlib"];
const PACKAGES: [&str; 5] = ["g++", "libssl-dev", "make", "pkg-config", "zlib1g-dev"];

/// Makes sure that everything can be compiled; without the permission to install, says what is missing.
pub(crate) fn prepare(install: bool) -> Result<()> {
    let lacking = missing();
    if lacking.is_empty() {
        return Ok(());
    }
    if may_install(install) {
        eprintln!("compiling needs {}; installing packages", lacking.join(", "));
        install_packages(&PACKAGES)?;
    }
    match missing()[..] {
        [] => Ok(()),
        ref lacking => bail!(
            "compiling needs {}; on Debian: apt-get install {}",
            lacking.join(", "),
            PACKAGES.join(" ")
        ),
    }
}

fn missing() -> Vec<&'static str> {
    let tools = TOOLS.into_iter().filter(|tool| on_path(tool).is_none());
    let libraries = LIBRARIES.into_iter().filter(|library| !is_there(library));
    tools.chain(libraries).collect()
}

fn is_there(library: &str) -> bool {
    let asked = Command::new("pkg-config").args(["--exists", library]).status();
    asked.is_ok_and(|status| status.success())
}
