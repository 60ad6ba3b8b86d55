//! One small HTTP request, for servers that tell how they are.

use super::{Result, ServiceError};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// On a busy machine a server may not get to answer for a while.
const LIMIT: Duration = Duration::from_secs(60);

/// A request to a server of this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// User and password, as the `Authorization` header wants them.
    pub(crate) authorization: &'a str,
    pub(crate) body: &'a str,
}

impl Request<'_> {
    pub(crate) fn get(path: &str) -> Request<'_> {
        Request { method: "GET", path, authorization: "", body: "" }
    }

    /// The body of a successful answer; every other answer is an error.
    pub(crate) fn send(self, to: SocketAddr) -> Result<String> {
        let answer = self.exchange(to).map_err(|error| self.failed(error))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.lines().next().unwrap_or_default();
        if status.split(' ').nth(1).is_some_and(|code| code.starts_with('2')) {
            Ok(body.to_owned())
        } else {
            Err(self.failed(format!("{status}: {body}")))
        }
    }

    fn exchange(&self, to: SocketAddr) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&to, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let Request { method, path, authorization, body } = self;
        let length = body.len();
        // 1.0: the answer ends with the connection and never comes in chunks.
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {to}\r\nAuthorization: {authorization}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    fn failed(&self, why: impl std::fmt::Display) -> ServiceError {
        ServiceError::failed("HTTP", format!("{} {}: {why}", self.method, self.path))
    }
}
