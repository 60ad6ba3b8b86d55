//! What is RabbitMQ's own: exchanges that are missing, limits of the server, ladders, alarms, TLS, topology.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

#[path = "rabbitmq/cloudevents.rs"]
mod cloudevents;
#[path = "rabbitmq/rights.rs"]
mod rights;

use relevo_brokers::rabbitmq::topology::{RabbitMqAdmin, RabbitMqTopology};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSubscriber};
use relevo_core::broker::{
    Act as Step, Confirm, Incoming, Plan, Publisher, Received, Receiver, Settle, Subscriber,
    Topology, dead_header,
};
use relevo_core::event::{Event, NewEvent, TopicFilter};
use relevo_core::retry::RetryPolicy;
use relevo_core::{ErrorClass, Kind};
use relevo_testkit::eventually;
use relevo_testkit::services::{
    self, Certificates, ClientCertificates, Proxy, RabbitMq, RabbitMqOptions,
};
use relevo_tests::script::{Act, Script};
use relevo_tests::world::{MemoryWorld, Terms, World, quick};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn run(work: impl AsyncFnOnce()) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(work());
}

fn event(topic: &str, payload: &[u8]) -> Event {
    Event::stored(NewEvent::bytes(topic, payload.to_vec()), chrono::Utc::now())
}

async fn publish(publisher: &RabbitMqPublisher, events: &[Event]) -> Vec<Confirm> {
    publisher.publish(&events.iter().collect::<Vec<_>>()).await
}

fn class_of(confirm: &Confirm) -> Option<ErrorClass> {
    match confirm {
        Confirm::Refused { class, .. } => Some(*class),
        _ => None,
    }
}

fn topology(json: serde_json::Value) -> RabbitMqTopology {
    serde_json::from_value(json).unwrap()
}

/// A virtual host of its own on the server that all tests share.
async fn fresh() -> Option<(Arc<RabbitMq>, String)> {
    let started = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let server = services::require(started)?;
    let url = server.fresh_vhost().unwrap();
    Some((server, url))
}

fn admin(server: &RabbitMq, url: &str, wanted: &RabbitMqTopology) -> RabbitMqAdmin {
    let config = RabbitMqConfig::to(url).unwrap();
    RabbitMqAdmin::new(config, wanted).management_port(server.management().port())
}

async fn one(receiver: &mut Box<dyn Receiver>) -> Incoming {
    let next = tokio::time::timeout(relevo_testkit::PATIENCE, receiver.next(1)).await;
    match next.expect("a message comes").unwrap() {
        Received::Messages { mut messages, .. } => messages.remove(0),
        other => panic!("{other:?}"),
    }
}

fn shop() -> RabbitMqTopology {
    shop_with("quorum")
}

/// The same with queues of this kind.
fn shop_with(kind: &str) -> RabbitMqTopology {
    topology(json!({
        "exchanges": {"events": {}},
        "queues": {"jobs": {
            "kind": kind, "bind": {"events": ["jobs.#"]}, "dead_letters": "dead",
            "retry": ["1s", "20s"], "single_active_consumer": true,
        }},
    }))
}

#[test]
fn a_message_to_a_missing_exchange_is_refused_and_the_others_go_on() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        admin(&server, &url, &shop()).apply(false).await.unwrap();
        let config = RabbitMqConfig::to(&url).unwrap().exchange("events");
        let config = config.route(TopicFilter::parse("lost.#").unwrap(), "not-there");
        let publisher = RabbitMqPublisher::new(config);
        let events: Vec<Event> = (0..20)
            .map(|n| event(if n % 5 == 2 { "lost.one" } else { "jobs.one" }, b"x"))
            .collect();
        for (n, confirm) in publish(&publisher, &events).await.iter().enumerate() {
            let expected = (n % 5 == 2).then_some(ErrorClass::Permanent);
            assert_eq!(class_of(confirm), expected, "{n}: {confirm:?}");
            assert!(expected.is_some() || *confirm == Confirm::Stored, "{confirm:?}");
        }
    });
}

