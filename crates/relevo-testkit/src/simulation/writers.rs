//! Writers and operators: everything that works beside the relays.

use super::call::Mailbox;
use super::options::{Act, MS, Micros, RewindTo, SECOND};
use super::world::World;
use bytes::Bytes;
use relevo_core::Result;
use relevo_core::dead_letters::{DeadFilter, DeadState};
use relevo_core::event::{EventId, Headers, lane_of};
use relevo_core::outbox::{LaneId, Retention, Start, Token};
use relevo_stores::memory::{Refusal, RequestRow, Statement, TxId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What one transaction of a writer does.
#[derive(Debug, Clone)]
struct Script {
    /// Locks its aggregate first, as writers should; otherwise it publishes first.
    locks_first: Option<String>,
    /// Takes its transaction id long before it publishes.
    writes_first: bool,
    events: u64,
    /// Rolls a savepoint back before it goes on.
    savepoint: bool,
    pause: Micros,
    rolls_back: bool,
}

impl World {
    fn script(&mut self) -> Script {
        let options = self.options.clone();
        let mut draw = self.draw();
        let long = draw.chance(options.long_transactions);
        Script {
            locks_first: draw.one_in(2).then(|| draw.pick(&options.keys)),
            writes_first: draw.one_in(3),
            events: draw.between(1, 3),
            savepoint: draw.one_in(5),
            pause: if long { draw.between(200, 2_500) * MS } else { draw.between(0, 8) * MS },
            rolls_back: draw.chance(options.rollbacks),
        }
    }
}

/// Writes transaction after transaction.
pub(super) async fn writer(mailbox: Mailbox, transactions: u64, first_pause: Micros) -> Result<()> {
    mailbox.sleep(first_pause).await;
    for _ in 0..transactions {
        let script = mailbox.call("script", |world| Ok(world.script())).await?;
        // A deadlock or a crash of the database ends this transaction; the next one comes all the same.
        drop(transaction(&mailbox, script).await);
        let pause = mailbox.call("script", |world| Ok(world.draw().between(5, 250) * MS)).await?;
        mailbox.sleep(pause).await;
    }
    Ok(())
}

/// A writer's open transaction; let go of, it is rolled back.
struct Open {
    mailbox: Mailbox,
    tx: TxId,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.mailbox.drop_transaction(self.tx);
    }
}

async fn transaction(mailbox: &Mailbox, script: Script) -> Result<()> {
    let tx = mailbox.call("begin", |world| Ok(world.begin(None, 60 * SECOND))).await?;
    let _open = Open { mailbox: mailbox.clone(), tx };
    if let Some(key) = script.locks_first.clone() {
        mailbox.call("lock", move |world| world.db.lock_row(tx, "aggregates", &key)).await?;
    }
    if script.writes_first {
        mailbox.call("write", move |world| Ok(world.db.assign_xid(tx)?)).await?;
        mailbox.sleep(script.pause / 2).await;
    }
    for nth in 0..script.events {
        if script.savepoint && nth == 0 {
            publish_and_undo(mailbox, tx).await?;
        }
        publish(mailbox, tx, script.locks_first.clone()).await?;
    }
    mailbox.sleep(script.pause).await;
    if script.rolls_back {
        return mailbox
            .call("rollback", move |world| {
                world.rollback(tx);
                Ok(())
            })
            .await;
    }
    mailbox.call("commit", move |world| Ok(world.commit(tx)?)).await
}

async fn publish_and_undo(mailbox: &Mailbox, tx: TxId) -> Result<()> {
    mailbox
        .call("savepoint", move |world| {
            world.db.savepoint(tx, "w")?;
            world.journal.savepoint(tx);
            Ok(())
        })
        .await?;
    publish(mailbox, tx, None).await?;
    mailbox
        .call("rollback to", move |world| {
            world.db.rollback_to(tx, "w")?;
            world.journal.undo(tx);
            world.seen.sometimes("a savepoint was rolled back before a commit");
            Ok(())
        })
        .await
}

/// Publishes: the transaction's id first, then the sequence number, then the row, with others in between.
async fn publish(mailbox: &Mailbox, tx: TxId, key: Option<String>) -> Result<()> {
    let xid =
        |mailbox: &Mailbox| mailbox.call("take xid", move |world| Ok(world.db.assign_xid(tx)?));
    let seq_first = mutant!(SeqBeforeXid);
    if !seq_first {
        xid(mailbox).await?;
    }
    let drawn = mailbox.call("draw seq", |world| Ok(world.draw_seq())).await?;
    if seq_first {
        xid(mailbox).await?;
    }
    let insert = move |world: &mut World| {
        let topic = if world.rng.below(3) == 0 { "b.made" } else { "a.made" };
        let mut event = world.new_event(topic);
        if let Some(key) = &key {
            event = event.key(key.clone());
        }
        Ok(world.publish(tx, drawn, event)?)
    };
    mailbox.call("insert", insert).await
}

