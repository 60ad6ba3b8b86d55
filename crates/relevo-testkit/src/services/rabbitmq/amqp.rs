//! Just enough of AMQP 0-9-1 to know that a virtual host takes connections.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// On a busy machine a server may not get to answer for a while.
const LIMIT: Duration = Duration::from_secs(60);

/// Class and method of the frames of a handshake.
const START: [u16; 2] = [10, 10];
const START_OK: [u16; 2] = [10, 11];
const TUNE: [u16; 2] = [10, 30];
const TUNE_OK: [u16; 2] = [10, 31];
const OPEN: [u16; 2] = [10, 40];
const OPEN_OK: [u16; 2] = [10, 41];
const CLOSE: [u16; 2] = [10, 50];
const CLOSE_OK: [u16; 2] = [10, 51];

/// Connects, logs in, opens the virtual host and closes in good order.
pub(super) fn open(to: SocketAddr, user: &str, password: &str, vhost: &str) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(b"AMQP\x00\x00\x09\x01")?;
    expect(&mut stream, START)?;
    let login = format!("\0{user}\0{password}");
    let client_properties = 0u32.to_be_bytes().to_vec();
    send(
        &mut stream,
        START_OK,
        &[client_properties, short("PLAIN"), long(&login), short("en_US")],
    )?;
    let limits = expect(&mut stream, TUNE)?;
    // Channel and frame limits as offered, no heartbeats.
    let limits = limits.get(..6).ok_or_else(|| invalid("a short frame"))?;
    send(&mut stream, TUNE_OK, &[limits.to_vec(), vec![0, 0]])?;
    send(&mut stream, OPEN, &[short(vhost), short(""), vec![0]])?;
    expect(&mut stream, OPEN_OK)?;
    send(&mut stream, CLOSE, &[200u16.to_be_bytes().to_vec(), short("bye"), vec![0; 4]])?;
    expect(&mut stream, CLOSE_OK).map(drop)
}

fn send(stream: &mut TcpStream, method: [u16; 2], arguments: &[Vec<u8>]) -> Result<()> {
    let mut payload: Vec<u8> = method.iter().flat_map(|number| number.to_be_bytes()).collect();
    payload.extend(arguments.iter().flatten());
    let size = u32::try_from(payload.len()).map_err(Error::other)?;
    let mut frame = vec![1, 0, 0];
    frame.extend(size.to_be_bytes());
    frame.extend(payload);
    frame.push(0xCE);
    stream.write_all(&frame)
}

/// The arguments of the next frame, which must be this method.
fn expect(stream: &mut TcpStream, method: [u16; 2]) -> Result<Vec<u8>> {
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let mut frame = Vec::new();
    stream.take(u64::from(size) + 1).read_to_end(&mut frame)?;
    let wanted: Vec<u8> = method.iter().flat_map(|number| number.to_be_bytes()).collect();
    if head[0] != 1 || frame.len() < 5 || !frame.starts_with(&wanted) {
        // A refusal is a frame too, and says why in plain text.
        return Err(invalid(&format!("not {method:?}: {}", String::from_utf8_lossy(&frame))));
    }
    Ok(frame[4..frame.len() - 1].to_vec())
}

fn short(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
    [vec![length], text.as_bytes()[..usize::from(length)].to_vec()].concat()
}

fn long(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [length.to_be_bytes().to_vec(), text.as_bytes().to_vec()].concat()
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}
