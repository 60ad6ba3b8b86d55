use super::Size;
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results};
use crate::tasks::{Beside, Extra, Task};
use anyhow::Result;
use relevo_testkit::services::unique_name;

/// The same writers without a relay, beside one that polls, and beside one with its doorbell: the difference between the
/// last two is what the walsender costs.
pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let contender = |name, beside: Option<Beside>| {
        let (url, transactions) = (arena.main.url.clone(), size.transactions);
        Contender::new(name, move |_| Task::Write {
            url: url.clone(),
            connections: 32,
            transactions,
            bytes: 256,
            extra: Extra::Publish,
            beside: beside.map(|beside| (beside, unique_name("beside"))),
        })
    };
    let contest = Contest {
        name: "writer, 32 connections, a relay beside it".into(),
        contenders: vec![
            contender("relay with doorbell", Some(Beside::Doorbell)),
            contender("relay that polls", Some(Beside::Polling)),
            contender("no relay", None),
        ],
        readings: vec![Reading::rate([None, None])],
    };
    Ok(vec![contest.hold(arena, size.rounds).await?])
}
