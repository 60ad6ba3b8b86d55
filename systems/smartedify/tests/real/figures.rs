//! What `/metrics` says is so: numbers that a test knows from elsewhere.

use crate::World;
use crate::common::{self, eventually, until};
use relevo_testkit::services::{Nats, require};
use smartedify::db::Sql;
use smartedify::tenants::Tenants;
use std::time::Instant;

/// The value on the line of a metric whose labels have this in them.
fn figure(page: &str, name: &str, label: &str) -> Option<f64> {
    let is_it = |line: &&str| {
        let labels = line.strip_prefix(name).filter(|rest| rest.starts_with('{'));
        labels.is_some_and(|labels| labels.contains(label))
    };
    page.lines().find(is_it)?.rsplit(' ').next()?.parse().ok()
}

/// An event of a minute ago: 60 seconds, and what it took since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publish_latency_is_in_seconds_from_created_at_to_published_at() {
    let Some(nats) = require(Nats::shared()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let began = Instant::now();
    Tenants::on(world.place.db.clone()).create("Mirador").await.unwrap();
    let older =
        Sql::each("UPDATE outbox_events SET created_at = created_at - interval '60 seconds'", "");
    assert_eq!(common::run(&world.place.db, older, &[]).await, 1);
    let relay = world.start("relay", &[]);
    let client = relay.client();
    let name = |part: &str| format!("outbox_publish_latency_seconds_{part}");
    // The mark follows the figure.
    until("published", 1, || world.place.published()).await;
    let page = eventually("it is measured", async || {
        let page = client.get("/metrics").await.unwrap().body;
        (figure(&page, &name("count"), "")? == 1.0).then_some(page)
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    let sum = figure(&page, &name("sum"), "").unwrap();
    assert!((60.0..=60.0 + took).contains(&sum), "{sum} s after {took} s");
    assert_eq!(figure(&page, &name("bucket"), r#"le="30""#), Some(0.0), "{page}");
    assert_eq!(figure(&page, &name("bucket"), r#"le="600""#), Some(1.0), "{page}");
    // What the row says itself, by the server's clock alone.
    let waited = Sql::each(
        "SELECT round(1e6 * extract(epoch FROM published_at - created_at))::bigint FROM outbox_events",
        "",
    );
    let waited = common::number(&world.place.db, waited).await as f64 / 1e6;
    assert!((60.0..=60.0 + took).contains(&waited), "{waited} s after {took} s");
    relay.stop();
}
