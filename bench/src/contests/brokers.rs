use super::Size;
use crate::arena::Arena;
use crate::contest::{Contender, Contest, Figure};
use crate::tasks::{Plan, Sink, Task};
use anyhow::Result;
use relevo_testkit::services::unique_name;

/// Where each turn's events go: nothing is left from the turn before.
type Fresh = fn(url: String) -> Sink;

pub(super) async fn nats(arena: &Arena, size: Size) -> Result<Vec<Figure>> {
    let url = arena.nats()?.url();
    let fresh: Fresh = |url| Sink::Nats { url, stream: unique_name("bench") };
    drain(arena, size, "NATS JetStream", url, fresh, 0.65).await
}

pub(super) async fn rabbitmq(arena: &Arena, size: Size) -> Result<Vec<Figure>> {
    let url = arena.rabbitmq()?.url();
    let quorum: Fresh = |url| Sink::RabbitMq { url, name: unique_name("bench"), quorum: true };
    let classic: Fresh = |url| Sink::RabbitMq { url, name: unique_name("bench"), quorum: false };
    let mut figures = drain(arena, size, "RabbitMQ quorum", url.clone(), quorum, 0.90).await?;
    figures.extend(drain(arena, size, "RabbitMQ classic", url, classic, 0.90).await?);
    Ok(figures)
}

async fn drain(
    arena: &Arena,
    size: Size,
    broker: &str,
    url: String,
    fresh: Fresh,
    client_goal: f64,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (bytes, keys, part) in [(256, 10_000, 1), (1024, 10_000, 1), (256, 1, 20)] {
        let plan = Plan { events: size.events / part, keys, bytes };
        arena.seed(plan).await?;
        let contest = Contest {
            name: format!("drain to {broker}, {bytes} B, {keys} key(s)"),
            contenders: contenders(arena, plan, &url, fresh),
            // One hot key runs at the speed of one confirm after the other, on purpose.
            goals: if keys == 1 { vec![None, None] } else { vec![Some(0.90), Some(client_goal)] },
        };
        figures.push(contest.hold(arena, size.rounds).await?);
    }
    Ok(figures)
}

fn contenders(arena: &Arena, plan: Plan, url: &str, fresh: Fresh) -> Vec<Contender> {
    let (log, log_too) = (arena.url.clone(), arena.url.clone());
    let sink = || {
        let url = url.to_owned();
        move || fresh(url.clone())
    };
    let (ours, pipe, client) = (sink(), sink(), sink());
    vec![
        Contender::new("relevo", move |_| Task::Relay {
            url: log.clone(),
            plan,
            sink: ours(),
            subscription: unique_name("relay"),
        }),
        Contender::new("bare pipe", move |_| Task::Pipe {
            url: log_too.clone(),
            plan,
            sink: pipe(),
        }),
        Contender::new("bare client", move |_| Task::Client { plan, sink: client() }),
    ]
}
