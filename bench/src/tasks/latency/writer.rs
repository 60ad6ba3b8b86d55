//! Writers that commit at a pace of their own, whatever becomes of their events.

use super::stopwatch::Stopwatch;
use crate::judge;
use crate::tasks::Plan;
use crate::tasks::bare::Bare;
use crate::tasks::effects::EFFECT;
use crate::tasks::message::Message;
use crate::tasks::rows::connect;
use anyhow::Result;
use futures::future::try_join_all;
use relevo::postgres::PostgresOutbox;
use relevo::{EventId, NewEvent, PublishIn};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::{Client, Statement, Transaction};

/// How the events of a rate are shared out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace {
    pub(crate) writers: u64,
    pub(crate) events_of_a_transaction: u64,
    /// Between two transactions of a writer; none if they follow each other at once.
    pub(crate) every: Option<Duration>,
}

/// Transactions a second of one of several writers.
const TRANSACTIONS: f64 = 50.0;

impl Pace {
    pub(crate) fn of(rate: Option<f64>) -> Pace {
        let Some(rate) = rate else {
            return Pace { writers: 8, events_of_a_transaction: 50, every: None };
        };
        if rate <= 200.0 {
            let every = Some(Duration::from_secs_f64(1.0 / rate));
            return Pace { writers: 1, events_of_a_transaction: 1, every };
        }
        let each = rate / 8.0;
        let events = (each / TRANSACTIONS).ceil().max(1.0);
        let every = Some(Duration::from_secs_f64(events / each));
        Pace { writers: 8, events_of_a_transaction: events as u64, every }
    }
}

/// What follows the business change.
pub(crate) enum After {
    /// The event is in the transaction itself; the rest is Relevo's job.
    Relevo,
    /// A row of the table that a peer, or Relevo in its place, relays.
    Adopted(Statement),
    /// A bare row in the transaction; after its commit the writer publishes, and waits for the confirm.
    Publish(Box<Bare>),
    /// A bare row in the transaction; after its commit another transaction has the effect.
    Effect(Client),
}

pub(crate) struct Writer {
    pub(crate) client: Client,
    pub(crate) insert: Statement,
    pub(crate) after: After,
    pub(crate) watch: Arc<Stopwatch>,
    pub(crate) plan: Plan,
    pub(crate) pace: Pace,
    pub(crate) number: u64,
}

impl Writer {
    pub(crate) async fn new(
        url: &str,
        after: After,
        watch: &Arc<Stopwatch>,
        plan: Plan,
        pace: Pace,
        number: u64,
    ) -> Result<Writer> {
        let client = connect(url).await?;
        let insert = client
            .prepare("INSERT INTO bare (id, topic, key, headers, payload) SELECT u.id, u.topic, u.key, '{}', u.payload FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[]) AS u (id, topic, key, payload)")
            .await?;
        Ok(Writer { client, insert, after, watch: watch.clone(), plan, pace, number })
    }

    /// All events whose number is this writer's; a key's are all the same writer's.
    pub(crate) async fn write(mut self) -> Result<()> {
        let (first, step) = (self.number, self.pace.writers as usize);
        let own: Vec<u64> = (first..self.plan.events).step_by(step).collect();
        let mut due = Instant::now();
        for events in own.chunks(self.pace.events_of_a_transaction as usize) {
            if let Some(every) = self.pace.every {
                tokio::time::sleep_until(due).await;
                due += every;
            }
            self.transaction(events).await?;
        }
        Ok(())
    }

    async fn transaction(&mut self, events: &[u64]) -> Result<()> {
        let message = |n: &u64| Message::nth(*n, self.plan.keys, self.plan.bytes);
        let messages: Vec<Message> = events.iter().map(message).collect();
        let mut tx = self.client.transaction().await?;
        match &self.after {
            After::Relevo => {
                let events = messages.iter().map(new_event).collect();
                PostgresOutbox::new().publish_all(&mut tx, events).await?;
            }
            After::Adopted(insert) => {
                for n in events {
                    let (key, number) = judge::nth(*n, self.plan.keys);
                    let text = judge::text_payload(key, number, self.plan.bytes);
                    tx.execute(insert, &[&format!("key-{key}"), &text]).await?;
                }
            }
            After::Publish(_) | After::Effect(_) => bare(&tx, &self.insert, &messages).await?,
        }
        self.watch.send(events);
        tx.commit().await?;
        self.follow(&messages).await
    }

    async fn follow(&mut self, messages: &[Message]) -> Result<()> {
        match &mut self.after {
            After::Relevo | After::Adopted(_) => {}
            After::Publish(bare) => {
                let mut confirming = Vec::with_capacity(messages.len());
                for message in messages {
                    confirming.push(bare.send(message).await?);
                }
                try_join_all(confirming.into_iter().zip(messages).map(
                    async |(confirm, message)| {
                        confirm.await?;
                        self.watch.receive(&message.payload);
                        anyhow::Ok(())
                    },
                ))
                .await?;
            }
            After::Effect(client) => {
                let tx = client.transaction().await?;
                let effect = tx.prepare(EFFECT).await?;
                for message in messages {
                    tx.execute(&effect, &[&message.id, &message.payload.as_ref()]).await?;
                }
                tx.commit().await?;
                messages.iter().for_each(|message| self.watch.receive(&message.payload));
            }
        }
        Ok(())
    }
}

/// One bare row for each message.
async fn bare(tx: &Transaction<'_>, insert: &Statement, messages: &[Message]) -> Result<()> {
    let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
    let topics: Vec<_> = messages.iter().map(|message| message.topic.as_str()).collect();
    let keys: Vec<_> = messages.iter().map(|message| message.key.as_str()).collect();
    let payloads: Vec<_> = messages.iter().map(|message| &message.payload[..]).collect();
    tx.execute(insert, &[&ids, &topics, &keys, &payloads]).await?;
    Ok(())
}

fn new_event(message: &Message) -> NewEvent {
    let event = NewEvent::bytes(message.topic.clone(), message.payload.clone());
    event.key(message.key.clone()).id(EventId(message.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_together_keep_the_rate() {
        for rate in [100.0, 200.0, 999.0, 20_000.0, 123_456.0] {
            let pace = Pace::of(Some(rate));
            let a_second = pace.writers as f64 * pace.events_of_a_transaction as f64
                / pace.every.unwrap().as_secs_f64();
            assert!((a_second / rate - 1.0).abs() < 1e-6, "{rate}: {a_second}");
        }
        assert_eq!(Pace::of(None).every, None);
        assert_eq!(Pace::of(Some(100.0)).writers, 1);
    }
}
