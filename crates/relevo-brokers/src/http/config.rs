use super::sign::Secret;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use relevo_core::error::{Error, Kind, Result, quoted};
use std::fmt;
use std::time::Duration;

/// Where and how events are posted.
#[derive(Clone)]
#[non_exhaustive]
pub struct HttpConfig {
    pub(super) uri: Uri,
    pub(super) fixed: Vec<(HeaderName, HeaderValue)>,
    /// Signs each message, once for every secret (Standard Webhooks).
    pub secrets: Vec<Secret>,
    /// The CloudEvents source of events that name none.
    pub source: String,
    /// How long an attempt may take from its first byte to the status.
    pub timeout: Duration,
    /// How long resolving the name and connecting may take.
    pub connect_timeout: Duration,
    /// Most requests under way at once.
    pub max_in_flight: usize,
}

impl HttpConfig {
    /// Posts to `url`, with credentials in it sent as basic authorization.
    pub fn to(url: &str) -> Result<Self> {
        let parsed: Uri =
            url.parse().map_err(|e| bad(format!("{} is not a URL: {e}", shown(url))))?;
        let authority =
            parsed.authority().ok_or_else(|| bad(format!("{} names no host", shown(url))))?;
        match parsed.scheme_str() {
            Some("http") => {}
            Some("https") => {
                let why = "this build speaks http only; put a TLS-terminating proxy between, or use http on a trusted network";
                return Err(Error::new(Kind::NotSupported, format!("{}: {why}", shown(url)))
                    .from_adapter("http"));
            }
            _ => return Err(bad(format!("{} is not an http URL", shown(url)))),
        }
        let (credentials, host) = match authority.as_str().rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, authority.as_str()),
        };
        let path = parsed.path_and_query().map_or("/", |path| path.as_str());
        let uri: Uri = format!("http://{host}{path}")
            .parse()
            .map_err(|e| bad(format!("{}: {e}", shown(url))))?;
        let mut config = Self {
            uri,
            fixed: Vec::new(),
            secrets: Vec::new(),
            source: "relevo".into(),
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            max_in_flight: 32,
        };
        if let Some(credentials) = credentials {
            config = config.header(
                "authorization",
                &format!("Basic {}", STANDARD.encode(percent_decoded(credentials))),
            )?;
        }
        Ok(config)
    }

    /// Sends this header with every request, such as an authorization.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self> {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| bad(format!("{name:?} is not a header name")))?;
        // The value may be a secret: it is not repeated.
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| bad(format!("the value of header {name} cannot be sent")))?;
        value.set_sensitive(name == AUTHORIZATION);
        self.fixed.push((name, value));
        Ok(self)
    }

    /// Signs with this secret too (`whsec_...`).
    pub fn secret(mut self, secret: &str) -> Result<Self> {
        self.secrets.push(Secret::parse(secret)?);
        Ok(self)
    }

    /// How long an attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The CloudEvents source of events that name none.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// Most requests under way at once.
    pub fn max_in_flight(mut self, requests: usize) -> Self {
        self.max_in_flight = requests.max(1);
        self
    }

    /// The address without anything secret.
    pub fn address(&self) -> String {
        redact(&self.uri.to_string())
    }
}

impl fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signed = !self.secrets.is_empty();
        f.debug_struct("HttpConfig")
            .field("address", &self.address())
            .field("signed", &signed)
            .finish_non_exhaustive()
    }
}

fn shown(url: &str) -> String {
    quoted(&redact(url))
}

fn bad(why: String) -> Error {
    Error::new(Kind::InvalidConfig, why).from_adapter("http")
}

/// A URL without credentials and query, which often carry secrets. Where it cannot be told which `@` ends the
/// credentials, nothing but the scheme is shown.
pub fn redact(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let shown = match rest.rsplit_once('@') {
        None => rest.split(['?', '#']).next().unwrap_or_default(),
        Some((credentials, host)) if !credentials.contains(['/', '?', '#']) => {
            host.split(['?', '#']).next().unwrap_or_default()
        }
        Some(_) => "***",
    };
    if scheme.is_empty() { shown.to_owned() } else { format!("{scheme}://{shown}") }
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        // `from_str_radix` would take a sign for a digit.
        let hex = hex.filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_become_basic_authorization_and_are_never_shown() {
        let config = HttpConfig::to("http://us%40r:p%3Aw@example.org:8080/hook?token=t").unwrap();
        assert_eq!(config.uri, "http://example.org:8080/hook?token=t");
        assert_eq!(
            config.fixed[0].1.to_str().unwrap(),
            format!("Basic {}", STANDARD.encode("us@r:p:w"))
        );
        assert_eq!(config.address(), "http://example.org:8080/hook");
        assert!(!format!("{config:?}").contains("token"));
    }

    #[test]
    fn a_url_that_can_be_read_in_two_ways_shows_nothing_of_either() {
        for url in
            ["http://u:s3/cret@h/", "http://u:s3?cret@h/", "http://h/?t=s3#cret@x", "u/x:s3cret@h"]
        {
            assert!(redact(url).ends_with("***"), "{}", redact(url));
        }
        assert_eq!(redact("http://u:p@h:1/a?b=c"), "http://h:1/a");
        assert_eq!(redact("http://h/a#b"), "http://h/a");
    }

    #[test]
    fn an_address_that_cannot_be_posted_to_is_refused_by_name() {
        for url in ["", "example.org/x", "ftp://example.org", "http://", "http://a b"] {
            assert_eq!(HttpConfig::to(url).unwrap_err().kind(), Kind::InvalidConfig, "{url}");
        }
        let error = HttpConfig::to("https://u:secret@example.org/?k=secret").unwrap_err();
        assert_eq!(error.kind(), Kind::NotSupported);
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