/// Looks after dead letters, pauses and resumes, while traffic goes on.
pub(super) async fn operator(mailbox: Mailbox) -> Result<()> {
    loop {
        let (pause, act) = mailbox
            .call("script", |world| {
                let acts = world.options.clone();
                Ok((world.draw().between(100, 900) * MS, world.draw().pick(&acts.acts)))
            })
            .await?;
        mailbox.sleep(pause).await;
        if !mailbox.call("script", |world| Ok(world.storm)).await? {
            return Ok(());
        }
        operate(&mailbox, act).await?;
    }
}

async fn operate(mailbox: &Mailbox, act: Act) -> Result<()> {
    match act {
        Act::Replay => mailbox.call("replay", |world| world.replay_all()).await,
        Act::Archive => mailbox.call("archive", |world| world.archive_all()).await,
        Act::Edit => mailbox.call("edit", |world| world.edit_one()).await,
        Act::Cancel => mailbox.call("cancel", |world| world.cancel_replays()).await,
        Act::Rewind => mailbox.call("rewind", |world| world.rewind_some()).await,
        Act::Upkeep => mailbox.call("upkeep", |world| world.upkeep()).await,
        Act::Pause => {
            let name = mailbox.call("pause", |world| world.pause_one()).await?;
            mailbox.sleep(300 * MS).await;
            mailbox.call("resume", move |world| world.resume(name)).await
        }
    }
}

impl World {
    fn replay_all(&mut self) -> Statement<()> {
        let rate = self.draw().pick(&[None, Some(5.0)]);
        let progress = self.db.replay(&DeadFilter::default(), rate)?;
        if progress.total > 0 && self.journal.open > 0 {
            self.seen.sometimes("a dead letter was replayed during live traffic");
        }
        self.flush();
        Ok(())
    }

    /// The events whose dead letters are to be put back in one of these lanes, or were and have not come to an end since;
    /// only where the lane's token is the one that stands here.
    pub(super) fn replays_under_way(
        &self,
        subscriber: usize,
        lanes: &BTreeMap<u16, Token>,
    ) -> Vec<EventId> {
        let name = self.journal.subscribers[subscriber].name;
        let is_owned = |lane: &LaneId| {
            let token = self.db.cursor(lane).map(|row| row.token);
            *lane.subscription == *name && token.as_ref() == lanes.get(&lane.lane)
        };
        let asked = self.db.requests().filter(|(_, row)| !row.done && !row.cancelled);
        let asked = asked.filter(|(_, row)| row.due <= self.db.now() && is_owned(&row.lane));
        let letters: BTreeSet<i64> = asked.filter_map(|(_, row)| row.dead_letter).collect();
        let letters = self.db.dead().filter(|(id, _)| letters.contains(id));
        let asked = letters.map(|(_, row)| self.journal.original(row.event.id));
        let lane = |key: &str| LaneId { subscription: name.into(), lane: lane_of(key) };
        let put_back = self.journal.events.iter().filter(|(_, event)| {
            let delivered = &event.at[subscriber];
            delivered.replays > 0 && delivered.awaited && is_owned(&lane(&event.key))
        });
        asked.chain(put_back.map(|(id, _)| *id)).collect()
    }

    pub(super) fn archive_all(&mut self) -> Statement<()> {
        let held = self.db.requests().count();
        self.db.archive(&DeadFilter::default())?;
        if self.db.requests().count() > held {
            self.seen.sometimes("a key was held for an operator and went on");
        }
        self.flush();
        Ok(())
    }

    fn edit_one(&mut self) -> Statement<()> {
        let dead = self.db.dead().find(|(_, row)| row.state == DeadState::Dead);
        let Some((id, row)) = dead else { return Ok(()) };
        let (subscriber, original) =
            (self.journal.subscriber(&row.lane.subscription), row.event.id);
        let copy = self.fresh_id();
        let payload = Bytes::from(format!("edited copy of {original}"));
        self.db.replay_edited(id, copy, payload.clone(), Headers::default())?;
        self.journal.edited(subscriber, original, copy, payload);
        self.flush();
        self.seen.sometimes("a dead letter was edited and its copy delivered");
        Ok(())
    }

