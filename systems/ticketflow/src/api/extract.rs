//! What a request says. axum's own extractors refuse in plain text; these refuse with a problem.

use super::Problem;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

/// The whole body, unless it is too large.
pub(super) struct Whole(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for Whole {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let body = Bytes::from_request(request, state).await;
        body.map(Self).map_err(|why| Problem::new(why.status(), why.body_text()))
    }
}

/// What stands in the path, if it can be that.
pub(super) struct InPath<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, state).await;
        let refused = |why: PathRejection| Problem::new(why.status(), why.body_text());
        path.map(|Path(named)| Self(named)).map_err(refused)
    }
}
