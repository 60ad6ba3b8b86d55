use super::Size;
use crate::arena::Arena;
use crate::contest::{Contender, Contest, Figure};
use crate::tasks::{Plan, Sink, Task};
use anyhow::Result;

pub(super) async fn hold(arena: &Arena, size: Size) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for bytes in [256, 1024] {
        let plan = Plan { events: size.events, keys: 10_000, bytes };
        arena.seed(plan).await?;
        let url = || arena.url.clone();
        let (ours, copied, marked) = (url(), url(), url());
        let contest = Contest {
            name: format!("drain to nobody, {bytes} B, 10,000 keys"),
            contenders: vec![
                Contender::new("relevo", move |round| Task::Relay {
                    url: ours.clone(),
                    plan,
                    sink: Sink::Null,
                    subscription: format!("null-{bytes}-{round}"),
                }),
                Contender::new("COPY TO, binary", move |_| Task::Copy {
                    url: copied.clone(),
                    plan,
                }),
                Contender::new("SKIP LOCKED + UPDATE", move |_| Task::Classic {
                    url: marked.clone(),
                    plan,
                    batch: 1000,
                }),
            ],
            goals: vec![Some(0.35), None],
        };
        figures.push(contest.hold(arena, size.rounds).await?);
    }
    Ok(figures)
}
