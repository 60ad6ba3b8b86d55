//! E-mails: what they say, and how they leave.

use super::smtp::Server;
use crate::ticket::{TicketEvent, topic};
use anyhow::{Context, Result};
use async_trait::async_trait;
use lettre::Message;
use lettre::message::{Mailbox, MultiPart};
use relevo::Event;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// The part of a Message-ID behind the `@`.
const DOMAIN: &str = "ticketflow.invalid";

/// Mails on their way at the same time, of as many tickets: a server takes its time with each.
pub const AT_ONCE: usize = 16;

/// A server that takes longer than this with a mail has failed.
pub const LIMIT: Duration = Duration::from_secs(20);

/// An e-mail, before anybody knows how it leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    /// Made of the event's id: a copy has the same.
    pub message_id: String,
    /// To whom.
    pub to: String,
    /// What about.
    pub subject: String,
    /// As text.
    pub text: String,
    /// As HTML.
    pub html: String,
    /// The ticket it tells of.
    pub ticket: Uuid,
    /// Which of its changes.
    pub version: i64,
}

/// Why a mail did not leave.
#[derive(Debug)]
pub struct MailFailure {
    /// The server will not take it later either.
    pub for_good: bool,
    /// What it said.
    pub error: anyhow::Error,
}

/// How mails leave.
#[async_trait]
pub trait Mailer: Send + Sync + 'static {
    /// Hands one over; `Ok` means that it is taken.
    async fn send(&self, mail: &Mail) -> Result<(), MailFailure>;
}

/// The Message-ID of an event's mail.
pub fn message_id(event: Uuid) -> String {
    format!("<{event}@{DOMAIN}>")
}

/// The event that a Message-ID was made of.
pub fn event_of(message_id: &str) -> Option<Uuid> {
    let (event, domain) = message_id.trim().strip_prefix('<')?.split_once('@')?;
    (domain.strip_suffix('>') == Some(DOMAIN)).then(|| event.parse().ok())?
}

/// The ticket and the change of it that a mail tells of in its text, which [`compose`] wrote.
pub fn change_of(message: &str) -> Option<(Uuid, i64)> {
    let told = |line: &str| {
        let (ticket, what) = line.strip_prefix("Ticket ")?.split_once(' ')?;
        let (version, _) = what.rsplit_once("(change ")?.1.split_once(')')?;
        Some((ticket.parse().ok()?, version.parse().ok()?))
    };
    message.lines().find_map(told)
}

