//! Three servers, one of which is killed.

use super::{event, jetstream, publish};
use relevo_brokers::nats::{
    NatsAdmin, NatsConfig, NatsConsumer, NatsPublisher, NatsSubscriber, NatsTopology,
};
use relevo_core::Result;
use relevo_core::broker::{Confirm, Received, Receiver, Settle, Subscriber, Topology};
use relevo_core::event::Event;
use relevo_testkit::eventually;
use relevo_testkit::services::{Nats, require};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Of three servers the stream's leader is killed while events are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_loses_nothing_that_was_confirmed() {
    let Some(cluster) = require(Nats::cluster()) else { return };
    let urls = cluster.urls().join(",");
    let config = NatsConfig::to(&urls).unwrap().ack_timeout(Duration::from_secs(3));
    let topology: NatsTopology =
        serde_json::from_str(r#"{"streams":{"R":{"subjects":["r.>"]}}}"#).unwrap();
    eventually("the stream on three servers", async || {
        NatsAdmin::new(config.clone(), topology.clone()).apply(false).await.ok()
    })
    .await;
    let publisher = NatsPublisher::new(config.clone());
    let mut confirmed = BTreeSet::new();
    let mut refused = Vec::new();
    let mut killed = None;
    let began = Instant::now();
    for batch in 0.. {
        assert!(began.elapsed() < Duration::from_secs(120), "{} confirmed", confirmed.len());
        let before = confirmed.len();
        let events: Vec<Event> = (0..20).map(|n| event("r.a", batch * 20 + n)).collect();
        for (event, confirm) in events.iter().zip(publish(&publisher, &events).await) {
            match confirm {
                Confirm::Stored => drop(confirmed.insert(event.id.to_string())),
                Confirm::Refused { error, .. } => refused.push(error),
                _ => {}
            }
        }
        if batch == 20 {
            let stream = jetstream(&cluster[0]).await.get_stream("R").await.unwrap();
            assert_eq!(stream.cached_info().config.num_replicas, 3);
            let leader = stream.cached_info().cluster.as_ref().unwrap().leader.clone().unwrap();
            let at = cluster.iter().position(|server| server.name() == leader).unwrap();
            cluster[at].kill9();
            killed = Some(confirmed.len());
        }
        if killed.is_some_and(|before| confirmed.len() > before + 400) {
            break;
        }
        if confirmed.len() == before {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert_eq!(refused, Vec::<String>::new(), "an election is no event's fault");
    let consumer = NatsConsumer::new("R", "counter").heartbeat(Duration::from_secs(1));
    let open = async || {
        eventually("a receiver", async || {
            NatsSubscriber::new(config.clone(), consumer.clone()).open().await.ok()
        })
        .await
    };
    let mut receiver = open().await;
    let began = Instant::now();
    while !confirmed.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(120), "{} are missing", confirmed.len());
        // The consumer has an election of its own. Whoever is told so opens anew, and gets what it had not settled.
        match receive(&mut receiver).await {
            Ok(ids) => ids.iter().for_each(|id| drop(confirmed.take(id))),
            Err(_) => receiver = open().await,
        }
    }
}

/// Takes some messages, and settles them.
async fn receive(receiver: &mut Box<dyn Receiver>) -> Result<Vec<String>> {
    let next = tokio::time::timeout(Duration::from_secs(30), receiver.next(200));
    let Received::Messages { messages, .. } = next.await.expect("a message comes")? else {
        return Ok(Vec::new());
    };
    let ids = messages.iter().map(|m| m.header("x-event-id").unwrap().to_owned()).collect();
    let done: Vec<_> = messages.iter().map(|m| (m.tag, Settle::Done)).collect();
    receiver.settle(&done).await.map(|()| ids)
}