/// The broker has heard of a consumer that nobody waits for any more: it must not keep messages for it.
#[test]
fn a_subscriber_that_gives_up_while_it_opens_leaves_no_consumer_behind() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        admin(&server, &url, &shop()).apply(false).await.unwrap();
        let proxy = Proxy::start(server.address()).unwrap();
        proxy.hold_replies_to("jobs");
        let config = RabbitMqConfig::to(&proxy.url(&url)).unwrap();
        let config = config.connect_timeout(Duration::from_secs(5));
        let opened = RabbitMqSubscriber::new(config, "jobs").open().await;
        let why = opened.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(proxy.holds_replies() && why.contains("consuming took longer"), "{why}");
        proxy.heal();
        let config = RabbitMqConfig::to(&url).unwrap().exchange("events");
        let mut next = RabbitMqSubscriber::new(config.clone(), "jobs").open().await.unwrap();
        let publisher = RabbitMqPublisher::new(config);
        assert_eq!(publish(&publisher, &[event("jobs.a", b"1")]).await, [Confirm::Stored]);
        assert_eq!(one(&mut next).await.topic, "jobs.a");
    });
}

#[test]
fn without_its_exchange_the_destination_is_down_and_comes_back_with_it() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        let publisher =
            RabbitMqPublisher::new(RabbitMqConfig::to(&url).unwrap().exchange("events"));
        let confirms = publish(&publisher, &[event("jobs.a", b"1"), event("jobs.b", b"2")]).await;
        let down = |c: &Confirm| matches!(c, Confirm::Down { error } if error.contains("events"));
        assert!(confirms.iter().all(down), "{confirms:?}");
        admin(&server, &url, &shop()).apply(false).await.unwrap();
        assert_eq!(publish(&publisher, &[event("jobs.a", b"1")]).await, [Confirm::Stored]);
    });
}

#[test]
fn what_the_server_finds_too_large_is_poison_and_its_neighbours_are_stored() {
    run(async || {
        let options = RabbitMqOptions::new().line("max_message_size = 4096");
        let started = tokio::task::spawn_blocking(move || RabbitMq::start_with(&options)).await;
        let Some(server) = services::require(started.unwrap()) else { return };
        let url = server.fresh_vhost().unwrap();
        admin(&server, &url, &shop()).apply(false).await.unwrap();
        let publisher =
            RabbitMqPublisher::new(RabbitMqConfig::to(&url).unwrap().exchange("events"));
        for _ in 0..2 {
            let mut events: Vec<Event> = (0..6).map(|_| event("jobs.small", b"x")).collect();
            events.insert(3, event("jobs.large", &[b'x'; 5000]));
            let confirms = publish(&publisher, &events).await;
            assert_eq!(class_of(&confirms[3]), Some(ErrorClass::Poison), "{confirms:?}");
            let stored = confirms.iter().filter(|c| **c == Confirm::Stored).count();
            assert_eq!(stored, 6, "{confirms:?}");
        }
    });
}

#[test]
fn a_broker_without_memory_is_down_within_the_limit_and_what_it_was_sent_is_unknown() {
    run(async || {
        let options = RabbitMqOptions::new().line("vm_memory_high_watermark.absolute = 1MB");
        let started = tokio::task::spawn_blocking(move || RabbitMq::start_with(&options)).await;
        let Some(server) = services::require(started.unwrap()) else { return };
        let config = RabbitMqConfig::to(&server.url()).unwrap();
        let publisher = RabbitMqPublisher::new(config.blocked_limit(Duration::from_secs(1)));
        // A connection learns of the alarm by its first message, which the broker may take when it is over.
        let sent = publish(&publisher, &[event("jobs.a", b"1"), event("jobs.b", b"2")]).await;
        let is_unknown =
            |c: &Confirm| matches!(c, Confirm::Unknown { error } if error.contains("blocked"));
        assert!(sent.len() == 2 && sent.iter().all(is_unknown), "{sent:?}");
        // Nothing more is sent.
        let unsent = publish(&publisher, &[event("jobs.a", b"1"), event("jobs.b", b"2")]).await;
        let is_down =
            |c: &Confirm| matches!(c, Confirm::Down { error } if error.contains("blocked"));
        assert!(unsent.len() == 2 && unsent.iter().all(is_down), "{unsent:?}");
        publisher.close().await;
    });
}

