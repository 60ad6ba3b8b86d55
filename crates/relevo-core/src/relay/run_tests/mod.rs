//! The shell of a relay, over a log and a destination of the tests' own.
//!
//! - [`rig`]: that log and that destination
//! - [`told`]: what it counts and says in the log

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod rig;
mod told;

use super::*;
use crate::outbox::TickRef;
use rig::{Log, Sink, handing_over, heard_of, idle, shell, sink, started, working};

const TO: TickRef = TickRef { number: 5, nonce: 9 };
const LANES: [u16; 2] = [3, 4];
const LONG: Duration = Duration::from_secs(10);

#[test]
fn a_destination_that_says_nothing_else_shares_transactions_and_promises_nothing() {
    struct Plain;

    #[async_trait]
    impl Destination for Plain {
        async fn deliver(&self, _: &Arc<dyn Store>, _: Batch) -> Delivery {
            unreachable!()
        }

        fn one_transaction(&self) -> bool {
            false
        }

        fn describe(&self) -> String {
            "plain".into()
        }
    }

    assert!(Plain.shares_transactions() && !Plain.failure_fails_later());
}

#[tokio::test]
async fn a_store_is_told_whether_events_leave_it() {
    for one_transaction in [true, false] {
        let (log, ..) = working(Log::new(), sink(one_transaction)).await;
        log.has_told(&format!("subscribe outside: {}", !one_transaction)).await;
    }
}

#[tokio::test]
async fn batches_of_several_lanes_are_under_way_at_once_unless_their_effects_cannot_be() {
    for (parallel, one_transaction, most) in [(true, true, 2), (false, true, 1), (false, false, 2)]
    {
        let mut log = Log::new();
        log.capabilities.parallel_effects = parallel;
        let (_, sink, _running) = working(log, sink(one_transaction)).await;
        assert_eq!(sink.all().await, [2, 2]);
        assert_eq!(sink.most.load(Ordering::SeqCst), most, "{parallel} {one_transaction}");
    }
}

#[tokio::test]
async fn events_go_one_by_one_where_each_needs_a_transaction_of_its_own() {
    let (_, sink, _running) = working(Log::new(), Sink { alone: true, ..sink(true) }).await;
    assert_eq!(sink.all().await, [1, 1, 1, 1]);
}

#[tokio::test]
async fn a_handler_that_records_by_itself_is_refused_where_only_the_store_may_record() {
    for (direct, one_transaction, works) in
        [(true, true, true), (false, true, false), (false, false, true), (true, false, true)]
    {
        let mut log = Log::new();
        log.capabilities.direct_effects = direct;
        let started = started(&Arc::new(log), &Arc::new(sink(one_transaction))).await;
        let refused = started.err().map(|error| error.kind());
        assert_eq!(refused, (!works).then_some(Kind::NotSupported), "{direct} {one_transaction}");
    }
}

#[tokio::test]
async fn a_lane_is_taken_with_one_parked_key_more_than_may_be() {
    let (log, _sink, _running) = working(Log::new(), sink(true)).await;
    log.has_told("take 2 with 6").await;
}

#[tokio::test]
async fn a_relay_works_until_it_is_stopped_and_then_gives_back_what_it_has() {
    let (log, sink, running) = working(Log::new(), sink(false)).await;
    sink.all().await;
    // In one transaction, or in one for each lane.
    let recorded = |told: &Vec<String>| -> u64 {
        told.iter().filter_map(|line| line.strip_prefix("record ")?.parse::<u64>().ok()).sum()
    };
    heard_of(log.told.subscribe(), |told| recorded(told) == 4).await;
    heard_of(running.watch(), |counts| counts.lanes == 2).await;
    assert_eq!((running.counts().lanes, running.counts().takeovers), (2, 2));
    assert!(!running.is_over());
    running.stop(LONG).await.unwrap();
    let told = log.told.borrow().clone();
    assert_eq!(told[told.len() - 2..], ["release 2", "forget heir"]);
}

#[tokio::test]
async fn a_relay_of_a_subscription_that_was_removed_ends_and_says_so() {
    let (_, _, running) = working(Log { removed: true, ..Log::new() }, sink(true)).await;
    tokio::time::timeout(LONG, async {
        while !running.is_over() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let error = running.stop(LONG).await.unwrap_err();
    assert_eq!(error.kind(), Kind::UnknownSubscription);
}

#[tokio::test]
async fn a_stop_fails_if_what_was_handed_over_has_no_outcome_in_time() {
    let (_, sink, running) = working(Log::new(), Sink { hangs: true, ..sink(true) }).await;
    sink.all().await;
    let error = running.stop(Duration::from_millis(10)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
}

#[tokio::test]
async fn a_store_that_does_not_answer_keeps_no_relay_that_owes_nothing_from_ending() {
    let (log, sink, running) = working(Log { hangs: "release", ..Log::new() }, sink(true)).await;
    sink.all().await;
    heard_of(running.watch(), |counts| counts.lanes == 2 && !counts.due).await;
    running.stop(Duration::from_millis(500)).await.unwrap();
    log.has_told("release 2").await;
}

#[tokio::test]
async fn a_task_that_was_cancelled_has_ended_and_one_that_panicked_has_failed() {
    let by_hand = |task| Running {
        stop: watch::channel(false).0,
        counts: watch::channel(Counts::default()).1,
        owes_nothing: Arc::new(AtomicBool::new(false)),
        task,
    };
    let cancelled = by_hand(tokio::spawn(std::future::pending()));
    cancelled.task.abort();
    cancelled.stop(LONG).await.unwrap();
    let panicked = by_hand(tokio::spawn(async { panic!("on purpose") }));
    let error = panicked.stop(LONG).await.unwrap_err();
    assert_eq!(error.kind(), Kind::StoreFailed);
}

#[tokio::test]
async fn only_a_ring_wakes() {
    assert_eq!(rung(&mut None).now_or_never(), None);
    let (bell, receiver) = watch::channel(0);
    let mut receiver = Some(receiver);
    assert_eq!(rung(&mut receiver).now_or_never(), None);
    bell.send_replace(1);
    assert_eq!(rung(&mut receiver).now_or_never(), Some(()));
    assert_eq!(rung(&mut receiver).now_or_never(), None, "one that was heard");
    drop(bell);
    assert_eq!(rung(&mut receiver).now_or_never(), None);
    assert!(receiver.is_none(), "what is gone is not waited for again");
}

#[tokio::test]
async fn a_store_that_refuses_the_goodbye_matters_only_to_a_relay_that_owes_something() {
    let unheard = shell(Log { fails: "forget", ..Log::new() });
    unheard.farewell(&idle()).await.unwrap();
    let owing = handing_over().await;
    assert!(!owing.owes_nothing());
    assert_eq!(unheard.farewell(&owing).await.unwrap_err().kind(), Kind::StoreFailed);
    shell(Log::new()).farewell(&owing).await.unwrap();
}
