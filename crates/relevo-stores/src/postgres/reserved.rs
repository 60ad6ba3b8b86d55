//! Connections that handlers cannot use up. Signs of life, take-overs and releases go through these: an owner whose
//! handlers hold every connection of the pool for longer than the lease would lose its lanes otherwise.

use deadpool::managed::{Manager, Metrics, Pool as ManagedPool, RecycleResult};
use deadpool_postgres::{ClientWrapper, Pool, Runtime};
use relevo_core::{Error, Kind, Result};
use std::time::Duration;

/// Makes connections just as the pool does that handlers use, but outside of its number.
pub(crate) struct Reserved(Pool);

/// A few connections of the store's own.
pub(crate) type ReservedPool = ManagedPool<Reserved>;

/// One for signs of life, one for a take-over at the same time.
const CONNECTIONS: usize = 2;

impl Manager for Reserved {
    type Type = ClientWrapper;
    type Error = tokio_postgres::Error;

    async fn create(&self) -> Result<ClientWrapper, Self::Error> {
        self.0.manager().create().await
    }

    async fn recycle(
        &self,
        client: &mut ClientWrapper,
        metrics: &Metrics,
    ) -> RecycleResult<Self::Error> {
        self.0.manager().recycle(client, metrics).await
    }

    fn detach(&self, client: &mut ClientWrapper) {
        self.0.manager().detach(client);
    }
}

/// Connections beside those of `pool`.
pub(crate) fn beside(pool: &Pool, limit: Duration) -> Result<ReservedPool> {
    ManagedPool::builder(Reserved(pool.clone()))
        .max_size(CONNECTIONS)
        .wait_timeout(Some(limit))
        .create_timeout(Some(limit))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|cause| {
            Error::new(Kind::StoreFailed, cause.to_string()).from_adapter(super::errors::ADAPTER)
        })
}
