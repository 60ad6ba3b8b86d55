//! A connection that ends when it breaks.
//!
//! The client would connect again by itself and then send what waited in it meanwhile: messages would arrive long
//! after somebody was told that their fate is unknown. So its second connection is always to nowhere, which ends
//! it, and with it everything that waits; whoever needs a connection makes a new one.

use super::NAME;
use super::complaints::Complaints;
use super::config::{Credentials, NatsConfig};
use super::tls;
use crate::turns::share_of;
use async_nats::connection::State;
use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ReconnectToServer, ServerAddr,
    ServerError,
};
use relevo_core::error::{Error, Kind, Result};
use std::error::Error as _;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// No server can listen here: connecting fails at once and sends nothing.
const NOWHERE: &str = "nats://127.0.0.1:0";

/// A server that stays silent this long is asked whether it is there; one that is silent for three times as long is gone.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(10);

/// A connection to one of the servers.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    complaints: Arc<Complaints>,
}

impl Connection {
    pub(super) fn is_up(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Is it the same connection, not only the same server?
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.complaints, &other.complaints)
    }

    /// Waits until the server says that nothing may be published to one of these subjects: it answers that in no other way.
    pub(super) async fn publishing_is_forbidden<'s, S: Iterator<Item = &'s str>>(
        &self,
        subjects: impl Fn() -> S,
        since: Instant,
    ) {
        self.complaints.publishing_is_forbidden(subjects, since).await;
    }

    /// Did the server say that nothing may be published to a subject?
    pub(super) fn has_forbidden(&self, subject: &str, since: Instant) -> bool {
        self.complaints.has_forbidden(subject, since)
    }

    /// Why nothing came, with what the server did not permit meanwhile.
    pub(super) fn explained(&self, why: String, since: Instant) -> String {
        match self.complaints.since(since) {
            Some(said) => format!("{why}; {}", remedy(&said)),
            None => why,
        }
    }

    /// Waits for the end of questions to the server, or until it says that one of them is not permitted.
    pub(super) async fn permitted<T>(&self, asking: impl Future<Output = Result<T>>) -> Result<T> {
        let forbidden = self.complaints.something_is_forbidden(Instant::now());
        tokio::select! {
            biased;
            answer = asking => answer,
            said = forbidden => Err(error(Kind::MissingPrivilege, remedy(&said))),
        }
    }
}

fn remedy(said: &str) -> String {
    format!("the server says {said}: the user needs that permission")
}

/// Connects to the first server that answers. All servers together may take `connect_timeout`: each has a share of what
/// those before it left. `buffered` is how many messages of a subscription may wait in memory.
pub(super) async fn connect(config: &NatsConfig, buffered: usize) -> Result<Connection> {
    connect_pinging(config, buffered, PING_INTERVAL).await
}

/// The same; a server that is silent for so long is asked whether it is there.
pub(super) async fn connect_pinging(
    config: &NatsConfig,
    buffered: usize,
    ping: Duration,
) -> Result<Connection> {
    let (began, mut failed) = (Instant::now(), Vec::new());
    for (tried, server) in config.turns.over(&config.servers).enumerate() {
        let left = config.connect_timeout.saturating_sub(began.elapsed());
        let limit = share_of(left, config.servers.len() - tried);
        match connect_to(server, config, buffered, ping, limit).await {
            Ok(connection) => return Ok(connection),
            Err(error) if error.kind() == Kind::DestinationDown => {
                failed.push(error.message().to_owned());
            }
            Err(error) => return Err(error),
        }
    }
    Err(error(Kind::DestinationDown, failed.join("; ")))
}

async fn connect_to(
    server: &ServerAddr,
    config: &NatsConfig,
    buffered: usize,
    ping: Duration,
    limit: Duration,
) -> Result<Connection> {
    let complaints = Arc::new(Complaints::default());
    let options = options(server, config, buffered, &complaints).await?;
    // The client's own limit would say no more than that it is over: ours comes first.
    let options = options.ping_interval(ping).connection_timeout(limit.saturating_mul(2));
    let address = server.as_url_str();
    let servers = [address, NOWHERE];
    match tokio::time::timeout(limit, options.connect(&servers[..])).await {
        Ok(Ok(client)) => Ok(Connection { client, complaints }),
        Ok(Err(refused)) => Err(refusal(address, &refused)),
        Err(_) => {
            let why = format!("{address}: no connection within {limit:?}");
            Err(error(Kind::DestinationDown, why))
        }
    }
}

