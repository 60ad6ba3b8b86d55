//! What commonly goes wrong.

use super::PostgresStore;
use super::retention::{floor_of_all, segments};
use super::session::{Session, args};
use super::status::subscriptions;
use super::why::{THE_LOG, suspects};
use chrono::{DateTime, Utc};
use relevo_core::Result;
use relevo_core::dead_letters::{Finding, Level, SubscriptionStatus};
use relevo_core::outbox::Store;

/// A transaction open for longer than this is named.
const LONG_S: f64 = 60.0;
/// The clocks of this machine and of the server may differ by this much.
const SKEW_S: f64 = 5.0;

impl PostgresStore {
    pub(crate) async fn examine(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        match self.probe().await {
            Ok(probe) => {
                let text = format!("{}, schema {}", probe.server, probe.schema);
                findings.push(Finding::new(Level::Ok, "store", text));
                findings.push(Finding::new(Level::Ok, "waking", probe.waking));
                findings.extend(
                    probe.notes.into_iter().map(|note| Finding::new(Level::Warning, "store", note)),
                );
            }
            Err(cause) => {
                // Nothing else can be looked at.
                findings.push(Finding::new(Level::Problem, "store", cause.to_string()));
                return Ok(findings);
            }
        }
        let session = self.session().await?;
        findings.extend(settings(&session).await?);
        findings.push(clock(&session).await?);
        findings.extend(open_transactions(&session).await?);
        findings.extend(log(&session).await?);
        findings.extend(readers(&session).await?);
        Ok(findings)
    }
}

fn ok_or(findings: Vec<Finding>, check: &str, text: &str) -> Vec<Finding> {
    if findings.is_empty() { vec![Finding::new(Level::Ok, check, text)] } else { findings }
}

async fn settings(session: &Session) -> Result<Vec<Finding>> {
    let sql = "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
                      current_setting('autovacuum'), age(datfrozenxid) FROM pg_database WHERE datname = current_database()";
    let row = session.query_one(sql, args![]).await?;
    let mut found = Vec::new();
    let mut say = |level, text: &str| found.push(Finding::new(level, "settings", text));
    if row.get::<_, &str>(0) == "off" || row.get::<_, &str>(1) == "off" {
        say(
            Level::Problem,
            "fsync or full_page_writes is off: a crash of the server may lose or spoil what was committed",
        );
    }
    if row.get::<_, &str>(2) == "off" {
        say(
            Level::Warning,
            "synchronous_commit is off by default: a crash may lose what was just committed, events included",
        );
    }
    if row.get::<_, &str>(3) == "off" {
        say(Level::Warning, "autovacuum is off: cursors and summaries of the log need it");
    }
    if row.get::<_, i32>(4) > 1_500_000_000 {
        say(Level::Problem, "the database nears the end of its transaction ids; VACUUM it");
    }
    Ok(ok_or(found, "settings", "the server waits for its disk, and autovacuum is on"))
}

async fn clock(session: &Session) -> Result<Finding> {
    let there: DateTime<Utc> = session.query_one("SELECT clock_timestamp()", args![]).await?.get(0);
    let skew = (Utc::now() - there).num_milliseconds() as f64 / 1000.0;
    let text = format!("the clocks of this machine and of the server differ by {skew:.1} s");
    Ok(match skew.abs() > SKEW_S {
        true => Finding::new(
            Level::Warning,
            "clock",
            format!("{text}; times are the server's, latencies will look wrong"),
        ),
        false => Finding::new(Level::Ok, "clock", text),
    })
}

async fn open_transactions(session: &Session) -> Result<Vec<Finding>> {
    let open = suspects(session, THE_LOG).await?;
    let long = open.iter().filter(|open| open.open_s > LONG_S).map(|open| {
        let text = format!(
            "session {} ({}) has had a transaction with events open for {:.0} s, {}: {}; they appear when it commits",
            open.pid, open.application, open.open_s, open.state, open.query
        );
        Finding::new(Level::Warning, "open transactions", text)
    });
    Ok(ok_or(
        long.collect(),
        "open transactions",
        "no transaction with events has been open for long",
    ))
}

async fn log(session: &Session) -> Result<Vec<Finding>> {
    let segments = segments(session).await?;
    let last_seq: i64 = session.query_one("SELECT relevo.last_seq()", args![]).await?.get(0);
    let mut found = Vec::new();
    let in_default: bool =
        session.query_one("SELECT relevo.is_in_default()", args![]).await?.get(0);
    if let Some(default) = segments.iter().find(|s| s.is_default() && s.last_row.is_some()) {
        let text = format!(
            "events stand in the default segment ({} bytes): no segment was made in time; they are delivered as all others and go when they are old",
            default.bytes
        );
        found.push(Finding::new(Level::Warning, "log", text));
    }
    if in_default {
        let text = "no segment is ahead of the log: publishing goes on, into the default segment; run the daemon, or `relevo retention --apply`";
        found.push(Finding::new(Level::Warning, "log", text));
    }
    let cursors: i64 =
        session.query_one("SELECT count(*) FROM relevo.cursor", args![]).await?.get(0);
    if cursors > 0 && floor_of_all(session).await?.is_none() {
        found.push(Finding::new(
            Level::Problem,
            "log",
            "a cursor stands at a tick that is gone; rewind its subscription",
        ));
    }
    if cursors == 0 && last_seq > 0 {
        found.push(Finding::new(
            Level::Warning,
            "log",
            "nobody subscribes: events are kept and go nowhere",
        ));
    }
    Ok(ok_or(found, "log", "segments are ahead of the log, and none is needed that is gone"))
}

async fn readers(session: &Session) -> Result<Vec<Finding>> {
    Ok(subscriptions(session).await?.iter().flat_map(SubscriptionStatus::findings).collect())
}
