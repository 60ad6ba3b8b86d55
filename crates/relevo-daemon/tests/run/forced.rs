//! `relevo topology apply --force` on each broker: what would be lost is refused and told, and done only when asked for.

use crate::nats::shared;
use crate::rabbitmq::Shop;
use crate::support::{Ended, eventually};
use crate::topology::{configure, topology};
use relevo_brokers::nats::{NatsConfig, NatsPublisher};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use relevo_core::broker::{Confirm, Publisher};
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::services::{Nats, unique_name};
use serde_json::Value;
use std::path::Path;

/// The testkit's NATS servers have 128 MB of memory for streams, and more of files.
const MORE_THAN_ITS_MEMORY: &str = "max_bytes = 268435456";

fn event(topic: &str, n: u64) -> Event {
    Event::stored(NewEvent::bytes(topic, n.to_string()).key(format!("k{n}")), chrono::Utc::now())
}

async fn store(publisher: &dyn Publisher, topic: &str, count: u64) {
    let events: Vec<Event> = (0..count).map(|n| event(topic, n)).collect();
    let confirms = publisher.publish(&events.iter().collect::<Vec<_>>()).await;
    assert!(confirms.iter().all(|confirm| *confirm == Confirm::Stored), "{confirms:?}");
}

/// Refused, with all these words, and nothing at the broker differs from before.
async fn is_refused(folder: &Path, words: &[&str]) {
    let before = topology(folder, &["plan", "--json"]).await.out;
    let refused = topology(folder, &["apply"]).await;
    assert_eq!(refused.code, 5, "{}{}", refused.out, refused.err);
    says(&refused, &["R0041", "nothing was done"]);
    says(&refused, words);
    assert_eq!(topology(folder, &["plan", "--json"]).await.out, before);
}

/// Not done although it was asked for by force, with all these words, and nothing at the broker differs from before.
async fn cannot_be_forced(folder: &Path, words: &[&str]) {
    let before = topology(folder, &["plan", "--json"]).await.out;
    let failed = topology(folder, &["apply", "--force"]).await;
    assert_ne!(failed.code, 0, "{}", failed.out);
    says(&failed, &["not even by force", "stays"]);
    says(&failed, words);
    assert_eq!(topology(folder, &["plan", "--json"]).await.out, before);
}

/// Done, and from then on there is no difference.
async fn is_forced(folder: &Path, words: &[&str]) {
    let forced = topology(folder, &["apply", "--force"]).await;
    assert_eq!(forced.code, 0, "{}{}", forced.out, forced.err);
    says(&forced, words);
    let plan = topology(folder, &["plan"]).await;
    assert!(plan.out.contains("as wanted") && !plan.out.contains("put right"), "{}", plan.out);
    assert_eq!(topology(folder, &["check"]).await.code, 0);
}

