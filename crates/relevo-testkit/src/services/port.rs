//! Ports that stay free across a server's restart.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which the system takes the ports of outgoing connections: while a killed
/// server is down, nobody's connection can end up on its port.
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port on which nobody listens. Another process may take it first: callers start again then.
pub(crate) fn free_port() -> u16 {
    // Test processes that run side by side start their search far apart.
    let offset = (std::process::id().wrapping_mul(7919) % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (offset + step) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("none of the ports from {FIRST} to {} is free", FIRST + COUNT);
}

pub(crate) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The same URL with another port of 127.0.0.1: through a proxy or a pooler.
pub(crate) fn with_port(url: &str, port: u16) -> String {
    let Some((before, after)) = url.split_once("127.0.0.1:") else {
        panic!("{url} is not a URL of a server of this kit");
    };
    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{before}127.0.0.1:{port}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_port_of_a_url_changes() {
        let url = with_port("postgres://u:p@127.0.0.1:5432/db?x=1", 99);
        assert_eq!(url, "postgres://u:p@127.0.0.1:99/db?x=1");
        assert_eq!(with_port("tls://127.0.0.1:4222", 99), "tls://127.0.0.1:99");
    }

    #[test]
    fn two_free_ports_differ() {
        assert_ne!(free_port(), free_port());
    }
}
