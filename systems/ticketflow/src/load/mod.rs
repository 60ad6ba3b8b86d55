//! A load run: people at work through the API, until every effect is there; how long each took, and whether any is lost.
//! The run is the mail server itself: e-mails are judged by what came to it.

mod mail_server;

use crate::client::Client;
use crate::database::Database;
use crate::topology::{METRICS, NOTIFICATIONS};
use crate::traffic::{Journal, Traffic};
use crate::verify::{Arrived, Change, Evidence, Verdict};
use anyhow::{Result, ensure};
use chrono::{DateTime, Utc};
use mail_server::MailServer;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Options of `ticketflow load`.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    /// Where the API is
    #[arg(long, default_value = "127.0.0.1:8080")]
    api: SocketAddr,
    /// Its database, and the worker's
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// Where this run is the mail server: the SMTP_URL of every worker must lead here
    #[arg(long, default_value = "127.0.0.1:2525")]
    smtp: SocketAddr,
    /// How long people are at work
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Changes of tickets they ask for in a minute; each is two messages, one for each queue
    #[arg(long, default_value_t = 10_000)]
    per_minute: u32,
    /// How many they are
    #[arg(long, default_value_t = 32)]
    people: u32,
    /// So many seconds the last effects may take
    #[arg(long, default_value_t = 120)]
    patience: u64,
}

/// When each change had its effect.
type Effects = BTreeMap<Change, DateTime<Utc>>;

/// What is looked at.
struct Run {
    database: Database,
    server: MailServer,
    /// Tickets that are older are of another run.
    began: Uuid,
}

/// Runs it and prints the figures; an error if anything is missing, came twice, or out of order.
pub async fn run(args: LoadArgs) -> Result<()> {
    let database = Database::open(&args.database_url).await?;
    let server = MailServer::listen(args.smtp).await?;
    println!("e-mails are taken at smtp://{}", server.address);
    let run = Run { database, server, began: Uuid::now_v7() };
    let began = Instant::now();
    let traffic = Traffic::start(&Client::at(args.api), args.people, args.per_minute.div_ceil(60));
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let journal = traffic.stop().await;
    let asked_for = began.elapsed();
    let verdict = run.settled(&journal, Duration::from_secs(args.patience)).await?;
    print_pace(journal.changes(), asked_for, began.elapsed());
    print_latency(METRICS, &journal, &run.counted().await?);
    print_latency(NOTIFICATIONS, &journal, &run.mailed());
    print_verdict(&journal, &verdict);
    judge(&verdict)
}

impl Run {
    /// Waits until every effect is there, or for as long as that may take, and weighs them.
    async fn settled(&self, journal: &Journal, patience: Duration) -> Result<Verdict> {
        let began = Instant::now();
        loop {
            let is_over = began.elapsed() >= patience;
            // Reading everything costs what is measured here, so it waits until it is worth it.
            if is_over || self.has_all(journal).await? {
                let evidence = self.evidence(journal).await?;
                if is_over || evidence.is_complete() {
                    return Ok(evidence.verdict());
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn has_all(&self, journal: &Journal) -> Result<bool> {
        let (mailed, asked) = (self.mailed(), journal.asked());
        let is_mailed = asked.keys().all(|change| mailed.contains_key(change));
        if !is_mailed {
            return Ok(false);
        }
        let counted = self.counted().await?;
        Ok(asked.keys().all(|change| counted.contains_key(change)))
    }

    async fn evidence(&self, journal: &Journal) -> Result<Evidence> {
        let mails: Vec<Arrived> = self.server.mails().into_iter().map(|(mail, _)| mail).collect();
        Ok(Evidence::of(journal, &self.database, mails).await?.since(self.began))
    }

    /// When the first mail of each change came.
    fn mailed(&self) -> Effects {
        let mut mailed = Effects::new();
        for (mail, at) in self.server.mails() {
            mailed.entry(mail.change).or_insert_with(|| at.into());
        }
        mailed
    }

    async fn counted(&self) -> Result<Effects> {
        const COUNTED: &str = r#"SELECT "TicketId", "Version", "SeenAt" FROM "TicketActivity""#;
        let mut connection = self.database.connect().await?;
        let rows = connection.session().query(COUNTED, &[]).await?;
        rows.iter().map(|row| Ok(((row.text(0)?.parse()?, row.number(1)?), row.time(2)?))).collect()
    }
}

fn print_pace(changes: u64, asked_for: Duration, all: Duration) {
    let per_minute = |n: u64, time: Duration| n as f64 * 60.0 / time.as_secs_f64();
    println!(
        "changes accepted   {changes} in {:.1} s, {:.0} a minute",
        asked_for.as_secs_f64(),
        per_minute(changes, asked_for)
    );
    println!(
        "messages processed {} in {:.1} s, {:.0} a minute",
        2 * changes,
        all.as_secs_f64(),
        per_minute(2 * changes, all)
    );
}

fn print_latency(consumer: &str, journal: &Journal, effects: &Effects) {
    let mut took = latencies(journal, effects);
    took.sort_unstable();
    println!(
        "request to {consumer:<13} p50 {:>6} ms   p99 {:>6} ms   max {:>6} ms",
        at(&took, 0.5),
        at(&took, 0.99),
        at(&took, 1.0)
    );
}

fn print_verdict(journal: &Journal, Verdict { report, broken }: &Verdict) {
    println!("unclear answers    {}", journal.unclear());
    println!("lost               {}", report.lost);
    println!("mailed twice       {}", report.duplicates_seen);
    println!("dead letters       {}", report.dead);
    broken.iter().for_each(|what| println!("broken             {what}"));
}

/// Nothing is killed here, so nothing may come twice or be given up either.
fn judge(Verdict { report, broken }: &Verdict) -> Result<()> {
    ensure!(broken.is_empty(), "{}", broken.join("; "));
    let (copies, dead) = (report.duplicates_seen, report.dead);
    ensure!(copies == 0 && dead == 0, "{copies} e-mails came twice, {dead} dead letters");
    Ok(())
}

/// From each request to its effect, in milliseconds.
fn latencies(journal: &Journal, effects: &Effects) -> Vec<i64> {
    let took = |(change, asked): (&Change, &std::time::SystemTime)| {
        Some((*effects.get(change)? - DateTime::<Utc>::from(*asked)).num_milliseconds())
    };
    journal.asked().iter().filter_map(took).collect()
}

fn at(sorted: &[i64], share: f64) -> i64 {
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::Report;

    #[test]
    fn a_copy_a_dead_letter_or_anything_broken_fails_a_run() {
        let verdict = |change: fn(&mut Verdict)| {
            let mut verdict = Verdict { report: Report::default(), broken: Vec::new() };
            change(&mut verdict);
            judge(&verdict).map_err(|error| error.to_string())
        };
        assert_eq!(verdict(|_| ()), Ok(()));
        for wrong in [
            verdict(|it| it.report.duplicates_seen = 1),
            verdict(|it| it.report.dead = 1),
            verdict(|it| it.broken.push("1 effects are missing".into())),
        ] {
            assert!(wrong.is_err_and(|error| error.contains('1')));
        }
    }
}
