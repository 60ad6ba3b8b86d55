//! The mail server is down, stands still, or is slow.

use crate::rig::{Process, Rig};
use crate::{PATIENT, all_is_well_after, changes, is_well};
use relevo_testkit::services::Proxy;
use relevo_testkit::{PATIENCE, eventually};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use ticketflow::traffic::Traffic;
use ticketflow::worker::mail::{Mail, Mailer, Smtp, message_id};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

const COUNTED: &str = r#"SELECT count(*) FROM "TicketActivity""#;

#[tokio::test(flavor = "multi_thread")]
async fn mails_wait_in_their_order_while_smtp_is_down_and_numbers_go_on() {
    let Some(rig) = Rig::shared().await else { return };
    let (api, _worker) = (rig.api(), rig.worker("a", PATIENT));
    is_well(&api).await;
    let traffic = Traffic::start(&api.client(), 4, 30);
    changes(&traffic, 10).await;
    rig.smtp.kill9();
    changes(&traffic, 40).await;
    eventually("numbers go on", async || (rig.count(COUNTED).await >= 40).then_some(())).await;
    rig.smtp.restart().expect("it comes back");
    all_is_well_after(traffic, 20, &rig).await;
}

/// What the server may take with a mail here. The handler's own limit is a minute.
const LIMIT: Duration = Duration::from_secs(20);

/// A transaction that waited for the server would idle as long as that; no other does for half of it, on a slow machine
/// either.
const IDLES_TOO_LONG_MS: i64 = 10_000;

/// For how long the one that idles longest has left its transaction open.
const IDLE_MS: &str =
    "SELECT coalesce(max((extract(epoch FROM now() - state_change) * 1000)::bigint), 0)
    FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";

/// Tickets that wait for a mail which the client itself has given up, by what was noted as the reason.
const GIVEN_UP: &str =
    "SELECT count(*) FROM relevo.parked_key WHERE error LIKE '%the mail server took longer than%'";

/// It takes connections and whatever is written to it, and answers nothing, for longer than a mail may take.
#[tokio::test(flavor = "multi_thread")]
async fn mails_wait_in_their_order_while_smtp_stands_still_and_numbers_go_on() {
    let Some(rig) = Rig::shared().await else { return };
    let mut command = rig.command("worker");
    command.env("SMTP_LIMIT_S", LIMIT.as_secs().to_string()).env("RETRY_DELAYS_S", PATIENT);
    let (api, _worker) = (rig.api(), Process::start(command.env("WORKER_NAME", "a")));
    is_well(&api).await;
    let traffic = Traffic::start(&api.client(), 4, 30);
    changes(&traffic, 20).await;

    rig.smtp.pause();
    let counted_before = rig.count(COUNTED).await;
    let mut idle_ms: i64 = 0;
    eventually("mails are given up by their client, and numbers go on", async || {
        idle_ms = idle_ms.max(rig.count(IDLE_MS).await);
        let given_up = rig.count(GIVEN_UP).await;
        (given_up > 0 && rig.count(COUNTED).await >= counted_before + 60).then_some(())
    })
    .await;
    assert!(idle_ms < IDLES_TOO_LONG_MS, "a transaction waited for the mail server: {idle_ms} ms");
    rig.smtp.resume();

    let verdict = all_is_well_after(traffic, 20, &rig).await;
    let mails = rig.mails().await;
    let ids: BTreeSet<&str> = mails.iter().map(|mail| mail.message_id.as_str()).collect();
    assert_eq!(ids.len() as u64, verdict.report.committed, "a Message-ID for each change");
}

/// Each piece of a conversation comes so much later: a mail takes ten of them, and may take twice as long.
const SLOW: Duration = Duration::from_secs(1);

/// What has to be tried again is not, in the time of a test.
const NEVER: &str = "3600";

const TO_BE_TRIED_AGAIN: &str = "SELECT count(*) FROM relevo.parked_key";

