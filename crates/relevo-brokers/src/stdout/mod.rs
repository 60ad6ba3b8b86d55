//! One line of JSON per event on standard output (or any other writer).

use async_trait::async_trait;
use relevo_core::broker::{Confirm, Publisher};
use relevo_core::event::Event;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Prints each event as one line of JSON. A line that cannot be written means that the destination is down.
pub struct LogPublisher {
    out: Mutex<Box<dyn Write + Send>>,
}

impl Default for LogPublisher {
    /// Prints to standard output.
    fn default() -> Self {
        Self::to(std::io::stdout())
    }
}

impl LogPublisher {
    /// Prints to `out`.
    pub fn to(out: impl Write + Send + 'static) -> Self {
        Self { out: Mutex::new(Box::new(out)) }
    }

    fn print(&self, events: &[&Event]) -> std::io::Result<()> {
        let mut text = String::new();
        for event in events {
            text.push_str(&line(event).to_string());
            text.push('\n');
        }
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// The event as one JSON object: `data` if the payload is JSON, `text` if it is UTF-8, else `hex`.
pub fn line(event: &Event) -> Value {
    let mut line = json!({
        "id": event.id.to_string(),
        "topic": event.topic,
        "key": event.key,
        "time": event.created_at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        "headers": event.headers,
    });
    let (name, value) = payload(&event.payload);
    line[name] = value;
    line
}

fn payload(bytes: &[u8]) -> (&'static str, Value) {
    if let Ok(value) = serde_json::from_slice::<Value>(bytes) {
        return ("data", value);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => ("text", Value::from(text)),
        Err(_) => {
            ("hex", Value::from(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
        }
    }
}

#[async_trait]
impl Publisher for LogPublisher {
    fn name(&self) -> &'static str {
        "stdout"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let confirm = match self.print(events) {
            Ok(()) => Confirm::Stored,
            Err(error) => Confirm::Down { error: format!("standard output: {error}") },
        };
        vec![confirm; events.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::event::NewEvent;
    use std::sync::Arc;

    fn event(payload: &[u8]) -> Event {
        Event::stored(
            NewEvent::bytes("ticket.created", payload.to_vec()).key("t-1"),
            chrono::Utc::now(),
        )
    }

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_payload_is_shown_as_what_it_is() {
        assert_eq!(line(&event(br#"{"n":1}"#))["data"]["n"], 1);
        assert_eq!(line(&event(b"plain\x1b[31m"))["text"], "plain\u{1b}[31m");
        assert_eq!(line(&event(&[0xff, 0x00]))["hex"], "ff00");
    }

    #[tokio::test]
    async fn every_event_is_one_line_even_with_line_breaks_inside() {
        let paper = Paper::default();
        let (first, second) = (event(b"a\nb"), event(b"c"));
        let confirms = LogPublisher::to(paper.clone()).publish(&[&first, &second]).await;
        assert_eq!(confirms, [Confirm::Stored, Confirm::Stored]);
        let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[tokio::test]
    async fn a_closed_pipe_is_a_destination_that_is_down() {
        let one = event(b"a");
        let confirms = LogPublisher::to(Closed).publish(&[&one]).await;
        assert!(matches!(&confirms[..], [Confirm::Down { .. }]), "{confirms:?}");
    }
}
