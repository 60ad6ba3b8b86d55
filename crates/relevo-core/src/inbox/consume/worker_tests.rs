#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::broker::{Settle, Tag, cloudevents};
use crate::event::{Event, NewEvent, header};
use crate::inbox::{Answer, Settled as Answered};
use crate::outbox::LaneChange;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

#[path = "shell_tests.rs"]
mod shell;

/// What the inbox answers, in turn, and what was asked of the database.
#[derive(Default)]
struct Database {
    met: VecDeque<Met>,
    /// How the next landings end; fine, where nothing is said.
    landings: VecDeque<Kind>,
    landed: Vec<NewEvent>,
    /// How the next commits end; fine, where nothing is said.
    refusals: VecDeque<Kind>,
    commits: usize,
    /// About how many messages the inbox was asked each time.
    asked: Vec<usize>,
    lands: usize,
    /// How long sessions may idle, as transactions began.
    idle_limits: Vec<Duration>,
    /// A savepoint can be gone back to; otherwise the connection is gone.
    undoes: bool,
}

/// A transaction of it may stay open for so many seconds.
#[derive(Clone, Default)]
struct Scripted<const HOLD: u64 = 120>(Arc<Mutex<Database>>);

impl Scripted {
    fn meeting(met: impl IntoIterator<Item = Met>) -> Self {
        Self::holding(met)
    }
}

impl<const HOLD: u64> Scripted<HOLD> {
    fn holding(met: impl IntoIterator<Item = Met>) -> Self {
        let scripted = Self::default();
        scripted.database().met.extend(met);
        scripted
    }

    fn database(&self) -> MutexGuard<'_, Database> {
        self.0.lock().unwrap()
    }
}

impl<const HOLD: u64> TxDriver for Scripted<HOLD> {
    const SAVEPOINTS_TELL: bool = false;
    const HOLD: Duration = Duration::from_secs(HOLD);
    type Conn = ();
    type Tx<'c> = Self;

    async fn acquire(&self) -> Result<()> {
        Ok(())
    }

    async fn begin<'c>(&'c self, _: &'c mut (), idle_limit: Duration) -> Result<Self> {
        self.database().idle_limits.push(idle_limit);
        Ok(self.clone())
    }

    async fn savepoint(_: &mut Self::Tx<'_>) -> Result<()> {
        Ok(())
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        match tx.database().undoes {
            true => Ok(()),
            false => Err(Error::new(Kind::Unreachable, "the connection is gone")),
        }
    }

    async fn record(_: &mut Self::Tx<'_>, _: &LaneChange) -> Result<()> {
        Ok(())
    }

    async fn meet(tx: &mut Self::Tx<'_>, _: &str, messages: &[Meet]) -> Result<Vec<Met>> {
        let mut database = tx.database();
        database.asked.push(messages.len());
        Ok(messages.iter().map(|_| database.met.pop_front().unwrap()).collect())
    }

    async fn land(
        tx: &mut Self::Tx<'_>,
        _: &str,
        events: Vec<NewEvent>,
        _: &[String],
    ) -> Result<()> {
        let mut database = tx.database();
        database.lands += 1;
        if let Some(kind) = database.landings.pop_front() {
            return Err(Error::new(kind, "scripted"));
        }
        database.landed.extend(events);
        Ok(())
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        let mut database = tx.database();
        if let Some(kind) = database.refusals.pop_front() {
            return Err(Error::new(kind, "scripted"));
        }
        database.commits += 1;
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

/// Fails for the key `bad`, takes its time, and keeps the keys it was given, in their order.
#[derive(Default)]
struct Keeps {
    slow: bool,
    takes: Duration,
    keys: Mutex<Vec<String>>,
}

impl<const HOLD: u64> Handler<Scripted<HOLD>> for Keeps {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, Scripted<HOLD>>) -> Answer {
        self.keys.lock().unwrap().push(event.order_key());
        tokio::time::sleep(self.takes).await;
        effect.tx().await?;
        match event.order_key() == "bad" {
            true => Err(crate::inbox::Failure::retry_after(Duration::from_secs(1), "no paper")),
            false => Ok(Answered::Done),
        }
    }

    fn slow(&self) -> bool {
        self.slow
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(7)
    }

    fn answered_before(&self, _: &Event) -> Option<Outcome> {
        Some(Outcome::Done)
    }
}

