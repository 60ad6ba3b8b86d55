use super::{Confirm, Publisher};
use crate::error::{Error, ErrorClass, Kind};
use crate::event::{Event, EventId};
use crate::inbox::Outcome;
use crate::limits::LANES;
use crate::mutant;
use crate::outbox::Store;
use crate::relay::run::Destination;
use crate::relay::{Batch, CONCURRENCY, Delivery};
use async_trait::async_trait;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Hands batches to a [`Publisher`]: at most one unconfirmed event of a key at a time unless
/// [`crate::relay::Order`] allows more, no transaction open meanwhile. What became of them is recorded by the relay.
pub struct ToBroker<P> {
    publisher: P,
    not_taken: NotTaken,
}

/// So many events in a row that were not taken, and none that was: it is the destination, not they.
const UNWELL_AFTER: usize = 3;

/// Events that the destination did not take, since it took one. A few tell as much as all.
#[derive(Default)]
struct NotTaken(Mutex<BTreeSet<EventId>>);

impl NotTaken {
    /// Takes in what became of a wave; true if the destination takes nothing any more.
    fn all(&self, events: &[&Event], confirms: &[Confirm]) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if confirms.contains(&Confirm::Stored) {
            known.clear();
            return false;
        }
        let not_now = |confirm: &Confirm| {
            let transient = ErrorClass::Transient;
            matches!(confirm, Confirm::Refused { class, .. } if *class == transient)
                || matches!(confirm, Confirm::Unknown { .. })
        };
        let wave = events.iter().zip(confirms).filter(|(_, confirm)| not_now(confirm));
        known.extend(wave.map(|(event, _)| event.id).take(UNWELL_AFTER));
        while known.len() > UNWELL_AFTER {
            known.pop_first();
        }
        known.len() == UNWELL_AFTER
    }
}

impl<P: Publisher> ToBroker<P> {
    /// Relays to `publisher`.
    pub fn new(publisher: P) -> Self {
        Self { publisher, not_taken: NotTaken::default() }
    }

    /// Publishes wave after wave (what may go now of each key, as much of it as the publisher wants at once) until all is
    /// settled, the destination is down, or others may have the lane.
    async fn publish(&self, batch: &mut Batch) -> Option<String> {
        loop {
            if batch.has_lapsed() {
                return None;
            }
            let largest = self.publisher.largest_wave().max(1);
            let wave: Vec<usize> = std::iter::from_fn(|| batch.next()).take(largest).collect();
            if wave.is_empty() {
                return None;
            }
            let events: Vec<_> = wave.iter().map(|index| batch.event(*index)).collect();
            let confirms = self.confirms(&events).await;
            let unwell = self.publisher.capabilities().down_if_nothing_is_taken
                && self.not_taken.all(&events, &confirms);
            let mut down = None;
            for (index, confirm) in wave.into_iter().zip(confirms) {
                match outcome(confirm, unwell) {
                    Ok(outcome) => batch.settle(index, outcome),
                    Err(error) if batch.is_blamed() => {
                        batch.settle(
                            index,
                            Outcome::Failed { class: ErrorClass::Transient, error, after: None },
                        );
                    }
                    Err(error) => down = Some(error),
                }
            }
            if down.is_some() {
                return down;
            }
        }
    }

    /// The answers for one wave, of an adapter that hangs, too.
    async fn confirms(&self, events: &[&Event]) -> Vec<Confirm> {
        let publishing = self.publisher.publish(events);
        let Some(limit) = self.publisher.publish_limit() else { return publishing.await };
        let late = || Confirm::Unknown { error: format!("no confirm within {limit:?}") };
        let confirms = tokio::time::timeout(limit, publishing).await;
        confirms.unwrap_or_else(|_| events.iter().map(|_| late()).collect())
    }

    /// What became of the batch; nothing of it is recorded.
    async fn hand_over(&self, mut batch: Batch) -> Delivery {
        let down = self.publish(&mut batch).await;
        let lapsed = batch.has_lapsed();
        match batch.finish() {
            (None, _) if lapsed && down.is_none() => {
                let why = "the last sign of life is too old; nothing was handed over";
                Delivery::Void(Error::new(Kind::Stale, why))
            }
            (None, items) => Delivery::Down {
                items,
                reason: down.unwrap_or_else(|| "nothing was decided".into()),
            },
            (Some(change), rest) => Delivery::Decided { change, rest, down },
        }
    }
}

