#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::broker::{Settle, Tag, cloudevents};
use crate::event::{Event, NewEvent, header};
use crate::inbox::{Answer, Settled as Answered};
use crate::outbox::LaneChange;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

/// What the inbox answers, in turn, and what was asked of the database.
#[derive(Default)]
struct Database {
    met: VecDeque<Met>,
    /// How the next landings end; fine, where nothing is said.
    landings: VecDeque<Kind>,
    landed: Vec<NewEvent>,
    commits: usize,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Database>>);

impl Scripted {
    fn meeting(met: impl IntoIterator<Item = Met>) -> Self {
        let scripted = Self::default();
        scripted.database().met.extend(met);
        scripted
    }

    fn database(&self) -> MutexGuard<'_, Database> {
        self.0.lock().unwrap()
    }
}

impl TxDriver for Scripted {
    type Conn = ();
    type Tx<'c> = Self;

    async fn acquire(&self) -> Result<()> {
        Ok(())
    }

    async fn begin<'c>(&'c self, _: &'c mut (), _: Duration) -> Result<Self> {
        Ok(self.clone())
    }

    async fn savepoint(_: &mut Self::Tx<'_>) -> Result<()> {
        Ok(())
    }

    async fn undo(_: &mut Self::Tx<'_>) -> Result<()> {
        Err(Error::new(Kind::Unreachable, "the connection is gone"))
    }

    async fn record(_: &mut Self::Tx<'_>, _: &LaneChange) -> Result<()> {
        Ok(())
    }

    async fn meet(tx: &mut Self::Tx<'_>, _: &str, messages: &[Meet]) -> Result<Vec<Met>> {
        let mut database = tx.database();
        Ok(messages.iter().map(|_| database.met.pop_front().unwrap()).collect())
    }

    async fn land(
        tx: &mut Self::Tx<'_>,
        _: &str,
        events: Vec<NewEvent>,
        _: &[String],
    ) -> Result<()> {
        let mut database = tx.database();
        if let Some(kind) = database.landings.pop_front() {
            return Err(Error::new(kind, "scripted"));
        }
        database.landed.extend(events);
        Ok(())
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        tx.database().commits += 1;
        Ok(())
    }
}

/// Answers always the same.
struct Says {
    skip: bool,
    slow: bool,
}

impl Handler<Scripted> for Says {
    async fn handle(&self, _: &Event, effect: &mut Effect<'_, Scripted>) -> Answer {
        effect.tx().await?;
        Ok(if self.skip { Answered::Skip("not ours".into()) } else { Answered::Done })
    }

    fn slow(&self) -> bool {
        self.slow
    }
}

fn message(tag: u64) -> Incoming {
    of_key("k", tag)
}

fn of_key(key: &str, tag: u64) -> Incoming {
    let event = Event::stored(NewEvent::bytes("a.b", b"x".to_vec()).key(key), chrono::Utc::now());
    let mut message = Incoming::new(Tag(tag), "a.b", b"x".to_vec());
    message.headers = cloudevents::owned(cloudevents::write(&event, "shop", &Binding::AMQP));
    message
}

async fn work(driver: &Scripted, handler: Says) -> Result<Settled> {
    let worker = Worker::new("mailer", driver.clone(), Arc::new(handler), Binding::AMQP);
    worker.work(&[message(1)]).await
}

fn answers(driver: &Scripted) -> Vec<Option<String>> {
    let answer = |event: &NewEvent| event.headers.get(header::INBOX_ANSWER).map(str::to_owned);
    driver.database().landed.iter().map(answer).collect()
}

fn commits(driver: &Scripted) -> usize {
    driver.database().commits
}

const SKIP: &str = r#"{"skip":"not ours"}"#;

