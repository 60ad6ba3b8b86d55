use super::Size;
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results};
use crate::goal::Goal;
use crate::tasks::{Driver, Plan, Task};
use anyhow::Result;
use relevo_testkit::services::unique_name;

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let plan = Plan { events: size.events / 5, keys: size.keys, bytes: 256 };
    arena.main.seed(plan).await?;
    let file = arena.seed_sqlite(plan).await?;
    let postgres = ("PostgreSQL", arena.main.url.clone(), Driver::Postgres);
    let mut results = Vec::new();
    for (name, url, driver) in [postgres, ("SQLite", file, Driver::Sqlite)] {
        let bare = url.clone();
        let contest = Contest {
            name: format!("handlers on {name}, 256 B, a row each"),
            contenders: vec![
                Contender::new("relevo", move |_| Task::Direct {
                    url: url.clone(),
                    plan,
                    driver,
                    subscription: unique_name("direct"),
                }),
                Contender::new("bare loop", move |_| Task::Loop {
                    url: bare.clone(),
                    plan,
                    driver,
                }),
            ],
            readings: vec![Reading::rate([Some(Goal::AtLeast(0.85))])],
        };
        results.push(contest.hold(arena, size.rounds).await?);
    }
    Ok(results)
}
