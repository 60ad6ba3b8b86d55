//! Every broker as a cluster of three whose leaders are killed while events are counted: one line per broker.

use relevo_tests::cluster::{NatsCluster, RabbitMqCluster};
use relevo_tests::cluster_tests;

cluster_tests!(rabbitmq, RabbitMqCluster::start());
cluster_tests!(nats, NatsCluster::start());

/// Three brokers of Kafka take longest to start, so its cases share them.
#[allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]
mod kafka {
    use relevo_brokers::kafka::{KafkaConsumer, KafkaPublisher, KafkaSubscriber};
    use relevo_core::broker::{Confirm, Publisher, Received, Settle, Subscriber};
    use relevo_core::event::{Event, NewEvent};
    use relevo_testkit::services::unique_name;
    use relevo_testkit::{PATIENCE, eventually};
    use relevo_tests::cluster::{BrokerCluster, InTurn, KafkaCluster, cases};
    use std::sync::Arc;
    use std::time::Duration;

    static CLUSTER: InTurn<KafkaCluster> = InTurn::new();

    #[test]
    fn nothing_is_lost_doubled_or_reordered_while_leaders_are_killed() {
        CLUSTER.run(KafkaCluster::start, |cluster| cases::leaders_are_killed(cluster));
    }

    #[test]
    fn what_too_few_replicas_have_is_not_stored() {
        CLUSTER.run(KafkaCluster::start, |cluster| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(too_few(&cluster));
        });
    }

    async fn too_few(cluster: &Arc<KafkaCluster>) {
        let topic = unique_name("all-three");
        cluster.topic(&topic, 3).await;
        in_sync(cluster, &topic, 3).await;
        let patient = || KafkaPublisher::new(cluster.config().ack_timeout(PATIENCE));
        assert_eq!(publish(&patient(), &event(&topic, "before")).await, Confirm::Stored);
        let follower = eventually("a leader", async || cluster.follower(&topic)).await;
        cluster.kill9(follower);
        // Before that a message gets into the log, and only its confirm is missing.
        in_sync(cluster, &topic, 2).await;
        // Any broker may have said so: the leader knows a moment later.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let again = event(&topic, "again");
        let impatient = cluster.config().ack_timeout(Duration::from_secs(3));
        let confirm = publish(&KafkaPublisher::new(impatient), &again).await;
        assert!(matches!(confirm, Confirm::Unknown { .. }), "{confirm:?}");
        // Who has more patience is confirmed when the follower is back.
        let waiting = tokio::spawn({
            let (publisher, event) = (patient(), event(&topic, "waits"));
            async move { publish(&publisher, &event).await }
        });
        let back = tokio::task::spawn_blocking({
            let cluster = cluster.clone();
            move || cluster.restart(follower)
        });
        back.await.unwrap().unwrap();
        assert_eq!(waiting.await.unwrap(), Confirm::Stored);
        assert_eq!(publish(&patient(), &again).await, Confirm::Stored);
        let last = event(&topic, "last");
        assert_eq!(publish(&patient(), &last).await, Confirm::Stored);
        assert_eq!(all(cluster, &topic, "last").await, ["before", "waits", "again", "last"]);
    }

    fn event(topic: &str, payload: &str) -> Event {
        let event = NewEvent::bytes(topic, payload.as_bytes().to_vec()).key("k");
        Event::stored(event, chrono::Utc::now())
    }

    async fn publish(publisher: &KafkaPublisher, event: &Event) -> Confirm {
        publisher.publish(&[event]).await.remove(0)
    }

    /// Waits until so many replicas are in step.
    async fn in_sync(cluster: &Arc<KafkaCluster>, topic: &str, wanted: usize) {
        eventually("the replicas in step", async || {
            let (cluster, topic) = (cluster.clone(), topic.to_owned());
            let asked = tokio::task::spawn_blocking(move || cluster.in_sync(&topic)).await;
            (asked.ok().flatten() == Some(wanted)).then_some(())
        })
        .await;
    }

    /// Everything that the topic has, up to this payload.
    async fn all(cluster: &Arc<KafkaCluster>, topic: &str, last: &str) -> Vec<String> {
        let consumer = KafkaConsumer::new(topic, format!("{topic}.group"));
        let mut receiver = KafkaSubscriber::new(cluster.config(), consumer).open().await.unwrap();
        let mut came: Vec<String> = Vec::new();
        while came.last().is_none_or(|payload| payload != last) {
            let next = tokio::time::timeout(PATIENCE, receiver.next(100)).await.expect("it comes");
            let Received::Messages { messages, .. } = next.unwrap() else { continue };
            let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
            came.extend(messages.iter().map(|message| text(&message.payload)));
            let done: Vec<_> = messages.iter().map(|one| (one.tag, Settle::Done)).collect();
            receiver.settle(&done).await.unwrap();
        }
        receiver.close().await.unwrap();
        came
    }
}