#[test]
fn a_retry_climbs_the_ladder_and_keeps_its_topic() {
    run(async || {
        for kind in ["quorum", "classic"] {
            let Some((server, url)) = fresh().await else { return };
            climbs_the_ladder(&server, &url, &shop_with(kind)).await;
        }
    });
}

async fn climbs_the_ladder(server: &RabbitMq, url: &str, shop: &RabbitMqTopology) {
    admin(server, url, shop).apply(false).await.unwrap();
    let config = RabbitMqConfig::to(url).unwrap().exchange("events");
    let publisher = RabbitMqPublisher::new(config.clone());
    let sent = event("jobs.made", b"bytes");
    assert_eq!(publish(&publisher, std::slice::from_ref(&sent)).await, [Confirm::Stored]);
    let subscriber = RabbitMqSubscriber::new(config, "jobs").retry_ladder(shop.ladder("jobs"));
    let mut receiver = subscriber.open().await.unwrap();
    let first = one(&mut receiver).await;
    let began = Instant::now();
    let later = Settle::RetryAfter(Duration::from_millis(600));
    receiver.settle(&[(first.tag, later)]).await.unwrap();
    // It waits at the broker, not here: another consumer may get it.
    receiver.close().await.unwrap();
    let mut receiver = subscriber.open().await.unwrap();
    let again = one(&mut receiver).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "the rung of a second");
    assert_eq!((again.topic.as_str(), &again.payload[..]), ("jobs.made", &b"bytes"[..]));
    assert_eq!(again.message_id, Some(sent.id.to_string()));
    receiver.settle(&[(again.tag, Settle::Done)]).await.unwrap();
}

#[test]
fn a_consumer_climbs_both_rungs_and_leaves_the_dead_to_the_broker() {
    run(async || {
        for kind in ["quorum", "classic"] {
            let Some((server, url)) = fresh().await else { return };
            let two_rungs = topology(json!({
                "exchanges": {"events": {}},
                "queues": {"jobs": {"kind": kind, "bind": {"events": ["jobs.#"]},
                    "dead_letters": "dead", "retry": ["1s", "2s"]}},
            }));
            climbs_both_rungs(&server, &url, two_rungs).await;
        }
    });
}

async fn climbs_both_rungs(server: &RabbitMq, url: &str, wanted: RabbitMqTopology) {
    admin(server, url, &wanted).apply(false).await.unwrap();
    let config = RabbitMqConfig::to(url).unwrap().exchange("events");
    let script = Script::new(|_, _| Act::Fail("no paper"));
    let subscriber = RabbitMqSubscriber::new(config.clone(), "jobs")
        .retry_ladder(wanted.ladder("jobs"))
        .dead_letters(wanted.dead_letters("jobs").unwrap());
    let ladder = RetryPolicy::ladder([Duration::from_secs(1), Duration::from_secs(2)]);
    let terms = Terms { at_broker: Some(ladder), ..quick().into() };
    let world = MemoryWorld::fresh().await.unwrap();
    let consuming = world.consume("jobs", Box::new(subscriber), terms, &script).await.unwrap();
    let sent = event("jobs.made", b"bytes");
    let publisher = RabbitMqPublisher::new(config.clone());
    assert_eq!(publish(&publisher, std::slice::from_ref(&sent)).await, [Confirm::Stored]);
    let mut dead = RabbitMqSubscriber::new(config, "jobs.dead").open().await.unwrap();
    let letter = one(&mut dead).await;
    let times = script.times(sent.id);
    let waits: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.len() == 2 && waits[0] >= Duration::from_secs(1), "{waits:?}");
    assert!(waits[1] >= Duration::from_secs(2), "the second rung: {waits:?}");
    assert_eq!((letter.topic.as_str(), &letter.payload[..]), ("jobs.made", &b"bytes"[..]));
    assert_eq!(letter.header(dead_header::ATTEMPTS), Some("3"));
    let reason = letter.header(dead_header::REASON).unwrap();
    assert!(reason.contains("attempt 3") && reason.contains("no paper"), "{reason}");
    assert!(world.operate().peek(0, 10).await.unwrap().is_empty(), "nothing landed");
    consuming.stop(relevo_testkit::PATIENCE).await.unwrap();
}

