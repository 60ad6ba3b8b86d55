//! What the client reads ahead of its consumer: it must not grow with what waits at the brokers.

use rdkafka::ClientConfig;

/// Fewer partitions than this do not get more each.
const FEW: usize = 4;
/// With fewer bytes for a partition there would be a question to the brokers for every few messages.
const LEAST_BYTES: usize = 256 << 10;
const LEAST_MESSAGES: usize = 16;
/// What the client can count to.
const MOST_BYTES: usize = 1 << 30;
const MOST_MESSAGES: usize = 1_000_000;
/// The largest message, unless the client is told otherwise: a fetch must have room for it.
const MESSAGE_BYTES: usize = 1_000_000;

/// The room of one partition. Together those that are there have as much as the consumer's window; more, if they are so
/// many that each has only the least that is of use. Partitions that are added later come on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ahead {
    messages: usize,
    bytes: usize,
    partitions: usize,
}

impl Ahead {
    /// Shares a window of so many messages and bytes among so many partitions.
    pub(super) fn shared(messages: usize, bytes: usize, partitions: usize) -> Self {
        let shares = partitions.max(FEW);
        Self {
            messages: (messages / shares).clamp(LEAST_MESSAGES, MOST_MESSAGES),
            bytes: (bytes / shares).clamp(LEAST_BYTES, MOST_BYTES),
            partitions: shares,
        }
    }

    /// Tells the client, except for what its user has set.
    ///
    /// It fetches while its queue is below a limit, so a queue holds up to the limit and one fetch more. The limit is half
    /// of the room and a fetch a quarter: the rest is for keys and headers, which the client does not count.
    pub(super) fn tell(&self, client: &mut ClientConfig) {
        let fetch = self.bytes / 4;
        let message: Option<usize> =
            client.get("message.max.bytes").and_then(|bytes| bytes.parse().ok());
        let answer =
            (fetch * self.partitions).min(MOST_BYTES).max(message.unwrap_or(MESSAGE_BYTES));
        for (names, value) in [
            (&["queued.min.messages"][..], self.messages),
            (&["queued.max.messages.kbytes"][..], self.bytes >> 11),
            (&["fetch.message.max.bytes", "max.partition.fetch.bytes"][..], fetch),
            (&["fetch.max.bytes"][..], answer),
        ] {
            if names.iter().all(|name| client.get(name).is_none()) {
                client.set(names[0], value.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn told(ahead: Ahead, name: &str) -> usize {
        let mut client = ClientConfig::new();
        ahead.tell(&mut client);
        client.get(name).and_then(|value| value.parse().ok()).expect("it is set")
    }

    #[test]
    fn all_partitions_together_have_the_window() {
        for (partitions, each) in [(0, 4), (1, 4), (4, 4), (8, 2), (16, 1)] {
            let ahead = Ahead::shared(1000, 16 * MIB, partitions);
            assert_eq!(ahead.bytes, each * MIB, "{partitions} partitions");
            let queued = told(ahead, "queued.max.messages.kbytes") << 10;
            let fetch = told(ahead, "fetch.message.max.bytes");
            assert_eq!((queued, fetch), (each * MIB / 2, each * MIB / 4), "{partitions}");
        }
        assert_eq!(told(Ahead::shared(1000, 16 * MIB, 8), "queued.min.messages"), 125);
        assert_eq!(told(Ahead::shared(1000, 16 * MIB, 8), "fetch.max.bytes"), 4 * MIB);
    }

    #[test]
    fn a_partition_has_room_for_some_messages_and_a_fetch_for_the_largest() {
        let tiny = Ahead::shared(1, 1, 1000);
        assert_eq!((tiny.bytes, tiny.messages), (LEAST_BYTES, LEAST_MESSAGES));
        assert_eq!(told(Ahead::shared(1, 1, 1), "fetch.max.bytes"), MESSAGE_BYTES);
        let huge = Ahead::shared(usize::MAX, usize::MAX, 1);
        assert_eq!(told(huge, "queued.max.messages.kbytes"), 1 << 19);
        assert_eq!(told(huge, "fetch.max.bytes"), MOST_BYTES);
    }

    #[test]
    fn what_a_user_set_by_the_clients_names_stays() {
        let mut client = ClientConfig::new();
        client.set("max.partition.fetch.bytes", "7").set("queued.min.messages", "8");
        client.set("message.max.bytes", "5000000");
        Ahead::shared(1000, 16 * MIB, 1).tell(&mut client);
        assert_eq!(client.get("max.partition.fetch.bytes"), Some("7"));
        assert_eq!(client.get("fetch.message.max.bytes"), None);
        assert_eq!(client.get("queued.min.messages"), Some("8"));
        assert_eq!(client.get("fetch.max.bytes"), Some("5000000"));
    }
}
