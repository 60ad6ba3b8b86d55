use super::{END_LIMIT, Rig};
use crate::adopted::{self, Seen};
use crate::check::{Applied, Promise, Verdict, check};
use crate::journal::Truth;
use crate::report::Outcome;
use crate::story::Fate;
use anyhow::Result;
use relevo::EventId;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use uuid::Uuid;

impl Rig {
    /// Ends the writers, lets everything come to rest, ends the relays, and judges.
    pub async fn finish(mut self) -> Result<Outcome> {
        self.end_writers().await?;
        let truth = self.truth().await?;
        self.figures.shapes = self.shapes();
        self.drain(&truth).await?;
        self.end_relays();
        let operate = self.database.operate().await?;
        let dead = self.database.dead_letters(&*operate).await?;
        let wrong = self.wrong_to_owner(&truth).await?;
        wrong.into_iter().for_each(|what| self.problem(what));
        let mut verdict = check(&truth, &self.applied().await?, &dead, self.promise());
        self.explain_missing(&mut verdict).await?;
        let outcome = Outcome {
            scenario: self.scenario.clone(),
            seed: self.run.seed,
            took: self.began.elapsed(),
            figures: self.figures.clone(),
            verdict,
            problems: self.problems.clone(),
        };
        if !outcome.is_clean() && std::env::var_os("RELEVO_KEEP").is_some() {
            self.folder.disable_cleanup(true);
            eprintln!("kept: {}", self.folder.path().display());
        }
        Ok(outcome)
    }

    /// The owner of an adopted table must see in it what became of each row.
    async fn wrong_to_owner(&self, truth: &Truth) -> Result<Vec<String>> {
        let Some(pending) = self.database.seen_by_owner(Seen::Pending).await? else {
            return Ok(Vec::new());
        };
        let dead = self.database.seen_by_owner(Seen::Dead).await?;
        let poison = truth.committed.iter().filter(|(_, c)| c.event.fate == Fate::Poison);
        let poison: Vec<Uuid> = poison.map(|(id, _)| *id).collect();
        Ok(adopted::wrong_in_owners_eyes(&poison, &pending, dead.as_deref()))
    }

    /// Waits until everything committed so far is delivered.
    pub async fn come_to_rest(&mut self) -> Result<()> {
        let truth = self.truth().await?;
        self.drain(&truth).await
    }

    /// Ends the writers, and waits until none of their sessions is at work.
    pub async fn end_writers(&mut self) -> Result<()> {
        for mut writer in std::mem::take(&mut self.writers) {
            writer.terminate(END_LIMIT)?;
        }
        self.database.quiesce().await
    }

    async fn truth(&mut self) -> Result<Truth> {
        let found = self.database.business().await?;
        let lost_by_server = self.journal().confirmed_but_missing(&found).len();
        if lost_by_server > 0 {
            self.problem(format!("the database lost {lost_by_server} confirmed transactions"));
        }
        let truth = self.journal().settle(&found);
        if truth.unknown_commits > 0 {
            self.figures.notes.push(format!(
                "{} commits of unknown outcome, settled by their rows",
                truth.unknown_commits
            ));
        }
        Ok(truth)
    }

    /// Waits until everything committed is applied or dead, and seen as such by the owner of an adopted table, or nothing
    /// has moved for a long time. What a broker stored without saying so is there before the relay knows.
    async fn drain(&mut self, truth: &Truth) -> Result<()> {
        let count = |fate: Fate| truth.committed.values().filter(|c| c.event.fate == fate).count();
        let poison = count(Fate::Poison);
        let followers = if self.effects_at().is_some() { 0 } else { count(Fate::Chain) };
        let expected = (truth.committed.len() - poison + followers, poison);
        let operate = self.database.operate().await?;
        let (mut last, mut moved) = ((0, 0), Instant::now());
        while moved.elapsed() < self.patience {
            let effects = match self.effects_at() {
                Some(_) => self
                    .applied_of(&truth.committed.keys().copied().collect::<Vec<_>>())
                    .await?
                    .len(),
                None => self.database.count_effects().await?,
            };
            let now = (effects, self.database.dead_letters(&*operate).await?.len());
            let arrived = now.0 >= expected.0 && now.1 >= expected.1;
            if arrived && self.wrong_to_owner(truth).await?.is_empty() {
                return Ok(());
            }
            if now != last {
                (last, moved) = (now, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.problem(format!("at rest with {last:?} of {expected:?} effects and dead letters"));
        Ok(())
    }

    /// Ends relays and consumers, in good order.
    pub fn end_relays(&mut self) {
        let consumers = std::mem::take(&mut self.consumers);
        for mut relay in std::mem::take(&mut self.relays).into_iter().chain(consumers) {
            for note in relay.told().notes.clone() {
                self.figures.notes.push(note);
            }
            if let Err(error) = relay.terminate(END_LIMIT) {
                self.problems.push(format!("{error:#}"));
            }
        }
        self.figures.notes.sort();
        self.figures.notes.dedup();
    }

    /// Lost, or only not there yet? The log itself tells.
    async fn explain_missing(&self, verdict: &mut Verdict) -> Result<()> {
        let operate = self.database.operate().await?;
        for (id, what) in verdict.missing.iter_mut().take(10) {
            let why = operate.why(EventId(*id)).await;
            *what = format!("{what}; the log says {why:?}");
        }
        Ok(())
    }

    async fn applied(&self) -> Result<Vec<Applied>> {
        match self.effects_at() {
            Some(broker) => {
                let mut stored = broker.stored();
                stored.retain(|effect| !self.lost_with_copy.contains(&effect.id));
                Ok(stored)
            }
            None => self.database.effects().await,
        }
    }

    /// How many effects there are so far, copies included.
    pub async fn count_effects(&self) -> Result<usize> {
        match self.effects_at() {
            Some(broker) => Ok(broker.stored().len()),
            None => self.database.count_effects().await,
        }
    }

    pub(super) async fn applied_of(&self, ids: &[Uuid]) -> Result<HashSet<Uuid>> {
        match self.effects_at() {
            Some(broker) => {
                let stored: HashSet<Uuid> =
                    broker.stored().iter().map(|effect| effect.id).collect();
                Ok(ids.iter().filter(|id| stored.contains(id)).copied().collect())
            }
            None => self.database.applied_of(ids).await,
        }
    }

    fn promise(&self) -> Promise {
        if self.effects_at().is_some() { Promise::AtLeastOnce } else { Promise::Once }
    }
}