fn keeping<const HOLD: u64>(
    driver: &Scripted<HOLD>,
    handler: &Arc<Keeps>,
) -> Worker<Scripted<HOLD>, Keeps> {
    Worker::new("mailer", driver.clone(), handler.clone(), Binding::AMQP)
}

fn left_to_broker(in_order: bool) -> Option<AtBroker> {
    Some(AtBroker::new(crate::retry::RetryPolicy::default(), in_order))
}

fn tags(settled: &Settled) -> Vec<u64> {
    settled.iter().map(|(tag, _)| tag.0).collect()
}

fn keys(handler: &Keeps) -> Vec<String> {
    handler.keys.lock().unwrap().clone()
}

#[tokio::test]
async fn a_batch_shares_one_transaction_and_one_question_to_the_inbox() {
    let driver = Scripted::meeting([Met::New, Met::New]);
    let settled = keeping(&driver, &Arc::default()).work(&[message(1), message(2)]).await.unwrap();
    assert_eq!((tags(&settled), commits(&driver)), (vec![1, 2], 1));
    let database = driver.database();
    assert_eq!((&database.asked[..], database.lands), (&[2][..], 0));
}

#[tokio::test]
async fn one_message_is_asked_about_once_and_committed() {
    let driver = Scripted::meeting([Met::New]);
    let settled = keeping(&driver, &Arc::default()).work(&[message(1)]).await.unwrap();
    assert_eq!((tags(&settled), commits(&driver)), (vec![1], 1));
    assert_eq!(driver.database().asked, [1]);
}

#[tokio::test]
async fn the_inbox_is_asked_one_by_one_where_transactions_should_be_short() {
    let driver = Scripted::<29>::holding([Met::New, Met::New]);
    keeping(&driver, &Arc::default()).work(&[message(1), message(2)]).await.unwrap();
    assert_eq!(driver.database().asked, [1, 1]);
    let driver = Scripted::<30>::holding([Met::New, Met::New]);
    keeping(&driver, &Arc::default()).work(&[message(1), message(2)]).await.unwrap();
    assert_eq!(driver.database().asked, [2]);
}

#[tokio::test]
async fn a_transaction_that_was_open_for_a_quarter_of_its_time_ends_with_what_it_has() {
    let driver = Scripted::<8>::holding([Met::New, Met::New]);
    let handler = Arc::new(Keeps { takes: Duration::from_millis(2100), ..Keeps::default() });
    let settled = keeping(&driver, &handler).work(&[message(1), message(2)]).await.unwrap();
    assert_eq!((tags(&settled), driver.database().commits), (vec![1], 1));
}

#[tokio::test]
async fn a_shared_transaction_that_is_refused_is_redone_one_by_one_and_a_lost_store_is_not() {
    for (met, kind, redone) in [
        (Met::New, Kind::StoreFailed, true),
        (Met::Seen, Kind::TransactionConflict, true),
        (Met::Seen, Kind::StoreFailed, false),
        (Met::New, Kind::Unreachable, false),
    ] {
        let driver = Scripted::meeting(vec![met; 4]);
        driver.database().refusals.push_back(kind);
        let worked = keeping(&driver, &Arc::default()).work(&[message(1), message(2)]).await;
        assert_eq!(worked.is_ok(), redone, "{met:?}, {kind:?}: {worked:?}");
        assert_eq!(commits(&driver), if redone { 2 } else { 0 }, "{met:?}, {kind:?}");
    }
}

#[tokio::test]
async fn what_fails_is_done_again_with_savepoints_and_is_itself_called_once() {
    let driver = Scripted::meeting(vec![Met::New; 6]);
    driver.database().undoes = true;
    let (handler, batch) = (Arc::default(), [of_key("a", 1), of_key("bad", 2), of_key("b", 3)]);
    let settled = keeping(&driver, &handler).work(&batch).await.unwrap();
    assert_eq!((tags(&settled), commits(&driver)), (vec![1, 2, 3], 1));
    assert_eq!(keys(&handler), ["a", "bad", "a", "b"]);
    assert_eq!(driver.database().landed.len(), 1, "it is tried again from the log");
}

