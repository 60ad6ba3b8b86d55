//! Apache Kafka as jars, and what makes a node of it start in half the time.

use super::fetch::needs;
use crate::group::end_with_xtask;
use crate::shell::quietly;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The cluster id that all nodes of the tests have. Any will do.
const CLUSTER: &str = "AAAAAAAAAAAAAAAAAAAAAQ";

/// A node that does not listen after this time is not worth an archive.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn is_complete(lib: &Path, version: &str) -> bool {
    lib.join(format!("kafka_2.13-{version}.jar")).is_file()
}

/// The jars into `lib`, and beside them what formatting writes, which is the same for every node.
pub(super) fn fetch(version: &str, log4j: &str, into: &Path) -> Result<()> {
    needs("mvn")?;
    needs("java")?;
    fs::write(into.join("pom.xml"), project(version, log4j))?;
    let lib = into.join("lib");
    let goal = ["-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"];
    let folder = format!("-DoutputDirectory={}", lib.display());
    quietly(Command::new("mvn").args(goal).arg(folder).current_dir(into))?;
    ensure!(is_complete(&lib, version), "the jars of Kafka {version} did not come");
    let data = into.join("data");
    let settings = settings(&data, 1, 2);
    fs::write(into.join("format.properties"), settings)?;
    let format = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", "format.properties"];
    quietly(java(into).args(format))?;
    fs::rename(data.join("bootstrap.checkpoint"), into.join("bootstrap.checkpoint"))
        .context("formatting did not write what it should")?;
    fs::remove_dir_all(data)?;
    Ok(())
}

/// Writes an archive of the classes a node loads. It holds for these very paths, so it is made in
/// the final place; without it nodes only start later, so a failure is only told.
pub(super) fn quicken(place: &Path) {
    if let Err(error) = archive_classes(place) {
        eprintln!(
            "servers: Apache Kafka starts slowly, its classes could not be archived: {error:#}"
        );
    }
}

fn archive_classes(place: &Path) -> Result<()> {
    let data = place.join("data");
    let result = run_once(place, &data);
    fs::remove_dir_all(&data)?;
    result
}

fn run_once(place: &Path, data: &Path) -> Result<()> {
    fs::create_dir_all(data)?;
    fs::copy(place.join("bootstrap.checkpoint"), data.join("bootstrap.checkpoint"))?;
    let meta = format!("version=1\nnode.id=1\ncluster.id={CLUSTER}\n");
    fs::write(data.join("meta.properties"), meta)?;
    let (port, controller) = (free_port()?, free_port()?);
    let file = data.join("archive.properties");
    fs::write(&file, settings(data, port, controller))?;
    let mut command = java(place);
    command.arg("-XX:ArchiveClassesAtExit=kafka.jsa").arg("kafka.Kafka").arg(&file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut node = end_with_xtask(&mut command)?.spawn()?;
    let listening = wait_until_listening(&mut node, port);
    // It writes the archive when it ends in good order.
    let ended = quietly(Command::new("kill").arg(node.id().to_string()));
    node.wait()?;
    listening.and(ended.map(drop))?;
    ensure!(place.join("kafka.jsa").is_file(), "no archive was written");
    Ok(())
}

fn wait_until_listening(node: &mut Child, port: u16) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(node.try_wait()?.is_none(), "it ended while starting");
        ensure!(Instant::now() < deadline, "it did not listen within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn java(place: &Path) -> Command {
    let mut command = Command::new("java");
    // The test kit starts nodes with the same flags: an archive does not fit other ones.
    command.args(["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.args(["-XX:-UsePerfData", "-cp"]).arg(place.join("lib/*")).current_dir(place);
    command
}

fn settings(data: &Path, port: u16, controller: u16) -> String {
    format!(
        "process.roles=broker,controller\nnode.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         controller.listener.names=CONTROLLER\nlog.dirs={}\n",
        data.display()
    )
}

fn project(version: &str, log4j: &str) -> String {
    let dependency = |group: &str, artifact: &str, version: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency>"
        )
    };
    let kafka = dependency("org.apache.kafka", "kafka_2.13", version);
    // Without it nothing is logged.
    let log4j = dependency("org.apache.logging.log4j", "log4j-slf4j-impl", log4j);
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
         <groupId>relevo</groupId><artifactId>kafka</artifactId><version>1</version>\
         <dependencies>{kafka}{log4j}</dependencies></project>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::tests::{ends_with_a_killed_run, to_be_killed};

    #[test]
    fn a_run_that_archives_classes() {
        if let Some(place) = to_be_killed() {
            fs::write(place.join("bootstrap.checkpoint"), "").unwrap();
            run_once(&place, &place.join("data")).unwrap();
        }
    }

    #[test]
    fn the_node_whose_classes_are_archived_ends_with_xtask_even_if_that_is_killed_alone() {
        ends_with_a_killed_run("servers::kafka::tests::a_run_that_archives_classes");
    }
}
