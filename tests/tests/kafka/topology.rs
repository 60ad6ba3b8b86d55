//! Topics as data.

use crate::{config, event, publish, run, shared, store, topology};
use relevo_brokers::kafka::{KafkaAdmin, KafkaPublisher};
use relevo_core::broker::{Act, Confirm, Topology};
use relevo_core::event::Event;
use relevo_testkit::eventually;
use relevo_testkit::services::unique_name;
use serde_json::{Value, json};

#[test]
fn topics_are_made_changed_and_only_by_force_replaced() {
    run(async || {
        let Some(server) = shared().await else { return };
        let (name, dead) = (unique_name("t"), unique_name("dead"));
        let admin = |like: Value| {
            let wanted = json!({"topics": {name.as_str(): like}, "dead_letters": dead.as_str()});
            KafkaAdmin::new(config(&server), topology(wanted))
        };
        let acts = async |admin: &KafkaAdmin| {
            let plan = admin.plan().await.unwrap();
            let of = |wanted: &str| plan.steps.iter().find(|step| step.name == wanted).unwrap().act;
            (of(&name), of(&dead))
        };
        let first = admin(
            json!({"partitions": 2, "retention": "7d", "config": {"segment.bytes": "1048576"}}),
        );
        assert_eq!(acts(&first).await, (Act::Create, Act::Create));
        first.apply(false).await.unwrap();
        eventually("both are there", async || {
            (acts(&first).await == (Act::Ok, Act::Ok)).then_some(())
        })
        .await;
        assert!(first.apply(false).await.unwrap().is_done());
        let events: Vec<Event> = (0..10).map(|n| event(&name, &format!("k{n}"), b"x")).collect();
        store(config(&server), &events).await;
        // More partitions and longer retention lose nothing, and what is not named stays.
        let more = admin(json!({"partitions": 3, "retention": "forever"}));
        assert_eq!(acts(&more).await, (Act::Change, Act::Ok));
        more.apply(false).await.unwrap();
        eventually("it is changed", async || (acts(&more).await.0 == Act::Ok).then_some(())).await;
        let kept = admin(json!({"partitions": 3, "config": {"segment.bytes": "1048576"}}));
        assert_eq!(acts(&kept).await.0, Act::Ok);
        for lossy in [json!({"partitions": 1}), json!({"partitions": 3, "retention": "1h"})] {
            let lossy = admin(lossy);
            assert_eq!(acts(&lossy).await.0, Act::Replace);
            let refused = lossy.apply(false).await.unwrap_err();
            assert!(refused.to_string().contains(&name), "{refused}");
        }
        let fewer = admin(json!({"partitions": 1}));
        fewer.apply(true).await.unwrap();
        eventually("it is replaced", async || (acts(&fewer).await.0 == Act::Ok).then_some(()))
            .await;
        let publisher = KafkaPublisher::new(config(&server));
        eventually("the new one takes events", async || {
            let confirms = publish(&publisher, &events[..1]).await;
            (confirms == [Confirm::Stored]).then_some(())
        })
        .await;
    });
}
