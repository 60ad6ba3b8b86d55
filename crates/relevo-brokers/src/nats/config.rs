use super::{NAME, tls};
use crate::turns::Turns;
use async_nats::ServerAddr;
use relevo_core::broker::cloudevents::decode;
use relevo_core::error::{Error, Kind, Result};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Who we are to the server. It never prints.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum Credentials {
    #[default]
    None,
    UserPassword {
        user: String,
        password: String,
    },
    Token(String),
    /// The seed of a key pair.
    Nkey(String),
    /// A `.creds` file, read anew for each connection.
    File(PathBuf),
}

/// Which certificates are believed and shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TlsFiles {
    pub(super) authorities: Vec<PathBuf>,
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

/// Which servers, as whom, and within which limits.
#[derive(Clone)]
#[non_exhaustive]
pub struct NatsConfig {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) turns: Turns,
    pub(super) credentials: Credentials,
    pub(super) tls: TlsFiles,
    pub(super) require_tls: bool,
    /// The connection's name, as the server's monitoring shows it.
    pub client_name: String,
    /// The CloudEvents source of events that name none.
    pub source: String,
    /// The one stream that events must be stored in: a confirm of any other is a refusal.
    pub stream: Option<String>,
    /// What the subject of every event begins with, before its topic.
    pub subject_prefix: Option<String>,
    /// The JetStream domain, where it is not the server's own.
    pub domain: Option<String>,
    /// How long a confirm may take.
    pub ack_timeout: Duration,
    /// How long connecting and logging in may take, over all servers, the resolution of their names included.
    pub connect_timeout: Duration,
    /// Most messages without their confirm.
    pub max_in_flight: usize,
    /// Most bytes of messages without their confirm.
    pub max_in_flight_bytes: usize,
}

impl NatsConfig {
    /// Connects to one of these servers: `nats://user:password@host:4222`, several parted by commas, `tls://` for
    /// TLS. A name without a password is a token.
    pub fn to(urls: &str) -> Result<Self> {
        let mut config = Self {
            servers: Vec::new(),
            turns: Turns::default(),
            credentials: Credentials::None,
            tls: TlsFiles::default(),
            require_tls: false,
            client_name: "relevo".into(),
            source: "relevo".into(),
            stream: None,
            subject_prefix: None,
            domain: None,
            ack_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            max_in_flight: 1000,
            max_in_flight_bytes: 16 << 20,
        };
        for url in urls.split(',').map(str::trim).filter(|url| !url.is_empty()) {
            config.add_server(url)?;
        }
        if config.servers.is_empty() {
            return Err(bad("names no server"));
        }
        Ok(config)
    }