async fn options(
    server: &ServerAddr,
    config: &NatsConfig,
    buffered: usize,
    complaints: &Arc<Complaints>,
) -> Result<ConnectOptions> {
    let nowhere: ServerAddr = NOWHERE.parse().map_err(|_| {
        error(Kind::InvalidConfig, "the address that nobody has cannot be parsed".into())
    })?;
    let (first, used) = (server.clone(), AtomicBool::new(false));
    let complaints = complaints.clone();
    let options = ConnectOptions::new()
        .name(&config.client_name)
        .request_timeout(Some(config.ack_timeout))
        .subscription_capacity(buffered)
        .ignore_discovered_servers()
        .max_reconnects(1)
        .reconnect_to_server_callback(move |_, _| {
            let addr = if used.swap(true, Ordering::SeqCst) { &nowhere } else { &first };
            ready(Some(ReconnectToServer { addr: addr.clone(), delay: Some(Duration::ZERO) }))
        })
        .event_callback(move |event| {
            if let Event::ServerError(ServerError::Other(text)) = event {
                complaints.note(text);
            }
            ready(())
        });
    let options = if config.require_tls {
        options.require_tls(true).tls_client_config(tls::client_config(&config.tls)?)
    } else {
        options
    };
    authenticated(options, &config.credentials).await
}

async fn authenticated(
    options: ConnectOptions,
    credentials: &Credentials,
) -> Result<ConnectOptions> {
    Ok(match credentials.clone() {
        Credentials::None => options,
        Credentials::UserPassword { user, password } => options.user_and_password(user, password),
        Credentials::Token(token) => options.token(token),
        Credentials::Nkey(seed) => options.nkey(seed),
        Credentials::File(path) => options.credentials_file(&path).await.map_err(|cause| {
            let why = format!("the credentials file {} cannot be used", path.display());
            error(Kind::InvalidConfig, format!("{why}: {cause}"))
        })?,
    })
}

fn refusal(address: &str, refused: &ConnectError) -> Error {
    let kind = match refused.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            Kind::AuthenticationFailed
        }
        _ => Kind::DestinationDown,
    };
    let mut why = format!("{address}: {refused}");
    let mut source = refused.source();
    // The innermost cause says most: "connection refused" rather than "IO error".
    while let Some(inner) = source {
        why = format!("{address}: {inner}");
        source = inner.source();
    }
    if kind == Kind::AuthenticationFailed {
        why += "; check the user and password, token, nkey or credentials file";
    }
    error(kind, why)
}

/// Nobody listens where JetStream would.
pub(super) fn no_jetstream(config: &NatsConfig) -> String {
    match &config.domain {
        Some(domain) => format!(
            "no JetStream answers in the domain {domain}: is that its name, and is JetStream on there?"
        ),
        None => "JetStream is off on this server: its configuration needs jetstream { store_dir: ... }, \
                 or this one the domain of the server that has it"
            .into(),
    }
}

pub(super) fn error(kind: Kind, why: String) -> Error {
    Error::new(kind, why).from_adapter(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn silent_servers_together_take_no_longer_than_one() {
        let mut servers = Vec::new();
        for _ in 0..3 {
            servers.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let at: Vec<_> = servers.iter().map(|one| one.local_addr().unwrap().to_string()).collect();
        let limit = Duration::from_secs(3);
        let config = NatsConfig::to(&at.join(",")).unwrap().connect_timeout(limit);
        let began = Instant::now();
        let failed = connect(&config, 1).await.err().unwrap();
        assert!(began.elapsed() < limit * 2, "{:?}", began.elapsed());
        assert_eq!(failed.kind(), Kind::DestinationDown);
        assert_eq!(failed.message().matches("no connection within").count(), 3, "{failed}");
    }
}
