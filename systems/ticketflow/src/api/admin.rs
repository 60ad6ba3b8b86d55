use super::Problem;
use super::extract::InPath;
use super::listed::Routes;
use crate::topology::QUEUES;
use async_trait::async_trait;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use relevo::{DeadFilter, DeadLetter, DeadLetterId, DeadState, EventId, Operate};
use serde::Serialize;
use std::sync::Arc;

/// Most dead letters of one answer.
const MOST: usize = 200;

/// Copies of dead letters elsewhere, which are to go when a letter is replayed.
#[async_trait]
pub trait Copies: Send + Sync {
    /// Takes the copy of this consumer's event away.
    async fn remove(&self, consumer: &str, event: EventId) -> anyhow::Result<()>;
}

/// What operators may do: look at dead letters, and replay them. Whoever has the token is one.
#[derive(Clone)]
pub struct Admin {
    operate: Arc<dyn Operate>,
    token: Option<Arc<str>>,
    copies: Option<Arc<dyn Copies>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Letter {
    number: i64,
    consumer: String,
    event_id: String,
    r#type: String,
    ticket_id: Option<String>,
    attempts: u32,
    class: &'static str,
    error: String,
    died_at: String,
}

impl Admin {
    /// Over this log. Without a token nobody is let in.
    pub fn new(operate: Arc<dyn Operate>, token: Option<String>) -> Self {
        let token = token.filter(|token| !token.is_empty()).map(Into::into);
        Self { operate, token, copies: None }
    }

    /// Dead letters have copies there.
    pub fn with_copies(mut self, copies: Arc<dyn Copies>) -> Self {
        self.copies = Some(copies);
        self
    }

    pub(super) fn routes(self) -> Routes {
        let guard = middleware::from_fn_with_state(self.clone(), only_with_token);
        Routes::new()
            .get("/admin/dead-letters", list)
            .post("/admin/dead-letters/{number}/replay", replay)
            .within(|router| router.route_layer(guard))
            .over(self)
    }

    async fn letters(&self, ids: Vec<DeadLetterId>) -> anyhow::Result<Vec<DeadLetter>> {
        let mut filter = DeadFilter::default();
        filter.ids = ids;
        filter.state = Some(DeadState::Dead);
        Ok(self.operate.dead_letters(&filter, None, MOST).await?)
    }
}

async fn only_with_token(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let Some(token) = &admin.token else {
        let detail = "ADMIN_TOKEN is not set, so nobody may do this";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    };
    if !is_shown(request.headers(), token) {
        return Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            "authorization: Bearer TOKEN is missing",
        ));
    }
    Ok(next.run(request).await)
}

/// Takes as long for a token that is almost right as for any other.
fn is_shown(headers: &HeaderMap, token: &str) -> bool {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let different = shown.bytes().zip(token.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    shown.len() == token.len() && different == 0
}

async fn list(State(admin): State<Admin>) -> Result<Json<Vec<Letter>>, Problem> {
    let letters = admin.letters(Vec::new()).await?;
    Ok(Json(letters.iter().map(Letter::of).collect()))
}

async fn replay(
    State(admin): State<Admin>,
    InPath(id): InPath<DeadLetterId>,
) -> Result<(StatusCode, Json<Letter>), Problem> {
    let letters = admin.letters(vec![id]).await?;
    let gone = || Problem::new(StatusCode::NOT_FOUND, format!("no dead letter {id} waits"));
    let letter = letters.first().ok_or_else(gone)?;
    let mut filter = DeadFilter::default();
    filter.ids = vec![id];
    admin.operate.replay(&filter, None).await.map_err(anyhow::Error::from)?;
    // What never came to a queue has no copy there.
    let is_queued = QUEUES.contains(&letter.subscription.as_str());
    if let Some(copies) = admin.copies.as_ref().filter(|_| is_queued) {
        copies.remove(&letter.subscription, crate::worker::original_id(&letter.event)).await?;
    }
    Ok((StatusCode::ACCEPTED, Json(Letter::of(letter))))
}

impl Letter {
    fn of(letter: &DeadLetter) -> Self {
        Self {
            number: letter.id,
            consumer: letter.subscription.clone(),
            event_id: crate::worker::original_id(&letter.event).to_string(),
            r#type: letter.event.topic.clone(),
            ticket_id: letter.event.key.clone(),
            attempts: letter.attempts,
            class: letter.class.as_str(),
            error: letter.error.clone(),
            died_at: letter.died_at.to_rfc3339(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_opens() {
        let headers = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            headers
        };
        assert!(is_shown(&headers("Bearer secret"), "secret"));
        for wrong in ["Bearer secre", "Bearer secrets", "Bearer ", "secret", "Basic secret"] {
            assert!(!is_shown(&headers(wrong), "secret"), "{wrong}");
        }
        assert!(!is_shown(&HeaderMap::new(), "secret"));
    }
}
