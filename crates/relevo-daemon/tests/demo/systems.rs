//! TicketFlow and SmartEdify in the demo: broken in every way, open on loopback, and judged.

use crate::support::{FIELDS, command, demo, number, report, said};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;

/// What a demo of one system came to, and what it said, if every promise held.
fn alone(args: &[&str]) -> (Value, String) {
    let output = demo(args, None);
    let (report, said) = (report(&output), said(&output));
    assert_eq!(output.status.code(), Some(0), "{report}\n{said}");
    let fields = report.as_object().unwrap().len();
    assert_eq!(fields, FIELDS.len(), "one alone is the object: {report}");
    (report, said)
}

#[test]
fn whatever_breaks_in_ticketflow_nothing_is_lost() {
    let breaks = "ticketflow-mail,ticketflow-dispatcher,ticketflow-worker";
    let (report, said) = alone(&["ticketflow", "--for", "8s", "--json", "--break", breaks]);
    let n = |name: &str| number(&report, name);
    assert_eq!((n("dead"), n("lost"), n("delivered")), (0, 0, n("committed")), "{report}");
    // An e-mail and a place in the numbers for each change, and copies of e-mails with the same Message-ID.
    assert_eq!(n("effects"), 2 * n("committed") + n("duplicates_seen"), "{report}");
    assert!(n("retried") > 0, "e-mails were refused while the server was down: {report}\n{said}");
    for words in ["takes nothing", "takes e-mails again", "stands still", "goes on", "is gone"] {
        assert!(said.contains("TicketFlow: the ") && said.contains(words), "{words}\n{said}");
    }
    assert!(said.contains("another worker takes its place"), "{said}");
}

#[test]
fn whatever_breaks_in_smartedify_nothing_is_lost() {
    let breaks =
        "smartedify-poison,smartedify-fail,smartedify-down,smartedify-twice,smartedify-relay";
    let (report, said) = alone(&["smartedify", "--for", "10s", "--json", "--break", breaks]);
    let n = |name: &str| number(&report, name);
    assert_eq!((n("dead"), n("lost"), n("effects")), (1, 0, n("delivered")), "{report}");
    assert_eq!(n("delivered") + n("dead"), n("committed"), "{report}");
    assert!(n("retried") > 0 && n("duplicates_seen") > 0, "{report}\n{said}");
}

#[test]
fn a_system_that_loses_effects_does_not_pass() {
    let output = demo(&["ticketflow", "--for", "3s", "--json"], Some("event-alone"));
    let (report, said) = (report(&output), said(&output));
    assert_eq!(output.status.code(), Some(1), "{report}\n{said}");
    assert!(number(&report, "lost") > 0, "{report}");
    assert!(
        said.contains("BROKEN: TicketFlow: ") && said.contains("effects are missing"),
        "{said}"
    );
}

/// Asks for a page with one request, and with a token if there is one.
fn get(address: SocketAddr, path: &str, token: Option<&str>) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let token = token.map(|it| format!("authorization: Bearer {it}\r\n")).unwrap_or_default();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{token}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Where the demo says that a system's API is.
fn address(lines: &mut impl Iterator<Item = String>, system: &str) -> SocketAddr {
    let told = format!("{system}'s API, open on loopback only: http://");
    let line = lines.find(|line| line.contains(&told)).expect(system);
    line.rsplit("//").next().unwrap().parse().unwrap()
}

#[test]
fn the_addresses_are_told_and_anybody_on_this_machine_may_use_them() {
    let mut command = command(&["--for", "600s"]);
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines().map_while(Result::ok);
    for (system, path, answer) in
        [("TicketFlow", "/api/v1/tickets", "\"items\""), ("SmartEdify", "/tenants", "[")]
    {
        let address = address(&mut lines, system);
        assert!(address.ip().is_loopback(), "{address}");
        let page = get(address, path, None);
        assert!(page.starts_with("HTTP/1.1 200") && page.contains(answer), "{page}");
        assert!(get(address, "/health", None).starts_with("HTTP/1.1 200"));
    }
    // Whoever reads along goes away: it counts, and ends well.
    drop(lines);
    assert!(running.wait().unwrap().success());
}

#[test]
fn dead_letters_are_for_whoever_has_the_systems_token_of_the_environment() {
    let systems = [
        ("TicketFlow", "/admin/dead-letters", "ADMIN_TOKEN", "of tickets"),
        ("SmartEdify", "/admin/outbox/dlq", "SMARTEDIFY_ADMIN_TOKEN", "of tenants"),
    ];
    let mut command = command(&["--for", "600s"]);
    command.envs(systems.map(|(_, _, variable, token)| (variable, token)));
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines().map_while(Result::ok);
    for (system, path, variable, token) in systems {
        let address = address(&mut lines, system);
        let wrong = systems.iter().map(|it| it.3).find(|another| *another != token);
        for nobody in [None, wrong] {
            let page = get(address, path, nobody);
            assert!(page.starts_with("HTTP/1.1 401"), "{system} without {variable}: {page}");
        }
        let page = get(address, path, Some(token));
        assert!(page.starts_with("HTTP/1.1 200"), "{system} with {variable}: {page}");
    }
    drop(lines);
    assert!(running.wait().unwrap().success());
}
