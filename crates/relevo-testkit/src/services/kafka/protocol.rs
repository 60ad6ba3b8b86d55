//! Just enough of Kafka's protocol to ask a broker for its cluster.

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

/// Asks one broker (Metadata, version 4, no topics).
pub(super) fn cluster(of: SocketAddr) -> Result<Cluster> {
    let mut stream = TcpStream::connect_timeout(&of, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    // Size, key, version, correlation, no client id, no topics, do not create topics.
    let request = b"\x00\x00\x00\x0f\x00\x03\x00\x04\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00\x00";
    stream.write_all(request)?;
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let mut answer = Vec::new();
    stream.take(u64::from(u32::from_be_bytes(size))).read_to_end(&mut answer)?;
    parse(&answer)
}

fn parse(answer: &[u8]) -> Result<Cluster> {
    let mut rest = Rest(answer);
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
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or_else(too_short)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn number(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take()?))
    }

    fn skip_text(&mut self) -> Result<()> {
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
    fn brokers_and_controller_are_read_out_of_an_answer() {
        let mut answer = vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2];
        for broker in [1, 3] {
            answer.extend([0, 0, 0, broker, 0, 1, b'h', 0, 0, 0, 9, 0xff, 0xff]);
        }
        answer.extend([0, 1, b'c', 0, 0, 0, 3, 0, 0, 0, 0]);
        let cluster = parse(&answer).unwrap();
        assert_eq!(cluster, Cluster { brokers: vec![1, 3], controller: Some(3) });
        assert!(parse(&answer[..20]).is_err());
    }
}
