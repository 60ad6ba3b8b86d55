//! `ticketflow topology`, as people run it.

use crate::rig::Rig;
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use relevo::rabbitmq::RabbitMqConfig;
use relevo_testkit::eventually;
use std::collections::BTreeSet;
use ticketflow::rabbit::Rabbit;
use ticketflow::ticket::topic;
use ticketflow::topology;

/// What the command printed.
fn printed(rig: &Rig, act: &str) -> String {
    let output = rig.command("topology").arg(act).output().expect("it runs");
    assert!(output.status.success(), "{act}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_about_the_topology_is_the_plan() {
    let Some(rig) = Rig::shared().await else { return };
    let page = printed(&rig, "doc");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rabbitmq-topology.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &page).expect("written");
    }
    assert_eq!(std::fs::read_to_string(file).expect("a page"), page, "UPDATE=1 writes it anew");
}

/// The lines whose first word is one of these, without it.
fn told<'l>(lines: &'l str, acts: &[&str]) -> BTreeSet<&'l str> {
    let parted = lines.lines().filter_map(|line| line.split_once(' '));
    let these = parted.filter(|(act, _)| acts.contains(act));
    // What is in brackets is of this broker: whether its management API tells which bindings there are.
    these.map(|(_, thing)| thing.split(" (").next().unwrap_or(thing)).collect()
}

/// To the exchange, under a key; a queue has it when this ends.
async fn publish(rig: &Rig, key: &str) {
    let (_connection, channel) = rig.channel().await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let sent =
        channel.basic_publish("tickets".into(), key.into(), options, b"{}", properties).await;
    assert!(sent.expect("sent").await.expect("an answer").is_ack());
    channel.close(200, "done".into()).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_tells_what_is_missing_and_makes_nothing_and_apply_makes_it_once() {
    let Some(rig) = Rig::shared().await else { return };
    let config = RabbitMqConfig::to(&rig.rabbit_url).expect("a URL");
    let is_there = async || topology::plan(&config).await.expect("a plan").is_done();
    let wanted = BTreeSet::from([
        "exchange tickets: topic",
        "queue notifications: quorum, single-active-consumer",
        "queue notifications.dlq: quorum",
        "queue metrics: quorum, single-active-consumer",
        "queue metrics.dlq: quorum",
    ]);
    let bound = ["notifications", "metrics"]
        .into_iter()
        .flat_map(|queue| topic::ALL.map(|key| format!("binding tickets -> {queue}: {key}")));
    let bound: Vec<String> = bound.collect();
    let all: BTreeSet<&str> = wanted.iter().copied().chain(bound.iter().map(|it| &**it)).collect();

    let missing = printed(&rig, "plan");
    assert_eq!(told(&missing, &["create", "ensure"]), all, "{missing}");
    assert!(wanted.is_subset(&told(&missing, &["create"])), "{missing}");
    assert_eq!(printed(&rig, "plan"), missing, "it only looks");
    assert!(!is_there().await);

    let applied = printed(&rig, "apply");
    assert_eq!(applied, missing, "it does what was planned");
    assert!(is_there().await);
    for act in ["plan", "apply"] {
        let again = printed(&rig, act);
        assert_eq!(told(&again, &["ok", "ensure"]), all, "{act}: {again}");
        assert!(wanted.is_subset(&told(&again, &["ok"])), "{act}: {again}");
    }
    let rabbit = Rabbit::at(&rig.rabbit_url);
    for key in topic::ALL {
        publish(&rig, key).await;
    }
    for (queue, messages) in
        [("notifications", 3), ("metrics", 3), ("notifications.dlq", 0), ("metrics.dlq", 0)]
    {
        eventually(&format!("one for each key in {queue}"), async || {
            let there = rabbit.depth(queue).await.expect("a queue");
            assert!(there <= messages, "{there} in {queue}");
            (there == messages).then_some(())
        })
        .await;
    }
}
