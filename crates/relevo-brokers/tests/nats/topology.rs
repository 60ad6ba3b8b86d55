//! Streams and consumers are laid out, and no message is lost by that.

use super::{event, jetstream, publish, stored};
use async_nats::jetstream::stream::RetentionPolicy;
use relevo_brokers::nats::{NatsAdmin, NatsConfig, NatsPublisher, NatsTopology};
use relevo_core::broker::{Act, Confirm, Plan, Topology};
use relevo_core::event::Event;
use relevo_testkit::services::{Nats, require, unique_name};

fn topology(name: &str, more: &str) -> NatsTopology {
    let json = format!(
        r#"{{"dead_letters":"{name}_dead","streams":{{"{name}":{{"subjects":["{name}.>"]{more},
            "consumers":{{"worker":{{"filters":["{name}.a"],"ack_wait":"10s"}}}}}}}}}}"#
    );
    serde_json::from_str(&json).unwrap()
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
