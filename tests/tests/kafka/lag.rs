//! How far a group is behind.

use crate::partitions::partition_of_key;
use crate::{config, consumer, event, open, partition_of, run, settle, shared, store, take, topic};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use relevo_brokers::kafka::KafkaSubscriber;
use relevo_core::broker::Subscriber;
use relevo_core::event::Event;
use relevo_testkit::eventually;

#[test]
fn lag_is_told_for_each_partition() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic(&server, 2).await;
        let group = KafkaSubscriber::new(config(&server), consumer(&topic));
        let none = group.lag().await.unwrap();
        assert!(none.iter().all(|p| p.lag == 0 && p.committed.is_none()) && none.len() == 2);
        let events: Vec<Event> = (0..30).map(|n| event(&topic, &format!("k{n}"), b"x")).collect();
        store(config(&server), &events).await;
        let mut receiver = group.open().await.unwrap();
        let messages = take(&mut receiver, 30).await;
        let settled = &messages[..10];
        settle(&mut receiver, settled).await;
        let lags = group.lag().await.unwrap();
        assert_eq!(lags.iter().map(|partition| partition.lag).sum::<u64>(), 20);
        let of_first = settled.iter().filter(|message| partition_of(message) == 0).count() as i64;
        let end = lags[0].end;
        assert_eq!(lags[0].lag as i64, end - of_first, "{lags:?}");
    });
}

/// The value of a metric whose line has these texts.
fn shown(metrics: &PrometheusHandle, texts: &[&str]) -> Option<f64> {
    let page = metrics.render();
    let mut lines = page.lines().filter(|line| !line.starts_with('#'));
    let line = lines.find(|line| texts.iter().all(|text| line.contains(text)))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn lag_is_shown_by_partition_and_shrinks_with_what_is_settled() {
    run(async || {
        let Some(server) = shared().await else { return };
        // The only recorder of this process.
        let metrics = PrometheusBuilder::new().install_recorder().unwrap();
        let topic = topic(&server, 2).await;
        // Two keys, one in each partition.
        let keys: Vec<String> = (0..64).map(|n| format!("k{n}")).collect();
        let in_partition = |wanted: i32| keys.iter().find(|key| partition_of_key(key, 2) == wanted);
        let (zero, one) = (in_partition(0).unwrap(), in_partition(1).unwrap());
        let events = (0..9).map(|_| event(&topic, zero, b"x"));
        let events: Vec<Event> = events.chain((0..4).map(|_| event(&topic, one, b"x"))).collect();
        store(config(&server), &events).await;
        let lag = async |wanted: [f64; 2]| {
            eventually(&format!("a lag of {wanted:?}"), async || {
                let of = |partition: i32| {
                    let source = format!("source=\"{topic}/{partition}\"");
                    shown(&metrics, &["relevo_source_lag", &source])
                };
                ([of(0)?, of(1)?] == wanted).then_some(())
            })
            .await
        };
        let quick = config(&server).setting("statistics.interval.ms", "200").unwrap();
        let mut receiver = open(quick, consumer(&topic)).await;
        let came = take(&mut receiver, 13).await;
        let (zero, one): (Vec<_>, Vec<_>) = came.into_iter().partition(|m| partition_of(m) == 0);
        lag([9.0, 4.0]).await;
        settle(&mut receiver, &zero[..5]).await;
        lag([4.0, 4.0]).await;
        settle(&mut receiver, &one).await;
        lag([4.0, 0.0]).await;
        settle(&mut receiver, &zero[5..]).await;
        lag([0.0, 0.0]).await;
        receiver.close().await.unwrap();
    });
}