#[tokio::test]
async fn messages_are_worked_in_turn_unless_a_slow_handler_may_have_several_keys() {
    for (slow, keys_at_once, in_order, turns) in [
        (false, 4, false, true),
        (true, 1, false, true),
        (true, 4, true, true),
        (true, 4, false, false),
    ] {
        let driver = Scripted::meeting(vec![Met::New; 9]);
        driver.database().refusals.extend((!slow).then_some(Kind::StoreFailed));
        let handler = Arc::new(Keeps { slow, ..Keeps::default() });
        let at_broker = in_order.then(|| left_to_broker(true)).flatten();
        let worker = keeping(&driver, &handler).keys_at_once(keys_at_once).at_broker(at_broker);
        let messages = [of_key("a", 1), of_key("b", 2), of_key("a", 3)];
        let settled = worker.work(&messages).await.unwrap();
        assert_eq!(settled.len(), 3);
        let keys = keys(&handler);
        let last_three = &keys[keys.len() - 3..];
        let in_turn = tags(&settled) == [1, 2, 3] && last_three == ["a", "b", "a"];
        assert_eq!(in_turn, turns, "slow: {slow}, {keys_at_once} keys, in order: {in_order}");
    }
}

#[tokio::test]
async fn what_fails_is_left_to_the_broker_without_a_trace_and_holds_up_only_where_order_is_kept() {
    for (in_order, settled) in [(true, vec![1]), (false, vec![1, 2])] {
        let driver = Scripted::meeting(vec![Met::New; 4]);
        driver.database().undoes = true;
        let handler = Arc::new(Keeps::default());
        let worker = keeping(&driver, &handler).at_broker(left_to_broker(in_order));
        let messages = [of_key("bad", 1), of_key("good", 2)];
        let told = worker.work(&messages).await.unwrap();
        assert_eq!(tags(&told), settled, "in order: {in_order}");
        assert_eq!(told[0].1, Settle::RetryAfter(Duration::from_secs(1)));
        let noted = settled.len() - 1;
        assert_eq!((commits(&driver), driver.database().lands), (noted, 0));
    }
}

#[tokio::test]
async fn a_message_that_is_no_event_is_left_to_the_broker_unseen() {
    let driver = Scripted::meeting([]);
    let handler = Arc::new(Keeps::default());
    let worker = keeping(&driver, &handler).at_broker(left_to_broker(false));
    let told = worker.work(&[Incoming::new(Tag(1), "not a topic", vec![0xff])]).await.unwrap();
    assert!(matches!(&told[..], [(Tag(1), Settle::Dead { .. })]), "{told:?}");
    assert!(keys(&handler).is_empty() && driver.database().asked.is_empty());
}

#[tokio::test]
async fn what_is_done_holds_nothing_up_where_order_is_kept() {
    let driver = Scripted::meeting(vec![Met::New; 4]);
    driver.database().refusals.push_back(Kind::StoreFailed);
    let worker = keeping(&driver, &Arc::default()).at_broker(left_to_broker(true));
    let told = worker.work(&[message(1), message(2)]).await.unwrap();
    assert_eq!(tags(&told), [1, 2]);
}

#[test]
fn a_shared_handler_and_that_of_what_landed_are_the_consumers_own() {
    use crate::inbox::consume::landed::{Landed, land};
    let handler = Arc::new(Keeps { slow: true, ..Keeps::default() });
    let landed = Landed::of(handler.clone());
    let quick = Landed::of(Arc::new(Keeps::default()));
    assert!(Handler::<Scripted>::slow(&landed) && !Handler::<Scripted>::slow(&quick));
    assert!(Handler::<Scripted>::slow(&handler));
    assert!(!Handler::<Scripted>::slow(&Arc::new(Keeps::default())));
    let limits = (Handler::<Scripted>::limit(&landed), Handler::<Scripted>::limit(&handler));
    assert_eq!(limits, (Duration::from_secs(7), Duration::from_secs(7)));
    let skip = Outcome::Skip { reason: "not ours".into() };
    let told = land("mailer", NewEvent::bytes("a", vec![]), Some(&skip));
    let event = Event::stored(told, chrono::Utc::now());
    assert_eq!(Handler::<Scripted>::answered_before(&landed, &event), Some(skip));
    assert_eq!(Handler::<Scripted>::answered_before(&handler, &event), Some(Outcome::Done));
}
