//! The proof: what people were told, against the e-mails that came and the numbers that were kept. Nothing that the
//! relay or the broker says of itself is asked, except which events it gave up.

mod numbers;

use crate::database::Database;
use crate::ticket::TicketEvent;
use crate::topology::{METRICS, NOTIFICATIONS, QUEUES};
use crate::traffic::Journal;
use crate::worker::mail::{self, InProcess, Mail};
use anyhow::Result;
use async_trait::async_trait;
use relevo::{DeadFilter, DeadState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

pub use numbers::{Numbers, Totals};
pub use proof::{Report, Verdict};

/// One change of one ticket.
pub type Change = (Uuid, i64);

/// An e-mail that came: its Message-ID, and the change it tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// Of the mail.
    pub message_id: String,
    /// What it tells of.
    pub change: Change,
}

impl From<&Mail> for Arrived {
    fn from(mail: &Mail) -> Self {
        Self { message_id: mail.message_id.clone(), change: (mail.ticket, mail.version) }
    }
}

impl Arrived {
    /// What a mail server was given; `None` if it is no mail of ours.
    pub fn read(message: &str) -> Option<Self> {
        let message_id = message.lines().find_map(|line| line.strip_prefix("Message-ID: "))?;
        let message_id = message_id.trim().to_owned();
        mail::event_of(&message_id)?;
        Some(Self { message_id, change: mail::change_of(message)? })
    }
}

/// Everything that can be seen from outside.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// The last accepted change of each ticket, as people were told.
    pub told: BTreeMap<Uuid, i64>,
    /// The same, as the database has it: a request without an answer may have been carried out.
    pub committed: BTreeMap<Uuid, i64>,
    /// E-mails, as they came.
    pub mails: Vec<Arrived>,
    /// Changes in the numbers, as they were counted.
    pub counted: Vec<Change>,
    /// What each consumer gave up.
    pub dead: BTreeSet<(String, Change)>,
    /// The ticket metrics.
    pub numbers: Numbers,
    /// Attempts that failed, where whoever was asked counted them.
    pub retried: u64,
}

impl Evidence {
    /// Of a journal, a database and the mails that came.
    pub async fn of(journal: &Journal, database: &Database, mails: Vec<Arrived>) -> Result<Self> {
        const TICKETS: &str = r#"SELECT "Id", "Version" FROM "Tickets""#;
        const COUNTED: &str =
            r#"SELECT "TicketId", "Version" FROM "TicketActivity" ORDER BY "Position""#;
        let mut connection = database.connect().await?;
        let mut changes = Vec::new();
        for sql in [TICKETS, COUNTED] {
            let rows = connection.session().query(sql, &[]).await?;
            let read = rows.iter().map(|row| Ok((row.text(0)?.parse()?, row.number(1)?)));
            changes.push(read.collect::<Result<Vec<Change>>>()?);
        }
        let counted = changes.pop().unwrap_or_default();
        let committed = changes.pop().unwrap_or_default().into_iter().collect();
        drop(connection);
        let dead = dead_letters(database).await?;
        let numbers = Numbers::of(database).await?;
        Ok(Self { told: journal.tickets(), committed, mails, counted, dead, numbers, retried: 0 })
    }

    /// The same of what came to a mailbox, for tickets that were opened since a moment, given as an id of that moment.
    pub async fn in_mailbox(
        journal: &Journal,
        database: &Database,
        mailbox: &InProcess,
        since: Uuid,
    ) -> Result<Self> {
        let mails = mailbox.mails().iter().map(Into::into).collect();
        let evidence = Self::of(journal, database, mails).await?.since(since);
        Ok(Self { retried: mailbox.refused(), ..evidence })
    }

    /// Without the tickets that were opened before this moment, given as an id of that moment.
    pub fn since(mut self, moment: Uuid) -> Self {
        self.told.retain(|ticket, _| *ticket > moment);
        self.committed.retain(|ticket, _| *ticket > moment);
        self.mails.retain(|mail| mail.change.0 > moment);
        self.counted.retain(|(ticket, _)| *ticket > moment);
        self.dead.retain(|(_, (ticket, _))| *ticket > moment);
        self
    }

    /// True once every effect is there, or given up.
    pub fn is_complete(&self) -> bool {
        let missing =
            |seen: &BTreeSet<Change>, consumer: &str| self.missing(seen, consumer).next().is_some();
        !missing(&self.mailed(), NOTIFICATIONS) && !missing(&self.counted_once(), METRICS)
    }

