use super::Size;
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results};
use crate::goal::Goal;
use crate::tasks::{Driver, Plan, Task};
use anyhow::Result;
use relevo_testkit::services::unique_name;

/// Transactions that Relevo has under way at once, as it comes.
const LOOPS: usize = 8;

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let plan = Plan { events: size.events / 5, keys: size.keys, bytes: 256 };
    arena.main.seed(plan).await?;
    let file = arena.seed_sqlite(plan).await?;
    let log = &arena.main.url;
    let goal = Some(Goal::AtLeast(0.85));
    let contests = [
        Contest {
            name: "handlers on PostgreSQL, 256 B, a row each".into(),
            contenders: vec![
                handlers(log, plan, Driver::Postgres),
                bare("8 bare loops side by side", log, plan, Driver::Postgres, LOOPS),
                bare("bare loop", log, plan, Driver::Postgres, 1),
            ],
            readings: vec![Reading::rate([goal, None])],
        },
        // It has one writer at a time: loops side by side would only wait for each other.
        Contest {
            name: "handlers on SQLite, 256 B, a row each".into(),
            contenders: vec![
                handlers(&file, plan, Driver::Sqlite),
                bare("bare loop", &file, plan, Driver::Sqlite, 1),
            ],
            readings: vec![Reading::rate([goal])],
        },
    ];
    let mut results = Vec::new();
    for contest in contests {
        results.push(contest.hold(arena, size.rounds).await?);
    }
    Ok(results)
}

fn handlers(url: &str, plan: Plan, driver: Driver) -> Contender {
    let url = url.to_owned();
    Contender::new("relevo", move |_| Task::Direct {
        url: url.clone(),
        plan,
        driver,
        subscription: unique_name("direct"),
    })
}

fn bare(name: &'static str, url: &str, plan: Plan, driver: Driver, loops: usize) -> Contender {
    let url = url.to_owned();
    Contender::new(name, move |_| Task::Loop { url: url.clone(), plan, driver, loops })
}
