//! Every decoder against its corpus, and against a fixed number of seeded mutations of it.

#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_fuzz::mutate::Mutator;
use relevo_fuzz::{TARGETS, Target};
use std::collections::BTreeSet;
use std::panic::catch_unwind;

/// Another seed tries other mutations: `RELEVO_FUZZ_SEED=2 cargo test -p relevo-fuzz`.
fn seed() -> u64 {
    std::env::var("RELEVO_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn try_out(target: &Target, name: &str, input: &[u8]) {
    if catch_unwind(|| (target.run)(input)).is_err() {
        let folder = std::env::temp_dir().join("relevo-fuzz");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("{}-{}", target.name, name.replace(' ', "-")));
        std::fs::write(&file, input).unwrap();
        panic!(
            "{} breaks on {name}; the input is kept in {}: mend it, and put the input into fuzz/corpus/{}/",
            target.name,
            file.display(),
            target.name
        );
    }
}

fn replay(name: &str) {
    let target = Target::named(name).unwrap();
    let files = target.corpus().unwrap();
    assert!(!files.is_empty(), "{name} has no corpus");
    for (file, input) in &files {
        try_out(target, file, input);
    }
    let inputs: Vec<Vec<u8>> = files.into_iter().map(|(_, input)| input).collect();
    let mut mutator = Mutator::new(seed(), &inputs);
    for number in 0..target.mutations {
        try_out(target, &format!("mutation {number} of seed {}", seed()), &mutator.input());
    }
}

/// One test for each target; together they must be all of them.
macro_rules! replays {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { replay(stringify!($name)); })*

        #[test]
        fn every_target_is_replayed_and_every_folder_of_the_corpus_has_a_target() {
            let tested = BTreeSet::from([$(stringify!($name).to_owned()),*]);
            let listed: BTreeSet<String> = TARGETS.iter().map(|t| t.name.to_owned()).collect();
            let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");
            let folders: BTreeSet<String> = std::fs::read_dir(corpus)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            assert_eq!((&tested, &folders), (&listed, &listed));
        }
    };
}

replays!(
    adopted_row,
    broker_messages,
    broker_urls,
    cloudevents,
    config,
    dead_letter_edit,
    doorbell,
    duration,
    event_limits,
    foreign,
    headers,
    http_answer,
    http_headers,
    publish_arguments,
    snapshot,
    sqlite_row,
    stored_json,
    terminal,
    topic_filter,
    urls,
);
