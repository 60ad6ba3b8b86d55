use crate::clock::Clock;
use crate::database::{Database, Transaction};
use crate::topology::{QUEUES, dlq};
use anyhow::{Result, bail};
use relevo::broker::{Confirm, Publisher, dead_header};
use relevo::rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use relevo::{DeadFilter, DeadLetter, DeadState, Event, EventId, header};
use std::collections::BTreeSet;
use std::time::Duration;

/// Letters read at once.
const PAGE: usize = 500;
/// Between two rounds.
const EVERY: Duration = Duration::from_secs(1);

/// Publishes what failed for good to the `.dlq` of its queue: each letter once, unless the process dies between
/// RabbitMQ's confirm and the commit that notes it. The letter itself stays in the database, from where it can be
/// replayed in its place.
pub struct Forwarder {
    database: Database,
    publisher: RabbitMqPublisher,
    clock: Clock,
}

impl Forwarder {
    /// Of this database, to this broker.
    pub fn new(database: Database, rabbit: &RabbitMqConfig, clock: Clock) -> Self {
        // The default exchange, where a routing key is the name of a queue.
        let publisher = RabbitMqPublisher::new(rabbit.clone().exchange(""));
        Self { database, publisher, clock }
    }

    /// Publishes for ever.
    pub async fn keep(self) {
        loop {
            if let Err(error) = self.round().await {
                tracing::warn!(error = format!("{error:#}"), "dead letters wait for their queue");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn round(&self) -> Result<()> {
        for queue in QUEUES {
            for letter in self.waiting(queue).await? {
                self.forward(queue, &letter).await?;
            }
        }
        Ok(())
    }

    /// Letters of this consumer that were not published yet, oldest first.
    async fn waiting(&self, consumer: &str) -> Result<Vec<DeadLetter>> {
        let mut filter = DeadFilter::default();
        filter.subscription = Some(consumer.to_owned());
        filter.state = Some(DeadState::Dead);
        let (mut waiting, mut before) = (Vec::new(), None);
        loop {
            let page = self.database.operate().dead_letters(&filter, before, PAGE).await?;
            before = page.last().map(|letter| letter.id);
            let Some(last) = before else { break };
            let known = self.known(last).await?;
            waiting.extend(page.into_iter().filter(|letter| !known.contains(&letter.id)));
        }
        waiting.reverse();
        Ok(waiting)
    }

    /// The numbers of those that were, from this one on.
    async fn known(&self, from: i64) -> Result<BTreeSet<i64>> {
        const KNOWN: &str = r#"SELECT "Letter" FROM "DlqPublished" WHERE "Letter" >= $1"#;
        let mut connection = self.database.connect().await?;
        let known = connection.session().query(KNOWN, &[from.into()]).await?;
        known.iter().map(|row| row.number(0)).collect()
    }

    /// Whoever notes the letter first publishes it; the others wait at the row, and then find it noted.
    async fn forward(&self, queue: &str, letter: &DeadLetter) -> Result<()> {
        const NOTE: &str = r#"INSERT INTO "DlqPublished" ("Letter", "Queue", "PublishedAt") VALUES ($1, $2, $3)
            ON CONFLICT DO NOTHING"#;
        let mut connection = self.database.connect().await?;
        let mut tx: Transaction<'_> = connection.begin().await?;
        let values = [letter.id.into(), queue.into(), self.clock.now().into()];
        if tx.session().execute(NOTE, &values).await? == 0 {
            return Ok(());
        }
        let event = addressed(queue, letter);
        match self.publisher.publish(&[&event]).await.pop() {
            Some(Confirm::Stored) => tx.commit().await,
            other => bail!("{}: {other:?}", dlq(queue)),
        }
    }
}

/// The message as it was consumed, with what became of it.
fn addressed(queue: &str, letter: &DeadLetter) -> Event {
    let mut event = letter.event.clone();
    event.id = original_id(&event);
    for own in [header::INBOX, header::INBOX_ID, header::INBOX_ANSWER] {
        event.headers.remove(own);
    }
    event.headers.set(dead_header::REASON, one_line(&letter.error));
    event.headers.set(dead_header::FROM, queue);
    event.headers.set(dead_header::TOPIC, event.topic.clone());
    event.topic = dlq(queue);
    event
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}

/// The id by which its publisher knew an event that landed in a consumer's log.
pub fn original_id(event: &Event) -> EventId {
    event.headers.get(header::INBOX_ID).and_then(|id| id.parse().ok()).unwrap_or(event.id)
}