    fn add_server(&mut self, url: &str) -> Result<()> {
        let address: ServerAddr = url.parse().map_err(not_an_address)?;
        if address.is_websocket() {
            return Err(bad("speaks WebSocket; use nats:// or tls://"));
        }
        if let Some(user) = address.username().map(decode) {
            self.credentials = match address.password().map(decode) {
                Some(password) => Credentials::UserPassword { user, password },
                None => Credentials::Token(user),
            };
        }
        self.require_tls |= address.tls_required();
        let (scheme, port) = (address.scheme().to_owned(), address.port());
        let url = address.into_inner();
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| bad("names no host"))?;
        if !matches!(url.path(), "" | "/") || url.query().is_some() {
            return Err(bad("has more than a server in it; options are settings of their own"));
        }
        let plain = format!("{scheme}://{host}:{port}");
        self.servers.push(plain.parse().map_err(not_an_address)?);
        Ok(())
    }

    /// As this user.
    pub fn user(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials =
            Credentials::UserPassword { user: user.into(), password: password.into() };
        self
    }

    /// By a token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.credentials = Credentials::Token(token.into());
        self
    }

    /// By the seed of an nkey (`SU...`).
    pub fn nkey(mut self, seed: impl Into<String>) -> Self {
        self.credentials = Credentials::Nkey(seed.into());
        self
    }

    /// By a `.creds` file with a JWT and its seed.
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials = Credentials::File(path.into());
        self
    }

    /// By TLS, believing the authorities of this PEM file instead of the system's.
    pub fn authority(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.authorities.push(path.into());
        self.require_tls = true;
        self
    }

    /// By TLS, showing this certificate (PEM files).
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.tls.client = Some((certificate.into(), key.into()));
        self.require_tls = true;
        self
    }

    /// The stream that events must be stored in.
    pub fn stream(mut self, name: impl Into<String>) -> Self {
        self.stream = Some(name.into());
        self
    }

    /// What every subject begins with.
    pub fn subject_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.subject_prefix = Some(prefix.into());
        self
    }

    /// The JetStream domain.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// The CloudEvents source of events that name none.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// How long a confirm may take.
    pub fn ack_timeout(mut self, limit: Duration) -> Self {
        self.ack_timeout = limit;
        self
    }

    /// How long connecting and logging in may take, over all servers.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Most messages and bytes without their confirm.
    pub fn window(mut self, messages: usize, bytes: usize) -> Self {
        self.max_in_flight = messages.max(1);
        self.max_in_flight_bytes = bytes.max(1);
        self
    }

    /// Refuses files of certificates and credentials that cannot be read now. Each connection reads them anew.
    pub fn check_files(&self) -> Result<()> {
        if self.require_tls {
            tls::client_config(&self.tls)?;
        }
        let Credentials::File(path) = &self.credentials else { return Ok(()) };
        std::fs::read(path).map(drop).map_err(|error| {
            let why = format!("{} cannot be read: {error}", path.display());
            Error::new(Kind::InvalidConfig, why).from_adapter(NAME)
        })
    }

    /// The servers without anything secret.
    pub fn address(&self) -> String {
        let servers: Vec<&str> = self.servers.iter().map(ServerAddr::as_url_str).collect();
        servers.join(",")
    }

    /// The subjects of JetStream's interface begin with this.
    pub(super) fn api_prefix(&self) -> String {
        match &self.domain {
            Some(domain) => format!("$JS.{domain}.API"),
            None => "$JS.API".to_owned(),
        }
    }
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConfig")
            .field("address", &self.address())
            .field("tls", &self.require_tls)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

/// The URL may carry a password: it is not repeated.
/// What stands behind a colon repeats a part of the URL, which may be long or a secret.
fn not_an_address(error: impl fmt::Display) -> Error {
    let why = error.to_string();
    let why = why.split(':').next().unwrap_or_default();
    bad(&format!("is not nats://host or tls://host: {why}"))
}

fn bad(why: &str) -> Error {
    Error::new(Kind::InvalidConfig, format!("the address of the NATS server {why}"))
        .from_adapter(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_servers_share_the_credentials_and_none_are_shown() {
        let config = NatsConfig::to("nats://us%40r:p%3Aw@a.example:4222, b.example").unwrap();
        assert_eq!(config.address(), "nats://a.example:4222,nats://b.example:4222");
        let wanted = Credentials::UserPassword { user: "us@r".into(), password: "p:w".into() };
        assert!(config.credentials == wanted);
        let shown = format!("{config:?}");
        assert!(!shown.contains("p:w") && !shown.contains("p%3Aw"), "{shown}");
        let config = NatsConfig::to("tls://s3cret@[::1]:5222").unwrap();
        assert!(config.credentials == Credentials::Token("s3cret".into()) && config.require_tls);
        assert_eq!(config.address(), "tls://[::1]:5222");
    }

    #[test]
    fn an_address_that_is_none_is_refused_without_showing_it() {
        for url in
            ["", " , ", "http://x", "ws://x", "nats://", "nats://u:s3cret@h/path", "h?s3cret"]
        {
            let error = NatsConfig::to(url).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidConfig, "{url}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
