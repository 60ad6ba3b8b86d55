//! The three alerts fire when they should, and only then: Prometheus' own tool says so.

use relevo_testkit::services::{Promtool, require};
use std::path::Path;

#[test]
fn the_alerts_pass_promtool() {
    let Some(promtool) = require(Promtool::find()) else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("alerts");
    let checked = promtool.check_rules(&folder.join("ticketflow.rules.yml"));
    let tested = promtool.test_rules(&folder.join("ticketflow.test.yml"));
    for said in [checked, tested] {
        let said = said.unwrap_or_else(|error| panic!("{error}"));
        assert!(said.contains("SUCCESS"), "{said}");
    }
}
