//! A client of the service's API: what the traffic, the load run and the tests use.

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::net::SocketAddr;

/// Speaks to one service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: Http<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    token: Option<String>,
}

/// What the service answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Its media type.
    pub content_type: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// Was it done?
    pub fn is_done(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Client {
    /// To the service at this address.
    pub fn to(address: SocketAddr) -> Self {
        let http = Http::builder(TokioExecutor::new()).build_http();
        Self { http, address, token: None }
    }

    /// With a token for `/admin`.
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Reads.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.send(Method::GET, path, None).await
    }

    /// Sends JSON.
    pub async fn post(&self, path: &str, body: Value) -> Result<Answer> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// Sends a request.
    pub async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<Answer> {
        let mut request =
            Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(bytes))?;
        let response = self.http.request(request).await.context("the service does not answer")?;
        let status = response.status().as_u16();
        let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::to_str);
        let content_type = content_type.transpose()?.unwrap_or_default().to_owned();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer { status, content_type, body: String::from_utf8_lossy(&body).into_owned() })
    }
}
