//! The mail server of a load run: it keeps what it is given, and when, so that the run is judged by what came.

use crate::verify::Arrived;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A mail, and when it came.
type Received = (Arrived, SystemTime);

#[derive(Clone, Default)]
struct Mailbox {
    mails: Arc<Mutex<Vec<Received>>>,
}

/// It ends with this value.
pub(super) struct MailServer {
    pub(super) address: SocketAddr,
    mailbox: Mailbox,
    _task: JoinSet<()>,
}

impl MailServer {
    pub(super) async fn listen(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("listening for mails at {address}"))?;
        let address = listener.local_addr()?;
        let mailbox = Mailbox::default();
        let mut task = JoinSet::new();
        task.spawn(accept(listener, mailbox.clone()));
        Ok(Self { address, mailbox, _task: task })
    }

    /// Everything that came, in its order, copies too.
    pub(super) fn mails(&self) -> Vec<Received> {
        self.mailbox.mails.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn accept(listener: TcpListener, mailbox: Mailbox) {
    let mut talks = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let mailbox = mailbox.clone();
        talks.spawn(async move {
            if let Err(error) = talk(BufReader::new(stream), &mailbox).await {
                tracing::debug!(%error, "a client of the mail server went away");
            }
        });
    }
}

/// As much of SMTP as it takes to be given mails.
async fn talk(mut client: BufReader<TcpStream>, mailbox: &Mailbox) -> std::io::Result<()> {
    client.write_all(b"220 ticketflow load\r\n").await?;
    let mut line = String::new();
    while client.read_line(&mut line).await? > 0 {
        let verb = line.split_whitespace().next().unwrap_or_default().to_uppercase();
        let answer: &[u8] = match verb.as_str() {
            "DATA" => {
                client.write_all(b"354 until a dot\r\n").await?;
                take(&data(&mut client).await?, mailbox)
            }
            "QUIT" => return client.write_all(b"221 bye\r\n").await,
            _ => b"250 OK\r\n",
        };
        client.write_all(answer).await?;
        line.clear();
    }
    Ok(())
}

/// The lines up to the dot.
async fn data(client: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let (mut message, mut line) = (String::new(), String::new());
    while client.read_line(&mut line).await? > 0 {
        let text = line.trim_end_matches(['\r', '\n']);
        if text == "." {
            break;
        }
        message.push_str(text.strip_prefix('.').unwrap_or(text));
        message.push('\n');
        line.clear();
    }
    Ok(message)
}

/// Refuses what cannot be judged: it becomes a dead letter, and the run fails.
fn take(message: &str, mailbox: &Mailbox) -> &'static [u8] {
    let Some(mail) = Arrived::read(message) else {
        return b"554 no mail of TicketFlow's\r\n";
    };
    let mut mails = mailbox.mails.lock().unwrap_or_else(PoisonError::into_inner);
    mails.push((mail, SystemTime::now()));
    b"250 taken\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::mail::{Mail, Mailer, Smtp, message_id};
    use relevo_testkit::services::Proxy;
    use std::time::Duration;
    use uuid::Uuid;

    const FROM: &str = "TicketFlow <tickets@example.org>";
    const CLOSED: &str = ".\nTicket {ticket} is closed (change 3).\n";

    fn mail(text: &str) -> Mail {
        let (event, ticket) = (Uuid::now_v7(), Uuid::now_v7());
        Mail {
            message_id: message_id(event),
            to: "ana@example.org".into(),
            subject: "Printer on fire".into(),
            text: text.replace("{ticket}", &ticket.to_string()),
            html: "<p>Printer on fire</p>".into(),
            ticket,
            version: 3,
        }
    }

    #[tokio::test]
    async fn what_a_client_was_told_is_taken_is_there_with_its_change() {
        let address = "127.0.0.1:0".parse().unwrap();
        let server = MailServer::listen(address).await.unwrap();
        let url = format!("smtp://{}", server.address);
        let smtp = Smtp::at(&url, FROM).unwrap();
        smtp.check().await.unwrap();
        let sent = mail(CLOSED);
        for _ in 0..2 {
            smtp.send(&sent).await.unwrap();
        }
        let came: Vec<Arrived> = server.mails().into_iter().map(|(mail, _)| mail).collect();
        assert_eq!(came, [Arrived::from(&sent), Arrived::from(&sent)]);
        let refused = smtp.send(&mail("What is it about?\n")).await.unwrap_err();
        assert!(refused.for_good, "{}", refused.error);
        assert_eq!(server.mails().len(), 2);
    }

    /// Its connection is in the middle of a conversation: what the next one says there would become a part of this mail.
    #[tokio::test]
    async fn a_mail_that_the_server_does_not_answer_is_given_up_and_its_connection_is_nobodys() {
        let address = "127.0.0.1:0".parse().unwrap();
        let server = MailServer::listen(address).await.unwrap();
        let proxy = Proxy::start(server.address).unwrap();
        let smtp = Smtp::at(&format!("smtp://{}", proxy.address()), FROM).unwrap();
        let (smtp, sent) = (smtp.limit(Duration::from_secs(2)), mail(CLOSED));
        smtp.send(&sent).await.unwrap();
        // On the connection that is there; then once more, on a new one.
        proxy.hold_replies_to("DATA");
        let given_up = smtp.send(&sent).await.unwrap_err();
        assert!(!given_up.for_good, "{}", given_up.error);
        proxy.heal();
        smtp.send(&sent).await.unwrap();
        let came: Vec<Arrived> = server.mails().into_iter().map(|(mail, _)| mail).collect();
        let sent = Arrived::from(&sent);
        assert_eq!((came, proxy.connections()), (vec![sent.clone(), sent], 2));
    }
}
