//! Errors as `application/problem+json` (RFC 9457).

use crate::tenants::Refused;
use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

/// An error as the client sees it.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("error");
        let body = serde_json::json!({ "title": title, "status": self.status.as_u16(), "detail": self.detail });
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (self.status, kind, body.to_string()).into_response()
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let status = match &refused {
            Refused::NotFound(_) => StatusCode::NOT_FOUND,
            Refused::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Refused::Conflict(_) => StatusCode::CONFLICT,
            Refused::Database(error) => {
                tracing::warn!(%error, "a request could not be done");
                return Self::new(StatusCode::SERVICE_UNAVAILABLE, "the database did not answer");
            }
        };
        Self::new(status, refused.to_string())
    }
}

/// A JSON body; one that cannot be read is a problem too.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let refused = |why: JsonRejection| Problem::new(why.status(), why.body_text());
        Json::from_request(request, state).await.map(|Json(body)| Self(body)).map_err(refused)
    }
}

/// The id in the path; one that cannot be read is a problem too.
pub(super) struct InPath(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for InPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let refused = |why: PathRejection| Problem::new(why.status(), why.body_text());
        Path::from_request_parts(parts, state).await.map(|Path(id)| Self(id)).map_err(refused)
    }
}

pub(super) async fn no_such_page() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "there is no such page")
}

pub(super) async fn not_so(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not what {} answers to", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

pub(super) fn no_metrics() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "the process around this service shows its metrics")
}
