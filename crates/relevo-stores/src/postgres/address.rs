//! Which server a URL names, and how connections to it are encrypted. An error never repeats the URL: it may hold a
//! password.

use super::Options;
use super::errors::error;
use super::tls::{self, Connector};
use relevo_core::broker::cloudevents::decode;
use relevo_core::{Kind, Result};
use std::path::PathBuf;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

const TEACH: &str = "write postgres://user:password@host:port/database; in user and password write @ : / ? # % as %40 %3A %2F %3F %23 %25";
const MODES: &str = "sslmode is disable, prefer, require, verify-ca or verify-full";

/// A server, and how it is spoken to.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) config: Config,
    pub(crate) tls: Connector,
}

/// What is asked of the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Checked {
    /// Nothing: what travels is encrypted, and nobody knows for whom.
    #[default]
    Nothing,
    /// An authority that is believed has signed it, for whatever name.
    Authority,
    /// And it is for the host of the URL.
    AuthorityAndName,
}

/// What the URL says of TLS, in libpq's words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Certificates {
    pub(crate) checked: Checked,
    /// `sslrootcert`; without it the system's authorities are believed.
    pub(crate) authorities: Option<PathBuf>,
    /// `sslcert`
    pub(crate) certificate: Option<PathBuf>,
    /// `sslkey`
    pub(crate) key: Option<PathBuf>,
}

impl Address {
    pub(crate) fn parse(url: &str, options: &Options) -> Result<Self> {
        if has_stray_at(url) {
            return Err(error(Kind::InvalidUrl, TEACH));
        }
        let (url, ours) = take_tls_settings(url);
        // What the parser says may quote any piece of what it could not read.
        let mut config: Config = url.parse().map_err(|_| error(Kind::InvalidUrl, TEACH))?;
        if config.get_hosts().is_empty() {
            return Err(error(Kind::InvalidUrl, "the URL names no host"));
        }
        if config.get_application_name().is_none() {
            config.application_name("relevo");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(options.connect_limit);
        }
        let certificates = read_tls_settings(ours, &mut config)?;
        let tls = tls::connector(&certificates, config.get_ssl_mode())?;
        Ok(Self { config, tls })
    }
}

/// An @ that is not the one between credentials and host: part of a password would be taken for a host or a database,
/// and would be shown by whatever goes wrong there.
fn has_stray_at(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    rest.matches('@').count() > usize::from(authority.contains('@'))
}

/// Parts the settings of TLS from the URL: the driver does not know all of them.
fn take_tls_settings(url: &str) -> (String, Vec<(String, String)>) {
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), Vec::new()) };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for setting in query.split('&').filter(|setting| !setting.is_empty()) {
        match setting.split_once('=') {
            Some((name @ ("sslmode" | "sslrootcert" | "sslcert" | "sslkey"), value)) => {
                ours.push((name.to_owned(), decode(value)));
            }
            _ => theirs.push(setting),
        }
    }
    let query = if theirs.is_empty() { String::new() } else { format!("?{}", theirs.join("&")) };
    (base.to_owned() + &query, ours)
}

fn read_tls_settings(settings: Vec<(String, String)>, config: &mut Config) -> Result<Certificates> {
    let mut certificates = Certificates::default();
    let mut mode = None;
    for (name, value) in settings {
        match name.as_str() {
            "sslmode" => mode = Some(value),
            "sslrootcert" if value == "system" => {}
            "sslrootcert" => certificates.authorities = Some(value.into()),
            "sslcert" => certificates.certificate = Some(value.into()),
            _ => certificates.key = Some(value.into()),
        }
    }
    let (mode, checked) = match mode.as_deref() {
        None | Some("prefer") => (SslMode::Prefer, Checked::Nothing),
        Some("disable") => (SslMode::Disable, Checked::Nothing),
        // Whoever names an authority means that it be asked for.
        Some("require") if certificates.authorities.is_some() => {
            (SslMode::Require, Checked::Authority)
        }
        Some("require") => (SslMode::Require, Checked::Nothing),
        Some("verify-ca") => (SslMode::Require, Checked::Authority),
        Some("verify-full") => (SslMode::Require, Checked::AuthorityAndName),
        Some(_) => return Err(error(Kind::InvalidUrl, MODES)),
    };
    config.ssl_mode(mode);
    certificates.checked = checked;
    if certificates.certificate.is_some() != certificates.key.is_some() {
        return Err(error(Kind::InvalidUrl, "sslcert and sslkey belong together; one is missing"));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(query: &str) -> Result<(SslMode, Certificates)> {
        let (url, ours) = take_tls_settings(&format!("postgres://u:p@h/d?{query}"));
        let mut config: Config = url.parse().unwrap();
        let certificates = read_tls_settings(ours, &mut config)?;
        Ok((config.get_ssl_mode(), certificates))
    }

    #[test]
    fn modes_mean_what_they_mean_to_libpq() {
        for (query, mode, checked) in [
            ("", SslMode::Prefer, Checked::Nothing),
            ("sslmode=disable", SslMode::Disable, Checked::Nothing),
            ("connect_timeout=3&sslmode=require", SslMode::Require, Checked::Nothing),
            ("sslmode=require&sslrootcert=/ca.pem", SslMode::Require, Checked::Authority),
            ("sslmode=verify-ca", SslMode::Require, Checked::Authority),
            ("sslrootcert=system&sslmode=verify-full", SslMode::Require, Checked::AuthorityAndName),
        ] {
            let (found, certificates) = settings(query).unwrap();
            assert_eq!((found, certificates.checked), (mode, checked), "{query}");
        }
    }

    #[test]
    fn files_may_be_written_with_escapes() {
        let (_, certificates) =
            settings("sslmode=verify-full&sslrootcert=%2Fmy%20ca.pem&sslcert=c&sslkey=k").unwrap();
        assert_eq!(certificates.authorities, Some("/my ca.pem".into()));
        assert_eq!(certificates.certificate, Some("c".into()));
        assert_eq!(certificates.key, Some("k".into()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert!(settings("sslmode=on").unwrap_err().message().contains("verify-full"));
        assert!(settings("sslcert=c").unwrap_err().message().contains("sslkey"));
    }
}
