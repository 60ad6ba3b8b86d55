//! Streams and consumers are laid out, and no message is lost by that.

use super::{event, jetstream, next, publish, stored};
use async_nats::jetstream::consumer::push;
use async_nats::jetstream::stream::RetentionPolicy;
use relevo_brokers::nats::{NatsAdmin, NatsConfig, NatsPublisher, NatsSubscriber, NatsTopology};
use relevo_core::Kind;
use relevo_core::broker::{Act, Confirm, Plan, Settle, Subscriber, Topology};
use relevo_core::event::Event;
use relevo_testkit::services::{Nats, require, unique_name};
use std::time::Duration;

fn topology(name: &str, more: &str) -> NatsTopology {
    with_worker(name, more, &format!(r#""filters":["{name}.a"],"ack_wait":"10s""#))
}

/// The same, with these settings of the consumer.
fn with_worker(name: &str, more: &str, settings: &str) -> NatsTopology {
    let json = format!(
        r#"{{"dead_letters":"{name}_dead","streams":{{"{name}":{{"subjects":["{name}.>"]{more},
            "consumers":{{"worker":{{{settings}}}}}}}}}}}"#
    );
    serde_json::from_str(&json).unwrap()
}

fn of_consumers(plan: &Plan) -> Vec<(Act, &str)> {
    let steps = plan.steps.iter().filter(|step| step.what == "consumer");
    steps.map(|step| (step.act, step.text.as_str())).collect()
}

