//! PgBouncer in front of a PostgreSQL, in transaction mode: the pooler that breaks session state.

use super::postgres::{PASSWORD, USER};
use super::process::{ServerProcess, StopSignal};
use super::{Postgres, Result, locate, port, sql};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::Duration;

const READY_LIMIT: Duration = Duration::from_secs(120);

const AT_ONCE: StopSignal = StopSignal { signal: Signal::TERM, name: "TERM" };

/// A pooler; it stops when the value is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _process: ServerProcess,
}

impl PgBouncer {
    /// Pools every database of the server with `pool_mode=transaction`.
    pub fn start(postgres: &Postgres) -> Result<PgBouncer> {
        PgBouncer::start_in(postgres, "transaction")
    }

    /// Pools with another `pool_mode`: `session` or `statement`.
    pub fn start_in(postgres: &Postgres, pool_mode: &str) -> Result<PgBouncer> {
        let program = locate::pgbouncer()?;
        let mut process = ServerProcess::new("PgBouncer", AT_ONCE)?;
        let port = port::free_port();
        let users = process.write("users.txt", &format!("\"{USER}\" \"{PASSWORD}\"\n"))?;
        let text = configuration(postgres.address(), port, &users.display().to_string(), pool_mode);
        let file = process.write("pgbouncer.ini", &text)?;
        process.spawn(&program, &[&file.display().to_string()])?;
        let url = port::with_port(&postgres.url("postgres"), port);
        process.wait_ready(READY_LIMIT, || sql::execute(&url, "SELECT 1"))?;
        Ok(PgBouncer { port, _process: process })
    }

    /// Where it listens. The database `pgbouncer` is its console, for `SHOW`.
    pub fn address(&self) -> SocketAddr {
        port::local(self.port)
    }

    /// The URL that reaches the same database through the pooler.
    pub fn url(&self, direct: &str) -> String {
        port::with_port(direct, self.port)
    }
}

fn configuration(server: SocketAddr, port: u16, users: &str, pool_mode: &str) -> String {
    let (host, server_port) = (server.ip(), server.port());
    format!(
        "[databases]\n* = host={host} port={server_port}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         pool_mode = {pool_mode}\nauth_type = scram-sha-256\nauth_file = {users}\n\
         stats_users = {USER}\nignore_startup_parameters = extra_float_digits,options\n\
         max_client_conn = 500\ndefault_pool_size = 20\n"
    )
}
