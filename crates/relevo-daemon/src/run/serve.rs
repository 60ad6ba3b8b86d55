//! `/metrics` and `/health/*`.

use super::board::Board;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics::{counter, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use relevo_core::{Error, ErrorClass, Kind, Result, telemetry};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;

/// From half a millisecond to ten minutes: a backlog's age shows as well as a healthy confirm.
const LATENCY_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 300.0, 600.0,
];

/// Installs the recorder all metrics go to. Once per process.
pub(super) fn install_recorder(service: &str) -> Result<PrometheusHandle> {
    telemetry::set_service(service);
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(Kind::InvalidConfig, format!("metrics cannot be recorded: {error}"))
    };
    let latency = Matcher::Full("outbox_publish_latency_seconds".into());
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(latency, LATENCY_BUCKETS)
        .map_err(|e| failed(&e))?;
    let handle = builder.install_recorder().map_err(|e| failed(&e))?;
    telemetry::describe();
    Ok(handle)
}

/// Shows every metric of a subscription from the start: a counter that appears only with its first error cannot be
/// alerted on.
pub(super) fn announce(subscription: &str) {
    for (name, kind, _) in telemetry::METRICS {
        let labels =
            || [("service", telemetry::service()), ("subscription", subscription.to_owned())];
        match *kind {
            "counter" if *name == "outbox_failed_permanent_total" => {
                for class in ErrorClass::ALL {
                    let [service, subscription] = labels();
                    counter!(*name, &[service, subscription, ("class", class.as_str().to_owned())])
                        .increment(0);
                }
            }
            // Its label is the error's code, which is not known before it happens.
            "counter" if *name == "relevo_store_errors_total" => {}
            "counter" => telemetry::count(name, subscription, 0),
            "gauge" => telemetry::set(name, subscription, 0.0),
            _ => drop(histogram!(*name, &labels())),
        }
    }
}

/// Without this, samples pile up in memory while nobody scrapes.
pub(super) async fn keep_bounded(handle: PrometheusHandle) {
    let mut every = tokio::time::interval(Duration::from_secs(5));
    loop {
        every.tick().await;
        handle.run_upkeep();
    }
}

/// Binds the address; port 0 takes a free one.
pub(super) async fn bind(listen: SocketAddr) -> Result<TcpListener> {
    let failed = |e| {
        Error::new(
            Kind::InvalidConfig,
            format!(
                "[http] listen = \"{listen}\" cannot be listened on: {e}; if another daemon has it, --listen 127.0.0.1:0 takes a free port"
            ),
        )
    };
    TcpListener::bind(listen).await.map_err(failed)
}

#[derive(Clone)]
struct Shown {
    metrics: PrometheusHandle,
    board: Board,
}

/// Serves until the daemon ends.
pub(super) async fn serve(listener: TcpListener, metrics: PrometheusHandle, board: Board) {
    let app = Router::new()
        .route("/", get(index))
        .route("/metrics", get(show_metrics))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .with_state(Shown { metrics, board });
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "metrics and health are no longer served");
    }
}

async fn index() -> &'static str {
    "relevo: /metrics /health/live /health/ready\n"
}

async fn show_metrics(State(shown): State<Shown>) -> Response {
    let format = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (format, shown.metrics.render()).into_response()
}

/// The process answers; brokers, endpoints and stores have no say.
async fn live() -> Response {
    Json(json!({ "live": true, "version": env!("CARGO_PKG_VERSION") })).into_response()
}

/// 503 names what stands still.
async fn ready(State(shown): State<Shown>) -> Response {
    let lines = shown.board.lines();
    let stuck: Vec<&String> =
        lines.iter().filter(|(_, line)| !line.verdict.ready).map(|(name, _)| name).collect();
    let status = if stuck.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (
        status,
        Json(
            json!({ "ready": stuck.is_empty(), "not_progressing": stuck, "subscriptions": lines }),
        ),
    )
        .into_response()
}
