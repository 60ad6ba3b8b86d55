//! The simulator itself: seeds hold, repeat, and a shipped build has no mutants.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_testkit::simulation::{Campaign, Options, run_alone};

#[test]
fn simulation_of_a_few_hundred_seeds_breaks_no_promise() {
    let report = Campaign { first: 1, seeds: 300, ..Campaign::default() }.run(|| ());
    assert!(report.failure.is_none(), "{:?}", report.failure);
    assert_eq!((report.seeds, report.twice), (300, 3));
    assert!(report.seen.fault_count() > 1_000, "{:?}", report.seen.faults);
    assert!(report.seen.delivered > 5_000);
}

/// Seeds beyond those of the test command that broke a promise once, and what they found.
const BROKE: [(u64, &str); 2] = [
    (21_264_373, "a tick that was made long ago took a number that had been pruned"),
    (
        21_280_917,
        "the operator waited for an event without a key that had landed in a stopped lane",
    ),
];

#[test]
fn simulation_of_seeds_that_broke_a_promise_once_breaks_none() {
    for (seed, found) in BROKE {
        let violation = run_alone(Options::from_seed(seed), false).violation;
        assert!(violation.is_none(), "{seed}: {found}: {violation:?}");
    }
}

#[test]
fn simulation_of_the_same_seed_is_the_same_to_the_last_line() {
    let run = |seed| run_alone(Options::from_seed(seed), true).trace;
    for seed in 500..505 {
        let (first, second) = (run(seed), run(seed));
        assert!(first.len() > 100);
        assert_eq!(first, second);
    }
    assert_ne!(run(500), run(501));
}

#[cfg(not(feature = "mutants"))]
#[test]
fn simulation_in_a_build_without_the_feature_has_no_mutants() {
    let program = env!("CARGO_BIN_EXE_relevo-sim");
    let asked = std::process::Command::new(program).arg("--mutants").output().unwrap();
    assert!(!asked.status.success());
    assert!(String::from_utf8_lossy(&asked.stderr).contains("no mutants"));
    let bytes = std::fs::read(program).unwrap();
    let has = |text: &str| memchr::memmem::find(&bytes, text.as_bytes()).is_some();
    assert!(has("never reached: "), "texts can be found in this program");
    let listed = include_str!("../../relevo-core/src/mutants.rs").lines();
    let mutants: Vec<&str> = listed
        .filter(|line| line.ends_with("\";"))
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    assert!(mutants.len() > 50, "{mutants:?}");
    for what in mutants {
        assert!(!has(what), "this program has the mutant: {what}");
    }
}

#[test]
fn simulation_docs_name_every_mutant() {
    let listed = include_str!("../../relevo-core/src/mutants.rs").lines();
    let names: Vec<&str> = listed
        .filter(|line| line.ends_with("\";") && !line.contains("static"))
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name.trim()))
        .collect();
    assert!(names.len() > 50, "{names:?}");
    let docs = include_str!("../../../docs/how-we-break-it.md");
    for name in names {
        assert!(
            docs.contains(&format!("`{name}`")),
            "docs/how-we-break-it.md says nothing of {name}"
        );
    }
}