#[tokio::test]
async fn a_topology_is_applied_once_and_refuses_to_lose_messages() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = (jetstream(&server).await, unique_name("T"));
    let config = NatsConfig::to(&server.url()).unwrap();
    let admin = |more: &str| NatsAdmin::new(config.clone(), topology(&name, more));
    let acts =
        |plan: &Plan| plan.steps.iter().map(|step| (step.what, step.act)).collect::<Vec<_>>();
    let wanted = [("stream", Act::Create), ("consumer", Act::Create), ("stream", Act::Create)];
    assert_eq!(acts(&admin("").plan().await.unwrap()), wanted);
    assert_eq!(acts(&admin("").apply(false).await.unwrap()), wanted);
    assert!(admin("").plan().await.unwrap().is_done(), "{:?}", admin("").plan().await);
    assert!(admin("").apply(false).await.unwrap().is_done());
    let publisher = NatsPublisher::new(config.clone());
    let events: Vec<Event> = (0..5).map(|n| event(&format!("{name}.a"), n)).collect();
    assert_eq!(publish(&publisher, &events).await, vec![Confirm::Stored; 5]);

    let changed = admin(r#","max_messages":100,"duplicate_window":"1h","discard":"old""#);
    let plan = changed.apply(false).await.unwrap();
    assert_eq!(plan.steps[0].act, Act::Change, "{plan:?}");
    assert!(plan.steps[0].text.contains("max_messages is -1, wanted 100"), "{plan:?}");
    assert!(changed.plan().await.unwrap().is_done());

    for lossy in [r#","max_messages":2,"discard":"old""#, r#","retention":"work_queue""#] {
        let refused = admin(lossy).apply(false).await.unwrap_err();
        assert!(refused.to_string().contains("lose"), "{refused}");
        assert_eq!(stored(&context, &name).await, 5);
    }
    assert_eq!(
        admin(r#","retention":"work_queue""#).apply(true).await.unwrap().steps[0].act,
        Act::Replace
    );
    let info = context.get_stream(&name).await.unwrap();
    assert_eq!(info.cached_info().config.retention, RetentionPolicy::WorkQueue);
    assert!(admin(r#","retention":"work_queue""#).plan().await.unwrap().is_done());
    let subscriber = topology(&name, "").consumer(&name, "worker").unwrap();
    assert_eq!(subscriber.dead_letters, format!("{name}_dead"));
}

#[tokio::test]
async fn a_consumer_is_changed_where_it_is_and_keeps_its_place() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = (jetstream(&server).await, unique_name("T"));
    let config = NatsConfig::to(&server.url()).unwrap();
    NatsAdmin::new(config.clone(), topology(&name, "")).apply(false).await.unwrap();
    let publisher = NatsPublisher::new(config.clone());
    let events = ["a", "a", "b"].map(|topic| event(&format!("{name}.{topic}"), 1));
    assert_eq!(publish(&publisher, &events).await, vec![Confirm::Stored; 3]);
    let subscriber = |wanted: &NatsTopology| {
        NatsSubscriber::new(config.clone(), wanted.consumer(&name, "worker").unwrap())
    };
    let mut receiver = subscriber(&topology(&name, "")).open().await.unwrap();
    let first = next(&mut receiver, 1).await;
    receiver.settle(&[(first[0].tag, Settle::Done)]).await.unwrap();
    receiver.close().await.unwrap();

    let settings =
        format!(r#""filters":["{name}.a","{name}.b"],"ack_wait":"20s","max_ack_pending":7"#);
    let wanted = with_worker(&name, "", &settings);
    let admin = NatsAdmin::new(config.clone(), wanted.clone());
    let planned = admin.plan().await.unwrap();
    let [(Act::Change, text)] = of_consumers(&planned)[..] else { panic!("{planned:?}") };
    let filters = format!(r#"filters is ["{name}.a"], wanted ["{name}.a", "{name}.b"]"#);
    for said in [&*filters, "ack_wait is 10s, wanted 20s", "max_ack_pending is 1000, wanted 7"] {
        assert!(text.contains(said), "{text}");
    }
    assert_eq!(admin.apply(false).await.unwrap(), planned);
    let done = admin.plan().await.unwrap();
    assert_eq!(of_consumers(&done), [(Act::Ok, "")]);
    let stream = context.get_stream(&name).await.unwrap();
    let found = stream.consumer_info("worker").await.unwrap();
    assert_eq!(found.config.ack_wait, Duration::from_secs(20));
    assert_eq!((found.config.max_ack_pending, found.ack_floor.stream_sequence), (7, 1));
    let mut receiver = subscriber(&wanted).open().await.unwrap();
    let mut places = Vec::new();
    while places.len() < 2 {
        places.extend(next(&mut receiver, 2).await.into_iter().filter_map(|it| it.position));
    }
    assert_eq!(places, [format!("{name}@2"), format!("{name}@3")], "the first is settled");
}

#[tokio::test]
async fn a_consumer_that_pushes_is_replaced_by_force_only() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = (jetstream(&server).await, unique_name("T"));
    let config = NatsConfig::to(&server.url()).unwrap();
    let admin = NatsAdmin::new(config.clone(), topology(&name, ""));
    admin.apply(false).await.unwrap();
    let stream = context.get_stream(&name).await.unwrap();
    stream.delete_consumer("worker").await.unwrap();
    let pushes = push::Config {
        durable_name: Some("worker".into()),
        deliver_subject: format!("{name}_pushed"),
        filter_subject: format!("{name}.a"),
        ..push::Config::default()
    };
    stream.create_consumer(pushes).await.unwrap();
    let is_pushing =
        async || stream.consumer_info("worker").await.unwrap().config.deliver_subject.is_some();
    let planned = admin.plan().await.unwrap();
    let [(Act::Replace, text)] = of_consumers(&planned)[..] else { panic!("{planned:?}") };
    assert!(text.contains("pushes is true, wanted false"), "{text}");
    let refused = admin.apply(false).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::LosesMessages, "{refused}");
    assert!(is_pushing().await, "nothing was done");
    assert_eq!(admin.apply(true).await.unwrap(), planned);
    assert!(admin.plan().await.unwrap().is_done() && !is_pushing().await);
    let publisher = NatsPublisher::new(config.clone());
    assert_eq!(publish(&publisher, &[event(&format!("{name}.a"), 1)]).await, [Confirm::Stored]);
    let consumer = topology(&name, "").consumer(&name, "worker").unwrap();
    let mut receiver = NatsSubscriber::new(config, consumer.existing()).open().await.unwrap();
    assert_eq!(next(&mut receiver, 1).await[0].payload[..], b"payload 1"[..]);
}
