use super::thing::Thing;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST};
use hyper_util::rt::TokioIo;
use relevo_core::error::quoted;
use std::fmt::Write;
use std::time::Duration;
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(10);
/// A virtual host with more bindings than fit in here is not looked at.
const ANSWER_BYTES: usize = 64 << 20;

/// The broker's management API, which lists what AMQP cannot.
#[derive(Clone)]
pub(super) struct Management {
    /// One for each node; any of them tells of all.
    pub(super) hosts: Vec<String>,
    /// None: it must not be asked.
    pub(super) port: Option<u16>,
    pub(super) user: String,
    pub(super) password: String,
    pub(super) vhost: String,
}

/// A binding as the broker has it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub(in crate::rabbitmq) struct Bound {
    pub(super) source: String,
    pub(super) destination: String,
    pub(super) destination_type: String,
    pub(super) routing_key: String,
}

impl Bound {
    /// Whether it ends with this exchange or queue.
    pub(super) fn is_of(&self, thing: &Thing) -> bool {
        let into =
            |what: &str, name: &String| self.destination_type == what && self.destination == *name;
        match thing {
            Thing::Exchange { name, .. } => self.source == *name || into("exchange", name),
            Thing::Queue { name, .. } => into("queue", name),
            Thing::Binding { .. } => false,
        }
    }

    /// Where it begins and ends.
    pub(super) fn ends(&self) -> String {
        format!("{} -> {}", self.source, self.destination)
    }
}

impl Management {
    /// Every binding of the virtual host; `Err` says why it cannot be told.
    pub(super) async fn bindings(&self) -> Result<Vec<Bound>, String> {
        let path = format!("/api/bindings/{}", encoded(&self.vhost));
        let port = self.port.ok_or("it is not asked by HTTP where AMQP is encrypted")?;
        read(&self.ask_any(port, &path).await?)
    }

    /// The answer of the first node that has one.
    async fn ask_any(&self, port: u16, path: &str) -> Result<Bytes, String> {
        let mut failed = Vec::new();
        for host in &self.hosts {
            let answer = tokio::time::timeout(LIMIT, self.get(host, port, path)).await;
            match answer.unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}"))) {
                Ok(answer) => return Ok(answer),
                Err(why) => failed.push(format!("{host}: {why}")),
            }
        }
        Err(failed.join("; "))
    }

    async fn get(&self, host: &str, port: u16, path: &str) -> Result<Bytes, String> {
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
        // It ends with `sender`.
        let driving = tokio::spawn(connection);
        let login = STANDARD.encode(format!("{}:{}", self.user, self.password));
        let request = Request::get(path)
            .header(HOST, format!("{host}:{port}"))
            .header(AUTHORIZATION, format!("Basic {login}"))
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(text)?;
        if !response.status().is_success() {
            return Err(response.status().to_string());
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        driving.abort();
        body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
    }
}

/// The bindings of an answer. What is wrong with one may repeat any length of it.
pub(in crate::rabbitmq) fn read(answer: &[u8]) -> Result<Vec<Bound>, String> {
    serde_json::from_slice(answer)
        .map_err(|error| format!("not understood: {}", quoted(&error.to_string())))
}

fn text(error: hyper::Error) -> String {
    error.to_string()
}

fn encoded(name: &str) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                encoded.push(byte.into())
            }
            // Writing to a String cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}
