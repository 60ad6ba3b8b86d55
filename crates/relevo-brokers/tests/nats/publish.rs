//! A confirm means the stream that is meant, and nothing is sent but what was asked for.

use super::{consumer, event, jetstream, next, open, publish, stored, streams};
use async_nats::jetstream::stream::Config;
use relevo_brokers::nats::{NatsConfig, NatsPublisher};
use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::services::{Nats, Proxy, require, unique_name};
use std::time::Duration;

fn class(confirm: &Confirm) -> Option<ErrorClass> {
    match confirm {
        Confirm::Refused { class, .. } => Some(*class),
        _ => None,
    }
}

#[tokio::test]
async fn a_confirm_means_the_stream_that_is_meant() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let right = NatsConfig::to(&server.url()).unwrap().stream(name.as_str());
    let confirms = publish(&NatsPublisher::new(right.clone()), &[event(&topic, 1)]).await;
    assert_eq!(confirms, [Confirm::Stored]);
    let other = NatsPublisher::new(right.stream("ANOTHER"));
    let confirms = publish(&other, &[event(&topic, 2)]).await;
    assert_eq!(class(&confirms[0]), Some(ErrorClass::Permanent), "{confirms:?}");
    assert_eq!(stored(&context, &name).await, 1);
}

#[tokio::test]
async fn a_topic_that_is_no_subject_is_poison_and_commands_nothing() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    let delete = format!("$JS.API.STREAM.DELETE.{name}");
    for hostile in [delete.as_str(), "_INBOX.x", "a b", "a..b", "a.*", ">", "a\r\nPUB b 0"] {
        let confirms = publish(&publisher, &[event(&topic, 1), event(hostile, 2)]).await;
        assert_eq!(confirms[0], Confirm::Stored, "beside {hostile}");
        assert_eq!(class(&confirms[1]), Some(ErrorClass::Poison), "{hostile}: {confirms:?}");
    }
    assert_eq!(stored(&context, &name).await, 7);
}

#[tokio::test]
async fn an_applications_header_purges_nothing() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = (jetstream(&server).await, unique_name("T"));
    let config = Config {
        subjects: vec![format!("{name}.>")],
        name: name.clone(),
        allow_rollup: true,
        ..Config::default()
    };
    context.create_stream(config).await.unwrap();
    let topic = format!("{name}.a");
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    let hostile = NewEvent::bytes(&*topic, vec![]).header("Nats-Rollup", "all");
    let events = [event(&topic, 1), Event::stored(hostile, chrono::Utc::now())];
    assert_eq!(publish(&publisher, &events).await, [Confirm::Stored, Confirm::Stored]);
    assert_eq!(stored(&context, &name).await, 2);
    let mut receiver = open(&server, consumer(&name)).await;
    let came = next(&mut receiver, 2).await;
    let message = came.iter().find(|message| message.payload.is_empty()).unwrap();
    let arrived =
        message.event(&relevo_core::broker::cloudevents::Binding::NATS, &Default::default());
    assert_eq!(arrived.unwrap().event.headers.get("Nats-Rollup"), Some("all"));
}

#[tokio::test]
async fn nothing_is_sent_later_behind_the_publishers_back() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let topic = format!("{name}.a");
    let config = NatsConfig::to(&proxy.url(&server.url())).unwrap();
    let publisher = NatsPublisher::new(config.ack_timeout(Duration::from_secs(1)));
    assert_eq!(publish(&publisher, &[event(&topic, 1)]).await, [Confirm::Stored]);
    proxy.half_open();
    let silent = publish(&publisher, &[event(&topic, 2), event(&topic, 3)]).await;
    assert!(silent.iter().all(|c| matches!(c, Confirm::Unknown { .. })), "{silent:?}");
    proxy.refuse();
    let down = publish(&publisher, &[event(&topic, 4)]).await;
    assert!(matches!(down[..], [Confirm::Down { .. }]), "{down:?}");
    proxy.heal();
    let before = proxy.connections();
    assert_eq!(publish(&publisher, &[event(&topic, 5)]).await, [Confirm::Stored]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(stored(&context, &name).await, 2, "only what was confirmed");
    assert_eq!(proxy.connections(), before + 1, "nobody else came back");
}
