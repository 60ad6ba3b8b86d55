use super::TABLE;
use crate::cost;
use crate::tasks::Sink;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const READY_LIMIT: Duration = Duration::from_secs(120);

/// Debezium Server with the settings that make it fastest.
pub(super) struct Debezium {
    child: Child,
    folder: PathBuf,
}

impl Debezium {
    /// Returns when it says that it is ready.
    pub(super) async fn start(
        dist: &Path,
        java: &Path,
        slot: &str,
        url: &str,
        sink: &Sink,
    ) -> Result<Debezium> {
        let folder = std::env::temp_dir().join(format!("relevo-bench-{slot}"));
        std::fs::create_dir_all(folder.join("config"))?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let text = properties(&folder, port, slot, url, sink)?;
        std::fs::write(folder.join("config/application.properties"), text)?;
        let log = std::fs::File::create(folder.join("log"))?;
        let child = Command::new(java)
            .args(["-Xmx512m", "-cp"])
            .arg(format!("{0}/*:{0}/lib/*", dist.display()))
            .arg("io.debezium.server.Main")
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let mut server = Debezium { child, folder };
        server.wait_ready(port).await?;
        Ok(server)
    }

    async fn wait_ready(&mut self, port: u16) -> Result<()> {
        let start = Instant::now();
        while !is_ready(port).await.unwrap_or(false) {
            if self.child.try_wait()?.is_some() {
                return Err(self.death().await);
            }
            ensure!(start.elapsed() < READY_LIMIT, "Debezium is not ready:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Comes when its process has ended, which nobody asked it to: how, and what it said.
    pub(super) async fn death(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => anyhow!("Debezium ended with {status}:\n{}", self.log()),
            Err(error) => anyhow!(error).context("waiting for Debezium"),
        }
    }

    fn pid(&self) -> Result<u32> {
        self.child.id().context("Debezium has ended")
    }

    pub(super) fn peak_mb(&self) -> Result<f64> {
        cost::rss_mb(&self.pid()?.to_string(), "VmHWM")
    }

    pub(super) fn cpu_s(&self) -> f64 {
        self.pid().map_or(0.0, cost::cpu_of_tree)
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

impl Drop for Debezium {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn is_ready(port: u16) -> Result<bool> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).await?;
    let ask = "GET /q/health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    connection.write_all(ask.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}

/// `postgres://user:password@host:port/database`, as lines.
fn database(url: &str) -> Option<Vec<(&'static str, String)>> {
    let (login, place) = url.strip_prefix("postgres://")?.split_once('@')?;
    let (user, password) = login.split_once(':')?;
    let (host, name) = place.split_once('/')?;
    let (host, port) = host.split_once(':')?;
    let pairs = [
        ("hostname", host),
        ("port", port),
        ("user", user),
        ("password", password),
        ("dbname", name),
    ];
    Some(pairs.into_iter().map(|(key, value)| (key, value.to_owned())).collect())
}

fn properties(folder: &Path, port: u16, slot: &str, url: &str, sink: &Sink) -> Result<String> {
    let Sink::Nats { url: nats, stream } = sink else { bail!("peers are compared on NATS") };
    let mut lines = vec![
        "quarkus.http.host=127.0.0.1".to_owned(),
        format!("quarkus.http.port={port}"),
        "quarkus.log.level=WARN".to_owned(),
        "quarkus.log.category.\"io.debezium.metrics\".level=ERROR".to_owned(),
        "debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector"
            .to_owned(),
        format!(
            "debezium.source.offset.storage.file.filename={}",
            folder.join("offsets").display()
        ),
        "debezium.source.offset.flush.interval.ms=1000".to_owned(),
        "debezium.source.plugin.name=pgoutput".to_owned(),
        format!("debezium.source.slot.name={slot}"),
        "debezium.source.publication.name=dbz_pub".to_owned(),
        "debezium.source.publication.autocreate.mode=disabled".to_owned(),
        "debezium.source.topic.prefix=app".to_owned(),
        format!("debezium.source.table.include.list=public.{TABLE}"),
        "debezium.source.tombstones.on.delete=false".to_owned(),
        "debezium.source.snapshot.mode=no_data".to_owned(),
        "debezium.source.max.batch.size=8192".to_owned(),
        "debezium.source.max.queue.size=32768".to_owned(),
        "debezium.source.poll.interval.ms=50".to_owned(),
        "debezium.format.key=json".to_owned(),
        "debezium.format.value=json".to_owned(),
        "debezium.format.schemas.enable=false".to_owned(),
        "debezium.transforms=outbox".to_owned(),
        "debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter".to_owned(),
        "debezium.transforms.outbox.route.by.field=aggregatetype".to_owned(),
        // Not an expression of the configuration, but of the router: its dollar is escaped.
        format!(
            "debezium.transforms.outbox.route.topic.replacement={stream}.\\\\${{routedByValue}}"
        ),
        "debezium.sink.type=nats-jetstream".to_owned(),
        format!("debezium.sink.nats-jetstream.url={nats}"),
        "debezium.sink.nats-jetstream.create-stream=false".to_owned(),
    ];
    let database = database(url).context("not the URL of a database")?;
    lines.extend(
        database.iter().map(|(key, value)| format!("debezium.source.database.{key}={value}")),
    );
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_becomes_its_settings() {
        let sink = Sink::Nats { url: "nats://u:p@h:1".into(), stream: "S".into() };
        let url = "postgres://postgres:relevo@127.0.0.1:5433/test_1";
        let text = properties(Path::new("d"), 1, "s", url, &sink).unwrap();
        for line in ["database.port=5433", "database.dbname=test_1", "database.user=postgres"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("replacement=S.\\\\${routedByValue}\n"));
        assert!(properties(Path::new("d"), 1, "s", "sqlite:x", &sink).is_err());
    }
}
