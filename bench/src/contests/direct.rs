use super::Size;
use crate::arena::Arena;
use crate::contest::{Contender, Contest, Figure};
use crate::tasks::{Driver, Plan, Task};
use anyhow::Result;
use relevo_testkit::services::unique_name;

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Figure>> {
    let plan = Plan { events: size.events / 5, keys: 10_000, bytes: 256 };
    arena.seed(plan).await?;
    let file = arena.seed_sqlite(plan).await?;
    let mut figures = Vec::new();
    for (name, url, driver) in
        [("PostgreSQL", arena.url.clone(), Driver::Postgres), ("SQLite", file, Driver::Sqlite)]
    {
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
            goals: vec![Some(0.85)],
        };
        figures.push(contest.hold(arena, size.rounds).await?);
    }
    Ok(figures)
}
