//! The HTTP API: tickets, health, metrics, and what operators may do with a token.
//!
//! - `routes`: tickets; `listed`: routes that tell what they are
//! - `problem`: every refusal as problem+json; `extract`: what a request says, or why it cannot be read
//! - `health`: what answers and what does not; `admin`: dead letters
//! - `openapi.json`: what all of it looks like from outside

mod admin;
mod extract;
mod health;
mod listed;
mod problem;
mod routes;

pub use admin::{Admin, Copies};
pub use health::{Check, Health};
pub use listed::Listed;
pub use problem::Problem;

use crate::telemetry;
use crate::tickets::Tickets;
use anyhow::{Context, Result};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::IntoResponse;
use listed::Routes;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The document that describes the API.
pub const OPENAPI: &str = include_str!("openapi.json");

/// What is served at one address.
pub struct Site {
    routes: Routes,
}

impl Site {
    /// Health and metrics, which every process has.
    pub fn new(health: Health) -> Self {
        let health = move || {
            let health = health.clone();
            async move { health.answer().await }
        };
        Self { routes: Routes::new().get("/health", health).get("/metrics", metrics) }
    }

    /// Tickets too.
    pub fn with_tickets(self, tickets: Tickets) -> Self {
        Self { routes: self.routes.and(routes::of(tickets)).get("/openapi.json", openapi) }
    }

    /// What operators may do, too.
    pub fn with_admin(self, admin: Admin) -> Self {
        Self { routes: self.routes.and(admin.routes()) }
    }

    /// Serves at `address` until it is stopped.
    pub async fn serve(self, address: SocketAddr) -> Result<Serving> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("listening at {address}"))?;
        let address = listener.local_addr()?;
        let (stop, mut stopped) = watch::channel(false);
        let (router, routes) = self.routes.parts();
        let router = router.fallback(nothing_here).method_not_allowed_fallback(not_so);
        let task = tokio::spawn(async move {
            let stop = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
            let served = axum::serve(listener, router).with_graceful_shutdown(stop).await;
            served.context("serving")
        });
        Ok(Serving { address, routes, stop, task })
    }
}

/// A site that is served.
pub struct Serving {
    /// Where.
    pub address: SocketAddr,
    /// Everything that it answers to.
    pub routes: Vec<Listed>,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<()>>,
}

impl Serving {
    /// Answers what has been asked, and ends.
    pub async fn stop(self) -> Result<()> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

async fn metrics() -> Result<impl IntoResponse, Problem> {
    let text = telemetry::render().ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "the process around this service shows its metrics")
    })?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text))
}

async fn nothing_here(uri: Uri) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("nothing is at {}", uri.path()))
}

async fn not_so(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not what {} answers to", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}
