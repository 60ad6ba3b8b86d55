//! A small client of the API, for traffic, load and tests.

use crate::ticket::{Assign, ChangeStatus, NewTicket, Status, Ticket};
use anyhow::{Context, Result, bail};
use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;
use uuid::Uuid;

/// No answer within this is no answer.
const LIMIT: Duration = Duration::from_secs(30);

/// An answer as it came.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its media type.
    pub content_type: String,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {:?}", self.body))
    }

    fn ticket(self) -> Result<Ticket> {
        match self.status.is_success() {
            true => Ok(serde_json::from_slice(&self.body)?),
            false => bail!("{}: {}", self.status, String::from_utf8_lossy(&self.body)),
        }
    }
}

/// A client of one API. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Client {
    address: SocketAddr,
    http: Http<HttpConnector, Full<Bytes>>,
    token: Option<String>,
    correlation: Option<String>,
}

impl Client {
    /// Of the API at this address.
    pub fn at(address: SocketAddr) -> Self {
        let http = Http::builder(TokioExecutor::new()).build_http();
        Self { address, http, token: None, correlation: None }
    }

    /// Shows this token.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Names what its requests belong to.
    pub fn correlation(mut self, id: &str) -> Self {
        self.correlation = Some(id.to_owned());
        self
    }

    /// Asks, whatever the answer.
    pub async fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Answer> {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri);
        request = request.header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(correlation) = &self.correlation {
            request = request.header("x-correlation-id", correlation);
        }
        let asked = async {
            let answer = self.http.request(request.body(Full::new(body.into()))?).await?;
            let status = answer.status();
            let content_type = answer.headers().get("content-type");
            let content_type = content_type.and_then(|it| it.to_str().ok()).unwrap_or_default();
            let content_type = content_type.to_owned();
            let body = answer.into_body().collect().await?.to_bytes();
            Ok(Answer { status, content_type, body })
        };
        tokio::time::timeout(LIMIT, asked).await.context("no answer in time")?
    }

    /// Reads.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.ask(Method::GET, path, Vec::new()).await
    }

    async fn send(&self, method: Method, path: &str, body: &impl Serialize) -> Result<Ticket> {
        self.ask(method, path, serde_json::to_vec(body)?).await?.ticket()
    }

    /// Opens a ticket.
    pub async fn create(&self, new: &NewTicket) -> Result<Ticket> {
        self.send(Method::POST, "/api/v1/tickets", new).await
    }

    /// Changes a status.
    pub async fn change_status(&self, id: Uuid, status: Status) -> Result<Ticket> {
        let path = format!("/api/v1/tickets/{id}/status");
        self.send(Method::PUT, &path, &ChangeStatus { status }).await
    }

    /// Gives it to somebody.
    pub async fn assign(&self, id: Uuid, assignee: &str) -> Result<Ticket> {
        let path = format!("/api/v1/tickets/{id}/assignee");
        self.send(Method::PUT, &path, &Assign { assignee: assignee.to_owned() }).await
    }

    /// The ticket as it is.
    pub async fn show(&self, id: Uuid) -> Result<Ticket> {
        self.get(&format!("/api/v1/tickets/{id}")).await?.ticket()
    }
}
