//! `relevo demo` as a process: what it prints, how it ends, and that a broken relay does not pass.
#![cfg(feature = "demo")]
#![allow(clippy::unwrap_used)]

mod real;
mod support;
mod systems;
mod terminal;
mod wrong;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{FIELDS, demo, number, report, said};

#[test]
fn killed_and_poisoned_it_loses_nothing_and_does_nothing_twice() {
    let output = demo(&["--for", "5s", "--json", "--break", "kill,poison"], None);
    let report = report(&output);
    let n = |name: &str| number(&report, name);
    assert_eq!(output.status.code(), Some(0), "{report}\n{}", said(&output));
    assert_eq!((n("dead"), n("lost")), (1, 0));
    assert_eq!(n("effects"), n("delivered"));
    assert_eq!(n("delivered") + n("dead"), n("committed"));
    assert!(n("committed") >= 100, "{report}");
    // Killed between an effect and its commit, the worker did something that is done again, and counts once. So did what
    // shared a transaction with the poisoned event.
    let inside = said(&output).contains("in the middle of a transaction");
    assert!(!inside || n("duplicates_seen") > 0, "{report}");
    // The two systems beside it have the same object each, under their name, and nothing else is there.
    assert_eq!(report.as_object().unwrap().len(), FIELDS.len() + 2, "{report}");
    for system in ["ticketflow", "smartedify"] {
        let own = &report[system];
        assert_eq!(own.as_object().unwrap().len(), FIELDS.len(), "exactly the documented: {own}");
        assert!(FIELDS.iter().all(|field| own[field].is_u64()), "{own}");
        assert!(number(own, "committed") > 0 && number(own, "lost") == 0, "{own}");
    }
}

#[test]
fn a_time_in_which_nothing_can_happen_is_refused() {
    for length in ["0s", "0", "1ms", "999ms"] {
        let output = demo(&["--for", length, "--json"], None);
        let said = said(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{length}: {said}");
        assert!(!said.contains("BROKEN") && said.contains("--for"), "{length}: {said}");
    }
}

#[test]
fn a_handler_that_fails_and_a_worker_that_is_stopped_only_delay() {
    let output =
        demo(&["shop", "--for", "6s", "--json", "--break", "fail", "--break", "stop"], None);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(0), "{report}\n{}", said(&output));
    assert_eq!(report.as_object().unwrap().len(), FIELDS.len(), "the shop alone: {report}");
    assert!(report["retried"].as_u64() > Some(0), "{report}");
    assert_eq!(
        (&report["dead"], &report["committed"]),
        (&0.into(), &report["effects"]),
        "{report}"
    );
}

#[test]
fn a_relay_that_loses_repeats_or_reorders_does_not_pass() {
    for (how, words) in [("lose", "lost"), ("twice", "twice"), ("reorder", "out of the order")] {
        let output = demo(&["shop", "--for", "3s", "--json"], Some(how));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{how}: {}\n{said}", report(&output));
        assert!(
            said.lines().any(|line| line.starts_with("BROKEN: ") && line.contains(words)),
            "{how}: {said}"
        );
    }
}

#[test]
fn the_first_delivered_event_shows_and_without_a_terminal_there_are_plain_lines() {
    let output = demo(&["--for", "2s"], None);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("first event delivered, "), "{text}");
    assert!(text.contains("Nothing lost") && !text.contains('\x1b'), "{text}");
}

#[test]
fn a_folder_that_is_kept_can_be_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--for", "1s", "--json", "--dir", folder.path().to_str().unwrap()];
    let first = report(&demo(&arguments, None));
    let output = demo(&arguments, None);
    let second = report(&output);
    assert_eq!(output.status.code(), Some(0), "{second}");
    assert!(second["committed"].as_u64() > first["committed"].as_u64(), "{first} {second}");
    let smartedify = |report: &serde_json::Value| number(&report["smartedify"], "committed");
    assert!(smartedify(&second) > smartedify(&first), "{first} {second}");
}

/// The worker's process id, from the folder of a running demo.
fn worker_of(parent: u32) -> Option<Pid> {
    let children =
        std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

#[test]
#[cfg(target_os = "linux")]
fn no_worker_outlives_its_parent() {
    // Killed, the parent cannot clean up: its folder must be ours.
    let folder = tempfile::tempdir().unwrap();
    let mut parent = Command::new(env!("CARGO_BIN_EXE_relevo"))
        .args(["demo", "shop", "--for", "60s", "--dir"])
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("first event delivered")));
    let worker = (0..1000)
        .find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            worker_of(parent.id())
        })
        .expect("the worker's process");
    parent.kill().unwrap();
    parent.wait().unwrap();
    let begun = Instant::now();
    while test_kill_process(worker).is_ok() {
        if begun.elapsed() > Duration::from_secs(20) {
            kill_process(worker, Signal::KILL).unwrap();
            panic!("the worker is still there");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
