//! Runs seeds of the simulator: `relevo-sim --seeds 50000`, or one of them with its account: `relevo-sim --seed 17`.

fn main() -> std::process::ExitCode {
    relevo_testkit::simulation::command()
}
