//! What became of claimed rows, in the owner's columns: in the transaction that records it.

use super::super::errors::Sql;
use super::super::record::{record_all, shortened};
use super::super::rows::millis;
use super::Adopted;
use super::statements::Statements;
use relevo_core::outbox::adopt::{Failure, Marks};
use relevo_core::outbox::{LaneChange, Retention};
use relevo_core::{EventId, Result};
use rusqlite::{Transaction, params};

impl Adopted {
    /// Marks, then records; the fence comes last.
    pub(super) async fn record_with_marks(&self, changes: &[LaneChange]) -> Result<()> {
        let marks = Marks::of(changes);
        let (name, statements, changes) =
            (self.name.clone(), self.statements.clone(), changes.to_vec());
        let durable = !changes.iter().all(LaneChange::only_moves);
        let work = move |tx: &Transaction<'_>| {
            mark(tx, &statements, &name, &marks)?;
            record_all(tx, &changes)
        };
        self.store.inner.threads.write(self.store.inner.file.clone(), durable, work).await
    }

    /// Claims that are done with go when their rows do.
    pub(super) async fn forget_claims(&self, retention: &Retention) -> Result<()> {
        let (name, statements) = (self.name.clone(), self.statements.clone());
        let keep = millis(retention.dead_letters);
        let work = move |tx: &Transaction<'_>| {
            tx.prepare_cached(&statements.forget)?.execute(params![&*name, keep])?;
            Ok(())
        };
        self.store.write(work).await
    }
}

fn mark(tx: &Transaction<'_>, statements: &Statements, name: &str, marks: &Marks) -> Sql<()> {
    for event in &marks.published {
        for sql in statements.restore.iter().chain(&statements.published) {
            execute(tx, sql, name, *event)?;
        }
    }
    for failure in &marks.failed {
        if let Some(sql) = &statements.failed {
            with_failure(tx, sql, name, failure)?;
        }
    }
    marks.dead.iter().try_for_each(|failure| mark_dead(tx, statements, name, failure))
}

pub(super) fn mark_dead(
    tx: &Transaction<'_>,
    statements: &Statements,
    name: &str,
    failure: &Failure,
) -> Sql<()> {
    statements.dead.iter().try_for_each(|sql| with_failure(tx, sql, name, failure))
}

fn execute(tx: &Transaction<'_>, sql: &str, name: &str, event: EventId) -> Sql<()> {
    tx.prepare_cached(sql)?.execute(params![name, event.to_string()])?;
    Ok(())
}

/// Binds as many of a failure's values as the statement takes.
fn with_failure(tx: &Transaction<'_>, sql: &str, name: &str, failure: &Failure) -> Sql<()> {
    let Failure { event, attempts, retry_in, class, error, .. } = failure;
    let (event, class) = (event.to_string(), class.as_str());
    let (retry_in, error) = (retry_in.map(millis), shortened(error));
    let values: [&dyn rusqlite::ToSql; 6] = [&name, &event, attempts, &retry_in, &error, &class];
    let mut statement = tx.prepare_cached(sql)?;
    let wanted = statement.parameter_count();
    for (index, value) in values.iter().take(wanted).enumerate() {
        statement.raw_bind_parameter(index + 1, value)?;
    }
    statement.raw_execute()?;
    Ok(())
}
