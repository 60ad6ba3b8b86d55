//! The targets under libFuzzer, which mutates what reaches new code. `cargo xtask fuzz` builds and starts it.
#![no_main]

use relevo_fuzz::Target;
use std::sync::LazyLock;

/// One program has all targets; this variable says which one is meant.
static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("RELEVO_FUZZ_TARGET").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| panic!("RELEVO_FUZZ_TARGET={name:?} is no target"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| (TARGET.run)(input));
