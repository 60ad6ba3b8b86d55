use super::config::RabbitMqConfig;
use lapin::options::ConfirmSelectOptions;
use lapin::{Channel, Connection, ConnectionProperties};
use std::time::Duration;

/// Connects to the first node that takes us, and logs in. The reason of a failure names addresses, nothing secret.
pub(super) async fn connect(config: &RabbitMqConfig, role: &str) -> Result<Connection, String> {
    let mut failed = Vec::new();
    for (host, port) in config.turns.over(&config.nodes) {
        match connect_to(config, host, *port, role).await {
            Ok(connection) => return Ok(connection),
            Err(why) => failed.push(why),
        }
    }
    Err(failed.join("; "))
}

async fn connect_to(
    config: &RabbitMqConfig,
    host: &str,
    port: u16,
    role: &str,
) -> Result<Connection, String> {
    let at = |why: String| format!("{}: {why}", config.address_of(&format!("{host}:{port}")));
    let runtime = lapin::runtime::default_runtime().map_err(|error| at(error.to_string()))?;
    let name = format!("relevo {} {role}", config.source);
    // Never with recovery by the client: a channel that came back by itself would answer for messages of another.
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let mut uri = config.uri.clone();
    (uri.authority.host, uri.authority.port) = (host.to_owned(), port);
    let connecting =
        Connection::connect_uri_with_config(uri, properties, config.tls.clone(), runtime);
    let connected = within(config.connect_timeout, "connecting", connecting).await;
    connected.map_err(at)
}

/// A channel on which the broker confirms every message.
pub(super) async fn confirming(
    connection: &Connection,
    limit: Duration,
) -> Result<Channel, String> {
    within(limit, "opening a channel", async {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    })
    .await
}

/// What does not end within the limit has failed.
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = lapin::Result<T>>,
) -> Result<T, String> {
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(reason(&error)),
        Err(_) => Err(format!("{what} took longer than {limit:?}")),
    }
}

/// What the broker or the network said, in its own words.
pub(super) fn reason(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        lapin::ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
