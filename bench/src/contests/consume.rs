use super::{Place, Size};
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results};
use crate::goal::Goal;
use crate::tasks::{Carrier, Plan, Task};
use anyhow::Result;
use relevo_testkit::services::unique_name;

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let plan = Plan { events: size.events / 5, keys: size.keys, bytes: 256 };
    let mut results = Vec::new();
    for place in [Place::nats(arena), Place::quorum(arena)].into_iter().flatten() {
        let contender = |name, carrier| {
            let (url, place) = (arena.main.url.clone(), place.clone());
            Contender::new(name, move |_| Task::Consume {
                url: url.clone(),
                plan,
                sink: place.fresh(),
                carrier,
                name: unique_name("consumer"),
            })
        };
        let contest = Contest {
            name: format!("consume from {}, 256 B, a row each", place.name),
            contenders: vec![
                contender("relevo, with inbox", Carrier::Relevo),
                contender("the same without inbox", Carrier::Bare),
            ],
            readings: vec![Reading::rate([Some(Goal::AtLeast(0.90))])],
        };
        results.push(contest.hold(arena, size.rounds).await?);
    }
    Ok(results)
}