    fn expected(&self) -> impl Iterator<Item = Change> {
        self.committed.iter().flat_map(|(id, last)| (1..=*last).map(|version| (*id, version)))
    }

    fn missing<'e>(
        &'e self,
        seen: &'e BTreeSet<Change>,
        consumer: &'e str,
    ) -> impl Iterator<Item = Change> + 'e {
        let given_up = |change: &Change| self.dead.contains(&(consumer.to_owned(), *change));
        self.expected().filter(move |change| !seen.contains(change) && !given_up(change))
    }

    fn mailed(&self) -> BTreeSet<Change> {
        self.mails.iter().map(|mail| mail.change).collect()
    }

    fn counted_once(&self) -> BTreeSet<Change> {
        self.counted.iter().copied().collect()
    }

    /// Weighs it all. A change is delivered once it has both effects, an e-mail and its place in the numbers; what was
    /// given up and what is missing are effects.
    pub fn verdict(&self) -> Verdict {
        let (mailed, counted) = (self.mailed(), self.counted_once());
        let ids: BTreeSet<&str> = self.mails.iter().map(|mail| mail.message_id.as_str()).collect();
        let committed = self.expected().count() as u64;
        let lost =
            self.missing(&mailed, NOTIFICATIONS).count() + self.missing(&counted, METRICS).count();
        let report = Report {
            committed,
            delivered: mailed.intersection(&counted).count() as u64,
            effects: (self.mails.len() + self.counted.len()) as u64,
            duplicates_seen: (self.mails.len() - ids.len()) as u64,
            retried: self.retried,
            dead: self.dead.len() as u64,
            lost: lost as u64,
        };
        let expected: BTreeSet<Change> = self.expected().collect();
        let ghosts = mailed.union(&counted).filter(|change| !expected.contains(change)).count();
        let checks = [
            (self.forgotten(), "accepted changes are not in the database"),
            (lost, "effects are missing"),
            (self.counted.len() - counted.len(), "changes were counted twice"),
            (ids.len() - mailed.len().min(ids.len()), "changes were mailed under two Message-IDs"),
            (ghosts, "effects belong to changes that never committed"),
            (out_of_order(&first_mails(&self.mails)), "e-mails came out of their ticket's order"),
            (out_of_order(&self.counted), "changes were counted out of their ticket's order"),
            (self.numbers.wrong(), "numbers are not what the counted changes add up to"),
            (usize::from(committed == 0), "run in which nothing was committed at all"),
        ];
        let broken =
            checks.into_iter().filter(|(n, _)| *n > 0).map(|(n, text)| format!("{n} {text}"));
        Verdict { report, broken: broken.collect() }
    }

    /// Changes that somebody was told are done, and that the database does not have.
    fn forgotten(&self) -> usize {
        let known = |id: &Uuid| self.committed.get(id).copied().unwrap_or(0);
        self.told.iter().map(|(id, told)| (told - known(id)).max(0) as usize).sum()
    }
}

/// Whoever can say what is to be seen of a running TicketFlow.
#[async_trait]
pub trait Witness: Send + Sync {
    /// Everything that can be seen from outside now.
    async fn evidence(&self, journal: &Journal) -> Result<Evidence>;

    /// Is nothing on its way any more? What is missing then is lost. `false` where that cannot be known.
    async fn is_idle(&self) -> Result<bool>;
}