#[tokio::test(flavor = "multi_thread")]
async fn mails_take_their_time_in_their_order_while_smtp_is_slow_and_numbers_go_on() {
    let Some(rig) = Rig::shared().await else { return };
    let slow = Proxy::start(rig.smtp.address()).expect("a proxy");
    slow.delay(SLOW);
    let mut command = rig.command("worker");
    command.env("SMTP_URL", format!("smtp://{}", slow.address())).env("RETRY_DELAYS_S", NEVER);
    // The most that it may be told: this machine may be busy.
    command.env("SMTP_LIMIT_S", "50");
    let (api, _worker) = (rig.api(), Process::start(command.env("WORKER_NAME", "a")));
    is_well(&api).await;
    let traffic = Traffic::start(&api.client(), 4, 8);
    eventually("mails come, and numbers do not wait for them", async || {
        assert_eq!(rig.count(TO_BE_TRIED_AGAIN).await, 0, "it is slow, not down");
        let mails = rig.smtp.mails().expect("a Maildir").len() as i64;
        (mails >= 8 && rig.count(COUNTED).await >= mails + 40).then_some(())
    })
    .await;
    slow.heal();
    let verdict = all_is_well_after(traffic, 20, &rig).await;
    assert_eq!(verdict.report.duplicates_seen, 0, "one mail for each change");
    assert_eq!(rig.count(TO_BE_TRIED_AGAIN).await, 0, "none was tried twice");
}

/// What a server says until it has a mail's text.
const ANSWERS: [&str; 5] =
    ["220 ready\r\n", "250 hello\r\n", "250 OK\r\n", "250 OK\r\n", "354 until a dot\r\n"];

/// Says so much of it, and then nothing any more. It ends when the client has closed its connection.
async fn falls_silent(client: TcpStream, answers: usize) -> io::Result<()> {
    let (mut client, mut line) = (BufReader::new(client), String::new());
    for answer in &ANSWERS[..answers] {
        client.write_all(answer.as_bytes()).await?;
        client.read_line(&mut line).await?;
    }
    client.read_to_end(&mut Vec::new()).await?;
    Ok(())
}

/// Takes a client for each place at which it can fall silent. How many of them have gone in the end?
async fn gone(server: &TcpListener) -> usize {
    let mut talks = JoinSet::new();
    for answers in 0..=ANSWERS.len() {
        let (client, _) = server.accept().await.expect("a client");
        talks.spawn(falls_silent(client, answers));
    }
    let mut gone = 0;
    // With an error or without: it has gone.
    while let Ok(Some(_)) = timeout(PATIENCE, talks.join_next()).await {
        gone += 1;
    }
    gone
}

fn mail() -> Mail {
    Mail {
        message_id: message_id(Uuid::now_v7()),
        to: "ana@example.org".into(),
        subject: "Printer on fire".into(),
        text: "Printer on fire\n".into(),
        html: "<p>Printer on fire</p>\n".into(),
        ticket: Uuid::now_v7(),
        version: 1,
    }
}

/// By the client's own limit, and by whoever had asked for the mail and did not wait for its end.
#[tokio::test(flavor = "multi_thread")]
async fn wherever_in_its_conversation_a_mail_is_given_up_its_connection_is_closed() {
    const MOMENT: Duration = Duration::from_secs(3);
    let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("smtp://{}", server.local_addr().expect("its address"));
    for (limit, waits) in [(MOMENT, PATIENCE), (PATIENCE, MOMENT)] {
        let smtp = Smtp::at(&url, "TicketFlow <tickets@example.org>").expect("a URL");
        let smtp = Arc::new(smtp.limit(limit));
        let mut mails = JoinSet::new();
        for _ in 0..=ANSWERS.len() {
            let smtp = smtp.clone();
            mails.spawn(async move { timeout(waits, smtp.send(&mail())).await });
        }
        let (sent, gone) = tokio::join!(mails.join_all(), gone(&server));
        assert!(sent.iter().all(|sent| !matches!(sent, Ok(Ok(())))), "{sent:?}");
        assert_eq!(gone, sent.len(), "connections that were closed, while their client lives on");
        drop(smtp);
    }
}
