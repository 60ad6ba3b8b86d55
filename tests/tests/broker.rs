//! The relay to a broker, on every store: published in order, recorded after the confirm, down without parking.

use relevo_brokers::http::{HttpConfig, HttpPublisher};
use relevo_core::ErrorClass;
use relevo_core::broker::{Confirm, ToBroker};
use relevo_core::clock::{Clock, Instant, Rng};
use relevo_core::dead_letters::{DeadFilter, Why};
use relevo_core::event::lane_of;
use relevo_core::outbox::Subscription;
use relevo_core::relay::run::{Destination, Running, start};
use relevo_core::relay::{Action, Batch, Delivery, Input, Relay};
use relevo_testkit::eventually;
use relevo_tests::broker::FakeBroker;
use relevo_tests::engine::run;
use relevo_tests::world::{
    MemoryWorld, PgHandlers, PostgresWorld, SqliteHandlers, SqliteWorld, World, event, member,
    quick, stop,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

fn on_every_store(test: impl AsyncFn(Arc<dyn World>)) {
    run(async || {
        test(Arc::new(MemoryWorld::fresh().await.expect("memory is always there"))).await;
        test(Arc::new(SqliteWorld::fresh(SqliteHandlers::Sqlx).await.expect("SQLite is built in")))
            .await;
        if let Some(world) = PostgresWorld::fresh(16, PgHandlers::Sqlx).await {
            test(Arc::new(world)).await;
        }
    });
}

async fn relay_to(world: &Arc<dyn World>, broker: &FakeBroker) -> Running {
    let destination = Arc::new(ToBroker::new(broker.clone()));
    let started =
        start(world.store(), Subscription::new("s"), quick(), destination, member("relay"));
    started.await.expect("the relay starts")
}

async fn received(broker: &FakeBroker, count: usize) {
    let what = format!("{count} messages");
    eventually(&what, async || (broker.messages().len() >= count).then_some(())).await;
    assert_eq!(broker.messages().len(), count, "more than was to be published");
}

fn refused(class: ErrorClass) -> Confirm {
    Confirm::Refused { class, error: "no such queue".into(), after: None }
}

#[test]
fn every_event_is_published_in_the_order_of_its_key() {
    on_every_store(async |world| {
        let broker = FakeBroker::new(|_, _| Confirm::Stored);
        let running = relay_to(&world, &broker).await;
        for n in 0..20 {
            world.publish((0..5).map(|k| event(&format!("key-{k}"), n)).collect()).await;
        }
        received(&broker, 100).await;
        for k in 0..5 {
            let wanted: Vec<String> = (0..20).map(|n| n.to_string()).collect();
            assert_eq!(broker.payloads(&format!("key-{k}")), wanted);
        }
        stop(running).await;
        let again = relay_to(&world, &broker).await;
        world.publish(vec![event("the-last", 0)]).await;
        received(&broker, 101).await;
        stop(again).await;
    });
}

#[test]
fn a_refused_event_is_tried_again_before_what_follows_it() {
    on_every_store(async |world| {
        let broker = FakeBroker::new(|event, before| match (&event.payload[..], before) {
            (b"1", 0) => refused(ErrorClass::Transient),
            (b"2", 0) => Confirm::Unknown { error: "the connection broke".into() },
            _ => Confirm::Stored,
        });
        let running = relay_to(&world, &broker).await;
        world.publish((0..4).map(|n| event("k", n)).collect()).await;
        received(&broker, 6).await;
        assert_eq!(broker.payloads("k"), ["0", "1", "1", "2", "2", "3"]);
        stop(running).await;
    });
}

#[test]
fn an_event_refused_for_good_is_a_dead_letter_and_its_key_goes_on() {
    on_every_store(async |world| {
        let poison = |payload: &[u8]| payload == b"1";
        let broker = FakeBroker::new(move |event, _| {
            if poison(&event.payload) { refused(ErrorClass::Permanent) } else { Confirm::Stored }
        });
        let running = relay_to(&world, &broker).await;
        let ids = world.publish((0..4).map(|n| event("k", n)).collect()).await;
        received(&broker, 4).await;
        let letters = eventually("the dead letter", async || {
            let letters =
                world.operate().dead_letters(&DeadFilter::default(), None, 9).await.ok()?;
            Some(letters).filter(|letters| !letters.is_empty())
        });
        let letters = letters.await;
        assert_eq!(
            (letters[0].event.id, letters[0].error.as_str(), letters.len()),
            (ids[1], "no such queue", 1)
        );
        assert_eq!(broker.payloads("k"), ["0", "1", "2", "3"]);
        stop(running).await;
    });
}

#[test]
fn while_the_broker_is_down_nothing_is_parked_and_why_shows_the_breaker() {
    on_every_store(async |world| {
        let up = Arc::new(AtomicBool::new(false));
        let seen = up.clone();
        let broker = FakeBroker::new(move |_, _| {
            if seen.load(Ordering::SeqCst) {
                Confirm::Stored
            } else {
                Confirm::Down { error: "connection refused".into() }
            }
        });
        let running = relay_to(&world, &broker).await;
        let ids =
            world.publish((0..20).map(|n| event(&format!("key-{}", n % 4), n)).collect()).await;
        let breaker = eventually("why shows the breaker", async || {
            let answer = world.operate().why(ids[0]).await.ok()?;
            let relevo_core::dead_letters::Answer::Known { subscriptions, .. } = answer else {
                return None;
            };
            subscriptions
                .into_iter()
                .find_map(|(_, why)| matches!(why, Why::BreakerOpen { .. }).then_some(why))
        });
        let breaker = breaker.await;
        assert!(
            matches!(&breaker, Why::BreakerOpen { reason, .. } if reason.contains("connection refused")),
            "{breaker:?}"
        );
        let status = world.operate().status().await.expect("status");
        assert_eq!(
            (status.subscriptions[0].parked_keys, status.subscriptions[0].dead_letters),
            (0, 0)
        );
        up.store(true, Ordering::SeqCst);
        eventually("all is published", async || {
            let stored = |n: usize| (0..5).map(|i| (4 * i + n).to_string()).collect::<Vec<_>>();
            (0..4).all(|n| broker.payloads(&format!("key-{n}")).ends_with(&stored(n))).then_some(())
        })
        .await;
        stop(running).await;
    });
}

#[test]
fn an_event_that_takes_the_broker_down_each_time_is_parked_and_the_others_go_on() {
    run(async || {
        let world: Arc<dyn World> =
            Arc::new(MemoryWorld::fresh().await.expect("memory is always there"));
        let broker = FakeBroker::new(|event, _| match event.key.as_deref() {
            Some("poison") => Confirm::Down { error: "502 Bad Gateway".into() },
            _ => Confirm::Stored,
        });
        let running = relay_to(&world, &broker).await;
        world.publish(vec![event("poison", 0)]).await;
        let mut n = 0;
        let letter = loop {
            world.publish(vec![event(&format!("key-{}", n % 7), n)]).await;
            n += 1;
            let letters = world
                .operate()
                .dead_letters(&DeadFilter::default(), None, 9)
                .await
                .expect("letters");
            if let Some(letter) = letters.into_iter().next() {
                break letter;
            }
            assert!(n < 3000, "it still stops its lane");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!(
            (letter.event.key.as_deref(), letter.error.as_str()),
            (Some("poison"), "502 Bad Gateway")
        );
        stop(running).await;
    });
}

/// What waits, in the hands of a relay on a clock of its own.
async fn in_hand(world: &dyn World) -> Batch {
    let (store, me) = (world.store(), member("relay"));
    store.subscribe(&Subscription::new("s")).await.expect("a subscription");
    let mut relay = Relay::new("s", me.clone(), quick(), false, Rng::seeded(1));
    for step in 0..50 {
        let now = Instant::at(Duration::from_millis(10) * step);
        for action in relay.poll(now) {
            let input = match action {
                Action::Beat(beat) => Input::Beat { sent: now, result: store.beat(&beat).await },
                Action::Take(claims) => {
                    let result = store.take_lanes("s", &claims, &me, 10).await;
                    Input::Taken { claims, result }
                }
                Action::ReadPage { reader, request } => {
                    Input::Page { reader, result: store.read_page(&request).await }
                }
                Action::Deliver(batch) => return *batch,
                other => panic!("{other:?}"),
            };
            relay.handle(now, input);
        }
    }
    panic!("nothing is handed over")
}

/// Answers what it is asked, and counts it, once others may have the lane of this batch.
async fn answer_late(endpoint: TcpListener, asked: Arc<AtomicUsize>, batch: Batch, clock: Clock) {
    let (peer, _) = endpoint.accept().await.expect("a connection");
    let (mut peer, mut line) = (BufReader::new(peer), String::new());
    while let Ok(1..) = peer.read_line(&mut line).await {
        if line.contains("POST ") {
            asked.fetch_add(1, Ordering::SeqCst);
            while !batch.lapses_by(clock.now()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            peer.write_all(answer).await.expect("it is still asked");
        }
        line.clear();
    }
}

#[test]
fn an_owner_past_its_lease_sends_a_slow_endpoint_nothing_more() {
    run(async || {
        let world = MemoryWorld::fresh().await.expect("memory is always there");
        let keys = (0..).map(|n| format!("key-{n}"));
        let of_a_lane = keys.filter(|key| lane_of(key) == lane_of("key-0")).take(5);
        world.publish(of_a_lane.map(|key| event(&key, 0)).collect()).await;
        let batch = in_hand(&world).await;
        assert_eq!(batch.len(), 5, "all may go at once");
        let endpoint = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", endpoint.local_addr().expect("its address"));
        let config = HttpConfig::to(&url).expect("a URL").max_in_flight(1);
        let broker = ToBroker::new(HttpPublisher::new(config));
        let (asked, clock) = (Arc::new(AtomicUsize::new(0)), Clock::start());
        tokio::spawn(answer_late(endpoint, asked.clone(), batch.clone(), clock.clone()));
        let delivery = broker.deliver(&world.store(), batch.timed_by(clock)).await;
        let Delivery::Decided { change, rest, down: None } = delivery else {
            panic!("{delivery:?}")
        };
        assert_eq!((change.delivered, rest.len()), (1, 4));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    });
}
