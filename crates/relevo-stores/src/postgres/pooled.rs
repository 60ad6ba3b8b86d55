//! Connections of a deadpool, as handlers have them.

use super::errors::error;
use deadpool_postgres::{ClientWrapper, Object};
use relevo_core::{Kind, Result};
use std::time::Duration;

/// So long a connection of a pool may take to say that it lives.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A connection that is asked whether it lives before anybody else gets it, unless the last thing heard on it was the
/// answer to a commit. Whoever dropped it in the middle of a transaction may have left a statement behind that is still
/// under way, or one that a half-open connection never answers: the next one would wait behind that.
#[derive(Debug)]
pub struct PooledConnection {
    object: Option<Object>,
    begun: bool,
}

impl From<Object> for PooledConnection {
    fn from(object: Object) -> Self {
        Self { object: Some(object), begun: false }
    }
}

impl PooledConnection {
    /// From here on it is not known what the connection is busy with.
    pub(super) fn begin(&mut self) -> Result<&mut ClientWrapper> {
        self.begun = true;
        let object = self.object.as_deref_mut();
        object.ok_or_else(|| error(Kind::StoreFailed, "the connection was given back already"))
    }

    /// Everything that was asked on it was answered.
    pub(super) fn give_back(mut self) {
        self.begun = false;
    }

    pub(super) fn close(mut self) {
        drop(self.object.take().map(Object::take));
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(object) = self.object.take().filter(|_| self.begun) else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(give_back_if_it_lives(object))),
            // Nobody can be waited for any more.
            Err(_) => drop(Object::take(object)),
        }
    }
}

/// What is asked comes after whatever is under way, and after the rollback.
async fn give_back_if_it_lives(object: Object) {
    let answer = tokio::time::timeout(ANSWER_LIMIT, object.simple_query("")).await;
    if !matches!(answer, Ok(Ok(_))) {
        drop(Object::take(object));
    }
}
