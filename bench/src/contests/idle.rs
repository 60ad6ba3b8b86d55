use super::Size;
use crate::arena::Arena;
use crate::contest::{Contender, Contest};
use crate::figure::{Reading, Results};
use crate::goal::Unit;
use crate::tasks::Task;
use anyhow::Result;
use relevo_testkit::services::unique_name;

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Results>> {
    let contender = |name, doorbell| {
        let url = arena.main.url.clone();
        Contender::new(name, move |_| Task::Idle {
            url: url.clone(),
            subscription: unique_name("idle"),
            seconds: size.idle_s,
            doorbell,
        })
    };
    let contest = Contest {
        name: format!("a relay with nothing to do, {} s", size.idle_s),
        contenders: vec![contender("with doorbell", true), contender("polling", false)],
        readings: vec![
            Reading::own("queries", Unit::QueriesPerSecond, |s| s.value("queries"), Some(0.2)),
            Reading::own("CPU", Unit::Percent, |s| s.value("cpu"), None),
            Reading::own("memory", Unit::Megabytes, |s| s.value("rss_mb"), None),
        ],
    };
    Ok(vec![contest.hold(arena, size.rounds.min(3)).await?])
}
