//! The one type that holds what must never be printed.

use std::fmt;

/// A URL or another text that may carry a password. It can be used, but not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text from being printed.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for whoever connects with it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The part before the first `:`, if it looks like a scheme.
    pub fn scheme(&self) -> Option<&str> {
        let (scheme, _) = self.0.split_once(':')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        (!scheme.is_empty() && scheme.chars().all(plain)).then_some(scheme)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Something that is no URL may be a password as a whole, or libpq's `host=... password=...`.
        if self.scheme().is_none() {
            return f.write_str("***");
        }
        // The whole text is one URL, whatever white space its password holds.
        match self.0.split_once("://") {
            Some((scheme, url)) => write!(f, "{scheme}://{}", without_secrets(scheme, url)),
            None => f.write_str(&self.0),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({self})")
    }
}

/// A text with the passwords of all URLs in it replaced by `***`.
pub fn redacted(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>'))
            .unwrap_or(after.len());
        let (url, tail) = after.split_at(end);
        safe.push_str(before);
        safe.push_str(&without_secrets(scheme_before(before), url));
        rest = tail;
    }
    safe + rest
}

/// Schemes of servers that take a name without a password for a token, and several addresses in one URL.
const BY_TOKEN: [&str; 2] = ["nats", "tls"];

/// What follows `scheme://`, as it may be shown.
fn without_secrets(scheme: &str, url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, last)) if BY_TOKEN.contains(&scheme) => format!("***@{last}"),
        _ => without_query_secrets(&without_password(url)),
    }
}

/// The scheme at the end of a text that ends with `://`.
fn scheme_before(text: &str) -> &str {
    let text = text.trim_end_matches("://");
    text.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or(text)
}

/// `user:password@host` without the password. A password may itself hold `@`, so the last one counts.
fn without_password(url: &str) -> String {
    let authority_end = match url.rfind('@') {
        Some(at) => at,
        None => return url.to_owned(),
    };
    let (user, host) = url.split_at(authority_end);
    let name = user.split_once(':').map_or(user, |(name, _)| name);
    let mask = if user.contains(':') { ":***" } else { "" };
    format!("{name}{mask}{host}")
}

/// `?password=x` and the like, masked.
fn without_query_secrets(url: &str) -> String {
    let Some((base, query)) = url.split_once('?') else { return url.to_owned() };
    let mask = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if is_secret_name(name) => format!("{name}=***"),
        _ => pair.to_owned(),
    };
    let pairs: Vec<String> = query.split('&').map(mask).collect();
    format!("{base}?{}", pairs.join("&"))
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["password", "secret", "token", "key"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        for (url, shown) in [
            ("postgres://ana:s3cret@db/shop", "postgres://ana:***@db/shop"),
            ("postgres://ana:p@ss:w@db:5432/shop", "postgres://ana:***@db:5432/shop"),
            (
                "postgres://ana@db/shop?password=s3cret&sslmode=require",
                "postgres://ana@db/shop?password=***&sslmode=require",
            ),
            ("https://hook.example/x?token=s3cret", "https://hook.example/x?token=***"),
            ("postgres://ana:a \"s3cret@db/shop", "postgres://ana:***@db/shop"),
            ("nats://s3cret@n1:4222", "nats://***@n1:4222"),
            ("tls://a:s3cret@n1,tls://s3cret@n2:4222", "tls://***@n2:4222"),
            ("nats://n1:4222,n2:4222", "nats://n1:4222,n2:4222"),
            ("sqlite:relevo.db", "sqlite:relevo.db"),
            ("host=db password=s3cret", "***"),
        ] {
            let secret = Secret::new(url);
            assert_eq!(secret.to_string(), shown);
            assert!(!format!("{secret:?}").contains("s3cret"));
        }
    }

    #[test]
    fn every_url_inside_a_message_loses_its_password() {
        let message = "invalid type: string \"postgres://a:b@c/d\", not `http://e:f@g`";
        assert_eq!(
            redacted(message),
            "invalid type: string \"postgres://a:***@c/d\", not `http://e:***@g`"
        );
        assert_eq!(redacted("at nats://s3cret@h: refused"), "at nats://***@h: refused");
    }
}