fn says(ended: &Ended, words: &[&str]) {
    let said = format!("{}{}", ended.out, ended.err);
    for word in words {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
}

/// relevo.toml with a stream of these `options`, which may end with tables of consumers.
fn with_stream(folder: &Path, server: &Nats, stream: &str, options: &str) {
    let text = format!(
        "[broker.nats]\nurl = \"{}\"\n[topology.nats.streams.{stream}]\nsubjects = [\"{stream}.>\"]\n\
         {options}\n",
        server.url()
    );
    std::fs::write(folder.join("relevo.toml"), text).unwrap();
}

/// How many messages the server says that a stream has.
fn messages_in(server: &Nats, stream: &str) -> Option<u64> {
    let answer = server.monitored("/jsz?accounts=true&streams=true").unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let accounts = answer["account_details"].as_array().unwrap();
    let mut streams = accounts.iter().filter_map(|one| one["stream_detail"].as_array()).flatten();
    let found = streams.find(|found| found["name"] == stream)?;
    found["state"]["messages"].as_u64()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_rabbitmq_loses_messages_only_by_force_and_what_would_go_is_told_before() {
    let Some(shop) = Shop::fresh().await else { return };
    let (folder, url) = (tempfile::tempdir().unwrap(), shop.server.fresh_vhost().unwrap());
    let folder = folder.path();
    configure(folder, &shop.server, &url, "", "");
    assert_eq!(topology(folder, &["apply"]).await.code, 0);
    let publisher = RabbitMqPublisher::new(RabbitMqConfig::to(&url).unwrap().exchange("events"));
    store(&publisher, "order.placed", 3).await;
    configure(folder, &shop.server, &url, "kind = \"classic\"", "");
    eventually("the broker counts them", || async {
        let plan = topology(folder, &["plan", "--json"]).await.out;
        plan.contains("its 3 messages would go").then_some(())
    })
    .await;
    is_refused(folder, &["queue jobs", "x-queue-type", "its 3 messages would go"]).await;
    is_forced(folder, &["replaced queue jobs", "created binding events -> jobs"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_nats_loses_messages_only_by_force_and_what_would_go_is_told_before() {
    let Some(server) = shared().await else { return };
    let (folder, stream) = (tempfile::tempdir().unwrap(), unique_name("FORCED"));
    let folder = folder.path();
    let like = |options: &str| {
        let consumer = format!("[topology.nats.streams.{stream}.consumers.billing]");
        with_stream(folder, &server, &stream, &format!("discard = \"old\"\n{options}\n{consumer}"));
    };
    like("");
    assert_eq!(topology(folder, &["apply"]).await.code, 0);
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    store(&publisher, &format!("{stream}.made"), 5).await;
    let named = format!("stream {stream}");

    like("max_messages = 2");
    is_refused(folder, &[&named, "max_messages is -1, wanted 2", "5 are there"]).await;
    assert_eq!(messages_in(&server, &stream), Some(5));
    is_forced(folder, &[&named]).await;
    assert_eq!(messages_in(&server, &stream), Some(2));

    // One server has no place for three copies. The old stream must not be gone when that turns out.
    like("storage = \"memory\"\nreplicas = 3\nmax_messages = 2");
    cannot_be_forced(folder, &[&named, "replicas"]).await;
    assert_eq!(messages_in(&server, &stream), Some(2));
    // Room for it is in the server's files, not in its memory; nor does a lower limit count before that is known.
    like(&format!("storage = \"memory\"\nmax_messages = 1\n{MORE_THAN_ITS_MEMORY}"));
    cannot_be_forced(folder, &[&named, "insufficient memory"]).await;
    assert_eq!(messages_in(&server, &stream), Some(2));

    like("storage = \"memory\"\nmax_messages = 2");
    let told = ["storage is File, wanted Memory", "its 2 messages would go"];
    is_refused(folder, &[&named, told[0], told[1]]).await;
    assert_eq!(messages_in(&server, &stream), Some(2));
    let billing = format!("created consumer {stream}/billing");
    is_forced(folder, &["replaced", &named, &billing]).await;
    assert_eq!(messages_in(&server, &stream), Some(0));

    store(&publisher, &format!("{stream}.made"), 1).await;
    like("storage = \"memory\"\nretention = \"work_queue\"");
    is_refused(folder, &[&named, "retention is Limits, wanted WorkQueue", "its 1 messages"]).await;
    is_forced(folder, &["replaced", &named, &billing]).await;
    assert_eq!(messages_in(&server, &stream), Some(0));

    like(MORE_THAN_ITS_MEMORY);
    is_forced(folder, &["replaced", &named, &billing]).await;
    // Another test may just be trying something on the same server.
    eventually("streams that were made to try something are gone", || async {
        let streams = server.monitored("/jsz?accounts=true&streams=true").unwrap();
        (!streams.contains("relevo-probe-")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_nats_that_is_to_keep_only_what_consumers_wait_for_loses_the_rest_by_force() {
    let Some(server) = shared().await else { return };
    let (folder, stream) = (tempfile::tempdir().unwrap(), unique_name("FORCED"));
    let folder = folder.path();
    with_stream(folder, &server, &stream, "");
    assert_eq!(topology(folder, &["apply"]).await.code, 0);
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    store(&publisher, &format!("{stream}.made"), 5).await;
    with_stream(folder, &server, &stream, "retention = \"interest\"");
    is_refused(folder, &[&stream, "of its 5 messages", "no consumer waits for"]).await;
    assert_eq!(messages_in(&server, &stream), Some(5));
    is_forced(folder, &[&stream]).await;
    eventually("the server drops them", || async {
        messages_in(&server, &stream).filter(|left| *left == 0)
    })
    .await;
}

#[cfg(feature = "kafka")]
mod kafka {
    use super::{cannot_be_forced, is_forced, is_refused, store};
    use crate::kafka::{messages, shared};
    use crate::topology::topology;
    use relevo_brokers::kafka::{KafkaConfig, KafkaPublisher};
    use relevo_testkit::services::unique_name;
    use std::path::Path;

    /// relevo.toml with a topic of these `options`.
    fn with_topic(folder: &Path, url: &str, topic: &str, options: &str) {
        let text = format!(
            "[broker.kafka]\nurl = \"{url}\"\n[topology.kafka.topics.{topic}]\n{options}\n"
        );
        std::fs::write(folder.join("relevo.toml"), text).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_topic_of_kafka_loses_messages_only_by_force_and_what_would_go_is_told_before() {
        let Some(server) = shared().await else { return };
        let (folder, topic) = (tempfile::tempdir().unwrap(), unique_name("forced"));
        let (folder, url) = (folder.path(), format!("kafka://{}", server.bootstrap()));
        with_topic(folder, &url, &topic, "partitions = 3");
        assert_eq!(topology(folder, &["apply"]).await.code, 0);
        let publisher = KafkaPublisher::new(KafkaConfig::to(&url).unwrap());
        store(&publisher, &topic, 5).await;
        let named = format!("topic {topic}");

        with_topic(folder, &url, &topic, "partitions = 3\nretention = \"1h\"");
        is_refused(folder, &[&named, "retention.ms", "messages may go"]).await;
        is_forced(folder, &[&named]).await;
        assert_eq!(messages(&url, &topic, 5).await.len(), 5, "none of them is so old");

        // One broker has no place for three copies. The old topic must not be gone when that turns out.
        with_topic(folder, &url, &topic, "partitions = 1\nreplicas = 3");
        cannot_be_forced(folder, &[&named, "replication factor"]).await;
        assert_eq!(messages(&url, &topic, 5).await.len(), 5);

        with_topic(folder, &url, &topic, "partitions = 1");
        let told = ["partitions are 3, wanted 1: fewer need a new topic", "up to 5 messages"];
        is_refused(folder, &[&named, told[0], told[1]]).await;
        assert_eq!(messages(&url, &topic, 5).await.len(), 5);
        is_forced(folder, &["replaced", &named]).await;
        store(&KafkaPublisher::new(KafkaConfig::to(&url).unwrap()), &topic, 1).await;
        assert_eq!(messages(&url, &topic, 1).await.len(), 1, "the others are gone");
    }
}