#[test]
fn without_a_ladder_a_message_waits_here_and_its_deliveries_are_counted() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        let plain = json!({"exchanges": {"events": {}}, "queues": {"jobs": {
            "kind": "classic", "bind": {"events": ["jobs.#"]}}}});
        admin(&server, &url, &topology(plain)).apply(false).await.unwrap();
        let config = RabbitMqConfig::to(&url).unwrap().exchange("events");
        let publisher = RabbitMqPublisher::new(config.clone());
        assert_eq!(publish(&publisher, &[event("jobs.a", b"1")]).await, [Confirm::Stored]);
        let mut receiver = RabbitMqSubscriber::new(config, "jobs").open().await.unwrap();
        for deliveries in 1..=4 {
            let message = one(&mut receiver).await;
            assert_eq!((message.deliveries, message.redelivered), (deliveries, deliveries > 1));
            let again = Settle::RetryAfter(Duration::from_millis(10));
            receiver.settle(&[(message.tag, again)]).await.unwrap();
        }
    });
}

#[test]
fn giving_up_without_a_place_for_it_is_an_error_and_the_message_stays() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        admin(&server, &url, &shop()).apply(false).await.unwrap();
        let config = RabbitMqConfig::to(&url).unwrap().exchange("events");
        let publisher = RabbitMqPublisher::new(config.clone());
        assert_eq!(publish(&publisher, &[event("jobs.a", b"1")]).await, [Confirm::Stored]);
        let subscriber = RabbitMqSubscriber::new(config, "jobs");
        let mut receiver = subscriber.open().await.unwrap();
        let message = one(&mut receiver).await;
        let dead = Settle::Dead { reason: "no".into() };
        let refused = receiver.settle(&[(message.tag, dead)]).await.unwrap_err();
        assert!(refused.to_string().contains("dead-letter"), "{refused}");
        drop(receiver);
        one(&mut subscriber.open().await.unwrap()).await;
    });
}

#[test]
fn a_topology_is_planned_applied_once_and_found_as_wanted() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        let admin_of = |wanted: &RabbitMqTopology| admin(&server, &url, wanted);
        let plan = admin_of(&shop()).plan().await.unwrap();
        assert!(plan.steps.iter().all(|step| step.act == Step::Create), "{plan:?}");
        assert_eq!(
            admin_of(&shop()).apply(false).await.unwrap(),
            plan,
            "nothing was made meanwhile"
        );
        eventually("it is as wanted", async || {
            admin_of(&shop()).plan().await.ok().filter(Plan::is_done)
        })
        .await;
        let again = admin_of(&shop()).apply(false).await.unwrap();
        assert!(again.is_done(), "applying twice does nothing: {again:?}");
    });
}

