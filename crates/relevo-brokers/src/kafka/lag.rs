//! How far consumers are behind.

use super::config::KafkaConfig;
use super::connect::{Asked, ask, failed, unusable};
use super::delivery::Place;
use super::group::{Shared, State};
use super::partition::Partition;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use relevo_core::broker::Source;
use relevo_core::error::{Kind, Result};
use relevo_core::telemetry;
use std::collections::BTreeSet;

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

/// What a member shows at the moment, by the label of each value.
#[derive(Default)]
pub(super) struct Shown(BTreeSet<Source>);

/// Shows what the client knows as a metric, one for each partition of this member, within bounds.
pub(super) fn show(group: &str, shared: &Shared, statistics: &Statistics) {
    let mut state = shared.state();
    let State { partitions, shown, .. } = &mut *state;
    let known = partitions
        .iter()
        .map(|(place, partition)| (partition.source.clone(), behind(place, partition, statistics)));
    for (label, lag) in shown.next(known.collect()) {
        telemetry::source_lag(group, &label.0, lag as f64);
    }
}

/// How many records of a partition wait; `None` if its end or what is settled of it is not known yet.
fn behind(place: &Place, partition: &Partition, statistics: &Statistics) -> Option<i64> {
    let known = statistics.topics.get(&place.topic)?.partitions.get(&place.partition)?;
    let end = if known.ls_offset >= 0 { known.ls_offset } else { known.hi_offset };
    let settled = partition.settled().unwrap_or(known.committed_offset);
    (end >= 0 && settled >= 0).then(|| (end - settled).max(0))
}

/// What is not ours any more is somebody else's to show.
pub(super) fn forget<'p>(group: &str, shared: &Shared, gone: impl Iterator<Item = &'p Partition>) {
    let mut state = shared.state();
    let left = state.partitions.len();
    for label in state.shown.without(gone.map(|partition| &partition.source), left) {
        telemetry::source_lag(group, &label.0, 0.0);
    }
}

impl Shown {
    /// The values to show now, for partitions in their order: the first by name, the sum of the others, and nothing for
    /// whatever was shown before and is neither. What is not known keeps the value that it has.
    fn next(&mut self, lags: Vec<(Source, Option<i64>)>) -> Vec<(Source, i64)> {
        let (named, others) = lags.split_at(lags.len().min(SHOWN));
        let mut values: Vec<(Source, i64)> =
            named.iter().filter_map(|(source, lag)| Some((source.clone(), (*lag)?))).collect();
        if !others.is_empty() {
            let sum = others.iter().filter_map(|(_, lag)| *lag).sum();
            values.push((Source::named(OTHERS), sum));
        }
        let stay: BTreeSet<&Source> = named.iter().map(|(source, _)| source).collect();
        let labels: BTreeSet<Source> = values.iter().map(|(label, _)| label.clone()).collect();
        let (kept, stale): (BTreeSet<Source>, BTreeSet<Source>) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|label| stay.contains(label) || labels.contains(label));
        values.extend(stale.into_iter().map(|label| (label, 0)));
        self.0 = kept.into_iter().chain(labels).collect();
        values
    }

    /// What of this is to show nothing, when these are gone and so many are left.
    fn without<'s>(&mut self, gone: impl Iterator<Item = &'s Source>, left: usize) -> Vec<Source> {
        let others = (left <= SHOWN).then(|| Source::named(OTHERS));
        gone.cloned().chain(others).filter(|label| self.0.remove(label)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(number: usize) -> Source {
        Source::named(format!("t/{number}"))
    }

    /// Partitions with a lag of as much as their number.
    fn lags(numbers: impl IntoIterator<Item = usize>) -> Vec<(Source, Option<i64>)> {
        numbers.into_iter().map(|n| (partition(n), i64::try_from(n).ok())).collect()
    }

    fn value(values: &[(Source, i64)], label: &Source) -> Option<i64> {
        values.iter().find(|(shown, _)| shown == label).map(|(_, value)| *value)
    }

    #[test]
    fn two_hundred_partitions_are_shown_by_name_and_what_is_beyond_them_in_one_sum() {
        let others = Source::named("others");
        let values = Shown::default().next(lags(0..200));
        assert_eq!((values.len(), value(&values, &others)), (200, None));
        let mut many = lags(0..203);
        many[201].1 = None;
        let values = Shown::default().next(many);
        assert_eq!((values.len(), value(&values, &others)), (201, Some(200 + 202)));
        assert_eq!(value(&values, &partition(199)), Some(199));
        assert_eq!(value(&values, &partition(200)), None);
    }

    #[test]
    fn what_is_not_known_yet_shows_nothing_and_what_was_known_stays() {
        let mut shown = Shown::default();
        let unknown = || vec![(partition(1), None)];
        assert_eq!(shown.next(unknown()), []);
        assert_eq!(shown.next(lags([1])), [(partition(1), 1)]);
        assert_eq!(shown.next(unknown()), []);
        assert_eq!(shown.without([partition(1)].iter(), 0), [partition(1)]);
    }

    #[test]
    fn a_partition_that_others_push_among_the_rest_is_not_counted_twice() {
        let mut shown = Shown::default();
        shown.next(lags(1..201));
        let values = shown.next(lags(0..201));
        assert_eq!(value(&values, &partition(200)), Some(0), "by its own name");
        assert_eq!(value(&values, &Source::named("others")), Some(200));
        assert_eq!(shown.next(lags(0..201)).len(), 201, "that is said once");
    }

    #[test]
    fn partitions_that_leave_take_their_values_along_and_so_do_the_rest() {
        let (mut shown, others) = (Shown::default(), Source::named("others"));
        shown.next(lags(0..205));
        let gone: Vec<Source> = (0..3).map(partition).collect();
        assert_eq!(shown.without(gone.iter(), 202), gone, "two are still beyond");
        shown.next(lags(3..205));
        let gone: Vec<Source> = [3, 204].map(partition).to_vec();
        assert_eq!(shown.without(gone.iter(), 200), [partition(3), others.clone()]);
        let values = shown.next(lags(4..204));
        assert_eq!((values.len(), value(&values, &others)), (200, None));
        assert_eq!(value(&values, &partition(203)), Some(203), "by its own name now");
    }
}
