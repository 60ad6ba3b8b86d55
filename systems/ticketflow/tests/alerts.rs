//! The three alerts fire when they should, and only then: Prometheus' own tool says so.

use relevo_testkit::services::{Promtool, require};
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("alerts").join(name)
}

#[test]
fn the_alerts_pass_promtool() {
    let Some(promtool) = require(Promtool::find()) else { return };
    let checked = promtool.check_rules(&file("ticketflow.rules.yml"));
    let tested = promtool.test_rules(&file("ticketflow.test.yml"));
    for said in [checked, tested] {
        let said = said.unwrap_or_else(|error| panic!("{error}"));
        assert!(said.contains("SUCCESS"), "{said}");
    }
}

#[test]
fn alerts_with_other_numbers_do_not_pass() {
    let Some(promtool) = require(Promtool::find()) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let rules = std::fs::read_to_string(file("ticketflow.rules.yml")).expect("the rules");
    let tests = folder.path().join("ticketflow.test.yml");
    std::fs::copy(file("ticketflow.test.yml"), &tests).expect("the tests");
    for (sharp, blunt) in [
        ("> 100\n", "> 99\n"),
        ("> 100\n", "> 150\n"),
        ("for: 1m", "for: 30s"),
        ("for: 1m", "for: 3m"),
        ("for: 2m", "for: 90s"),
        ("for: 2m", "for: 150s"),
        ("> 0\n", "> 1\n"),
        ("> 2000\n", "> 1900\n"),
        ("> 2000\n", "> 2100\n"),
    ] {
        assert!(rules.contains(sharp), "{sharp}");
        let blunted = rules.replace(sharp, blunt);
        std::fs::write(folder.path().join("ticketflow.rules.yml"), blunted).expect("written");
        assert!(promtool.test_rules(&tests).is_err(), "{sharp} became {blunt}");
    }
}