#[test]
fn a_change_that_would_lose_messages_needs_force() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        admin(&server, &url, &shop()).apply(false).await.unwrap();
        let mut other = json!({"exchanges": {"events": {}}, "queues": {"jobs": {
            "kind": "classic", "bind": {"events": ["jobs.#"]}}}});
        let changed = admin(&server, &url, &topology(other.clone()));
        let plan = changed.plan().await.unwrap();
        let step = plan.steps.iter().find(|step| step.name == "jobs").unwrap();
        assert_eq!(step.act, Step::Replace, "{plan:?}");
        let refused = changed.apply(false).await.unwrap_err();
        assert!(refused.to_string().contains("would lose messages"), "{refused}");
        changed.apply(true).await.unwrap();
        let publisher =
            RabbitMqPublisher::new(RabbitMqConfig::to(&url).unwrap().exchange("events"));
        let stored = publish(&publisher, &[event("jobs.a", b"1")]).await;
        assert_eq!(stored, [Confirm::Stored], "the queue that was made anew is bound");
        other["queues"]["jobs"]["bind"] = json!({"events": ["other.#"]});
        let stray = admin(&server, &url, &topology(other));
        let found = eventually("the binding that is not wanted", async || {
            let plan = stray.plan().await.ok()?;
            plan.steps.iter().any(|step| step.act == Step::Delete).then_some(plan)
        })
        .await;
        assert!(found.allow(false).is_err(), "{found:?}");
        stray.apply(true).await.unwrap();
        eventually("it is gone", async || stray.plan().await.ok().filter(Plan::is_done)).await;
        let confirms = publish(&publisher, &[event("jobs.a", b"1"), event("other.a", b"2")]).await;
        assert_eq!(class_of(&confirms[0]), Some(ErrorClass::Permanent), "nobody gets it any more");
        assert_eq!(confirms[1], Confirm::Stored);
    });
}

#[test]
fn an_exchange_that_is_replaced_keeps_the_named_bindings_and_says_which_others_go() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        let of_others = json!({"exchanges": {"events": {}, "copies": {}},
            "queues": {"audit": {"bind": {"events": ["#"], "copies": ["#"]}}}});
        admin(&server, &url, &topology(of_others)).apply(false).await.unwrap();
        let wanted = |kind: &str| {
            topology(json!({"exchanges": {"events": {"kind": kind}}, "queues": {
                "jobs": {"bind": {"events": ["jobs.#"]}}, "bills": {"bind": {"events": ["bill.#"]}}}}))
        };
        admin(&server, &url, &wanted("topic")).apply(false).await.unwrap();
        let changed = admin(&server, &url, &wanted("fanout"));
        let plan = eventually("both bindings are as wanted", async || {
            let plan = changed.plan().await.ok()?;
            let done = plan.steps.iter().filter(|step| step.act == Step::Ok).count();
            (done == plan.steps.len() - 1).then_some(plan)
        })
        .await;
        let step = plan.steps.iter().find(|step| step.act == Step::Replace).unwrap();
        assert_eq!((step.what, step.name.as_str()), ("exchange", "events"));
        let told = "not named here, these bindings would go: events -> audit";
        assert!(step.text.ends_with(told), "{plan:?}");
        assert_eq!(changed.apply(false).await.unwrap_err().kind(), Kind::LosesMessages);
        changed.apply(true).await.unwrap();
        eventually("it is as wanted", async || changed.plan().await.ok().filter(Plan::is_done))
            .await;
        let config = RabbitMqConfig::to(&url).unwrap().exchange("events");
        let publisher = RabbitMqPublisher::new(config.clone());
        assert_eq!(publish(&publisher, &[event("any", b"1")]).await, [Confirm::Stored]);
        for queue in ["jobs", "bills"] {
            let subscriber = RabbitMqSubscriber::new(config.clone(), queue);
            assert_eq!(one(&mut subscriber.open().await.unwrap()).await.topic, "any");
        }
        // Replaced in its turn, the queue that is named nowhere else loses its other binding as well.
        let classic = topology(json!({"queues": {"audit": {"kind": "classic"}}}));
        let classic = admin(&server, &url, &classic);
        eventually("its last binding is named", async || {
            let plan = classic.plan().await.ok()?;
            plan.steps[0].text.ends_with("would go: copies -> audit").then_some(())
        })
        .await;
    });
}

