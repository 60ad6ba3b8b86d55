use crate::ticket::Invalid;
use crate::tickets::Refusal;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A refusal as RFC 9457 has it: `application/problem+json`.
#[derive(Debug, Serialize)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Invalid>,
}

impl Problem {
    /// A refusal with this status.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Problem");
        let (status, detail) = (status.as_u16(), detail.into());
        Self { kind: "about:blank", title, status, detail, errors: Vec::new() }
    }

    /// Fields that cannot be accepted.
    pub fn invalid(errors: Vec<Invalid>) -> Self {
        let detail = "the request cannot be accepted as it is; errors says why";
        Self { errors, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail) }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound(id) => {
                Self::new(StatusCode::NOT_FOUND, format!("there is no ticket {id}"))
            }
            Refusal::Conflict(why) => Self::new(StatusCode::CONFLICT, why),
            Refusal::Broken(error) => error.into(),
        }
    }
}

impl From<anyhow::Error> for Problem {
    fn from(error: anyhow::Error) -> Self {
        tracing::error!(error = format!("{error:#}"), "a request failed");
        // The log has the reason: it may name what is nobody's business outside.
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "it failed; the service's log says why")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self).unwrap_or_default();
        (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
    }
}
