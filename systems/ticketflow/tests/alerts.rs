//! The three alerts fire when they should, and only then: Prometheus' own tool says so.

use relevo_testkit::services;
use std::process::Command;

#[test]
fn the_alerts_pass_promtool() {
    let Some(promtool) = services::require(services::promtool()) else { return };
    for args in
        [["check", "rules", "ticketflow.rules.yml"], ["test", "rules", "ticketflow.test.yml"]]
    {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/alerts");
        let output =
            Command::new(&promtool).args(args).current_dir(folder).output().expect("it runs");
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("SUCCESS"), "{said}");
    }
}
