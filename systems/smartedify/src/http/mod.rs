//! The service's HTTP API.
//!
//! | | |
//! |---|---|
//! | `POST /tenants`, `GET /tenants?after=&limit=`, `GET /tenants/{id}`, `PATCH /tenants/{id}` | tenants |
//! | `PUT /tenants/{id}/governance` | `governance.changed` |
//! | `POST /tenants/{id}/users`, `POST /tenants/{id}/assemblies` | `user.added`, `assembly.scheduled` |
//! | `GET /metrics`, `GET /health` | for Prometheus and for whoever restarts it |
//! | `GET /admin/outbox/dlq`, `POST /admin/outbox/dlq/reprocess` | with a token |
//!
//! Every refusal is `application/problem+json`.

mod admin;
mod problem;
mod query;
mod tenants;

use crate::db::{Db, Sql};
use crate::outbox::Outbox;
use crate::tenants::Tenants;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use relevo::RunningRelay;
use std::sync::Arc;
use tokio::sync::watch;

/// What the API needs.
#[derive(Clone)]
pub struct Api {
    /// The service.
    pub tenants: Tenants,
    /// Its database.
    pub db: Db,
    /// Its outbox.
    pub outbox: Outbox,
    /// What `/metrics` shows.
    pub metrics: Option<PrometheusHandle>,
    /// Who may use `/admin`; without it nobody.
    pub admin_token: Option<Arc<str>>,
    /// True while the relay takes its destination to be down.
    pub broker_down: watch::Receiver<bool>,
}

impl Api {
    /// Its routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/tenants", post(tenants::create).get(tenants::list))
            .route("/tenants/{id}", get(tenants::show).patch(tenants::rename))
            .route("/tenants/{id}/governance", put(tenants::govern))
            .route("/tenants/{id}/users", post(tenants::add_user))
            .route("/tenants/{id}/assemblies", post(tenants::schedule))
            .route("/admin/outbox/dlq", get(admin::list))
            .route("/admin/outbox/dlq/reprocess", post(admin::reprocess))
            .route("/metrics", get(metrics))
            .route("/health", get(health))
            .fallback(problem::no_such_page)
            .method_not_allowed_fallback(problem::not_so)
            .with_state(self)
    }
}

/// Tells from now on whether a relay takes its destination to be down.
pub fn follow_broker(relay: &RunningRelay, down: watch::Sender<bool>) {
    let Some((_, running)) = relay.subscriptions().next() else { return };
    let mut counts = running.watch();
    tokio::spawn(async move {
        loop {
            down.send_replace(counts.borrow_and_update().breaker_open);
            if counts.changed().await.is_err() {
                return;
            }
        }
    });
}

/// `/metrics` alone, for a process without the API.
pub fn metrics_page(metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/metrics", get(metrics_alone))
        .fallback(problem::no_such_page)
        .method_not_allowed_fallback(problem::not_so)
        .with_state(metrics)
}

async fn metrics_alone(State(metrics): State<PrometheusHandle>) -> Response {
    rendered(&metrics)
}

async fn metrics(State(api): State<Api>) -> Response {
    match api.metrics {
        Some(metrics) => rendered(&metrics),
        None => problem::no_metrics().into_response(),
    }
}

fn rendered(metrics: &PrometheusHandle) -> Response {
    let format = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (format, metrics.render()).into_response()
}

/// The service works while its database does: with the broker down changes are accepted and wait in the outbox.
async fn health(State(api): State<Api>) -> Response {
    let database = api.db.number(&Sql::both("SELECT count(*) FROM outbox_events_dlq"), &[]).await;
    let status = match database {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let told = |up: bool| if up { "up" } else { "down" };
    let broker = told(!*api.broker_down.borrow());
    let body = serde_json::json!({ "database": told(database.is_ok()), "broker": broker, "dead_letters": database.ok() });
    (status, Json(body)).into_response()
}
