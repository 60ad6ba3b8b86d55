//! `[subscription.NAME]`

use super::{Check, Known};
use crate::config::SubscriptionConfig;
use crate::config::file::SubscriptionTable;
use crate::config::suggest::did_you_mean;
use chrono::{DateTime, Utc};
use relevo_core::error::quoted;
use relevo_core::event::TopicFilter;
use relevo_core::limits::LANES;
use relevo_core::outbox::{Start, Subscription};
use relevo_core::relay::{AfterDead, Order, RelayConfig};
use std::time::Duration;

impl Check {
    pub(super) fn subscription(
        &mut self,
        name: &str,
        table: SubscriptionTable,
        known: &Known<'_>,
        base: &RelayConfig,
        limit: Duration,
    ) -> Option<SubscriptionConfig> {
        let before = self.problems.len();
        let at = |key| ["subscription", name, key];
        self.name("subscription", name);
        let adopt = self.adopt(name, &table, known);
        let of_adopted = adopt.as_ref().map(|(_, adopted)| adopted.store.clone());
        let store = table.store.clone().or(of_adopted);
        let store = self.reference(&at("store"), store, known.stores.keys(), "store");
        let to = self.reference(&at("to"), table.to.clone(), known.brokers.keys(), "broker");
        let mut relay = self.sizes(name, &table, base.clone());
        relay.topics = self.topics(name, table.topics.as_deref());
        relay.after_dead = self.after_dead(&at("after_dead"), table.after_dead.as_deref());
        relay.order = self.order(&at("order"), table.order.as_deref());
        if let Some(retry) = table.retry {
            let found = self.reference(&at("retry"), Some(retry), known.retries.keys(), "retry");
            relay.retry =
                found.and_then(|name| known.retries.get(&name)).cloned().unwrap_or_default();
        }
        let start = self.start(&at("start"), table.start.as_ref());
        if let Err(error) = relay.check() {
            self.bad(&["subscription", name], error.message());
        }
        let (store, to) = (store?, to?);
        let subscription = Subscription::new(name)
            .topics(relay.topics.clone())
            .start(start)
            .after_dead(relay.after_dead)
            .destination(format!("{to} ({})", known.brokers[&to]));
        let handler_limit = table.handler_limit.map_or(limit, |span| span.0);
        if handler_limit.is_zero() {
            self.bad(&at("handler_limit"), "an attempt needs some time");
        }
        (self.problems.len() == before).then_some(SubscriptionConfig {
            store,
            adopt: adopt.map(|(name, _)| name),
            to,
            subscription,
            relay,
            handler_limit,
        })
    }

    /// A name that must be known; the only one there is, if none is given.
    pub(super) fn reference<'k>(
        &mut self,
        path: &[&str],
        given: Option<String>,
        known: impl Iterator<Item = &'k String>,
        table: &str,
    ) -> Option<String> {
        let known: Vec<&str> = known.map(String::as_str).collect();
        let Some(given) = given else {
            if let [only] = known.as_slice() {
                return Some((*only).to_owned());
            }
            self.bad(path, format!("say which [{table}.NAME] is meant"));
            return None;
        };
        if known.contains(&given.as_str()) {
            return Some(given);
        }
        let there = if known.is_empty() { "none".into() } else { known.join(", ") };
        self.bad(
            path,
            format!(
                "there is no [{table}.{given}]{} (there are: {there})",
                did_you_mean(&given, known.iter().copied())
            ),
        );
        None
    }

    fn sizes(
        &mut self,
        name: &str,
        table: &SubscriptionTable,
        mut relay: RelayConfig,
    ) -> RelayConfig {
        relay.batch = table.batch.map_or(relay.batch, |n| n as usize);
        relay.batch_bytes = table.batch_bytes.map_or(relay.batch_bytes, |n| n as usize);
        relay.concurrency = table.concurrency.map(|n| n as usize);
        relay.max_parked_keys = table.max_parked_keys.map_or(relay.max_parked_keys, |n| n as usize);
        relay.max_deaths_in_a_row = table.max_deaths_in_a_row.unwrap_or(relay.max_deaths_in_a_row);
        if table.lanes.is_some_and(|lanes| lanes != u32::from(LANES)) {
            self.bad(
                &["subscription", name, "lanes"],
                format!("the number of lanes is fixed at {LANES} in this version"),
            );
        }
        relay
    }

    fn topics(&mut self, name: &str, topics: Option<&[String]>) -> Vec<TopicFilter> {
        let Some(topics) = topics else { return vec![TopicFilter::all()] };
        let mut filters = Vec::new();
        for topic in topics {
            match TopicFilter::parse(topic) {
                Ok(filter) => filters.push(filter),
                Err(error) => self.bad(&["subscription", name, "topics"], error.message()),
            }
        }
        filters
    }

    fn after_dead(&mut self, path: &[&str], given: Option<&str>) -> AfterDead {
        match given {
            None | Some("continue") => AfterDead::Continue,
            Some("hold") => AfterDead::Hold,
            Some(other) => {
                self.bad(
                    path,
                    format!(
                        "{other:?} is not continue or hold{}",
                        did_you_mean(other, ["continue", "hold"])
                    ),
                );
                AfterDead::Continue
            }
        }
    }

    fn order(&mut self, path: &[&str], given: Option<&str>) -> Order {
        let Some(given) = given else { return Order::default() };
        Order::parse(given).unwrap_or_else(|| {
            let all = Order::ALL.map(Order::as_str);
            let near = did_you_mean(given, all);
            self.bad(path, format!("{} is not one of {}{near}", quoted(given), all.join(", ")));
            Order::default()
        })
    }

    fn start(&mut self, path: &[&str], given: Option<&toml::Value>) -> Start {
        let Some(value) = given else { return Start::Beginning };
        let text = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Datetime(time) => time.to_string(),
            other => other.to_string(),
        };
        parse_start(&text).unwrap_or_else(|why| {
            self.bad(path, why);
            Start::Beginning
        })
    }
}

/// `beginning`, `now` or a time as RFC 3339 writes it.
pub(crate) fn parse_start(text: &str) -> Result<Start, String> {
    match text {
        "beginning" => Ok(Start::Beginning),
        "now" => Ok(Start::Now),
        other => match DateTime::parse_from_rfc3339(other) {
            Ok(time) => Ok(Start::Time(time.with_timezone(&Utc))),
            Err(_) => Err(format!(
                "{} is not \"beginning\", \"now\" or a time such as \"2026-01-31T08:00:00Z\"{}",
                quoted(other),
                did_you_mean(other, ["beginning", "now"])
            )),
        },
    }
}
