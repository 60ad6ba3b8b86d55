use super::Size;
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results};
use crate::goal::Goal;
use crate::tasks::{Extra, Task};
use anyhow::Result;

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let mut results = Vec::new();
    for (connections, transactions) in [(1, size.transactions_alone), (32, size.transactions)] {
        let contender = |name, extra| {
            let url = arena.main.url.clone();
            Contender::new(name, move |_| Task::Write {
                url: url.clone(),
                connections,
                transactions,
                bytes: 256,
                extra,
                beside: None,
            })
        };
        let contest = Contest {
            name: format!("writer, {connections} connection(s), 256 B"),
            contenders: vec![
                contender("publish", Extra::Publish),
                contender("one bare INSERT", Extra::Insert),
                contender("one bare INSERT + NOTIFY", Extra::InsertAndNotify),
                contender("nothing extra", Extra::Nothing),
                contender("publish, parsed each time", Extra::PublishUnprepared),
            ],
            readings: vec![Reading::rate([Some(Goal::AtLeast(0.97)), None, None, None])],
        };
        results.push(contest.hold(arena, size.rounds).await?);
    }
    Ok(results)
}
