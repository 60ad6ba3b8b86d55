use super::Problem;
use super::extract::{InPath, Whole};
use super::listed::Routes;
use crate::ticket::{Assign, ChangeStatus, Invalid, NewTicket, Ticket, Validate};
use crate::tickets::{Cursor, Tickets};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use chrono::DateTime;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

/// Followed from the request to its message, and to the copy in a `.dlq`; no e-mail has it.
const CORRELATION: &str = "x-correlation-id";
const PAGE: i64 = 50;
const LARGEST_PAGE: i64 = 200;

pub(super) fn of(tickets: Tickets) -> Routes {
    Routes::new()
        .get("/api/v1/tickets", list)
        .post("/api/v1/tickets", create)
        .get("/api/v1/tickets/{id}", show)
        .put("/api/v1/tickets/{id}/status", change_status)
        .put("/api/v1/tickets/{id}/assignee", assign)
        .over(tickets)
}

async fn create(
    State(tickets): State<Tickets>,
    headers: HeaderMap,
    Whole(body): Whole,
) -> Result<Response, Problem> {
    let correlation = correlation(&headers)?;
    let new: NewTicket = accepted(&body)?;
    let ticket = tickets.create(new, correlation.clone()).await?;
    let location = format!("/api/v1/tickets/{}", ticket.id);
    let headers = [(header::LOCATION.as_str(), location), (CORRELATION, correlation)];
    Ok((StatusCode::CREATED, headers, Json(ticket)).into_response())
}

async fn change_status(
    State(tickets): State<Tickets>,
    InPath(id): InPath<String>,
    headers: HeaderMap,
    Whole(body): Whole,
) -> Result<Response, Problem> {
    let correlation = correlation(&headers)?;
    let ChangeStatus { status } = accepted(&body)?;
    let ticket = tickets.change_status(ticket_id(&id)?, status, correlation.clone()).await?;
    Ok(([(CORRELATION, correlation)], Json(ticket)).into_response())
}

async fn assign(
    State(tickets): State<Tickets>,
    InPath(id): InPath<String>,
    headers: HeaderMap,
    Whole(body): Whole,
) -> Result<Response, Problem> {
    let correlation = correlation(&headers)?;
    let Assign { assignee } = accepted(&body)?;
    let ticket = tickets.assign(ticket_id(&id)?, assignee, correlation.clone()).await?;
    Ok(([(CORRELATION, correlation)], Json(ticket)).into_response())
}

async fn show(
    State(tickets): State<Tickets>,
    InPath(id): InPath<String>,
) -> Result<Json<Ticket>, Problem> {
    Ok(Json(tickets.show(ticket_id(&id)?).await?))
}

/// A page, and where the next one is.
#[derive(Serialize)]
struct Page {
    items: Vec<Ticket>,
    /// To be given as `after`; there is no more without it.
    next: Option<String>,
}

async fn list(State(tickets): State<Tickets>, uri: Uri) -> Result<Json<Page>, Problem> {
    let (after, limit) = paging(uri.query().unwrap_or_default()).map_err(Problem::invalid)?;
    // One more than asked for tells whether there is a next page.
    let mut items = tickets.list(after, limit + 1).await?;
    let more = items.len() as i64 > limit;
    items.truncate(limit as usize);
    let next = items.last().filter(|_| more).map(cursor_text);
    Ok(Json(Page { items, next }))
}

/// The text of a cursor: microseconds and id.
fn cursor_text(ticket: &Ticket) -> String {
    format!("{}_{}", ticket.created_at.timestamp_micros(), ticket.id)
}

fn cursor(text: &str) -> Option<Cursor> {
    let (micros, id) = text.split_once('_')?;
    let created_at = DateTime::from_timestamp_micros(micros.parse().ok()?)?;
    Some(Cursor { created_at, id: Uuid::parse_str(id).ok()? })
}

fn paging(query: &str) -> Result<(Option<Cursor>, i64), Vec<Invalid>> {
    let wrong = |field, problem: String| vec![Invalid { field, problem }];
    let (mut after, mut limit) = (None, PAGE);
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match name {
            "after" => {
                let unknown = || wrong("after", "is not what a page before said".into());
                after = Some(cursor(value).ok_or_else(unknown)?);
            }
            "limit" => {
                let asked = value.parse().ok().filter(|n| (1..=LARGEST_PAGE).contains(n));
                let range = || wrong("limit", format!("is a number from 1 to {LARGEST_PAGE}"));
                limit = asked.ok_or_else(range)?;
            }
            _ => {}
        }
    }
    Ok((after, limit))
}

/// The body as what it should be, if it can be accepted.
fn accepted<T: DeserializeOwned + Validate>(body: &[u8]) -> Result<T, Problem> {
    let read: T = serde_json::from_slice(body).map_err(|error| {
        let status = match error.classify() {
            serde_json::error::Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::BAD_REQUEST,
        };
        Problem::new(status, format!("the body: {error}"))
    })?;
    let problems = read.problems();
    if problems.is_empty() { Ok(read) } else { Err(Problem::invalid(problems)) }
}

fn ticket_id(text: &str) -> Result<Uuid, Problem> {
    Uuid::parse_str(text)
        .map_err(|_| Problem::new(StatusCode::NOT_FOUND, format!("there is no ticket {text}")))
}

/// The caller's correlation id, or a new one.
fn correlation(headers: &HeaderMap) -> Result<String, Problem> {
    let Some(value) = headers.get(CORRELATION) else { return Ok(Uuid::new_v4().to_string()) };
    let text = value.to_str().ok();
    let fits = |text: &&str| (1..=128).contains(&text.len()) && HeaderValue::from_str(text).is_ok();
    text.filter(fits).map(str::to_owned).ok_or_else(|| {
        let detail = "x-correlation-id has at most 128 printable characters";
        Problem::new(StatusCode::BAD_REQUEST, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paging_takes_what_it_gave_and_refuses_the_rest() {
        let id = Uuid::now_v7();
        let (after, limit) = paging(&format!("limit=7&after=1700000000000001_{id}")).unwrap();
        assert_eq!(limit, 7);
        let after = after.unwrap();
        assert_eq!((after.created_at.timestamp_micros(), after.id), (1_700_000_000_000_001, id));
        assert_eq!(paging("").unwrap(), (None, PAGE));
        for wrong in ["limit=0", "limit=201", "limit=x", "after=yesterday", "after=1_2"] {
            assert_eq!(paging(wrong).unwrap_err().len(), 1, "{wrong}");
        }
    }
}
