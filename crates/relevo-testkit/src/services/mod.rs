//! Real servers, started by the tests themselves.
//!
//! Every server binds a free port of 127.0.0.1, keeps its data in a temporary folder and ends with
//! the test process, also when that is killed. As root the servers run as another user, because
//! PostgreSQL and PgBouncer insist on it.
//!
//! Programs are looked for where a variable points (`RELEVO_PG_15_BIN`, `RELEVO_PGBOUNCER`, ...),
//! in the cache folder that `cargo xtask test` fills, and in the system. One that is nowhere skips
//! its tests aloud, or fails them where nothing may be missing:
//!
//! ```no_run
//! use relevo_testkit::services::{self, Postgres};
//!
//! # fn main() -> Result<(), services::ServiceError> {
//! let Some(postgres) = services::require(Postgres::shared(15)) else { return Ok(()) };
//! let url = postgres.create_database()?; // of this test alone
//! assert_eq!(services::sql::value(&url, "SELECT 1 + 1")?, "2");
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//! - [`Postgres`], [`PgBouncer`]: databases
//! - [`RabbitMq`], [`Nats`], [`Kafka`]: brokers
//! - [`Smtp`]: a mail server
//! - [`Cluster`]: three of one kind
//! - [`Promtool`]: judges alert rules
//! - [`Certificates`]: for those that listen with TLS
//! - [`Proxy`]: a network with faults before any of them
//! - [`sql`]: a statement or two without a driver of one's own
//! - `locate`, `process`, `node`, `port`: finding, running and ending programs

mod cluster;
mod error;
mod http;
mod kafka;
mod locate;
mod nats;
mod node;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod promtool;
mod proxy;
mod rabbitmq;
mod smtp;
pub mod sql;
mod tls;

use std::sync::atomic::{AtomicU32, Ordering};

pub use cluster::{Cluster, Member};
pub use error::{Result, ServiceError, require};
pub use kafka::{Kafka, KafkaOptions, KafkaRight};
pub use locate::{pg_client, pg_client_for, python};
pub use nats::{Nats, NatsLogin, NatsOptions};
pub use pgbouncer::PgBouncer;
pub use postgres::{Postgres, PostgresOptions, TLS_ONLY};
pub use promtool::Promtool;
pub use proxy::Proxy;
pub use rabbitmq::{RabbitMq, RabbitMqOptions};
pub use smtp::Smtp;
pub use tls::{Certificates, ClientCertificates, Identity, TlsFiles};

/// A name that no other test of this machine uses, for streams, topics, queues and groups of a
/// shared server. It fits everywhere: letters, digits and underscores.
pub fn unique_name(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}_{}_{count}", std::process::id())
}
