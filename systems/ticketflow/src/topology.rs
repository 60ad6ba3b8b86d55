//! What must be there at RabbitMQ, as data: `ticketflow topology plan` compares, `apply` puts right, `doc` writes
//! docs/rabbitmq-topology.md.

use crate::ticket::topic;
use anyhow::Result;
use relevo::broker::{Plan, Topology};
use relevo::rabbitmq::RabbitMqConfig;
use relevo::rabbitmq::topology::{RabbitMqAdmin, RabbitMqTopology};
use serde_json::json;

/// The topic exchange that events are published to.
pub const EXCHANGE: &str = "tickets";
/// The queue of those who write e-mails.
pub const NOTIFICATIONS: &str = "notifications";
/// The queue of those who count.
pub const METRICS: &str = "metrics";
/// Both.
pub const QUEUES: [&str; 2] = [NOTIFICATIONS, METRICS];

/// Where the dead letters of a queue go.
pub fn dlq(queue: &str) -> String {
    format!("{queue}.dlq")
}

/// An exchange, two queues, and a place for the dead letters of each.
///
/// One consumer of a queue is active at a time, so several workers keep the order of every ticket. No retry queue is
/// here: a message that waits in one is overtaken by what follows it, so what fails is parked in the worker's database.
pub fn wanted() -> Result<RabbitMqTopology> {
    let queue = json!({"bind": {EXCHANGE: topic::ALL}, "single_active_consumer": true});
    let queues = QUEUES
        .iter()
        .flat_map(|name| [((*name).to_owned(), queue.clone()), (dlq(name), json!({}))]);
    let queues: serde_json::Map<String, serde_json::Value> = queues.collect();
    let topology = json!({"exchanges": {EXCHANGE: {"kind": "topic"}}, "queues": queues});
    Ok(serde_json::from_value(topology)?)
}

/// Compares with the broker, and changes nothing.
pub async fn plan(config: &RabbitMqConfig) -> Result<Plan> {
    Ok(RabbitMqAdmin::new(config.clone(), &wanted()?).plan().await?)
}

/// Makes what is missing. What differs and cannot be changed without loss is refused.
pub async fn apply(config: &RabbitMqConfig) -> Result<Plan> {
    Ok(RabbitMqAdmin::new(config.clone(), &wanted()?).apply(false).await?)
}

/// The page that the document points to, out of the plan for a broker that has nothing yet.
pub fn page(plan: &Plan) -> String {
    let mut text = String::from(HEAD);
    for what in ["exchange", "queue", "binding"] {
        text += &format!("\n## {what}\n\n| Name | How |\n|---|---|\n");
        for step in plan.steps.iter().filter(|step| step.what == what) {
            // What is in brackets is of this broker, not of the topology.
            let how = step.text.split(" (").next().unwrap_or_default();
            text += &format!("| `{}` | {how} |\n", step.name);
        }
    }
    text + TAIL
}

const HEAD: &str = "# RabbitMQ topology\n
This page is what `ticketflow topology doc` prints: the plan for a broker that has nothing yet. A test compares the two.
`ticketflow topology plan` compares a broker with it, `ticketflow topology apply` makes what is missing.
Everything is durable.
";

const TAIL: &str = "
## Messages

| Header | Meaning |
|---|---|
| `x-event-id` | the event's id, the `Id` of its row in `Outbox`; `message_id` is the same |
| `x-correlation-id` | the request's, or one that was made up for it; a copy in a `.dlq` has it too, no e-mail has |
| `cloudEvents_...` | the same and more, as CloudEvents has it: `subject` is the ticket |
| `x-relevo-last-error`, `x-relevo-original-destination`, `x-relevo-original-topic` | in a `.dlq` only: why, where from, and the routing key it had |

The routing key is the event's type. Messages are persistent, published with confirms and `mandatory`.

## Retries

A message that fails is acknowledged and parked in the worker's own database, in the transaction that notes it, and what
follows of its ticket waits behind it: after 1, 5 and 15 minutes it is tried again, then it is published to the `.dlq` of
its queue. No queue at the broker is part of that: what waits in a retry queue is overtaken.
";