#[test]
fn without_the_management_api_a_replaced_exchange_is_said_to_lose_what_nobody_can_name() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        admin(&server, &url, &shop()).apply(false).await.unwrap();
        let wanted = topology(json!({"exchanges": {"events": {"kind": "direct"}}}));
        let blind = RabbitMqAdmin::new(RabbitMqConfig::to(&url).unwrap(), &wanted);
        let plan = blind.management_port(1).plan().await.unwrap();
        let told = "; its bindings to or from what is not named here would go, if there are any";
        assert!(plan.steps[0].text.ends_with(told), "{plan:?}");
    });
}

#[test]
fn without_the_management_api_bindings_are_made_sure_of() {
    run(async || {
        let Some((_server, url)) = fresh().await else { return };
        let config = RabbitMqConfig::to(&url).unwrap();
        let admin = RabbitMqAdmin::new(config, &shop()).management_port(1);
        let done = admin.apply(false).await.unwrap();
        let ensured = done.steps.iter().filter(|step| step.act == Step::Ensure).count();
        assert_eq!(ensured, 2, "{done:?}");
        let publisher =
            RabbitMqPublisher::new(RabbitMqConfig::to(&url).unwrap().exchange("events"));
        assert_eq!(publish(&publisher, &[event("jobs.a", b"1")]).await, [Confirm::Stored]);
        assert!(admin.plan().await.unwrap().is_done());
    });
}

#[test]
fn the_readme_names_the_version_that_the_tests_run_on() {
    run(async || {
        let Some((server, _)) = fresh().await else { return };
        let about: serde_json::Value =
            serde_json::from_str(&server.api("GET", "/api/overview", "").unwrap()).unwrap();
        let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
        let readme = std::fs::read_to_string(readme).unwrap();
        let row = readme.lines().find_map(|line| line.strip_prefix("| RabbitMQ | ")).unwrap();
        let (rabbitmq, erlang) = row.trim_end_matches(" |").split_once(" on Erlang ").unwrap();
        assert_eq!(about["rabbitmq_version"], rabbitmq);
        assert!(about["erlang_version"].as_str().unwrap().starts_with(erlang), "{about}");
    });
}

#[test]
fn over_tls_the_name_is_checked_and_a_certificate_is_shown() {
    run(async || {
        // Not for 127.0.0.1, which is the same server by another name.
        let certificates = Certificates::for_names(&["localhost"]).unwrap();
        let options = RabbitMqOptions::new().tls(&certificates, ClientCertificates::Required);
        let started = tokio::task::spawn_blocking(move || RabbitMq::start_with(&options)).await;
        let Some(server) = services::require(started.unwrap()) else { return };
        let files = server.tls_files().unwrap();
        let by_address = server.tls_url(&server.fresh_vhost().unwrap());
        let by_name = by_address.replace("127.0.0.1", "localhost");
        let trusting = |url: &str| RabbitMqConfig::to(url).unwrap().ca_file(&files.ca).unwrap();
        let showing =
            |url: &str| trusting(url).client_certificate(&files.certificate, &files.key).unwrap();
        let send = async |config: RabbitMqConfig| {
            let publisher = RabbitMqPublisher::new(config.connect_timeout(Duration::from_secs(15)));
            publish(&publisher, &[event("nobody", b"1")]).await.remove(0)
        };
        // Nobody is bound to it: that is the answer of a broker that was reached.
        let reached = send(showing(&by_name)).await;
        assert_eq!(class_of(&reached), Some(ErrorClass::Permanent), "{reached:?}");
        let is_down = |confirm: &Confirm| matches!(confirm, Confirm::Down { .. });
        let anonymous = send(trusting(&by_name)).await;
        assert!(is_down(&anonymous), "without a certificate: {anonymous:?}");
        let untrusted = send(RabbitMqConfig::to(&by_name).unwrap()).await;
        assert!(is_down(&untrusted), "an unknown authority: {untrusted:?}");
        let misnamed = send(showing(&by_address)).await;
        assert!(is_down(&misnamed), "another name: {misnamed:?}");
    });
}
