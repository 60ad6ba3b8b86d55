//! The mail server is down, or stands still.

use crate::rig::{Process, Rig};
use crate::{PATIENT, all_is_well_after, changes, is_well};
use relevo_testkit::eventually;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use ticketflow::traffic::Traffic;

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
const LIMIT: Duration = Duration::from_secs(5);

/// For how long the one that idles longest has left its transaction open.
const IDLE_MS: &str =
    "SELECT coalesce(max((extract(epoch FROM now() - state_change) * 1000)::bigint), 0)
    FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";

/// So many events wait in the worker's database: those whose mails were not taken, and what follows them.
async fn parked(worker: &Process) -> f64 {
    let landed = worker.figure("relevo_inbox_landed_total", "\"notifications\"").await;
    landed.unwrap_or_default()
}

/// It takes connections and whatever is written to it, and answers nothing, for longer than a mail may take.
#[tokio::test(flavor = "multi_thread")]
async fn mails_wait_in_their_order_while_smtp_stands_still_and_numbers_go_on() {
    let Some(rig) = Rig::shared().await else { return };
    let mut command = rig.command("worker");
    command.env("SMTP_LIMIT_S", LIMIT.as_secs().to_string()).env("RETRY_DELAYS_S", PATIENT);
    let (api, worker) = (rig.api(), Process::start(command.env("WORKER_NAME", "a")));
    is_well(&api).await;
    let traffic = Traffic::start(&api.client(), 4, 30);
    changes(&traffic, 20).await;

    rig.smtp.pause();
    let paused = Instant::now();
    let (parked_before, counted_before) = (parked(&worker).await, rig.count(COUNTED).await);
    let mut idle_ms: i64 = 0;
    eventually("mails are given up, and numbers go on", async || {
        idle_ms = idle_ms.max(rig.count(IDLE_MS).await);
        let given_up = paused.elapsed() > LIMIT && parked(&worker).await > parked_before;
        (given_up && rig.count(COUNTED).await >= counted_before + 60).then_some(())
    })
    .await;
    let took = paused.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}: not the mail client's limit ended it");
    assert!(idle_ms < 4000, "a transaction waited for the mail server: {idle_ms} ms");
    rig.smtp.resume();

    let verdict = all_is_well_after(traffic, 20, &rig).await;
    let mails = rig.mails().await;
    let ids: BTreeSet<&str> = mails.iter().map(|mail| mail.message_id.as_str()).collect();
    assert_eq!(ids.len() as u64, verdict.report.committed, "a Message-ID for each change");
}
