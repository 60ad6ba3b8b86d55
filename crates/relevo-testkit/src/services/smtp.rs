//! A mail server that keeps what it gets in a Maildir.

use super::node::{Node, node_methods, with_free_ports};
use super::process::{Launch, ServerProcess, StopSignal};
use super::{Result, ServiceError, locate, port};
use rustix::process::Signal;
use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

const NAME: &str = "SMTP";
const READY_LIMIT: Duration = Duration::from_secs(120);
const AT_ONCE: StopSignal = StopSignal { signal: Signal::TERM, name: "TERM" };

/// aiosmtpd's own Maildir handler, with two more answers: an address at `refused.invalid` is refused for good, one at
/// `later.invalid` is put off, every time.
const SERVER: &str = r#"
import asyncio, sys, time
from aiosmtpd.controller import UnthreadedController
from aiosmtpd.handlers import Mailbox

class Server(Mailbox):
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.endswith("@refused.invalid"):
            return "550 5.1.1 no such mailbox"
        if address.endswith("@later.invalid"):
            with open(sys.argv[3], "a") as times:
                print(time.time(), file=times)
            return "451 4.3.0 try again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
UnthreadedController(Server(sys.argv[2]), hostname="127.0.0.1", port=int(sys.argv[1]), loop=loop).begin()
loop.run_forever()
"#;

/// A mail server; it stops when the value is dropped. An address at `refused.invalid` is refused for good, one at
/// `later.invalid` is put off, every time.
#[derive(Debug)]
pub struct Smtp {
    port: u16,
    maildir: PathBuf,
    put_off: PathBuf,
    node: Node,
}

impl Smtp {
    /// Starts one.
    pub fn start() -> Result<Smtp> {
        with_free_ports(|| {
            let smtp = Smtp::prepare()?;
            smtp.node.start()?;
            Ok(smtp)
        })
    }

    fn prepare() -> Result<Smtp> {
        let python = locate::python_with("aiosmtpd")?;
        let process = ServerProcess::new(NAME, AT_ONCE)?;
        let port = port::free_port();
        let script = process.write("server.py", SERVER)?;
        let maildir = process.folder().join("mails");
        let put_off = process.folder().join("put-off");
        let shown = |path: &PathBuf| path.display().to_string();
        let args = [shown(&script), port.to_string(), shown(&maildir), shown(&put_off)];
        let launch = Launch::new(&python).args(&args);
        let node = Node::new(process, launch, READY_LIMIT, move || greeting(port));
        Ok(Smtp { port, maildir, put_off, node })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        port::local(self.port)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("smtp://127.0.0.1:{}", self.port)
    }

    /// Every mail that it took, in the order in which they came, headers and all.
    pub fn mails(&self) -> Result<Vec<String>> {
        let failed = |error: std::io::Error| ServiceError::failed(NAME, error);
        let mut files: Vec<PathBuf> = match fs::read_dir(self.maildir.join("new")) {
            Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            // The first mail makes the folder.
            Err(_) => Vec::new(),
        };
        files.sort_by_key(|file| arrival(&file.file_name().unwrap_or_default().to_string_lossy()));
        files.iter().map(|file| fs::read_to_string(file).map_err(failed)).collect()
    }

    /// When it put a mail off, by its own clock, in seconds: once for each time that somebody tried.
    pub fn put_off(&self) -> Result<Vec<f64>> {
        let failed = |error: String| ServiceError::failed(NAME, error);
        // The first time makes the file.
        let times = fs::read_to_string(&self.put_off).unwrap_or_default();
        times
            .lines()
            .map(|it| it.parse().map_err(|error| failed(format!("{it}: {error}"))))
            .collect()
    }

    node_methods!();
}

/// Python's Maildir names its files `SECONDS.MmicrosPpidQnumber.host`.
fn arrival(name: &str) -> (u64, u64, u64) {
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_default()
    };
    let (seconds, rest) = name.split_once(".M").unwrap_or((name, ""));
    (number(seconds), number(rest), rest.split_once('Q').map_or(0, |(_, count)| number(count)))
}

fn greeting(port: u16) -> Result<()> {
    let failed = |error: std::io::Error| ServiceError::failed(NAME, error);
    let mut stream = TcpStream::connect(port::local(port)).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(failed)?;
    let mut code = [0; 3];
    stream.read_exact(&mut code).map_err(failed)?;
    match &code {
        b"220" => Ok(()),
        other => Err(ServiceError::failed(NAME, format!("it greets with {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mails_are_sorted_as_they_came() {
        let mut names = ["9.M999999P1Q3.h", "10.M5P1Q5.h", "10.M5P1Q4.h", "9.M1000P1Q2.h"];
        names.sort_by_key(|name| arrival(name));
        assert_eq!(names, ["9.M1000P1Q2.h", "9.M999999P1Q3.h", "10.M5P1Q4.h", "10.M5P1Q5.h"]);
    }
}
