//! Posts events to an HTTP endpoint: CloudEvents 1.0 in binary mode, signed by Standard Webhooks if wanted.
//!
//! - `config`: where to and how
//! - `headers`: an event as HTTP headers
//! - `sign`: signatures
//! - `answer`: what a status means
//! - `connect`: connections within a limit

mod answer;
mod config;
mod connect;
#[doc(hidden)]
pub mod fuzzing;
mod headers;
mod sign;

pub use config::{HttpConfig, redact};
pub use sign::Secret;

use async_trait::async_trait;
use bytes::Bytes;
use connect::InTime;
use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use relevo_core::broker::{Confirm, Publisher};
use relevo_core::event::Event;
use std::error::Error as _;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, SemaphorePermit};

/// So much of an answer's body is read: enough to say why, and to use the connection again.
const BODY_BYTES: usize = 16 << 10;
const BODY_PATIENCE: Duration = Duration::from_secs(2);

/// Publishes by POST, one request per event, at most one under way per key.
///
/// A 2xx answer means stored. An answer that never came after the request went out is *unknown*; a connection
/// that never came about means that the endpoint is down. Redirects are not followed.
pub struct HttpPublisher {
    client: Client<InTime, Full<Bytes>>,
    config: HttpConfig,
    in_flight: Semaphore,
}

impl HttpPublisher {
    /// Posts as `config` says.
    pub fn new(config: HttpConfig) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(Duration::from_secs(30));
        builder.pool_max_idle_per_host(config.max_in_flight);
        let client = builder.build(InTime::new(config.connect_timeout));
        let in_flight = Semaphore::new(config.max_in_flight);
        Self { client, config, in_flight }
    }

    /// The address without anything secret.
    pub fn address(&self) -> String {
        self.config.address()
    }

    /// One event. Once one of its wave found the endpoint down, the others need not knock.
    async fn post(
        &self,
        event: &Event,
        turn: Option<SemaphorePermit<'_>>,
        down: &OnceLock<String>,
    ) -> Confirm {
        // The semaphore is never closed; without a permit it would still be right to send.
        let _turn = match turn {
            Some(turn) => Some(turn),
            None => self.in_flight.acquire().await.ok(),
        };
        if let Some(error) = down.get() {
            return Confirm::Down { error: error.clone() };
        }
        let limit = self.config.timeout;
        match tokio::time::timeout(limit, self.client.request(self.request(event))).await {
            Ok(Ok(response)) => read_answer(response).await,
            Ok(Err(error)) if error.is_connect() => {
                let error = format!("{}: {}", self.address(), reason(&error));
                Confirm::Down { error: down.get_or_init(|| error).clone() }
            }
            Ok(Err(error)) => {
                Confirm::Unknown { error: format!("sent, and no answer: {}", reason(&error)) }
            }
            Err(_) => Confirm::Unknown { error: format!("sent, and no answer within {limit:?}") },
        }
    }

    fn request(&self, event: &Event) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(event.payload.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.config.uri.clone();
        *request.headers_mut() = headers::of(event, &self.config.source);
        let headers = request.headers_mut();
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("relevo/", env!("CARGO_PKG_VERSION"))),
        );
        self.sign(event, headers);
        for (name, value) in &self.config.fixed {
            headers.insert(name.clone(), value.clone());
        }
        request
    }

    fn sign(&self, event: &Event, headers: &mut HeaderMap) {
        if self.config.secrets.is_empty() {
            return;
        }
        let (id, now) = (event.id.to_string(), seconds_since_1970());
        let signature = sign::signatures(&self.config.secrets, &id, now, &event.payload);
        for (name, value) in [
            ("webhook-id", id),
            ("webhook-timestamp", now.to_string()),
            ("webhook-signature", signature),
        ] {
            // Digits, a UUID and base64 are always fit for a header.
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
    }
}

#[async_trait]
impl Publisher for HttpPublisher {
    fn name(&self) -> &'static str {
        "http"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let down = OnceLock::new();
        // All of them at once, before anything is sent: the next wave of another lane is cut to what is left.
        let turns: Vec<_> = events.iter().map(|_| self.in_flight.try_acquire().ok()).collect();
        join_all(events.iter().zip(turns).map(|(event, turn)| self.post(event, turn, &down))).await
    }

    /// Each request has its own limit; what waits for its turn behind slow ones has lost nothing yet.
    fn publish_limit(&self) -> Option<Duration> {
        None
    }

    /// What can go out now, so that a wave takes about as long as one request may. Where all are under way one event
    /// waits for the first that ends: a lane needs no more to be served in its turn.
    fn largest_wave(&self) -> usize {
        self.in_flight.available_permits().max(1)
    }
}

fn seconds_since_1970() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

async fn read_answer(response: Response<Incoming>) -> Confirm {
    let (head, body) = response.into_parts();
    let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let text = first_bytes(body).await;
    answer::confirm(head.status, &answer::first_words(&text), retry_after, SystemTime::now())
}

/// The beginning of a body. The status has decided already: a body that breaks off or drips changes nothing.
async fn first_bytes(mut body: Incoming) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            if bytes.len() > BODY_BYTES {
                break;
            }
        }
    };
    if tokio::time::timeout(BODY_PATIENCE, read).await.is_err() {
        tracing::debug!("the body of an answer did not end in time; its connection is dropped");
    }
    bytes
}

/// The innermost cause says most: "Connection refused" rather than "client error".
fn reason(error: &ClientError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}
