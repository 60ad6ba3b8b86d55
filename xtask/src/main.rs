//! The repository's own commands: `cargo xtask lint`, `cargo xtask test` and their parts.
//!
//! It is compiled before anything else, also in CI from nothing, so it stays on `std` and `anyhow`.
//!
//! # Layout
//! - `args`, `help`: the command line and the help texts
//! - `lint`, `tidy`: what a reviewer should not have to look for
//! - `test`, `stage`: compile once, run every stage, end with a table
//! - `sim`: the simulator, its mutants, the long campaign
//! - `bench`, `instructions`: how fast it is, and how many instructions hot decisions take
//! - `fuzz`: every decoder under libFuzzer
//! - `servers`: the table of real servers, how each is found or fetched
//! - `docs`: console blocks of the documentation, extracted and run
//! - `group`: processes that cannot outlive xtask
//! - `shell`: small helpers around `std::process`

mod args;
mod bench;
mod docs;
mod fuzz;
mod group;
mod help;
mod instructions;
mod lint;
mod servers;
mod shell;
mod side_by_side;
mod sim;
mod stage;
mod test;
mod tidy;

use args::Request;
use std::process::ExitCode;

fn main() -> ExitCode {
    match args::parse(std::env::args().skip(1)).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(request: Request) -> anyhow::Result<()> {
    // Every path below is relative to the repository, wherever the command was typed.
    std::env::set_current_dir(shell::repository())?;
    match request {
        Request::Help(text) => {
            print!("{text}");
            Ok(())
        }
        Request::Lint => lint::run(),
        Request::Tidy => tidy::run(),
        Request::Servers { install } => servers::command(install),
        Request::Test(options) => test::run(&options),
        Request::Sim(options) => sim::run(&options),
        Request::Mutants(options) => sim::mutants(&options),
        Request::Campaign(options) => sim::campaign(&options),
        Request::Bench(options) => bench::run(&options),
        Request::Fuzz(options) => fuzz::run(&options),
    }
}
