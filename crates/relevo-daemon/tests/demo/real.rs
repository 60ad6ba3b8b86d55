//! The systems on the servers that their documents name.

use crate::support::{command, number, report, said};
use relevo_testkit::services::{Nats, Postgres, RabbitMq, Smtp, require, unique_name};
use serde_json::Value;

/// Runs a system to its end with these variables; every promise held.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Value {
    let mut command = command(arguments);
    command.args(["--profile", "real", "--json", "--at-least", "50"]);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let report = report(&output);
    assert_eq!(output.status.code(), Some(0), "{report}\n{}", said(&output));
    assert_eq!(number(&report, "lost"), 0, "{report}");
    assert!(number(&report, "committed") >= 50, "{report}");
    report
}

#[test]
fn ticketflow_on_postgresql_rabbitmq_and_smtp() {
    let Some(postgres) = require(Postgres::shared(16)) else { return };
    let Some(rabbit) = require(RabbitMq::shared()) else { return };
    let Some(smtp) = require(Smtp::start()) else { return };
    let (database, vhost) = (postgres.create_database().unwrap(), rabbit.fresh_vhost().unwrap());
    let url = smtp.url();
    let variables = [
        ("DATABASE_URL", database.as_str()),
        ("RABBITMQ_URL", &vhost),
        ("SMTP_URL", &url),
        ("OUTBOX_DISPATCH_INTERVAL_MS", "100"),
    ];
    let breaks = "ticketflow-mail,ticketflow-dispatcher,ticketflow-worker";
    let first = run(&["ticketflow", "--for", "8s", "--break", breaks], &variables);
    let n = |name: &str| number(&first, name);
    assert_eq!((n("dead"), n("delivered")), (0, n("committed")), "{first}");
    assert!(n("retried") > 0, "{first}");
    let mails = smtp.mails().unwrap().len() as u64;
    assert!(mails >= n("committed"), "{mails} e-mails came: {first}");
    // What an earlier run left is none of the next one's business.
    run(&["ticketflow", "--for", "1s"], &variables);
}

#[test]
fn smartedify_on_postgresql_and_nats() {
    let Some(postgres) = require(Postgres::shared(18)) else { return };
    let Some(nats) = require(Nats::shared()) else { return };
    let (service, downstream) =
        (postgres.create_database().unwrap(), postgres.create_database().unwrap());
    let (stream, url) = (unique_name("smartedify"), nats.url());
    let variables = [
        ("DATABASE_URL", service.as_str()),
        ("DOWNSTREAM_DATABASE_URL", &downstream),
        ("SMARTEDIFY_BROKER_URL", &url),
        ("SMARTEDIFY_STREAM", &stream),
        ("OUTBOX_LEASE_MS", "2000"),
        ("OUTBOX_BACKOFF_MAX_S", "2"),
    ];
    let breaks =
        "smartedify-poison,smartedify-fail,smartedify-down,smartedify-twice,smartedify-relay";
    let report = run(&["smartedify", "--for", "10s", "--break", breaks], &variables);
    let n = |name: &str| number(&report, name);
    assert_eq!((n("dead"), n("delivered") + 1), (1, n("committed")), "{report}");
    assert_eq!(n("effects"), n("delivered"), "{report}");
}
