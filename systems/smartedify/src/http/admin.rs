//! Dead letters, for whoever has the token.

use super::Api;
use super::problem::{Body, Problem};
use super::query::limit;
use crate::outbox::dead_letters::{self, DeadEvent, Which};
use axum::Json;
use axum::extract::{FromRequestParts, RawQuery, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use relevo::ReplayProgress;

/// Somebody who showed the token.
pub(super) struct Admin;

impl FromRequestParts<Api> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let Some(token) = &api.admin_token else {
            let why = "no admin token was set when the service was started";
            return Err(Problem::new(StatusCode::FORBIDDEN, why));
        };
        let shown = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        match same(shown.as_bytes(), token.as_bytes()) {
            true => Ok(Self),
            false => Err(Problem::new(StatusCode::UNAUTHORIZED, "a bearer token is needed")),
        }
    }
}

/// Takes as long for a wrong token as for a right one.
fn same(a: &[u8], b: &[u8]) -> bool {
    let different = a.iter().zip(b).fold(a.len() ^ b.len(), |sum, (x, y)| sum | usize::from(x ^ y));
    different == 0
}

pub(super) async fn list(
    _: Admin,
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<DeadEvent>>, Problem> {
    let failed = |error: sqlx::Error| crate::tenants::Refused::Database(error).into();
    dead_letters::list(&api.db, limit(&query, 100)?).await.map(Json).map_err(failed)
}

/// Accepted: the relay does it.
pub(super) async fn reprocess(
    _: Admin,
    State(api): State<Api>,
    Body(which): Body<Which>,
) -> Result<(StatusCode, Json<ReplayProgress>), Problem> {
    let refused = |error: relevo::Error| Problem::new(StatusCode::CONFLICT, error.to_string());
    let asked = dead_letters::reprocess(&api.outbox, &which).await.map_err(refused)?;
    match asked.total {
        0 => Err(Problem::new(StatusCode::NOT_FOUND, "no such dead letter")),
        _ => Ok((StatusCode::ACCEPTED, Json(asked))),
    }
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn only_the_token_itself_opens_the_door() {
        assert!(same(b"secret", b"secret"));
        for wrong in ["", "secre", "secrets", "Secret"] {
            assert!(!same(wrong.as_bytes(), b"secret"), "{wrong}");
        }
    }
}
