//! What is compared with what.

mod brokers;
mod consume;
mod direct;
mod doorbell;
mod drain;
mod flat;
mod idle;
mod latency;
mod peers;
mod scale;
mod size;
mod writer;

pub(crate) use size::Size;

use crate::arena::Arena;
use crate::figure::Results;
use crate::ledger::Ledger;
use crate::report::Run;
use crate::tasks::Sink;
use anyhow::Result;
use clap::ValueEnum;
use relevo_testkit::services::unique_name;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Not a measurement: bare clients and Relevo's adapters write the same messages.
    Fair,
    /// `publish` in a business transaction, against one bare INSERT.
    Writer,
    /// A backlog to nobody, against binary COPY and the relay most teams write.
    Drain,
    /// A backlog to NATS JetStream, against a bare pipe and the bare client.
    Nats,
    /// The same to RabbitMQ, quorum and classic queues.
    Rabbitmq,
    /// The same to Kafka.
    Kafka,
    /// Handlers without a broker, against a bare loop of the same transactions.
    Direct,
    /// From commit to arrival, against one commit and one confirm.
    Latency,
    /// Inbox and effect in one transaction, against the same without the inbox.
    Consume,
    /// Cost per event with a large backlog, a long history, a held transaction, a poisoned key.
    Flat,
    /// A relay with nothing to do: queries, CPU, memory.
    Idle,
    /// Several relay processes on one log; batches under way; take-over after kill -9.
    Scale,
    /// What a relay's doorbell costs writers.
    Doorbell,
    /// Debezium, and Relevo on the same kind of table. Only when named, or in a long run.
    Peers,
}

/// Holds the contests that are asked for, one after the other.
pub(crate) async fn run(what: &[What], size: Size, ledger: Ledger) -> Result<(Vec<Results>, Run)> {
    let all = What::value_variants().iter().filter(|what| size.long || **what != What::Peers);
    let wanted: Vec<&What> = if what.is_empty() { all.collect() } else { what.iter().collect() };
    let arena = Arena::open(ledger).await?;
    let mut results = Vec::new();
    for what in wanted {
        results.extend(hold(*what, &arena, size).await?);
    }
    arena.close_ledger()?;
    let run = Run { long: size.long, queries: arena.queries_are, missing: arena.missing() };
    Ok((results, run))
}

async fn hold(what: What, arena: &Arena, size: Size) -> Result<Vec<Results>> {
    match what {
        What::Fair => fair(arena).await,
        What::Writer => writer::hold(arena, size).await,
        What::Drain => drain::hold(arena, size).await,
        What::Nats => brokers::nats(arena, size).await,
        What::Rabbitmq => brokers::rabbitmq(arena, size).await,
        What::Kafka => brokers::kafka(arena, size).await,
        What::Direct => direct::hold(arena, size).await,
        What::Latency => latency::hold(arena, size).await,
        What::Consume => consume::hold(arena, size).await,
        What::Flat => flat::hold(arena, size).await,
        What::Idle => idle::hold(arena, size).await,
        What::Scale => scale::hold(arena, size).await,
        What::Doorbell => doorbell::hold(arena, size).await,
        What::Peers => peers::hold(arena, size).await,
    }
}

async fn fair(arena: &Arena) -> Result<Vec<Results>> {
    let places = [Place::nats(arena), Place::quorum(arena), Place::kafka(arena)];
    for place in places.into_iter().flatten() {
        arena.check_fairness(&place.fresh()).await?;
    }
    Ok(Vec::new())
}

/// A broker that is there; every turn gets a stream, queue or topic of its own.
#[derive(Clone)]
struct Place {
    name: &'static str,
    sink: fn(url: &str, name: String) -> Sink,
    url: String,
}

impl Place {
    fn nats(arena: &Arena) -> Option<Place> {
        let sink = |url: &str, stream| Sink::Nats { url: url.to_owned(), stream };
        Some(Place { name: "NATS JetStream", sink, url: arena.nats()?.url() })
    }

    fn quorum(arena: &Arena) -> Option<Place> {
        let sink = |url: &str, name| Sink::RabbitMq { url: url.to_owned(), name, quorum: true };
        Some(Place { name: "RabbitMQ quorum", sink, url: arena.rabbitmq()?.url() })
    }

    fn classic(arena: &Arena) -> Option<Place> {
        let sink = |url: &str, name| Sink::RabbitMq { url: url.to_owned(), name, quorum: false };
        Some(Place { name: "RabbitMQ classic", sink, url: arena.rabbitmq()?.url() })
    }

    fn kafka(arena: &Arena) -> Option<Place> {
        let sink = |bootstrap: &str, topic| Sink::Kafka { bootstrap: bootstrap.to_owned(), topic };
        Some(Place { name: "Kafka", sink, url: arena.kafka()?.bootstrap() })
    }

    /// No broker: handlers.
    fn handlers() -> Place {
        Place { name: "handlers", sink: |_, _| Sink::Null, url: String::new() }
    }

    fn fresh(&self) -> Sink {
        (self.sink)(&self.url, unique_name("bench"))
    }
}