/// Waits until every effect is there or can come no more, for so long at most, and weighs them.
pub async fn verdict(of: &dyn Witness, journal: &Journal, patience: Duration) -> Result<Verdict> {
    let began = Instant::now();
    loop {
        // Asked before: what was still on its way is there afterwards.
        let is_idle = of.is_idle().await?;
        let evidence = of.evidence(journal).await?;
        if is_idle || evidence.is_complete() || began.elapsed() >= patience {
            return Ok(evidence.verdict());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What each consumer gave up, by what its event says; what says nothing of a ticket is none of ours.
async fn dead_letters(database: &Database) -> Result<BTreeSet<(String, Change)>> {
    let mut dead = BTreeSet::new();
    for consumer in QUEUES {
        let mut filter = DeadFilter::default();
        filter.subscription = Some(consumer.to_owned());
        filter.state = Some(DeadState::Dead);
        let mut before = None;
        loop {
            let page = database.operate().dead_letters(&filter, before, 500).await?;
            before = page.last().map(|letter| letter.id);
            if before.is_none() {
                break;
            }
            let told = page.iter().filter_map(|letter| letter.event.json::<TicketEvent>().ok());
            dead.extend(told.map(|it| (consumer.to_owned(), (it.ticket_id, it.version))));
        }
    }
    Ok(dead)
}

/// Without the copies of mails that came before.
fn first_mails(mails: &[Arrived]) -> Vec<Change> {
    let mut known = BTreeSet::new();
    mails.iter().filter(|mail| known.insert(&mail.message_id)).map(|mail| mail.change).collect()
}

fn out_of_order(changes: &[Change]) -> usize {
    let mut last = BTreeMap::new();
    let inverted = |(ticket, version): &&Change| last.insert(*ticket, *version) > Some(*version);
    changes.iter().filter(inverted).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail(id: &str, change: Change) -> Arrived {
        Arrived { message_id: id.to_owned(), change }
    }

    fn opened() -> (String, String) {
        ("events".into(), "ticket.created".into())
    }

    fn evidence() -> (Uuid, Evidence) {
        let ticket = Uuid::now_v7();
        let evidence = Evidence {
            told: [(ticket, 2)].into(),
            committed: [(ticket, 2)].into(),
            mails: vec![mail("a", (ticket, 1)), mail("a", (ticket, 1)), mail("b", (ticket, 2))],
            counted: vec![(ticket, 1), (ticket, 2)],
            numbers: Numbers { kept: [(opened(), 1)].into(), recounted: [(opened(), 1)].into() },
            ..Evidence::default()
        };
        (ticket, evidence)
    }

    #[test]
    fn a_copy_with_the_same_message_id_is_no_second_mail() {
        let (_, evidence) = evidence();
        let Verdict { report, broken } = evidence.verdict();
        assert!(broken.is_empty(), "{broken:?}");
        assert_eq!((report.committed, report.delivered, report.duplicates_seen), (2, 2, 1));
        assert!(evidence.is_complete());
    }

    #[test]
    fn everything_that_goes_wrong_is_noticed() {
        let broken = |spoil: fn(Uuid, &mut Evidence)| {
            let (ticket, mut evidence) = evidence();
            spoil(ticket, &mut evidence);
            let broken = evidence.verdict().broken;
            assert_eq!(broken.len(), 1, "{broken:?}");
            broken[0].clone()
        };
        assert_eq!(
            broken(|_, it| it.counted.truncate(it.counted.len() - 1)),
            "1 effects are missing"
        );
        assert_eq!(broken(|_, it| drop(it.mails.pop())), "1 effects are missing");
        assert_eq!(broken(|t, it| it.counted.push((t, 2))), "1 changes were counted twice");
        assert_eq!(
            broken(|t, it| it.mails.push(mail("c", (t, 2)))),
            "1 changes were mailed under two Message-IDs"
        );
        assert_eq!(
            broken(|t, it| _ = it.told.insert(t, 3)),
            "1 accepted changes are not in the database"
        );
        assert_eq!(
            broken(|_, it| it.counted.reverse()),
            "1 changes were counted out of their ticket's order"
        );
        assert_eq!(
            broken(|_, it| it.mails.reverse()),
            "1 e-mails came out of their ticket's order"
        );
        assert_eq!(
            broken(|_, it| _ = it.numbers.kept.insert(opened(), 2)),
            "1 numbers are not what the counted changes add up to"
        );
        assert_eq!(
            broken(|_, it| it.numbers.kept.clear()),
            "1 numbers are not what the counted changes add up to"
        );
    }

    #[test]
    fn tickets_of_an_earlier_run_are_left_out() {
        let (_, earlier) = evidence();
        let moment = Uuid::now_v7();
        let (_, mut both) = evidence();
        let own = both.verdict().report;
        both.told.extend(earlier.told.clone());
        both.committed.extend(earlier.committed.clone());
        both.counted.extend(earlier.counted.clone());
        assert!(!both.verdict().broken.is_empty(), "their e-mails went elsewhere");
        let Verdict { report, broken } = both.since(moment).verdict();
        assert!(broken.is_empty() && report == own, "{broken:?} {report:?}");
    }

    #[test]
    fn what_was_given_up_is_not_lost() {
        let (ticket, mut evidence) = evidence();
        evidence.mails.pop();
        evidence.dead.insert((NOTIFICATIONS.to_owned(), (ticket, 2)));
        let Verdict { report, broken } = evidence.verdict();
        assert!(broken.is_empty(), "{broken:?}");
        assert_eq!((report.dead, report.lost, report.delivered), (1, 0, 1));
    }
}
