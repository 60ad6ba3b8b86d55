//! Connections to a mail server.
//!
//! Not lettre's own pool: that keeps the connection of a mail that was broken off, too, and whoever had it next would take
//! the answers to that mail for those to their own; and it waits without end for the last word of a server that it leaves.
//! Here a connection belongs to whoever sends, is closed when the sending is dropped, and kept only after a mail that was
//! taken.

use super::mail::AT_ONCE;
use anyhow::{Context, Result, bail, ensure};
use axum::http::Uri;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::{Error, SMTP_PORT, SUBMISSION_PORT, SUBMISSIONS_PORT};
use relevo::broker::cloudevents::decode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A connection that idled for longer is not used again: something on the way may have forgotten it, and would not tell.
const IDLE: Duration = Duration::from_secs(60);

type Kept = Vec<(AsyncSmtpConnection, Instant)>;

/// Where it is, how it is talked to, and the connections to it that nobody uses at this moment.
pub(super) struct Server {
    host: String,
    port: u16,
    tls: Tls,
    /// As whom we introduce ourselves.
    hello: ClientId,
    credentials: Option<Credentials>,
    kept: Mutex<Kept>,
}

impl Server {
    /// `smtp://host:port`, `smtps://user:password@host`, or `smtp://host?tls=required`; a path is the name of this client.
    pub(super) fn at(url: &str) -> Result<Self> {
        let url: Uri = url.parse()?;
        let authority = url.authority().context("it names no host")?;
        let host = authority.host().to_owned();
        let tls = || TlsParameters::new(host.clone());
        let (usual_port, tls) = match (url.scheme_str(), url.query()) {
            (Some("smtp"), None) => (SMTP_PORT, Tls::None),
            (Some("smtp"), Some("tls=required")) => (SUBMISSION_PORT, Tls::Required(tls()?)),
            (Some("smtps"), None) => (SUBMISSIONS_PORT, Tls::Wrapper(tls()?)),
            _ => bail!("it is smtp://host:port, smtps://host or smtp://host?tls=required"),
        };
        let port = authority.port_u16();
        ensure!(port.is_some() || authority.as_str().ends_with(&host), "its port is not a number");
        let user = authority.as_str().rsplit_once('@').and_then(|(user, _)| user.split_once(':'));
        let credentials =
            user.map(|(name, password)| Credentials::new(decode(name), decode(password)));
        let hello = match url.path().trim_matches('/') {
            "" => ClientId::default(),
            name => ClientId::Domain(name.to_owned()),
        };
        let (port, kept) = (port.unwrap_or(usual_port), Mutex::default());
        Ok(Self { host, port, tls, hello, credentials, kept })
    }

    /// One that nobody else has and that answers: kept, or new. How long that may take is bounded by whoever asks.
    pub(super) async fn connection(&self) -> Result<AsyncSmtpConnection, Error> {
        while let Some(mut connection) = self.take() {
            if connection.test_connected().await {
                return Ok(connection);
            }
        }
        self.connect().await
    }

    /// A new one, introduced to the server and logged in.
    pub(super) async fn connect(&self) -> Result<AsyncSmtpConnection, Error> {
        let from_the_start = match &self.tls {
            Tls::Wrapper(parameters) => Some(parameters.clone()),
            _ => None,
        };
        let (at, hello) = ((self.host.as_str(), self.port), &self.hello);
        let mut connection =
            AsyncSmtpConnection::connect_tokio1(at, None, hello, from_the_start, None).await?;
        if let Tls::Required(parameters) = &self.tls {
            connection.starttls(parameters.clone(), hello).await?;
        }
        if let Some(credentials) = &self.credentials {
            connection.auth(DEFAULT_MECHANISMS, credentials).await?;
        }
        Ok(connection)
    }

    /// For others, after a mail that was taken and not before: nothing is left to be said about it.
    pub(super) fn keep(&self, connection: AsyncSmtpConnection) {
        let mut kept = self.kept();
        if kept.len() < AT_ONCE {
            kept.push((connection, Instant::now()));
        }
    }

    fn take(&self) -> Option<AsyncSmtpConnection> {
        let mut kept = self.kept();
        kept.retain(|(_, since)| since.elapsed() < IDLE);
        kept.pop().map(|(connection, _)| connection)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_the_server_is_how_it_is_talked_to_and_by_whom() {
        let read = |url| {
            let Server { host, port, tls, hello, credentials, .. } = Server::at(url).unwrap();
            (format!("{host}:{port} {tls:?} {hello}"), credentials)
        };
        let credentials = Credentials::new("us@r".into(), "p:a/ss".into());
        let wanted = [
            ("smtp://127.0.0.1:1025", "127.0.0.1:1025 None [127.0.0.1]", None),
            ("smtp://example.org", "example.org:25 None [127.0.0.1]", None),
            ("smtp://example.org/tickets?tls=required", "example.org:587 Required tickets", None),
            (
                "smtps://us%40r:p%3Aa%2Fss@example.org",
                "example.org:465 Wrapper [127.0.0.1]",
                Some(credentials),
            ),
        ];
        for (url, told, credentials) in wanted {
            assert_eq!(read(url), (told.to_owned(), credentials), "{url}");
        }
    }

    #[test]
    fn a_url_that_is_not_understood_is_refused() {
        for (url, why) in [
            ("example.org", "it is smtp://"),
            ("http://example.org", "it is smtp://"),
            ("smtp://example.org?tls=require", "it is smtp://"),
            ("smtp://example.org:99999", "its port is not a number"),
            ("/mails", "it names no host"),
        ] {
            let refused = Server::at(url).err().expect(url).to_string();
            assert!(refused.contains(why), "{url}: {refused}");
        }
    }
}