#[tokio::test]
async fn trouble_while_an_answer_lands_is_not_the_events_failure() {
    for slow in [false, true] {
        let driver = Scripted::meeting(vec![Met::New; 4]);
        driver.database().landings.push_back(Kind::TransactionConflict);
        let failed = work(&driver, Says { skip: true, slow }).await.unwrap_err();
        assert_eq!(failed.kind(), Kind::TransactionConflict, "the store's: to be tried again");
        assert_eq!((commits(&driver), answers(&driver)), (0, vec![]));
        let settled = work(&driver, Says { skip: true, slow }).await.unwrap();
        assert_eq!(settled, [(Tag(1), Settle::Done)]);
        assert_eq!(answers(&driver), [Some(SKIP.into())], "slow: {slow}");
    }
}

#[tokio::test]
async fn trouble_before_a_handler_was_asked_is_not_the_events_failure() {
    for slow in [false, true] {
        let driver = Scripted::meeting([Met::Behind, Met::New]);
        driver.database().landings.push_back(Kind::StoreFailed);
        let failed = work(&driver, Says { skip: false, slow }).await.unwrap_err();
        assert_eq!(failed.kind(), Kind::StoreFailed, "the store's: to be tried again");
        assert_eq!((commits(&driver), answers(&driver)), (0, vec![]), "slow: {slow}");
    }
}

#[tokio::test]
async fn a_message_is_not_noted_without_its_effect_when_its_key_waits_no_longer() {
    let driver = Scripted::meeting([Met::New, Met::Behind, Met::New]);
    let settled = work(&driver, Says { skip: false, slow: true }).await.unwrap();
    assert!(settled.is_empty(), "it is worked again");
    assert_eq!(commits(&driver), 0);
}

#[tokio::test]
async fn nothing_overtakes_a_message_that_is_to_be_worked_again() {
    let driver = Scripted::meeting([Met::New, Met::Behind, Met::New, Met::New, Met::New]);
    let handler = Arc::new(Says { skip: false, slow: true });
    let worker = Worker::new("mailer", driver.clone(), handler, Binding::AMQP);
    let settled = worker.work(&[message(1), message(2)]).await.unwrap();
    assert!(settled.is_empty(), "the second is of the same key: {settled:?}");
}

#[tokio::test]
async fn what_lands_behind_its_key_in_the_meantime_has_no_effect() {
    let driver = Scripted::meeting([Met::New, Met::Behind, Met::Behind]);
    let settled = work(&driver, Says { skip: false, slow: true }).await.unwrap();
    assert_eq!(settled, [(Tag(1), Settle::Done)]);
    assert_eq!((answers(&driver), driver.database().commits), (vec![None], 1));
}

/// Answers when as many have come as are waited for; keeps what it was given, in its order.
struct Together {
    all: tokio::sync::Barrier,
    keys: Mutex<Vec<String>>,
}

impl Handler<Scripted> for Together {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, Scripted>) -> Answer {
        self.keys.lock().unwrap().push(event.order_key());
        self.all.wait().await;
        effect.tx().await?;
        Ok(Answered::Done)
    }

    fn slow(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_slow_handler_works_several_keys_at_the_same_time_and_each_in_its_order() {
    let driver = Scripted::meeting(vec![Met::New; 8]);
    let handler = Arc::new(Together { all: tokio::sync::Barrier::new(2), keys: Mutex::default() });
    let worker = Worker::new("mailer", driver.clone(), handler.clone(), Binding::AMQP);
    let worker = worker.keys_at_once(4);
    let messages = [of_key("a", 1), of_key("a", 2), of_key("b", 3), of_key("b", 4)];
    let work = tokio::time::timeout(Duration::from_secs(60), worker.work(&messages));
    let mut settled = work.await.expect("one waits for the other").unwrap();
    settled.sort_by_key(|(tag, _)| tag.0);
    assert_eq!(settled.iter().map(|(tag, _)| tag.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let keys = handler.keys.lock().unwrap().clone();
    for two in keys.chunks(2) {
        assert_ne!(two[0], two[1], "two at once, no key twice: {keys:?}");
    }
    assert_eq!(commits(&driver), 4);
}
