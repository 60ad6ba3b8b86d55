//! The program that is shipped has none of the deliberately wrong variants that the simulator hunts.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use memchr::memmem;

#[test]
fn the_shipped_program_has_no_mutants() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_relevo")).unwrap();
    let has = |text: &str| memmem::find(&program, text.as_bytes()).is_some();
    assert!(has("relevo.outbox"), "texts can be found in this program");
    let listed = include_str!("../../relevo-core/src/mutants.rs").lines();
    let mutants: Vec<&str> = listed
        .filter(|line| line.ends_with("\";"))
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    assert!(mutants.len() > 50, "{mutants:?}");
    for what in mutants {
        assert!(!has(what), "the shipped program has the mutant: {what}");
    }
}