/// What a confirm of a destination that is well or not means for its event; `Err` if it means that the destination is down.
fn outcome(confirm: Confirm, unwell: bool) -> Result<Outcome, String> {
    match confirm {
        Confirm::Stored => Ok(Outcome::Done),
        Confirm::Refused { .. } if mutant!(RefusalIsDone) => Ok(Outcome::Done),
        Confirm::Refused { class: ErrorClass::Transient, error, .. } if unwell => Err(error),
        Confirm::Refused { class, error, after } => Ok(Outcome::Failed { class, error, after }),
        Confirm::Unknown { .. } if mutant!(UnknownIsDone) => Ok(Outcome::Done),
        Confirm::Unknown { error } if unwell => Err(error),
        Confirm::Unknown { error } => {
            let wrong = mutant!(UnknownNotNoted);
            let class = if wrong { ErrorClass::Transient } else { ErrorClass::Unknown };
            Ok(Outcome::Failed { class, error, after: None })
        }
        Confirm::Down { error } => Err(error),
    }
}

#[async_trait]
impl<P: Publisher> Destination for ToBroker<P> {
    async fn deliver(&self, store: &Arc<dyn Store>, mut batch: Batch) -> Delivery {
        if mutant!(MarkBeforeConfirm) {
            let mut marked = batch.clone();
            while let Some(index) = marked.next() {
                marked.settle(index, Outcome::Done);
            }
            let Some(change) = marked.finish().0 else {
                return Delivery::Void(Error::new(Kind::StoreFailed, "nothing to mark"));
            };
            return match store.record(std::slice::from_ref(&change)).await {
                Ok(()) => {
                    self.publish(&mut batch).await;
                    Delivery::Recorded { change, rest: Vec::new(), down: None }
                }
                Err(error) => Delivery::Void(error),
            };
        }
        self.hand_over(batch).await
    }

    fn one_transaction(&self) -> bool {
        false
    }

    fn failure_fails_later(&self) -> bool {
        self.publisher.capabilities().failure_fails_later
    }

    /// As many as fill the publisher's window, of events of usual size: what waits for room would be sent by an owner that
    /// may have been replaced meanwhile.
    fn batches_at_once(&self, batch: usize) -> usize {
        let fitting = self.publisher.window().map(|window| window / batch.max(1));
        fitting.unwrap_or(CONCURRENCY).clamp(CONCURRENCY, usize::from(LANES))
    }

    fn describe(&self) -> String {
        self.publisher.name().to_owned()
    }

    async fn close(&self) {
        self.publisher.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Capabilities;
    use crate::clock::{Clock, Instant};
    use crate::event::{Event, NewEvent};
    use crate::relay::{wave_of_keys, waves_of_one_key};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// Takes its time: no wave ends before this moment.
    struct Slow {
        waves: Mutex<Vec<usize>>,
        largest: usize,
        clock: Clock,
        until: Instant,
    }

    #[async_trait]
    impl Publisher for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
            self.waves.lock().unwrap().push(events.len());
            while self.clock.now() < self.until {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            events.iter().map(|_| Confirm::Stored).collect()
        }

        fn largest_wave(&self) -> usize {
            self.largest
        }
    }

    /// Sizes of the waves handed over to a publisher that wants at most so many at once, by an owner whose lease ends at
    /// this moment, and with the first wave.
    async fn waves(batch: Batch, largest: usize, lapses: Option<Duration>) -> Vec<usize> {
        let (clock, lapses, events) = (Clock::start(), lapses.map(Instant::at), batch.len());
        let (waves, until) = (Mutex::default(), lapses.unwrap_or_default());
        let mut batch = batch.lapsing(lapses).timed_by(clock.clone());
        let broker = ToBroker::new(Slow { waves, largest, clock, until });
        assert_eq!(broker.publish(&mut batch).await, None);
        let waves = broker.publisher.waves.into_inner().unwrap();
        let handed_over: usize = waves.iter().sum();
        let (change, rest) = batch.finish();
        assert_eq!(change.map_or(0, |change| change.delivered as usize), handed_over);
        assert_eq!(rest.len(), events - handed_over, "the rest goes back to the lane");
        waves
    }

    #[tokio::test]
    async fn an_owner_past_its_lease_hands_over_no_further_wave() {
        let one_by_one = |lapses| waves(waves_of_one_key(5), usize::MAX, lapses);
        assert_eq!(one_by_one(None).await, [1; 5]);
        assert_eq!(one_by_one(Some(Duration::ZERO)).await, [0_usize; 0]);
        assert_eq!(one_by_one(Some(Duration::from_secs(1))).await, [1]);
    }

