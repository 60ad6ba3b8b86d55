use async_trait::async_trait;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// A part that does not answer within this is down.
const LIMIT: Duration = Duration::from_secs(3);

/// Something this process needs.
#[async_trait]
pub trait Check: Send + Sync {
    /// Its name, as people know it.
    fn name(&self) -> &'static str;

    /// Does it answer?
    async fn check(&self) -> anyhow::Result<()>;
}

/// Everything this process needs. One part that is down makes it 503, and is named; what does not need that part goes
/// on: tickets are accepted while RabbitMQ is down.
#[derive(Clone)]
pub struct Health {
    checks: Arc<[Box<dyn Check>]>,
}

#[derive(Serialize)]
struct Report {
    status: &'static str,
    checks: Vec<Finding>,
}

#[derive(Serialize)]
struct Finding {
    name: &'static str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl Health {
    /// Looks at these.
    pub fn of(checks: Vec<Box<dyn Check>>) -> Self {
        Self { checks: checks.into() }
    }

    pub(super) async fn answer(&self) -> Response {
        let mut checks = Vec::new();
        for check in self.checks.iter() {
            let answer = tokio::time::timeout(LIMIT, check.check()).await;
            let answer = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {LIMIT:?}")));
            let detail = answer.err().map(|error| format!("{error:#}"));
            let status = if detail.is_none() { "up" } else { "down" };
            checks.push(Finding { name: check.name(), status, detail });
        }
        let well = checks.iter().all(|finding| finding.detail.is_none());
        let (code, status) = match well {
            true => (StatusCode::OK, "up"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "down"),
        };
        (code, Json(Report { status, checks })).into_response()
    }
}
