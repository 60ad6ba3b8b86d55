use super::Routing;
use crate::rabbitmq::BINDING;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use std::collections::BTreeMap;
use std::fmt;

/// One declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Thing {
    Exchange { name: String, kind: Routing },
    Queue { name: String, arguments: BTreeMap<&'static str, Argument> },
    Binding { exchange: String, queue: String, key: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Argument {
    Text(String),
    Number(u64),
    Flag,
}

impl Thing {
    pub(super) fn exchange(name: &str, kind: Routing) -> Self {
        Self::Exchange { name: name.to_owned(), kind }
    }

    pub(super) fn queue(name: &str) -> Self {
        Self::Queue { name: name.to_owned(), arguments: BTreeMap::new() }
    }

    pub(super) fn binding(exchange: &str, queue: &str, key: &str) -> Self {
        Self::Binding { exchange: exchange.into(), queue: queue.into(), key: key.into() }
    }

    fn with(mut self, name: &'static str, value: Argument) -> Self {
        if let Self::Queue { arguments, .. } = &mut self {
            arguments.insert(name, value);
        }
        self
    }

    pub(super) fn text(self, name: &'static str, value: &str) -> Self {
        self.with(name, Argument::Text(value.to_owned()))
    }

    pub(super) fn number(self, name: &'static str, value: u64) -> Self {
        self.with(name, Argument::Number(value))
    }

    pub(super) fn flag(self, name: &'static str) -> Self {
        self.with(name, Argument::Flag)
    }

    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::Exchange { .. } => "exchange",
            Self::Queue { .. } => "queue",
            Self::Binding { .. } => "binding",
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Exchange { name, .. } | Self::Queue { name, .. } => name.clone(),
            Self::Binding { exchange, queue, .. } => format!("{exchange} -> {queue}"),
        }
    }

    /// What it is to be.
    pub(super) fn description(&self) -> String {
        match self {
            Self::Exchange { kind, .. } => kind.as_str().to_owned(),
            Self::Binding { key, .. } => key.clone(),
            Self::Queue { arguments, .. } => {
                let kind = arguments.get("x-queue-type").map(ToString::to_string);
                let others = arguments.iter().filter(|(name, _)| **name != "x-queue-type");
                let others = others.map(|(name, value)| match value {
                    Argument::Flag => name.trim_start_matches("x-").to_owned(),
                    value => format!("{} {value}", name.trim_start_matches("x-")),
                });
                kind.into_iter().chain(others).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) if text.is_empty() => f.write_str("\"\""),
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Flag => f.write_str("true"),
        }
    }
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.what(), self.name(), self.description())
    }
}

/// What an exchange needs to know beside its kind.
pub(super) fn exchange_table(kind: Routing) -> FieldTable {
    let mut table = FieldTable::default();
    if kind == Routing::Hash {
        let header = LongString::from(format!("{}partitionkey", BINDING.prefix));
        table.insert("hash-header".into(), AMQPValue::LongString(header));
    }
    table
}

pub(super) fn table(arguments: &BTreeMap<&'static str, Argument>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Argument::Text(text) => AMQPValue::LongString(LongString::from(text.as_str())),
            Argument::Number(number) => {
                AMQPValue::LongLongInt(i64::try_from(*number).unwrap_or(i64::MAX))
            }
            Argument::Flag => AMQPValue::Boolean(true),
        };
        table.insert(ShortString::from(*name), value);
    }
    table
}
