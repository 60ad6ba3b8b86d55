//! The simulator over an engine with deliberately wrong variants: `relevo-mutants --mutants` runs them all until they are
//! dead, `relevo-mutants --mutant NAME --seed 17` shows one at work. A program of its own, so that no build of the
//! simulator itself ever has them.

fn main() -> std::process::ExitCode {
    relevo_testkit::simulation::command()
}
