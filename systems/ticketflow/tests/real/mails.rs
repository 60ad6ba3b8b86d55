//! What the mail server was given.

use crate::PATIENT;
use crate::common::ticket;
use crate::rig::Rig;
use relevo_testkit::eventually;
use ticketflow::ticket::NewTicket;

/// The media type and the body of each part.
fn parts(mail: &str) -> Vec<(String, String)> {
    let (_, boundary) = mail.split_once("boundary=\"").expect("it has parts");
    let (boundary, _) = boundary.split_once('"').expect("a boundary");
    mail.split(boundary).skip(2).filter_map(part).collect()
}

fn part(text: &str) -> Option<(String, String)> {
    let (head, body) = text.split_once("\n\n")?;
    let (_, kind) = head.split_once("Content-Type: ")?;
    // Long lines are folded by quoted-printable.
    let body = body.trim_end_matches(['-', '\n']).replace("=\n", "");
    Some((kind.split([';', '\n']).next()?.to_owned(), body))
}

fn header<'m>(mail: &'m str, name: &str) -> &'m str {
    let line = mail.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mail_server_gets_each_change_as_text_and_as_html() {
    let Some(rig) = Rig::shared().await else { return };
    let (api, _worker) = (rig.api(), rig.worker("a", PATIENT));
    let new = NewTicket { title: "Printer <on> fire".into(), ..ticket() };
    let id = api.client().create(&new).await.expect("a ticket").id;
    api.client().assign(id, "ben@example.org").await.expect("assigned");
    let mails = eventually("both mails", async || {
        let mails = rig.smtp.mails().expect("a Maildir");
        (mails.len() == 2).then_some(mails)
    })
    .await;
    let told = [("ana@example.org", "was opened", 1), ("ben@example.org", "is yours", 2)];
    for (mail, (to, what, change)) in mails.iter().zip(told) {
        let mail = mail.replace('\r', "");
        assert_eq!(header(&mail, "To"), to);
        assert!(header(&mail, "Content-Type").starts_with("multipart/alternative"), "{mail}");
        let text = format!("Printer <on> fire\n\nTicket {id} {what} (change {change}).");
        let html = format!(
            "<h1>Printer &lt;on&gt; fire</h1><p>Ticket <code>{id}</code> {what} (change {change}).</p>"
        );
        assert_eq!(parts(&mail), [("text/plain".into(), text), ("text/html".into(), html)]);
    }
}
