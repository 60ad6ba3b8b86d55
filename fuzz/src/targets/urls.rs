use crate::{Input, expect};
use relevo_brokers::http::{HttpConfig, Secret as SigningSecret, redact};
use relevo_daemon::config::{Secret, redacted};
use relevo_daemon::store::check_url;
use relevo_stores::postgres::{Options, PostgresStore};
use relevo_stores::sqlite::fuzzing::location;

/// A password as no other part of an input contains it.
const PASSWORD: &str = "Tr0ub4dor";

/// Any URL is taken or refused without repeating the password in it.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let url = input.text();
    any(&url);
    with_password(&input.text(), &input.text(), &input.text());
}

fn any(url: &str) {
    let secret = Secret::new(url);
    if let Err(error) = check_url(&secret) {
        expect::error(&error);
    }
    if let Err(error) = SigningSecret::parse(url) {
        expect::error(&error);
        assert!(url.len() < 8 || !error.to_string().contains(url));
    }
    match location(url) {
        Ok(path) => assert!(!path.as_os_str().is_empty()),
        Err(error) => expect::error(&error),
    }
    path_round_trip(url);
    if let Err(error) = HttpConfig::to(url) {
        expect::error(&error);
    }
    if let Err(error) = PostgresStore::open(url, Options::default()) {
        expect::error(&error);
    }
}

/// Every path can be written as a URL.
fn path_round_trip(path: &str) {
    if path.is_empty() || path.contains(":memory:") || path.starts_with("//") {
        return;
    }
    let encoded: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let read = location(&format!("sqlite:{encoded}"));
    assert_eq!(read.ok().as_deref(), Some(std::path::Path::new(path)));
}

/// A URL put together of hostile parts around a password never shows it.
fn with_password(user: &str, host: &str, tail: &str) {
    let plain = |text: &str| !text.contains("://") && !text.contains(PASSWORD);
    if ![user, host, tail].iter().all(|part| plain(part)) {
        return;
    }
    for scheme in ["postgres", "http", "https", "amqp"] {
        let url = format!("{scheme}://{user}:{PASSWORD}@{host}/{tail}");
        let hidden = |shown: &str| assert!(!shown.contains(PASSWORD), "{url:?} shown as {shown:?}");
        let secret = Secret::new(&url);
        let shown = [secret.to_string(), format!("{secret:?}"), redact(&url)];
        shown.iter().for_each(|shown| hidden(shown));
        // Within a text a URL ends where white space or a quote begins.
        if !url.contains(|c: char| c.is_whitespace() || "\"'`<>".contains(c)) {
            hidden(&redacted(&format!("not {url} but another")));
        }
        if let Err(error) = check_url(&secret) {
            hidden(&error.to_string());
        }
        match HttpConfig::to(&url) {
            Ok(config) => hidden(&format!("{config:?} {}", config.address())),
            Err(error) => hidden(&error.to_string()),
        }
        if let Err(error) = PostgresStore::open(&url, Options::default()) {
            hidden(&error.to_string());
        }
    }
}
