//! Exchanges, queues and bindings as data, and what the broker has of them.
//!
//! - [`RabbitMqTopology`]: what is wanted, as it is written in a configuration
//! - `thing`: the same, one declaration after the other
//! - `admin`: compares and declares, over AMQP
//! - `management`: which bindings there are, which AMQP cannot tell

mod admin;
pub(super) mod management;
mod thing;

pub use admin::RabbitMqAdmin;

use super::subscriber::{DeadLetterTo, Rung};
use crate::span;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use thing::Thing;

/// What must be there. Everything is durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RabbitMqTopology {
    /// Exchanges by name.
    pub exchanges: BTreeMap<String, Exchange>,
    /// Queues by name.
    pub queues: BTreeMap<String, Queue>,
}

/// An exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Exchange {
    /// How it routes.
    pub kind: Routing,
}

/// How an exchange routes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Routing {
    /// By topic filters.
    #[default]
    Topic,
    /// By the whole routing key.
    Direct,
    /// To every queue that is bound.
    Fanout,
    /// By the event's key: what has one key goes to one queue, so that several queues, each with its own consumer, keep
    /// the order of every key. A binding's filter is the queue's weight, `"1"` for equal shares. Needs the broker's
    /// plugin `rabbitmq_consistent_hash_exchange`.
    Hash,
}

impl Routing {
    fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Hash => "x-consistent-hash",
        }
    }
}

/// A queue with its retry ladder and its place for dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Queue {
    /// Replicated or not.
    pub kind: QueueKind,
    /// What it gets: the topic filters by exchange.
    pub bind: BTreeMap<String, Vec<String>>,
    /// One consumer at a time: several processes keep the order.
    pub single_active_consumer: bool,
    /// Most messages; more are refused.
    pub max_length: Option<u32>,
    /// Most bytes; more are refused.
    pub max_length_bytes: Option<u64>,
    /// Messages that waited for longer are dead.
    #[serde(deserialize_with = "span::maybe")]
    pub message_ttl: Option<Duration>,
    /// The exchange for what is given up: it gets a queue `NAME.dead`, bound by the queue's name.
    pub dead_letters: Option<String>,
    /// Delays of its retry ladder: for each a queue `NAME.retry.DELAY`, whose messages come back after it.
    #[serde(deserialize_with = "span::list")]
    pub retry: Vec<Duration>,
}

/// How a queue stores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QueueKind {
    /// On a majority of the cluster's nodes.
    #[default]
    Quorum,
    /// On one node.
    Classic,
}

impl QueueKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

impl RabbitMqTopology {
    /// The retry ladder of a queue, for its [`super::RabbitMqSubscriber`].
    pub fn ladder(&self, queue: &str) -> Vec<Rung> {
        let delays = self.queues.get(queue).map(|spec| spec.retry.as_slice()).unwrap_or_default();
        delays.iter().map(|delay| Rung { delay: *delay, queue: rung_name(queue, *delay) }).collect()
    }

    /// Where what a queue's consumers give up goes, for its [`super::RabbitMqSubscriber`].
    pub fn dead_letters(&self, queue: &str) -> Option<DeadLetterTo> {
        let exchange = self.queues.get(queue)?.dead_letters.clone()?;
        Some(DeadLetterTo { exchange, routing_key: Some(queue.to_owned()) })
    }

    /// Every declaration, in an order in which each finds what it refers to.
    fn things(&self) -> Vec<Thing> {
        let mut things: Vec<Thing> =
            self.exchanges.iter().map(|(n, e)| Thing::exchange(n, e.kind)).collect();
        for dead in self.queues.values().filter_map(|queue| queue.dead_letters.as_ref()) {
            let thing = Thing::exchange(dead, Routing::Direct);
            if !self.exchanges.contains_key(dead) && !things.contains(&thing) {
                things.push(thing);
            }
        }
        for (name, queue) in &self.queues {
            things.push(queue.thing(name));
            for delay in &queue.retry {
                things.push(queue.rung(name, *delay));
            }
            for (exchange, keys) in &queue.bind {
                things.extend(keys.iter().map(|key| Thing::binding(exchange, name, key)));
            }
            if let Some(dead) = &queue.dead_letters {
                let letters = dead_name(name);
                things.push(Thing::queue(&letters).text("x-queue-type", queue.kind.as_str()));
                things.push(Thing::binding(dead, &letters, name));
            }
        }
        things
    }
}

