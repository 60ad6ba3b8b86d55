//! How far consumers are behind.

use super::config::KafkaConfig;
use super::connect::{Asked, ask, failed, unusable};
use super::group::Shared;
use super::partition::Partition;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use relevo_core::error::{Kind, Result};
use relevo_core::telemetry;

/// So many partitions of a member have a metric of their own; the others share one.
const SHOWN: usize = 200;

/// The label of those that share.
const OTHERS: &str = "others";

/// How far a consumer group is behind in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionLag {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The first offset that the group has not settled; `None` if it has settled nothing yet.
    pub committed: Option<i64>,
    /// One past the last record.
    pub end: i64,
    /// So many records wait.
    pub lag: u64,
}

/// Asks the brokers. Blocks.
pub(super) fn of_group(
    config: &KafkaConfig,
    group: &str,
    topics: &[String],
) -> Result<Vec<PartitionLag>> {
    let mut client = config.client();
    let client: BaseConsumer = client
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .create()
        .map_err(unusable)?;
    let limit = config.connect_timeout;
    let down = |error: KafkaError| failed(Kind::DestinationDown, error.to_string());
    let mut wanted = TopicPartitionList::new();
    for topic in topics {
        let count = match ask(client.client(), topic, limit) {
            Asked::There(count) => i32::try_from(count).unwrap_or(i32::MAX),
            other => {
                let why = format!("topic {topic}: {other:?}");
                return Err(failed(Kind::DestinationDown, why));
            }
        };
        wanted.add_partition_range(topic, 0, count - 1);
    }
    let committed = client.committed_offsets(wanted, limit).map_err(down)?;
    let mut lags = Vec::new();
    for place in committed.elements() {
        let (topic, partition) = (place.topic().to_owned(), place.partition());
        let (begin, end) = client.fetch_watermarks(&topic, partition, limit).map_err(down)?;
        let committed = match place.offset() {
            Offset::Offset(at) => Some(at),
            _ => None,
        };
        let lag = end - committed.unwrap_or(begin).max(begin);
        let lag = u64::try_from(lag).unwrap_or_default();
        lags.push(PartitionLag { topic, partition, committed, end, lag });
    }
    Ok(lags)
}

/// Shows what the client knows as a metric, one for each partition of this member, within bounds.
pub(super) fn show(group: &str, shared: &Shared, statistics: &Statistics) {
    let state = shared.state();
    let mut others = 0;
    for (number, (place, partition)) in state.partitions.iter().enumerate() {
        let known = statistics.topics.get(&place.topic);
        let Some(known) = known.and_then(|topic| topic.partitions.get(&place.partition)) else {
            continue;
        };
        let end = if known.ls_offset >= 0 { known.ls_offset } else { known.hi_offset };
        let settled = partition.settled().unwrap_or(known.committed_offset);
        if end < 0 || settled < 0 {
            continue;
        }
        let lag = (end - settled).max(0);
        if number < SHOWN {
            telemetry::source_lag(group, &partition.source.0, lag as f64);
        } else {
            others += lag;
        }
    }
    if state.partitions.len() > SHOWN {
        telemetry::source_lag(group, OTHERS, others as f64);
    }
}

/// What is not ours any more is somebody else's to show.
pub(super) fn forget<'p>(group: &str, gone: impl Iterator<Item = &'p Partition>) {
    for partition in gone {
        telemetry::source_lag(group, &partition.source.0, 0.0);
    }
}
