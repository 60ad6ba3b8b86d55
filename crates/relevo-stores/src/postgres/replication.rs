//! As much of PostgreSQL's streaming protocol as a doorbell needs: connect, make a temporary slot, hear commits.

use super::address::Address;
use super::tls::SPEAKS_TLS;
use bytes::{Buf, BufMut, BytesMut};
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::frontend;
use relevo_core::error::harmless;
use std::io::{Error, ErrorKind, Result};
use std::time::SystemTime;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};

/// A frame larger than this is not one of ours: an event has a megabyte at most.
const MOST_BYTES: usize = 64 << 20;

/// Seconds from 1970 to 2000, where PostgreSQL's clock begins.
const EPOCH_S: u64 = 946_684_800;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection in replication mode.
pub(crate) struct Replication {
    socket: Box<dyn Duplex>,
    received: BytesMut,
    /// How far the log was heard.
    heard: u64,
    /// The transaction that is being heard has an event.
    event: bool,
}

/// What was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Events were committed.
    Commit,
    /// The server wants to know that somebody listens.
    Question,
    /// Nothing of interest.
    Nothing,
}

struct Frame {
    tag: u8,
    body: BytesMut,
}

impl Replication {
    pub(crate) async fn connect(address: &Address) -> Result<Self> {
        let mut connection = Self::over(open_socket(address).await?);
        connection.log_in(&address.config).await?;
        Ok(connection)
    }

    pub(super) fn over(socket: Box<dyn Duplex>) -> Self {
        Self { socket, received: BytesMut::new(), heard: 0, event: false }
    }

    /// Makes a slot that ends with this connection and listens to the publication through it.
    pub(crate) async fn listen(&mut self, slot: &str, publication: &str) -> Result<()> {
        let make =
            format!("CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT");
        self.send(|buffer| frontend::query(&make, buffer)).await?;
        while self.frame().await?.tag != b'Z' {}
        let start = format!(
            "START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{publication}')"
        );
        self.send(|buffer| frontend::query(&start, buffer)).await?;
        // CopyBothResponse: from here on the server talks by itself.
        while self.frame().await?.tag != b'W' {}
        Ok(())
    }

    /// Waits for the next thing said. Nothing is lost if it is cancelled.
    pub(crate) async fn hear(&mut self) -> Result<Heard> {
        let Frame { tag, mut body } = self.frame().await?;
        if tag != b'd' || body.is_empty() {
            return Ok(Heard::Nothing);
        }
        match body.get_u8() {
            b'w' if body.len() > 24 => {
                let start = body.get_u64();
                self.heard = self.heard.max(start).max(body.get_u64());
                body.advance(8);
                Ok(self.hear_change(body.get_u8()))
            }
            b'k' if body.len() >= 17 => {
                self.heard = self.heard.max(body.get_u64());
                body.advance(8);
                Ok(if body.get_u8() == 1 { Heard::Question } else { Heard::Nothing })
            }
            _ => Ok(Heard::Nothing),
        }
    }

    /// Begin, inserts, commit: one ring for a transaction with events, none for the others.
    fn hear_change(&mut self, kind: u8) -> Heard {
        match kind {
            b'B' => self.event = false,
            b'I' => self.event = true,
            b'C' if self.event => return Heard::Commit,
            _ => {}
        }
        Heard::Nothing
    }

    /// Says that everything heard so far may be forgotten, and asks for an answer.
    pub(crate) async fn nod(&mut self) -> Result<()> {
        let since_1970 =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let clock = since_1970.as_micros() as i64 - (EPOCH_S * 1_000_000) as i64;
        let heard = self.heard;
        self.send(|buffer| {
            buffer.put_u8(b'd');
            buffer.put_i32(4 + 34);
            buffer.put_u8(b'r');
            (0..3).for_each(|_| buffer.put_u64(heard));
            buffer.put_i64(clock);
            buffer.put_u8(1);
            Ok(())
        })
        .await
    }

    pub(super) async fn log_in(&mut self, config: &Config) -> Result<()> {
        let user = config.get_user().unwrap_or("postgres");
        let database = config.get_dbname().unwrap_or(user);
        let parameters = [
            ("user", user),
            ("database", database),
            ("replication", "database"),
            ("application_name", "relevo doorbell"),
        ];
        self.send(|buffer| frontend::startup_message(parameters, buffer)).await?;
        let password = config.get_password().unwrap_or_default();
        loop {
            let Frame { tag, mut body } = self.frame().await?;
            match tag {
                b'R' if body.len() >= 4 => {
                    let kind = body.get_i32();
                    self.authenticate(kind, body, user, password).await?;
                }
                b'Z' => return Ok(()),
                _ => {}
            }
        }
    }

    async fn authenticate(
        &mut self,
        kind: i32,
        body: BytesMut,
        user: &str,
        password: &[u8],
    ) -> Result<()> {
        match kind {
            // Done.
            0 => Ok(()),
            3 => self.send(|buffer| frontend::password_message(password, buffer)).await,
            5 => {
                let salt =
                    body.as_ref().try_into().map_err(|_| bad("a salt of the wrong length"))?;
                let hash = md5_hash(user.as_bytes(), password, salt);
                self.send(|buffer| frontend::password_message(hash.as_bytes(), buffer)).await
            }
            10 => self.authenticate_by_scram(password).await,
            other => Err(bad(&format!("it asks for a log-in of kind {other}"))),
        }
    }

