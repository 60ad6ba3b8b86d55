//! Just enough of Kafka's protocol to ask a broker for its cluster, and to tell it one thing.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// On a busy machine a server may not get to answer for a while.
const LIMIT: Duration = Duration::from_secs(60);

/// What a broker knows about its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cluster {
    /// The ids of the live brokers.
    pub(super) brokers: Vec<i32>,
    /// The controller, if there is one.
    pub(super) controller: Option<i32>,
}

/// Asks one broker.
pub(super) fn cluster(of: SocketAddr) -> Result<Cluster> {
    parse(&mut Rest(&metadata(of, &[])?))
}

/// Asks one broker who leads a topic's first partition, if anybody does.
pub(super) fn leader(of: SocketAddr, topic: &str) -> Result<Option<i32>> {
    let answer = metadata(of, &[topic])?;
    let mut rest = Rest(&answer);
    parse(&mut rest)?;
    parse_leader(&mut rest)
}

/// Metadata, version 4.
fn metadata(of: SocketAddr, topics: &[&str]) -> Result<Vec<u8>> {
    let mut body = (topics.len() as u32).to_be_bytes().to_vec();
    for topic in topics {
        put_text(&mut body, topic);
    }
    // Do not create topics.
    body.push(0);
    exchange(of, 3, 4, &body)
}

pub(super) fn put_text(body: &mut Vec<u8>, text: &str) {
    body.extend((text.len() as u16).to_be_bytes());
    body.extend(text.as_bytes());
}

/// One request of this key and version, and the answer behind its length.
pub(super) fn exchange(of: SocketAddr, key: u16, version: u16, body: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&of, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut request = [key.to_be_bytes(), version.to_be_bytes()].concat();
    // Correlation, no client id.
    request.extend(b"\x00\x00\x00\x01\xff\xff");
    request.extend(body);
    stream.write_all(&(request.len() as u32).to_be_bytes())?;
    stream.write_all(&request)?;
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let mut answer = Vec::new();
    stream.take(u64::from(u32::from_be_bytes(size))).read_to_end(&mut answer)?;
    Ok(answer)
}

/// The topics that follow what [`parse`] reads: there was one, and its first partition is meant.
fn parse_leader(rest: &mut Rest<'_>) -> Result<Option<i32>> {
    let _topics = rest.number()?;
    let _error: [u8; 2] = rest.take()?;
    rest.skip_text()?; // name
    let _internal: [u8; 1] = rest.take()?;
    for _ in 0..rest.number()? {
        let _error: [u8; 2] = rest.take()?;
        let (partition, leader) = (rest.number()?, rest.number()?);
        if partition == 0 {
            return Ok(Some(leader).filter(|id| *id >= 0));
        }
        for _ in ["replicas", "in sync"] {
            for _ in 0..rest.number()? {
                rest.number()?;
            }
        }
    }
    Ok(None)
}

fn parse(rest: &mut Rest<'_>) -> Result<Cluster> {
    let (_correlation, _throttle) = (rest.number()?, rest.number()?);
    let count = rest.number()?;
    let mut brokers = Vec::new();
    for _ in 0..count {
        brokers.push(rest.number()?);
        rest.skip_text()?; // host
        rest.number()?; // port
        rest.skip_text()?; // rack
    }
    rest.skip_text()?; // cluster id
    let controller = Some(rest.number()?).filter(|id| *id >= 0);
    Ok(Cluster { brokers, controller })
}

/// The bytes not yet read.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl Rest<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or_else(too_short)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn number(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take()?))
    }

    pub(super) fn skip_text(&mut self) -> Result<()> {
        // A text that is not there has the length -1.
        let length = usize::try_from(i16::from_be_bytes(self.take()?)).unwrap_or(0);
        self.0 = self.0.get(length..).ok_or_else(too_short)?;
        Ok(())
    }
}

fn too_short() -> Error {
    Error::new(ErrorKind::InvalidData, "the broker's answer is too short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_controller_and_leader_are_read_out_of_an_answer() {
        let mut answer = vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2];
        for broker in [1, 3] {
            answer.extend([0, 0, 0, broker, 0, 1, b'h', 0, 0, 0, 9, 0xff, 0xff]);
        }
        answer.extend([0, 1, b'c', 0, 0, 0, 3]);
        // One topic, one partition.
        answer.extend([0, 0, 0, 1, 0, 0, 0, 1, b't', 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        let mut rest = Rest(&answer);
        let cluster = parse(&mut rest).unwrap();
        assert_eq!(cluster, Cluster { brokers: vec![1, 3], controller: Some(3) });
        assert_eq!(parse_leader(&mut rest).unwrap(), Some(2));
        assert!(parse(&mut Rest(&answer[..20])).is_err());
    }
}
