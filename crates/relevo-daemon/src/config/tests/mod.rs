//! # Layout
//! - here: what a file and the variables beside it mean
//! - `refused`: what cannot be meant
//! - `example`: the files that `relevo` writes
//! - `broker`, `topology`, `retry`, `adopt`: the tables with rules of their own

mod adopt;
mod broker;
mod example;
mod refused;
mod retry;
mod topology;

use super::*;
use relevo_core::outbox::Start;
use relevo_core::relay::{AfterDead, Order};
use relevo_core::retry::RetryPolicy;

fn read_with(text: &str, variables: &[(&str, &str)]) -> Result<Config> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::read("relevo.toml", text, variables.collect::<Vec<_>>().into_iter())
}

fn read(text: &str) -> Result<Config> {
    read_with(text, &[])
}

fn refused(text: &str) -> String {
    let error = read(text).expect_err("it should be refused");
    assert_eq!(error.kind(), Kind::InvalidConfig);
    error.message().to_owned()
}

const SHOP: &str = r#"
[store.main]
url = "sqlite:shop.db"
[broker.hook]
url = "http://127.0.0.1:1/x"
[subscription.notify]
topics = ["order.*", "ticket.#"]
retry = "slow"
start = 2026-01-31T08:00:00Z
after_dead = "hold"
batch = 7
[retry.slow]
kind = "ladder"
delays = ["1m", "5m"]
"#;

#[test]
fn a_file_says_what_it_means() {
    let config = read(SHOP).unwrap();
    let notify = &config.subscriptions["notify"];
    assert_eq!((notify.store.as_str(), notify.to.as_str()), ("main", "hook"));
    assert_eq!(notify.relay.batch, 7);
    assert_eq!(notify.relay.after_dead, AfterDead::Hold);
    assert_eq!(
        notify.relay.retry,
        RetryPolicy::ladder([Duration::from_secs(60), Duration::from_secs(300)])
    );
    assert!(
        matches!(notify.subscription.start, Start::Time(time) if time.to_rfc3339() == "2026-01-31T08:00:00+00:00")
    );
    assert_eq!(notify.subscription.topics.len(), 2);
}

#[test]
fn order_windows_and_the_limit_of_a_drain_are_configuration() {
    let text = SHOP.replace("batch = 7", "batch = 7\nbatch_bytes = 1000\norder = \"any\"");
    let config = read(&format!("{text}[limits]\ndrain = \"3s\"\nqueue_bytes = 5\n")).unwrap();
    let relay = &config.subscriptions["notify"].relay;
    assert_eq!((relay.batch, relay.batch_bytes, relay.queue_bytes), (7, 1000, 5));
    assert_eq!((relay.order, config.drain), (Order::Any, Duration::from_secs(3)));
}

#[test]
fn a_variable_overrides_the_file_and_is_named_when_it_is_wrong() {
    let config = read_with(
        SHOP,
        &[("RELEVO__STORE__MAIN__URL", "sqlite:other.db"), ("RELEVO_STORE", "ignored")],
    )
    .unwrap();
    assert_eq!(config.stores["main"].expose(), "sqlite:other.db");
    let config =
        read_with("[store.main]\n", &[("RELEVO__STORE__MAIN__URL", "sqlite:only.db")]).unwrap();
    assert_eq!(config.stores["main"].expose(), "sqlite:only.db");
    let error = read_with(SHOP, &[("RELEVO__SUBSCRIPTION__NOTIFY__RETRY", "none")]).unwrap_err();
    assert!(error.message().starts_with("variable RELEVO__SUBSCRIPTION__NOTIFY__RETRY"), "{error}");
    let error = read_with(SHOP, &[("RELEVO__SUBSCRIPTION__NOTIFY__BATHC", "1")]).unwrap_err();
    assert!(
        error.message().contains("BATHC") && error.message().contains("did you mean \"batch\""),
        "{error}"
    );
}

#[test]
fn a_secret_can_live_in_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    std::fs::write(&file, "postgres://u:s3cret@h/d\n").unwrap();
    let config =
        read(&format!("[store.main]\nurl_file = {:?}", file.display().to_string())).unwrap();
    assert_eq!(config.stores["main"].expose(), "postgres://u:s3cret@h/d");
}

#[test]
fn the_store_meant_is_the_named_one_or_the_only_one() {
    let config = read("[store.a]\nurl = \"sqlite:a\"\n[store.b]\nurl = \"sqlite:b\"").unwrap();
    assert!(config.store(None).unwrap_err().message().contains("--store a"));
    assert_eq!(config.store(Some("b")).unwrap().expose(), "sqlite:b");
    assert!(config.store(Some("c")).is_err());
    assert_eq!(read(SHOP).unwrap().store(None).unwrap().expose(), "sqlite:shop.db");
}

#[test]
fn listening_beyond_loopback_is_said_aloud() {
    assert!(read(SHOP).unwrap().warnings.is_empty());
    assert_eq!(read("[http]\nlisten = \"0.0.0.0:9464\"").unwrap().warnings.len(), 1);
}