    fn cancel_replays(&mut self) -> Statement<()> {
        let replay = |row: &RequestRow| !row.done && !row.cancelled && row.dead_letter.is_some();
        let waiting = self.db.requests().find(|(_, row)| replay(row));
        let Some((_, row)) = waiting else { return Ok(()) };
        let operation = row.operation;
        if self.db.cancel_replay(operation)?.cancelled > 0 {
            self.seen.sometimes("a replay was cancelled");
        }
        self.flush();
        Ok(())
    }

    fn any_subscription(&mut self) -> &'static str {
        let options = self.options.clone();
        let index = self.rng.below(options.subscriptions.len() as u64) as usize;
        options.subscriptions[index].name
    }

    fn pause_one(&mut self) -> Statement<&'static str> {
        let name = self.any_subscription();
        let mut tokens = self.tokens();
        let paused = self.db.pause(name, "an operator", || (tokens.next_u64() >> 1) as i64);
        self.waits_for_no_handler("a pause", paused)?;
        self.lanes_reset(name);
        Ok(name)
    }

    pub(super) fn resume(&mut self, name: &str) -> Statement<()> {
        self.db.resume(name)?;
        self.flush();
        self.seen.sometimes("a subscription was paused and resumed");
        Ok(())
    }

    /// Once, or to and fro before anything was read again.
    fn rewind_some(&mut self) -> Statement<()> {
        if !self.options.rewinds {
            return Ok(());
        }
        let (name, times) = (self.any_subscription(), self.draw().between(1, 2));
        for _ in 0..times {
            self.rewind(name)?;
        }
        if times == 2 {
            self.seen.sometimes("a subscription was rewound twice before it read again");
        }
        Ok(())
    }

    fn rewind(&mut self, name: &str) -> Statement<()> {
        let back = chrono::Duration::milliseconds(self.draw().between(0, 2_000) as i64);
        let options = self.options.clone();
        let to = match self.draw().pick(&options.rewinds_to) {
            RewindTo::Beginning => Start::Beginning,
            RewindTo::Now => Start::Now,
            RewindTo::AWhileAgo => Start::Time(self.db.now() - back),
        };
        let (nonce, mut tokens) = (self.token(), self.tokens());
        let rewound = self.db.rewind(name, to, nonce, || (tokens.next_u64() >> 1) as i64);
        self.waits_for_no_handler("a rewind", rewound)?;
        self.lanes_reset(name);
        let subscriber = self.journal.subscriber(name);
        self.journal.rewound(subscriber, to != Start::Now, to != Start::Beginning);
        self.seen.sometimes("a subscription was rewound");
        Ok(())
    }

    fn tokens(&mut self) -> relevo_core::clock::Rng {
        relevo_core::clock::Rng::seeded(self.rng.next_u64())
    }

    /// An operator's statement gave every lane a new token: the journal has to know.
    fn lanes_reset(&mut self, name: &str) {
        self.flush();
        let subscription: Arc<str> = name.into();
        let lanes: Vec<_> =
            self.db.cursors(name).map(|(lane, row)| (lane, row.token, row.position)).collect();
        for (lane, token, position) in lanes {
            self.journal.lane_reset(
                LaneId { subscription: subscription.clone(), lane },
                token,
                position,
            );
        }
    }

    pub(super) fn upkeep(&mut self) -> Statement<()> {
        let Some(events) = self.options.retention else { return Ok(()) };
        // Whatever it deletes comes after everything committed before it, in the server's own log too.
        self.flush();
        let mut retention = Retention::default();
        retention.events = events;
        let short = std::time::Duration::from_millis(100);
        retention.inbox = if mutant!(ShortInbox) { short } else { self.options.inbox_kept };
        match self.db.upkeep(&retention) {
            Ok(done) if done.rows_dropped > 0 => {
                self.seen.sometimes("a row was dropped by retention");
                if !self.zombies.is_empty() {
                    self.seen.sometimes("a row was dropped by retention while a zombie was about");
                }
            }
            Ok(_) => {}
            // Retention gives way to whoever holds a lock: it comes back later.
            Err(Refusal::Locked { .. }) => return Ok(()),
            Err(failed) => return Err(failed),
        }
        if self
            .options
            .subscriptions
            .iter()
            .any(|s| self.db.waiting(s.name).any(|(_, row)| row.event.is_some()))
        {
            self.seen.sometimes("a ref outlived its row in the log");
        }
        Ok(())
    }
}
