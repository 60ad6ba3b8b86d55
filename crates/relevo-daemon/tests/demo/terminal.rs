//! The picture, as a terminal of a given size gets it. `script` of util-linux is that terminal.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// A terminal on which nothing is drawn for so long hangs.
const PATIENCE: Duration = Duration::from_secs(180);

/// A demo behind a pseudo-terminal.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Receiver<Vec<u8>>,
    /// Everything that was drawn.
    drawn: String,
    columns: usize,
    rows: usize,
}

impl Terminal {
    fn open(arguments: &str, columns: usize, rows: usize) -> Self {
        let relevo = env!("CARGO_BIN_EXE_relevo");
        let inside = format!("stty cols {columns} rows {rows} && exec {relevo} demo {arguments}");
        let mut command = Command::new("script");
        command.args(["-qefc", &inside, "/dev/null"]).env("NO_COLOR", "1").env("TERM", "xterm");
        if std::path::Path::new("/dev/shm").is_dir() {
            command.env("TMPDIR", "/dev/shm");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, keys, screen: drawn_on(screen), drawn: String::new(), columns, rows }
    }

    /// False at the end.
    fn read(&mut self) -> bool {
        match self.screen.recv_timeout(PATIENCE) {
            // Cut in the middle of a character it is odd for a moment; the next picture is whole.
            Ok(bytes) => self.drawn.push_str(&String::from_utf8_lossy(&bytes)),
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => {
                panic!("it hangs:\n{}", self.last_picture().join("\n"))
            }
        }
        true
    }

    /// Reads on until this was drawn, from now on.
    fn wait_for(&mut self, words: &str) {
        let from = self.drawn.len();
        while !self.drawn[from..].contains(words) {
            assert!(self.read(), "it ended without {words}:\n{}", self.last_picture().join("\n"));
        }
    }

    fn press(&mut self, key: &str) {
        self.keys.write_all(key.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// The lines of the last whole picture.
    fn last_picture(&self) -> Vec<String> {
        let pictures = self.drawn.split("\x1b[H").filter(|picture| picture.contains("\x1b[J"));
        lines(pictures.last().unwrap_or_default())
    }

    /// Every picture fits, and its end says that all is well.
    fn end(mut self) -> String {
        while self.read() {}
        assert!(self.child.wait().unwrap().success(), "{}", self.drawn);
        let drawn = std::mem::take(&mut self.drawn);
        let begin = drawn.find("\x1b[H").unwrap();
        let (pictures, words) = drawn.rsplit_once("\x1b[?1049l").unwrap();
        for picture in pictures[begin..].split("\x1b[H").skip(1) {
            let lines = lines(picture);
            assert!(lines.len() <= self.rows, "{} lines:\n{}", lines.len(), lines.join("\n"));
            let wide = lines.iter().find(|line| line.chars().count() > self.columns);
            assert_eq!(wide, None, "wider than {}", self.columns);
        }
        words.to_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn drawn_on(mut screen: ChildStdout) -> Receiver<Vec<u8>> {
    let (drawn, screen_of) = channel();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok(count @ 1..) = screen.read(&mut bytes) {
            if drawn.send(bytes[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    screen_of
}

fn lines(picture: &str) -> Vec<String> {
    let picture = picture.split("\x1b[J").next().unwrap_or_default();
    picture.split("\r\n").map(|line| line.replace("\x1b[K", "")).collect()
}

#[test]
fn at_eighty_by_twenty_four_everything_is_there_and_keys_break_and_mend_the_systems() {
    let mut terminal = Terminal::open("--rate 20", 80, 24);
    terminal.wait_for("SmartEdify's API, open on loopback only: http://127.0.0.1:");
    terminal.wait_for("first event delivered");
    for (key, broken) in [
        ("m", "TicketFlow: the mail server takes nothing"),
        ("d", "TicketFlow: the dispatcher stands still"),
        ("w", "TicketFlow: the worker is gone"),
        ("e", "SmartEdify: the downstream service fails"),
        ("u", "SmartEdify: the downstream service is gone"),
        ("n", "SmartEdify: nonsense"),
        ("t", "SmartEdify: an answer gets lost"),
        ("r", "SmartEdify: the relay is gone without a word"),
    ] {
        terminal.press(key);
        terminal.wait_for(broken);
    }
    let picture = terminal.last_picture().join("\n");
    for words in
        ["relevo demo", "lanes", "anna", "TicketFlow ", "SmartEdify ", "[m]ail server", "[q]uit"]
    {
        assert!(picture.contains(words), "{words} is missing in\n{picture}");
    }
    for (key, mended) in [
        ("m", "the mail server takes e-mails again"),
        ("d", "the dispatcher goes on"),
        ("w", "another worker takes its place"),
        ("e", "the downstream service works again"),
        ("u", "the downstream service is there again"),
    ] {
        terminal.press(key);
        terminal.wait_for(mended);
    }
    terminal.press("q");
    let words = terminal.end();
    assert!(
        words.contains("TicketFlow: changes of tickets") && words.contains("Nothing lost"),
        "{words}"
    );
}

#[test]
fn at_a_hundred_and_twenty_by_forty_a_system_alone_fits_too() {
    let mut terminal = Terminal::open("smartedify", 120, 40);
    terminal.wait_for("[r]elay");
    terminal.press("t");
    terminal.wait_for("SmartEdify: an answer gets lost");
    terminal.press("q");
    let words = terminal.end();
    assert!(words.contains("Nothing lost, nothing done twice"), "{words}");
}