    async fn authenticate_by_scram(&mut self, password: &[u8]) -> Result<()> {
        let mut scram = sasl::ScramSha256::new(password, sasl::ChannelBinding::unsupported());
        let first = scram.message().to_vec();
        self.send(|buffer| frontend::sasl_initial_response(sasl::SCRAM_SHA_256, &first, buffer))
            .await?;
        scram.update(&self.challenge(11).await?).map_err(|error| said(&error.to_string()))?;
        let answer = scram.message().to_vec();
        self.send(|buffer| frontend::sasl_response(&answer, buffer)).await?;
        scram.finish(&self.challenge(12).await?).map_err(|error| said(&error.to_string()))
    }

    async fn challenge(&mut self, wanted: i32) -> Result<BytesMut> {
        let Frame { tag, mut body } = self.frame().await?;
        if tag != b'R' || body.len() < 4 || body.get_i32() != wanted {
            return Err(bad("the log-in broke off"));
        }
        Ok(body)
    }

    async fn send(&mut self, write: impl FnOnce(&mut BytesMut) -> Result<()>) -> Result<()> {
        let mut buffer = BytesMut::new();
        write(&mut buffer)?;
        self.socket.write_all(&buffer).await?;
        self.socket.flush().await
    }

    /// The next frame; what the server reports as an error is one.
    async fn frame(&mut self) -> Result<Frame> {
        loop {
            if let Some(frame) = self.cut()? {
                if frame.tag == b'E' {
                    return Err(said(&reported(&frame.body)));
                }
                return Ok(frame);
            }
            // What is read stays in the buffer if this is cancelled.
            if self.socket.read_buf(&mut self.received).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Cuts a whole frame off what was received: a tag, and a length that counts itself.
    fn cut(&mut self) -> Result<Option<Frame>> {
        let Some(header) = self.received.get(..5) else { return Ok(None) };
        let (tag, length) = (header[0], [header[1], header[2], header[3], header[4]]);
        let length = u32::from_be_bytes(length) as usize;
        if !(4..MOST_BYTES).contains(&length) {
            return Err(bad("a frame of an impossible length"));
        }
        if self.received.len() <= length {
            return Ok(None);
        }
        let mut frame = self.received.split_to(1 + length);
        frame.advance(5);
        Ok(Some(Frame { tag, body: frame }))
    }
}

fn bad(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

/// The message of an error report: fields of a letter and a text each.
fn reported(body: &[u8]) -> String {
    let fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    let message = fields
        .filter(|(letter, _)| **letter == b'M')
        .map(|(_, text)| String::from_utf8_lossy(text));
    message
        .map(|text| text.into_owned())
        .find(|text| !text.trim().is_empty())
        .unwrap_or_else(|| "the server reported an error".to_owned())
}

/// What a server says is not to be obeyed by whoever reads the log.
fn said(message: &str) -> Error {
    let line: String = message.chars().map(|c| if c == '\n' { ' ' } else { c }).take(500).collect();
    Error::other(harmless(line).chars().take(500).collect::<String>())
}

/// The first host that answers.
async fn open_socket(address: &Address) -> Result<Box<dyn Duplex>> {
    let config = &address.config;
    let mut last = bad("the URL names no host");
    for (index, host) in config.get_hosts().iter().enumerate() {
        let ports = config.get_ports();
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        let socket: Result<Box<dyn Duplex>> = match host {
            Host::Tcp(name) => open_tcp(address, name, port).await,
            Host::Unix(folder) => {
                let path = folder.join(format!(".s.PGSQL.{port}"));
                UnixStream::connect(path).await.map(|socket| Box::new(socket) as _)
            }
        };
        match socket {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A connection that is encrypted as the sessions of the pool are.
async fn open_tcp(address: &Address, host: &str, port: u16) -> Result<Box<dyn Duplex>> {
    let mut socket = TcpStream::connect((host, port)).await?;
    let mode = address.config.get_ssl_mode();
    if mode == SslMode::Disable || !SPEAKS_TLS {
        return Ok(Box::new(socket));
    }
    let mut ask = BytesMut::new();
    frontend::ssl_request(&mut ask);
    socket.write_all(&ask).await?;
    match (socket.read_u8().await?, mode) {
        (b'S', _) => {
            let mut tls = address.tls.clone();
            let tls = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, host)
                .map_err(|error| said(&error.to_string()))?;
            let stream = tls.connect(socket).await.map_err(|error| said(&error.to_string()))?;
            Ok(Box::new(stream))
        }
        (_, SslMode::Require) => Err(bad("the server speaks no TLS")),
        _ => Ok(Box::new(socket)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(input: &[u8]) -> Replication {
        let (here, _there) = tokio::io::duplex(64);
        let received = BytesMut::from(input);
        Replication { received, ..Replication::over(Box::new(here)) }
    }

    #[test]
    fn frames_are_cut_only_when_they_are_whole() {
        let mut connection = on(b"Z\0\0\0\x05Id\0\0");
        let frame = connection.cut().unwrap().unwrap();
        assert_eq!((frame.tag, &frame.body[..]), (b'Z', &b"I"[..]));
        assert!(connection.cut().unwrap().is_none());
        assert!(on(b"d\0\0\0\0").cut().is_err());
        assert!(on(b"d\xff\0\0\0").cut().is_err());
    }

    #[test]
    fn only_a_transaction_with_events_rings() {
        let mut connection = on(b"");
        let heard: Vec<Heard> =
            b"BCBICBRC".iter().map(|kind| connection.hear_change(*kind)).collect();
        assert_eq!(heard.iter().filter(|heard| **heard == Heard::Commit).count(), 1);
        assert_eq!(heard[4], Heard::Commit);
    }

    #[test]
    fn an_error_says_what_the_server_said() {
        assert_eq!(reported(b"SFATAL\0C53300\0Mtoo many slots\0\0"), "too many slots");
    }
}
