//! A consumer's shell, over a broker of the test's own and a scripted database.

use super::*;
use crate::broker::{Capabilities, Received, Receiver, Source, Subscriber};
use crate::inbox::consume::Consumer;
use crate::inbox::consume::shell::Shell;
use crate::relay::RelayConfig;
use crate::retry::RetryPolicy;
use async_trait::async_trait;
use tokio::sync::watch;

/// What the broker was asked, in its order.
type Told = Arc<watch::Sender<Vec<String>>>;

/// A broker that is reached at the second attempt and has one message.
struct Broker {
    told: Told,
    key: &'static str,
}

#[async_trait]
impl Subscriber for Broker {
    fn name(&self) -> &'static str {
        "test"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn binding(&self) -> Binding {
        Binding::AMQP
    }

    async fn open(&self) -> Result<Box<dyn Receiver>> {
        self.told.send_modify(|told| told.push("open".into()));
        let attempts = self.told.borrow().len();
        match attempts {
            1 => Err(Error::new(Kind::Unreachable, "not yet")),
            _ => {
                let message = Some(of_key(self.key, 1));
                Ok(Box::new(Line { told: self.told.clone(), message }))
            }
        }
    }
}

struct Line {
    told: Told,
    message: Option<Incoming>,
}

impl Line {
    fn note(&self, what: impl Into<String>) {
        self.told.send_modify(|told| told.push(what.into()));
    }
}

#[async_trait]
impl Receiver for Line {
    async fn next(&mut self, _: usize) -> Result<Received> {
        match self.message.take() {
            Some(message) => {
                Ok(Received::Messages { source: Source::named("q"), messages: vec![message] })
            }
            None => std::future::pending().await,
        }
    }

    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        self.note(format!("{settled:?}"));
        Ok(())
    }

    async fn pause(&mut self, _: &Source) -> Result<()> {
        self.note("pause");
        Ok(())
    }

    async fn resume(&mut self, _: &Source) -> Result<()> {
        self.note("resume");
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<()> {
        self.note("close");
        Ok(())
    }
}

/// A consumer of one message with this key, and what its broker is told.
fn consumer(key: &'static str) -> (Consumer<Broker, Scripted, Keeps>, Told) {
    let told = Told::default();
    let broker = Broker { told: told.clone(), key };
    let driver = Scripted::meeting([Met::New]);
    (Consumer::new("mailer", broker, driver, Keeps::default()), told)
}

/// Consumes until the broker was told something of its message, then stops in good order.
async fn consume(consumer: Consumer<Broker, Scripted, Keeps>, told: &Told) -> Vec<String> {
    let (stop, stopped) = watch::channel(false);
    let shell = tokio::spawn(Shell::new(consumer, stopped).run());
    let mut heard = told.subscribe();
    let settled = heard.wait_for(|told| told.len() == 3);
    tokio::time::timeout(Duration::from_secs(10), settled).await.expect("it is settled").unwrap();
    stop.send_replace(true);
    tokio::time::timeout(Duration::from_secs(10), shell).await.expect("it ends").unwrap();
    told.borrow().clone()
}

#[tokio::test]
async fn a_consumer_connects_again_works_settles_and_closes_when_it_is_told_to_stop() {
    let (consumer, told) = consumer("good");
    let told = consume(consumer, &told).await;
    assert_eq!(told, ["open", "open", "[(Tag(1), Done)]", "close"]);
}

#[tokio::test]
async fn a_consumer_that_leaves_failures_to_its_broker_tells_it_when_to_come_again() {
    let (consumer, told) = consumer("bad");
    let told = consume(consumer.retry_at_broker(RetryPolicy::default()), &told).await;
    assert_eq!(told, ["open", "open", "[(Tag(1), RetryAfter(1s))]", "close"]);
}

#[tokio::test]
async fn a_session_may_idle_for_less_than_the_lease_of_what_landed_unless_it_is_told_otherwise() {
    let lease =
        |seconds| RelayConfig { lease: Duration::from_secs(seconds), ..RelayConfig::default() };
    let by_hand = Duration::from_secs(9);
    for (seconds, told_otherwise, limit) in [(10, None, 8), (5, None, 4), (5, Some(by_hand), 9)] {
        let (consumer, told) = consumer("good");
        let driver = consumer.driver.clone();
        let consumer = consumer.relay(lease(seconds));
        consume(told_otherwise.into_iter().fold(consumer, Consumer::idle_limit), &told).await;
        assert_eq!(driver.database().idle_limits, [Duration::from_secs(limit)]);
    }
}

#[test]
fn a_policy_that_cannot_be_meant_is_refused_where_the_broker_retries() {
    let (fine, _) = consumer("k");
    assert!(fine.retry_at_broker(RetryPolicy::default()).check().is_ok());
    let (wrong, _) = consumer("k");
    assert!(wrong.retry_at_broker(RetryPolicy::default().jitter(0.5)).check().is_err());
}
