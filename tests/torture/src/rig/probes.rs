use super::{RECOVERY_LIMIT, Rig};
use crate::story::{Fate, Intent, Line, Published, now_ns};
use anyhow::Result;
use relevo::EventId;
use relevo_core::event::lane_of;
use relevo_core::limits::LANES;
use std::time::{Duration, Instant};
use uuid::Uuid;

impl Rig {
    /// Publishes one event for every lane and waits until all have had their effect: from `since` until then.
    pub async fn probe(&mut self, since: Instant, limit: Duration) -> Result<Duration> {
        self.probe_but(0, since, limit).await
    }

    /// Like [`Self::probe`], but so many lanes may be missing.
    async fn probe_but(
        &mut self,
        missing: usize,
        since: Instant,
        limit: Duration,
    ) -> Result<Duration> {
        let ids = self.publish_probes().await?;
        let mut explained = false;
        loop {
            let applied = self.applied_of(&ids).await?;
            if applied.len() + missing >= ids.len() {
                return Ok(since.elapsed());
            }
            if since.elapsed() > limit + RECOVERY_LIMIT {
                let stand_still =
                    format!("lanes still stand still {:?} after the fault", since.elapsed());
                self.problem(stand_still);
                return Ok(since.elapsed());
            }
            if since.elapsed() > limit && !explained {
                explained = true;
                self.explain_delay(ids.iter().filter(|id| !applied.contains(id))).await;
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    /// Asks the log what some late events wait for.
    async fn explain_delay(&mut self, late: impl Iterator<Item = &Uuid>) {
        let late: Vec<&Uuid> = late.collect();
        let Ok(operate) = self.database.operate().await else { return };
        for id in late.iter().take(2) {
            let why = operate.why(EventId(**id)).await;
            self.figures
                .notes
                .push(format!("{} lanes were late; one, because: {why:?}", late.len()));
        }
    }

    /// Measures a take-over: `since` is the moment of death.
    pub async fn measure_takeover(&mut self, since: Instant) -> Result<()> {
        self.measure_takeover_but(0, since).await
    }

    /// Measures a take-over of all lanes but those few whose rows the sleeper's transactions may hold.
    pub async fn measure_takeover_but(&mut self, held: usize, since: Instant) -> Result<()> {
        let limit = self.takeover_limit();
        let took = self.probe_but(held, since, limit).await?;
        self.calm_broker(false);
        self.figures.takeovers.push(took);
        if took > limit {
            self.problem(format!("a take-over took {took:?}, more than {limit:?}"));
        }
        Ok(())
    }

    /// Measures a recovery: `since` is the moment at which the fault ended.
    pub async fn measure_recovery(&mut self, since: Instant) -> Result<()> {
        self.measure_recovery_within(RECOVERY_LIMIT, since).await
    }

    /// Measures a recovery that somebody's patience is a part of.
    pub async fn measure_recovery_within(&mut self, limit: Duration, since: Instant) -> Result<()> {
        let took = self.probe(since, limit).await?;
        self.figures.recoveries.push(took);
        if took > limit {
            self.problem(format!("a recovery took {took:?}, more than {limit:?}"));
        }
        Ok(())
    }

    /// True as soon as a transaction with probes is refused; false if many are not.
    pub async fn publishing_fails(&mut self) -> bool {
        for _ in 0..1000 {
            let intent = self.next_probes();
            self.journal().hear(&Line::Intent(intent.clone()));
            if self.database.publish(intent.tx, &intent.events).await.is_err() {
                return true;
            }
            self.journal().hear(&Line::Committed(intent.tx, now_ns()));
        }
        false
    }

    /// Publishes them again, as new events, if nobody knows whether the first ones were committed.
    async fn publish_probes(&mut self) -> Result<Vec<Uuid>> {
        let deadline = Instant::now() + RECOVERY_LIMIT;
        loop {
            let intent = self.next_probes();
            self.journal().hear(&Line::Intent(intent.clone()));
            match self.database.publish(intent.tx, &intent.events).await {
                Ok(()) => {
                    self.journal().hear(&Line::Committed(intent.tx, now_ns()));
                    return Ok(intent.events.iter().map(|event| event.id).collect());
                }
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn next_probes(&mut self) -> Intent {
        self.probed += 1;
        let version = self.probed;
        let event = |key: &String| Published {
            id: Uuid::now_v7(),
            key: key.clone(),
            fate: Fate::Plain,
            version,
            place: 0,
            locked: true,
            begun_ns: now_ns(),
        };
        let events = self.probe_keys.iter().map(event).collect();
        Intent { tx: Uuid::now_v7(), events, ..Intent::default() }
    }
}

/// One key for each lane.
pub(super) fn one_key_for_each_lane() -> Vec<String> {
    let mut keys: Vec<Option<String>> = vec![None; usize::from(LANES)];
    let mut number = 0;
    while keys.iter().any(Option::is_none) {
        let key = format!("probe-{number}");
        let lane = usize::from(lane_of(&key));
        keys[lane].get_or_insert(key);
        number += 1;
    }
    keys.into_iter().flatten().collect()
}