    #[tokio::test]
    async fn a_wave_is_no_larger_than_its_publisher_wants() {
        let keys = ["a", "b", "c", "d", "e"];
        let at_most = |largest, lapses| waves(wave_of_keys(&keys), largest, lapses);
        assert_eq!(at_most(usize::MAX, None).await, [5]);
        assert_eq!(at_most(2, None).await, [2, 2, 1]);
        assert_eq!(at_most(0, None).await, [1; 5], "nothing would never end");
        assert_eq!(at_most(2, Some(Duration::from_secs(1))).await, [2]);
    }

    /// Answers every event alike, or not at all; where it has a limit, never.
    #[derive(Default)]
    struct Alike {
        confirm: Option<Confirm>,
        promises: bool,
        unwell_means_down: bool,
        limit: Option<Duration>,
        window: Option<usize>,
        closed: AtomicBool,
    }

    #[async_trait]
    impl Publisher for Alike {
        fn name(&self) -> &'static str {
            "alike"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities {
                failure_fails_later: self.promises,
                down_if_nothing_is_taken: self.unwell_means_down,
                ..Capabilities::default()
            }
        }

        async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
            match self.limit {
                Some(_) => std::future::pending().await,
                None => tokio::task::yield_now().await,
            }
            events.iter().filter_map(|_| self.confirm.clone()).collect()
        }

        fn publish_limit(&self) -> Option<Duration> {
            self.limit
        }

        fn window(&self) -> Option<usize> {
            self.window
        }

        async fn close(&self) {
            self.closed.store(true, Ordering::SeqCst);
        }
    }

    fn down() -> Option<Confirm> {
        Some(Confirm::Down { error: "refused".into() })
    }

    async fn handed_over(confirm: Option<Confirm>, batch: Batch) -> Delivery {
        ToBroker::new(Alike { confirm, ..Alike::default() }).hand_over(batch).await
    }

    #[test]
    fn as_many_lanes_hand_over_as_fill_the_window_within_bounds() {
        let lanes = |window, batch| {
            ToBroker::new(Alike { window, ..Alike::default() }).batches_at_once(batch)
        };
        assert_eq!(lanes(None, 50), CONCURRENCY);
        assert_eq!((lanes(Some(1000), 50), lanes(Some(1049), 50)), (20, 20));
        assert_eq!(
            (lanes(Some(10_000), 50), lanes(Some(1000), 1)),
            (64, 64),
            "no more than there are"
        );
        assert_eq!((lanes(Some(10), 50), lanes(Some(1000), 0)), (CONCURRENCY, 64));
    }

    #[tokio::test]
    async fn a_destination_that_is_down_or_silent_leaves_the_events_untouched() {
        for (confirm, why) in [(down(), "refused"), (None, "nothing was decided")] {
            let delivery = handed_over(confirm, waves_of_one_key(2)).await;
            let Delivery::Down { items, reason } = delivery else { panic!("{delivery:?}") };
            assert_eq!((items.len(), reason.as_str()), (2, why));
        }
    }

    #[tokio::test]
    async fn events_that_are_to_blame_fail_where_others_find_the_destination_down() {
        let delivery = handed_over(down(), waves_of_one_key(2).blamed()).await;
        let Delivery::Decided { change, rest, down: None } = delivery else {
            panic!("{delivery:?}")
        };
        let parked = &change.parked[0];
        assert_eq!((parked.attempts, parked.error.as_str()), (1, "refused"));
        assert_eq!((change.waiting.len(), rest.len()), (2, 0));
    }

    #[tokio::test]
    async fn a_batch_past_its_lease_is_void_and_says_nothing_of_the_destination() {
        let late = waves_of_one_key(1).lapsing(Some(Instant::ZERO)).timed_by(Clock::start());
        let delivery = handed_over(Some(Confirm::Stored), late).await;
        assert!(
            matches!(&delivery, Delivery::Void(error) if error.kind() == Kind::Stale),
            "{delivery:?}"
        );
    }

    #[test]
    fn only_what_is_stored_is_done() {
        let (class, error, after) = (ErrorClass::Poison, "too large".to_owned(), None);
        let failed = |class| Ok(Outcome::Failed { class, error: error.clone(), after });
        assert_eq!(outcome(Confirm::Stored, false), Ok(Outcome::Done));
        let refused = |class| Confirm::Refused { class, error: error.clone(), after };
        let unknown = Confirm::Unknown { error: error.clone() };
        assert_eq!(outcome(refused(class), false), failed(class));
        assert_eq!(outcome(unknown.clone(), false), failed(ErrorClass::Unknown));
        // Of a destination that takes nothing only what is said of the event itself is believed.
        assert_eq!(outcome(refused(class), true), failed(class));
        assert_eq!(outcome(refused(ErrorClass::Transient), true), Err(error.clone()));
        assert_eq!(outcome(unknown, true), Err(error.clone()));
        assert_eq!(outcome(Confirm::Down { error: error.clone() }, false), Err(error));
    }

    #[test]
    fn a_destination_that_says_when_to_come_again_is_believed() {
        let (class, after) = (ErrorClass::Transient, Some(Duration::from_secs(7)));
        let refused = Confirm::Refused { class, error: "busy".into(), after };
        let failed = Outcome::Failed { class, error: "busy".into(), after };
        assert_eq!(outcome(refused, false), Ok(failed));
    }

    fn transient() -> Confirm {
        Confirm::Refused { class: ErrorClass::Transient, error: "no leader".into(), after: None }
    }

    #[tokio::test]
    async fn a_broker_that_takes_nothing_is_down_and_one_that_takes_something_is_not() {
        for confirm in [transient(), Confirm::Unknown { error: "silence".into() }] {
            let broker = |keys: &[&str]| {
                let confirm = Some(confirm.clone());
                let broker = Alike { confirm, unwell_means_down: true, ..Alike::default() };
                (ToBroker::new(broker), wave_of_keys(keys))
            };
            let (three, batch) = broker(&["a", "b", "c"]);
            assert!(matches!(three.hand_over(batch).await, Delivery::Down { .. }));
            // Fewer may have themselves to blame.
            let (two, batch) = broker(&["a", "b"]);
            let delivery = two.hand_over(batch).await;
            let Delivery::Decided { change, down: None, .. } = delivery else {
                panic!("{delivery:?}")
            };
            assert_eq!(change.parked.len(), 2);
            let probe = two.hand_over(wave_of_keys(&["c"])).await;
            assert!(matches!(probe, Delivery::Down { .. }), "the third in a row: {probe:?}");
            let blamed = two.hand_over(wave_of_keys(&["d"]).blamed()).await;
            assert!(matches!(blamed, Delivery::Decided { .. }), "{blamed:?}");
        }
    }

    #[test]
    fn only_different_events_in_a_row_make_a_destination_unwell() {
        let events = ["a", "b", "c", "d"]
            .map(|key| Event::stored(NewEvent::bytes("t", vec![]).key(key), chrono::Utc::now()));
        let unwell = NotTaken::default();
        let wave =
            |n: usize, confirm: &Confirm| unwell.all(&[&events[n]], std::slice::from_ref(confirm));
        let poison = Confirm::Refused { class: ErrorClass::Poison, error: "x".into(), after: None };
        for _ in 0..5 {
            assert!(!wave(0, &transient()), "one event, however often");
        }
        assert!(!wave(1, &transient()));
        assert!(!wave(2, &poison), "that is said of the event");
        assert!(wave(3, &transient()) && wave(3, &transient()));
        assert!(!wave(0, &Confirm::Stored) && !wave(1, &transient()), "it took one");
    }

    #[tokio::test]
    async fn a_batch_is_waited_for_as_long_as_its_adapter_says() {
        let confirms = async |limit: Option<Duration>| {
            let confirm = Some(Confirm::Stored);
            let broker = ToBroker::new(Alike { confirm, limit, ..Alike::default() });
            let event = Event::stored(NewEvent::bytes("t", vec![]), chrono::Utc::now());
            broker.confirms(&[&event, &event]).await
        };
        let (stored, late) = (Confirm::Stored, "no confirm within 1ms".to_owned());
        assert_eq!(confirms(None).await, [stored.clone(), stored]);
        let late = Confirm::Unknown { error: late };
        assert_eq!(confirms(Some(Duration::from_millis(1))).await, [late.clone(), late]);
    }

    #[tokio::test]
    async fn a_relay_to_a_broker_is_what_its_publisher_is() {
        for promises in [false, true] {
            let broker = ToBroker::new(Alike { promises, ..Alike::default() });
            assert_eq!(broker.failure_fails_later(), promises);
            assert_eq!(broker.describe(), "alike");
            assert!(!broker.one_transaction(), "what is confirmed is recorded afterwards");
            broker.close().await;
            assert!(broker.publisher.closed.load(Ordering::SeqCst));
        }
    }
}
