//! What is compared with what.

mod brokers;
mod direct;
mod drain;
mod writer;

use crate::arena::Arena;
use crate::contest::Figure;
use anyhow::Result;
use clap::ValueEnum;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// `publish` in a business transaction, against one bare INSERT.
    Writer,
    /// A backlog to nobody, against binary COPY and the relay most teams write.
    Drain,
    /// A backlog to NATS JetStream, against a bare pipe and the bare client.
    Nats,
    /// The same to RabbitMQ, quorum and classic queues.
    Rabbitmq,
    /// Handlers without a broker, against a bare loop of the same transactions.
    Direct,
}

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) rounds: usize,
    /// Events of a drain.
    pub(crate) events: u64,
    /// Transactions of a writer.
    pub(crate) transactions: u64,
}

impl Size {
    pub(crate) fn of(long: bool, rounds: Option<usize>) -> Size {
        match long {
            true => Size { rounds: rounds.unwrap_or(5), events: 500_000, transactions: 60_000 },
            false => Size { rounds: rounds.unwrap_or(1), events: 20_000, transactions: 1_000 },
        }
    }
}

/// Holds the contests that are asked for, one after the other.
pub(crate) async fn run(what: &[What], size: Size) -> Result<Vec<Figure>> {
    let wanted = if what.is_empty() { What::value_variants() } else { what };
    let arena = Arena::open().await?;
    let mut figures = Vec::new();
    for what in wanted {
        figures.extend(match what {
            What::Writer => writer::hold(&arena, size).await?,
            What::Drain => drain::hold(&arena, size).await?,
            What::Nats => brokers::nats(&arena, size).await?,
            What::Rabbitmq => brokers::rabbitmq(&arena, size).await?,
            What::Direct => direct::hold(&arena, size).await?,
        });
    }
    Ok(figures)
}
