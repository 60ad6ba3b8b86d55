//! What became of claimed rows, in the owner's columns: in the transaction that records it.

use super::super::errors::on_commit;
use super::super::record::{record_in, shown};
use super::super::session::{Session, args};
use super::Adopted;
use relevo_core::Result;
use relevo_core::outbox::adopt::{Failure, Marks};
use relevo_core::outbox::{LaneChange, Retention};
use uuid::Uuid;

impl Adopted {
    /// Marks, then records; the fence comes last.
    pub(super) async fn record_with_marks(&self, changes: &[LaneChange]) -> Result<()> {
        let marks = Marks::of(changes);
        if marks.is_empty() {
            return self.store.record_changes(changes).await;
        }
        let session = self.store.session().await?;
        let tx = session.begin_by_index().await?;
        // What was replayed comes through a parked key.
        let drained = changes.iter().any(|change| !change.settled.is_empty());
        self.mark(&tx, &marks, drained).await?;
        record_in(&tx, changes).await?;
        tx.commit().await.map_err(on_commit)
    }

    async fn mark(&self, session: &Session, marks: &Marks, drained: bool) -> Result<()> {
        let statements = &self.statements;
        if !marks.published.is_empty() {
            let events: Vec<Uuid> = marks.published.iter().map(|event| event.0).collect();
            if let (Some(restore), true) = (&statements.restore, drained) {
                session.execute(restore, args![&*self.name, events]).await?;
            }
            session.execute(&statements.published, args![&*self.name, events]).await?;
        }
        if let (Some(failed), false) = (&statements.failed, marks.failed.is_empty()) {
            self.with_failures(session, failed, &marks.failed).await?;
        }
        self.mark_dead(session, &marks.dead).await
    }

    pub(super) async fn mark_dead(&self, session: &Session, dead: &[Failure]) -> Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        for statement in &self.statements.dead {
            self.with_failures(session, statement, dead).await?;
        }
        Ok(())
    }

    async fn with_failures(&self, session: &Session, sql: &str, of: &[Failure]) -> Result<()> {
        let events: Vec<Uuid> = of.iter().map(|failure| failure.event.0).collect();
        let attempts: Vec<i32> = of.iter().map(|failure| failure.attempts as i32).collect();
        let retry_in: Vec<Option<f64>> =
            of.iter().map(|failure| failure.retry_in.map(|delay| delay.as_secs_f64())).collect();
        let errors: Vec<String> = of.iter().map(|failure| shown(&failure.error)).collect();
        let classes: Vec<&str> = of.iter().map(|failure| failure.class.as_str()).collect();
        session
            .execute(sql, args![&*self.name, events, attempts, retry_in, errors, classes])
            .await?;
        Ok(())
    }

    /// Claims that are done with go when their rows do.
    pub(super) async fn forget_claims(&self, retention: &Retention) -> Result<()> {
        let keep = retention.dead_letters.as_secs_f64();
        let session = self.store.session().await?;
        session.execute(&self.statements.forget, args![&*self.name, keep]).await?;
        Ok(())
    }
}
