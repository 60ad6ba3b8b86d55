//! The terminal: keys without Enter, a picture that does not scroll, and everything put back at the end.

use relevo_core::{Error, Kind, Result};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{IsTerminal, Read, Write};
use tokio::sync::mpsc;

/// Other screen, no cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// A terminal that shows pictures. Dropping it puts the terminal back.
pub(super) struct Screen {
    before: Termios,
    pub(super) keys: mpsc::UnboundedReceiver<u8>,
    pub(super) colour: bool,
}

/// Can pictures be shown at all?
pub(super) fn is_there() -> bool {
    let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb" || term.is_empty());
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !dumb
}

impl Screen {
    pub(super) fn open() -> Result<Self> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).map_err(|e| failed(e.into()))?;
        let mut raw = before.clone();
        // Signals stay: Ctrl-C ends the demo in an orderly way.
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(|e| failed(e.into()))?;
        let screen = Self {
            before,
            keys: read_keys(),
            colour: std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        put(ENTER)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        terminal_size::terminal_size()
            .map_or((80, 24), |(columns, rows)| (columns.0.into(), rows.0.into()))
    }

    /// Replaces what is shown, without flicker: every line is written over and its rest cleared.
    pub(super) fn show(&self, lines: &[String]) -> Result<()> {
        let mut text = String::from("\x1b[H");
        for (index, line) in lines.iter().enumerate() {
            let end = if index + 1 < lines.len() { "\x1b[K\r\n" } else { "\x1b[K" };
            text.push_str(line);
            text.push_str(end);
        }
        text.push_str("\x1b[J");
        put(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing more can be done for a terminal that is gone.
        let _ = put(LEAVE);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// The thread ends with the process: nothing can interrupt a read of the terminal.
fn read_keys() -> mpsc::UnboundedReceiver<u8> {
    let (keys, pressed) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for byte in std::io::stdin().lock().bytes() {
            let Ok(byte) = byte else { return };
            if keys.send(byte).is_err() {
                return;
            }
        }
    });
    pressed
}

fn put(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(failed)
}

fn failed(error: std::io::Error) -> Error {
    Error::new(Kind::NotSupported, format!("the terminal: {error}")).because(error)
}
