use crate::postgres::address::Certificates;
use crate::postgres::errors::error;
use relevo_core::{Kind, Result};
use tokio_postgres::config::SslMode;

/// Speaks no TLS.
pub(crate) type Connector = tokio_postgres::NoTls;

pub(crate) fn connector(_: &Certificates, mode: SslMode) -> Result<Connector> {
    if mode == SslMode::Require {
        let message = "this build speaks no TLS: turn on the feature `tls`, or hand over a pool of your own with PostgresStore::from_pool";
        return Err(error(Kind::InvalidUrl, message));
    }
    Ok(tokio_postgres::NoTls)
}
