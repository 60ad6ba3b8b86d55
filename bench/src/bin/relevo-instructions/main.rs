//! Hot decisions, each made so many times, for counting instructions: `relevo-instructions DECISION TIMES`.
//!
//! No clock, no randomness that is not seeded, no thread: the same work every time. `cargo xtask bench instructions`
//! runs it under valgrind and compares.

mod headers;
mod machine;
mod window;

use std::process::ExitCode;

/// A decision, made so many times.
type Decision = fn(times: u64) -> u64;

const DECISIONS: [(&str, Decision); 6] = [
    ("header encoding, AMQP", headers::amqp),
    ("header encoding, Kafka", headers::kafka),
    ("header encoding, NATS", headers::nats),
    ("relay step, 64 events", machine::step),
    ("relay step, keys parked", machine::step_beside_parked_keys),
    ("window, 64 rows", window::rows),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => {
            DECISIONS.iter().for_each(|(name, _)| println!("{name}"));
            ExitCode::SUCCESS
        }
        [name, times] => made(name, times),
        _ => refused(),
    }
}

fn made(name: &str, times: &str) -> ExitCode {
    let decision = DECISIONS.iter().find(|(other, _)| *other == name);
    let (Some((_, decision)), Ok(times)) = (decision, times.parse()) else { return refused() };
    // Printed, so that nothing of it can be left out.
    println!("{}", decision(times));
    ExitCode::SUCCESS
}

fn refused() -> ExitCode {
    eprintln!("relevo-instructions list, or relevo-instructions DECISION TIMES");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_often_is_twice_as_much() {
        for (name, decision) in DECISIONS {
            let (once, often) = (decision(10), decision(20));
            // The machine ends a little late, with whatever was under way.
            let ratio = often as f64 / once as f64;
            assert!(once > 0 && (1.9..=2.1).contains(&ratio), "{name}: {once}, {often}");
        }
    }
}
