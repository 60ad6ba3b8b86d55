use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{RECOVERY_LIMIT, Relays, Rig, Run};
use anyhow::Result;
use relevo_testkit::services::{Postgres, Proxy};
use std::time::{Duration, Instant};

/// Requests come by all the time, however slow the machine is.
const LOSS_LIMIT: Duration = Duration::from_secs(60);

/// So long a relay waits for an answer of its database before it takes another connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything a network does, to some relays and some of the writers; another relay and other writers have none of it.
/// With `alone` also while no relay is left that does not suffer.
pub async fn network(
    run: &Run,
    name: &str,
    server: &Postgres,
    database: Database,
    rounds: u64,
    alone: bool,
) -> Result<Outcome> {
    let proxy = Proxy::start(server.address())?;
    let mut rig = Rig::new(run, name, database).await?;
    let through = proxy.url(rig.database.url());
    let near = Relays::default();
    let far = Relays { url: Some(through.clone()), ..Relays::default() };
    rig.start_relays(1, &near)?;
    rig.start_relays(1, &far)?;
    rig.start_relays(1, &far.clone().arg("--driver", "sqlx"))?;
    rig.start_writers(6, &["--pause-ms", "400"])?;
    rig.start_writers_at(&through, 6, &["--pause-ms", "400"])?;
    for _ in 0..rounds {
        lose_replies(&mut rig, &proxy).await;
        let from = Instant::now();
        for _ in 0..5 {
            proxy.cut();
            rig.figures.fault("connections cut");
            let calm = rig.between(20, 200);
            rig.work(calm).await;
        }
        rig.measure_recovery(from).await?;
        silence(&mut rig, &proxy, "half-open connections", Proxy::half_open).await?;
        silence(&mut rig, &proxy, "server unreachable", Proxy::refuse).await?;
        silence(&mut rig, &proxy, "replies vanish", Proxy::lose_replies).await?;
        proxy.delay(Duration::from_millis(20));
        rig.figures.fault("every packet late");
        rig.work(Duration::from_millis(700)).await;
        proxy.heal();
        rig.measure_recovery(Instant::now()).await?;
    }
    if alone {
        half_open_alone(&mut rig, &proxy).await?;
    }
    rig.finish().await
}

/// Half-open connections that nobody ever resets, and nobody else to take over: only the relays' own patience helps.
async fn half_open_alone(rig: &mut Rig, proxy: &Proxy) -> Result<()> {
    drop(rig.relays.remove(0));
    proxy.half_open();
    rig.figures.fault("half-open connections, nobody else there");
    rig.work(Duration::from_secs(2)).await;
    proxy.heal();
    rig.measure_recovery_within(PATIENCE + RECOVERY_LIMIT / 3, Instant::now()).await
}

/// Commits (and other requests) that the server carries out and whose answer never arrives.
pub(super) async fn lose_replies(rig: &mut Rig, proxy: &Proxy) {
    for turn in 0..12 {
        let name = if turn % 3 == 2 { "a reply lost" } else { "reply lost after COMMIT" };
        let lost = proxy.lost();
        match turn % 3 {
            2 => proxy.lose_reply_after(rig.below(40) as usize),
            _ => proxy.lose_reply_to("COMMIT"),
        }
        let was_lost = tokio::time::timeout(LOSS_LIMIT, proxy.until_lost(lost + 1)).await.is_ok();
        match was_lost {
            true => rig.figures.fault(name),
            false => rig.problem(format!("{name}: none was, within {LOSS_LIMIT:?}")),
        }
        let calm = rig.between(20, 80);
        rig.work(calm).await;
    }
    proxy.heal();
}

/// A fault that lasts: the relay that does not suffer it takes all lanes meanwhile.
async fn silence(rig: &mut Rig, proxy: &Proxy, name: &str, begin: fn(&Proxy)) -> Result<()> {
    rig.settle_broker().await?;
    begin(proxy);
    let began = Instant::now();
    rig.figures.fault(name);
    rig.measure_takeover(began).await?;
    proxy.heal();
    proxy.cut();
    rig.measure_recovery(Instant::now()).await
}
