//! The load run: what it says of itself is so, and it fails where something is wrong.

use crate::World;
use crate::common;
use relevo_testkit::services::{Nats, require};
use smartedify::db::Sql;
use std::process::{Command, Output};

const TENANTS: f64 = 40.0;
/// 200 a second for two seconds: two clients who begin a request of five every 50 ms.
const OFFERED: f64 = 400.0;

impl World {
    /// Runs it to its end.
    fn load(&self, more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_smartedify"));
        command.args(["load", "--rate", "200", "--seconds", "2", "--tenants", "40"]);
        command.args(["--per-request", "5", "--clients", "2"]).args(more).env("RUST_LOG", "warn");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // Nobody dies here: what waits its turn is not to be sent again.
        command.env("SMARTEDIFY_ACK_WAIT_MS", "30000").output().unwrap()
    }
}

/// The numbers in a line, in its order. Those of a name, as in p50, are not among them.
fn numbers(line: &str) -> Vec<f64> {
    line.split([' ', ',', ';']).filter_map(|word| word.parse().ok()).collect()
}

/// What the run says, against the databases and against itself.
async fn assert_told(world: &World, output: &Output) {
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    let (figures, report) = said.trim_end().split_once('\n').unwrap();
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    let of = |name: &str| report[name].as_f64().unwrap();
    assert_eq!((of("lost"), of("dead")), (0.0, 0.0), "{said}");

    let [events, written, relayed, effective, p50, p99, most] = numbers(figures)[..] else {
        panic!("{figures}")
    };
    assert!(events > 0.0 && events <= OFFERED && events % 5.0 == 0.0, "{figures}");
    assert_eq!(of("committed"), TENANTS + events, "{said}");
    assert_eq!((of("delivered"), of("effects")), (of("committed"), of("committed")), "{said}");
    let rows = Sql::both("SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL");
    assert_eq!(common::number(&world.place.db, rows).await as f64, of("committed"));
    assert_eq!(world.place.effects().await as f64, of("committed"));
    // At the rate it was told: it writes for two seconds, and takes no less.
    assert!(written <= OFFERED / 2.0, "{figures}");
    assert!(written >= relayed && relayed >= effective && effective > 0.0, "{figures}");
    assert!(0.0 < p50 && p50 <= p99 && p99 <= most, "{figures}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_run_tells_what_it_did_and_loses_nothing() {
    // By the clock of the server that both databases are on, in microseconds.
    const RELAYED: Sql = Sql::each(
        "SELECT (extract(epoch FROM max(published_at)) * 1000000)::bigint FROM outbox_events",
        "",
    );
    const EFFECT: Sql =
        Sql::each("SELECT (extract(epoch FROM min(at)) * 1000000)::bigint FROM audit_log", "");
    let Some(nats) = require(Nats::shared()) else { return };
    for (more, consumes_after) in [(&[][..], false), (&["--consume-after"][..], true)] {
        let Some(world) = World::on("nats", &nats.url()).await else { return };
        let output = world.load(more);
        assert_told(&world, &output).await;
        let relayed = common::number(&world.place.db, RELAYED).await;
        let first_effect = common::number(&world.place.directory, EFFECT).await;
        assert_eq!(first_effect > relayed, consumes_after, "{more:?}: {output:?}");
    }
}

/// An effect that no change of its own has: it must not be told as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_run_fails_where_an_effect_is_of_nothing_that_it_did() {
    let Some(nats) = require(Nats::shared()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let foreign = Sql::both(
        "INSERT INTO audit_log (event_id, tenant_id, version, event_type) VALUES ('e', 'nobody', 1, 'tenant.created')",
    );
    assert_eq!(common::run(&world.place.directory, foreign, &[]).await, 1);
    let output = world.load(&[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let why = String::from_utf8_lossy(&output.stderr);
    let named = "BROKEN: 1 effects belong to changes that never committed";
    assert!(why.lines().any(|line| line == named), "{why}");
}