fn dead_name(queue: &str) -> String {
    format!("{queue}.dead")
}

fn rung_name(queue: &str, delay: Duration) -> String {
    format!("{queue}.retry.{}", span::written(delay))
}

impl Queue {
    fn thing(&self, name: &str) -> Thing {
        let mut thing = Thing::queue(name).text("x-queue-type", self.kind.as_str());
        if self.single_active_consumer {
            thing = thing.flag("x-single-active-consumer");
        }
        if let Some(most) = self.max_length {
            thing = thing.number("x-max-length", u64::from(most));
        }
        if let Some(most) = self.max_length_bytes {
            thing = thing.number("x-max-length-bytes", most);
        }
        if self.max_length.is_some() || self.max_length_bytes.is_some() {
            thing = thing.text("x-overflow", "reject-publish");
        }
        if let Some(ttl) = self.message_ttl {
            thing = thing.number("x-message-ttl", millis(ttl));
        }
        if let Some(dead) = &self.dead_letters {
            thing =
                thing.text("x-dead-letter-exchange", dead).text("x-dead-letter-routing-key", name);
        }
        thing
    }

    /// A queue whose messages go back to `name` after a while.
    fn rung(&self, name: &str, delay: Duration) -> Thing {
        let thing = Thing::queue(&rung_name(name, delay))
            .text("x-queue-type", self.kind.as_str())
            .number("x-message-ttl", millis(delay))
            .text("x-dead-letter-exchange", "")
            .text("x-dead-letter-routing-key", name);
        match self.kind {
            // Otherwise a message is gone between leaving this queue and reaching the other.
            QueueKind::Quorum => thing
                .text("x-dead-letter-strategy", "at-least-once")
                .text("x-overflow", "reject-publish"),
            QueueKind::Classic => thing,
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> RabbitMqTopology {
        let json = serde_json::json!({
            "exchanges": {"events": {}},
            "queues": {"jobs": {
                "bind": {"events": ["ticket.#", "invoice.*"]},
                "single_active_consumer": true, "max_length": 1000, "message_ttl": "7d",
                "dead_letters": "dead", "retry": ["1s", "1m30s"],
            }},
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_queue_brings_its_ladder_and_its_place_for_dead_letters() {
        let all: Vec<String> = topology().things().iter().map(ToString::to_string).collect();
        assert_eq!(
            all,
            [
                "exchange events: topic",
                "exchange dead: direct",
                "queue jobs: quorum, dead-letter-exchange dead, dead-letter-routing-key jobs, max-length 1000, message-ttl 604800000, overflow reject-publish, single-active-consumer",
                "queue jobs.retry.1s: quorum, dead-letter-exchange \"\", dead-letter-routing-key jobs, dead-letter-strategy at-least-once, message-ttl 1000, overflow reject-publish",
                "queue jobs.retry.1m30s: quorum, dead-letter-exchange \"\", dead-letter-routing-key jobs, dead-letter-strategy at-least-once, message-ttl 90000, overflow reject-publish",
                "binding events -> jobs: ticket.#",
                "binding events -> jobs: invoice.*",
                "queue jobs.dead: quorum",
                "binding dead -> jobs.dead: jobs",
            ]
        );
        assert_eq!(topology().ladder("jobs")[1].queue, "jobs.retry.1m30s");
        assert_eq!(topology().dead_letters("jobs").unwrap().exchange, "dead");
        assert_eq!(topology().dead_letters("other"), None);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for wrong in [
            serde_json::json!({"queue": {}}),
            serde_json::json!({"queues": {"a": {"kind": "mirrored"}}}),
            serde_json::json!({"queues": {"a": {"retry": ["soon"]}}}),
            serde_json::json!({"queues": {"a": {"max_lenght": 3}}}),
        ] {
            assert!(serde_json::from_value::<RabbitMqTopology>(wrong).is_err());
        }
    }
}