/// What an event says to whom.
pub fn compose(event: &Event, told: &TicketEvent) -> Mail {
    let (to, what) = match (event.topic.as_str(), &told.assignee) {
        (topic::ASSIGNED, Some(assignee)) => (assignee, "is yours".to_owned()),
        (topic::CREATED, _) => (&told.requester, "was opened".to_owned()),
        _ => (&told.requester, format!("is {}", told.status.as_str().replace('_', " "))),
    };
    let TicketEvent { title, ticket_id, version, .. } = told;
    let text = format!("{title}\n\nTicket {ticket_id} {what} (change {version}).\n");
    let html = format!(
        "<h1>{}</h1><p>Ticket <code>{ticket_id}</code> {what} (change {version}).</p>\n",
        escaped(title)
    );
    Mail {
        message_id: message_id(event.id.0),
        to: to.clone(),
        subject: format!("[{ticket_id}] {title} {what}").replace(['\n', '\t'], " "),
        text,
        html,
        ticket: *ticket_id,
        version: *version,
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Sends by SMTP, over connections that are kept.
pub struct Smtp {
    server: Server,
    from: Mailbox,
    limit: Duration,
}

impl Smtp {
    /// `smtp://host:port`, `smtps://user:password@host`, or `smtp://host?tls=required`; and whom mails are from.
    pub fn at(url: &str, from: &str) -> Result<Self> {
        let server = Server::at(url).context("SMTP_URL")?;
        let from: Mailbox = from.parse().context("MAIL_FROM")?;
        Ok(Self { server, from, limit: LIMIT })
    }

    /// So long may the server take with a mail, connecting included, instead of [`LIMIT`].
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Does the server answer?
    pub async fn check(&self) -> Result<()> {
        // It says goodbye; whether that is answered is not asked.
        self.server.connect().await?.abort().await;
        Ok(())
    }

    /// Dropped in the middle, it closes its connection.
    async fn hand_over(&self, message: &Message) -> Result<(), lettre::transport::smtp::Error> {
        let mut connection = self.server.connection().await?;
        connection.send(message.envelope(), &message.formatted()).await?;
        self.server.keep(connection);
        Ok(())
    }

    fn message(&self, mail: &Mail) -> Result<Message> {
        let parts = MultiPart::alternative_plain_html(mail.text.clone(), mail.html.clone());
        let message = Message::builder()
            .from(self.from.clone())
            .to(mail.to.parse()?)
            .subject(&mail.subject)
            .message_id(Some(mail.message_id.clone()));
        Ok(message.multipart(parts)?)
    }
}

#[async_trait]
impl Mailer for Smtp {
    async fn send(&self, mail: &Mail) -> Result<(), MailFailure> {
        let unwritable = |error| MailFailure { for_good: true, error };
        let message = self.message(mail).map_err(unwritable)?;
        match tokio::time::timeout(self.limit, self.hand_over(&message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                Err(MailFailure { for_good: error.is_permanent(), error: error.into() })
            }
            Err(_) => {
                let error = anyhow::anyhow!("the mail server took longer than {:?}", self.limit);
                Err(MailFailure { for_good: false, error })
            }
        }
    }
}

/// A mailbox in this process, where there is no server: for the embedded way, and for tests.
#[derive(Debug, Default)]
pub struct InProcess {
    mails: Mutex<Vec<Mail>>,
    down: AtomicBool,
    refused: AtomicU64,
}

impl InProcess {
    /// Everything that came, in its order, copies too.
    pub fn mails(&self) -> Vec<Mail> {
        self.mails.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many it did not take.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many came, copies too.
    pub fn count(&self) -> usize {
        self.mails.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes nothing, or takes mails again.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }
}

#[async_trait]
impl Mailer for InProcess {
    async fn send(&self, mail: &Mail) -> Result<(), MailFailure> {
        if self.down.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let error = anyhow::anyhow!("the mailbox takes nothing");
            return Err(MailFailure { for_good: false, error });
        }
        self.keep(mail);
        Ok(())
    }
}

impl InProcess {
    fn keep(&self, mail: &Mail) {
        self.mails.lock().unwrap_or_else(PoisonError::into_inner).push(mail.clone());
    }
}

/// Sends by SMTP and keeps a copy of what the server took. While the mailbox is down the server seems to be.
pub struct Copying {
    /// Where mails go.
    pub smtp: Smtp,
    /// Where their copies are.
    pub copies: Arc<InProcess>,
}

#[async_trait]
impl Mailer for Copying {
    async fn send(&self, mail: &Mail) -> Result<(), MailFailure> {
        if self.copies.down.load(Ordering::Relaxed) {
            return self.copies.send(mail).await;
        }
        let sent = self.smtp.send(mail).await;
        match &sent {
            Ok(()) => self.copies.keep(mail),
            Err(_) => _ = self.copies.refused.fetch_add(1, Ordering::Relaxed),
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticket::{Priority, Status};
    use chrono::Utc;
    use relevo::NewEvent;

    fn told() -> TicketEvent {
        TicketEvent {
            ticket_id: Uuid::now_v7(),
            version: 2,
            occurred_at: Utc::now(),
            title: "Printer <on> fire".into(),
            requester: "ana@example.org".into(),
            assignee: Some("ben@example.org".into()),
            priority: Priority::High,
            status: Status::InProgress,
            previous_status: Some(Status::Open),
        }
    }

    fn event(topic: &str) -> Event {
        Event::stored(NewEvent::bytes(topic, Vec::new()), Utc::now())
    }

    #[test]
    fn a_mail_goes_to_whom_it_concerns_and_its_id_is_made_of_the_event() {
        let assigned = event(topic::ASSIGNED);
        let mail = compose(&assigned, &told());
        assert_eq!(mail.to, "ben@example.org");
        assert_eq!(event_of(&mail.message_id), Some(assigned.id.0));
        assert_eq!(compose(&assigned, &told()).message_id, mail.message_id);
        let changed = compose(&event(topic::STATUS_CHANGED), &told());
        assert_eq!(changed.to, "ana@example.org");
        assert!(changed.text.contains("is in progress"), "{}", changed.text);
        assert!(changed.html.contains("&lt;on&gt;"), "{}", changed.html);
        assert_eq!(event_of("<x@elsewhere>"), None);
    }

    #[test]
    fn a_message_has_text_and_html() {
        let smtp = Smtp::at("smtp://127.0.0.1:1", "TicketFlow <tickets@example.org>").unwrap();
        let mail = compose(&event(topic::CREATED), &told());
        let message = String::from_utf8(smtp.message(&mail).unwrap().formatted()).unwrap();
        for part in ["multipart/alternative", "text/plain", "text/html", &mail.message_id] {
            assert!(message.contains(part), "{part} is not in {message}");
        }
        assert_eq!(change_of(&message), Some((mail.ticket, 2)), "{message}");
        assert_eq!(change_of("Ticket 17 is closed (change 2).\n"), None);
    }
}
