//! Arguments that cannot be meant, and servers that are not there.

use crate::support::{command, said};

/// Ends with this code, prints nothing on standard output, and says all of `words`.
fn refused(code: i32, arguments: &[&str], variables: &[(&str, &str)], words: &[&str]) -> String {
    let mut command = command(arguments);
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = said(&output);
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(code), 0),
        "{arguments:?}: {said}"
    );
    for word in words {
        assert!(said.contains(word), "{arguments:?} does not say {word}: {said}");
    }
    said
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_can() {
    refused(2, &["ticketflo"], &[], &["'ticketflo'", "shop, ticketflow, smartedify"]);
    refused(2, &["ticketflow", "smartedify"], &[], &["'smartedify'"]);
    let known = ["'mail'", "poison", "ticketflow-mail", "smartedify-twice"];
    refused(2, &["--break", "mail"], &[], &known);
    refused(2, &["--break", "kill,,poison"], &[], &["--break"]);
    let other = ["--break ticketflow-mail", "TicketFlow is not a part of this demo"];
    refused(2, &["shop", "--break", "kill,ticketflow-mail"], &[], &other);
    refused(2, &["smartedify", "--break", "kill"], &[], &["the shop floor is not a part"]);
    refused(2, &["ticketflow", "--profile", "imaginary"], &[], &["embedded, real"]);
    for arguments in [&["--profile", "real"][..], &["shop", "--profile", "real"]] {
        refused(2, arguments, &[], &["relevo demo ticketflow --profile real"]);
    }
    refused(2, &["ticketflow", "--rate", "0"], &[], &["--rate"]);
    refused(2, &["--for", "soon"], &[], &["--for"]);
}

#[test]
fn without_its_servers_a_system_says_which_and_how_to_start_them() {
    let compose = "docker compose -f systems/ticketflow/compose.yaml up --wait";
    let said = refused(
        3,
        &["ticketflow", "--profile", "real"],
        &[("RABBITMQ_URL", "amqp://guest@127.0.0.1:1")],
        &["DATABASE_URL does not say", "SMTP_URL does not say", compose, "the top of that file"],
    );
    assert!(!said.contains("RABBITMQ_URL does not say"), "{said}");
    let said = refused(
        3,
        &["ticketflow", "--profile", "real", "--json"],
        &[
            ("DATABASE_URL", "postgres://app:s3cret@127.0.0.1:1/ticketflow"),
            ("RABBITMQ_URL", "amqp://guest:s3cret@127.0.0.1:1,127.0.0.1:2"),
            ("SMTP_URL", "smtp://127.0.0.1:1"),
        ],
        &["PostgreSQL, where", "RabbitMQ, where", "a mail server, where", compose],
    );
    assert!(!said.contains("s3cret"), "{said}");
    let compose = "docker compose -f systems/smartedify/compose.yaml up --wait";
    refused(
        3,
        &["smartedify", "--profile", "real"],
        &[],
        &["DATABASE_URL does not say", "DOWNSTREAM_DATABASE_URL does not say", compose],
    );
    let said = refused(
        3,
        &["smartedify", "--profile", "real"],
        &[
            ("DATABASE_URL", "postgres://postgres:s3cret@127.0.0.1:1/tenants"),
            ("DOWNSTREAM_DATABASE_URL", "postgres://postgres:s3cret@127.0.0.1:1/directory"),
            ("SMARTEDIFY_BROKER_URL", "nats://relevo:s3cret@127.0.0.1:1"),
        ],
        &["what DATABASE_URL names", "what SMARTEDIFY_BROKER_URL names", compose],
    );
    assert!(!said.contains("s3cret"), "{said}");
}

#[test]
fn the_help_names_every_part_and_all_that_can_be_broken() {
    let output = command(&["--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for words in [
        "[PART]",
        "ticketflow",
        "smartedify",
        "--profile",
        "ticketflow-dispatcher:",
        "smartedify-relay:",
        "loopback only",
        "relevo demo ticketflow --profile real",
    ] {
        assert!(help.contains(words), "{words} is missing in\n{help}");
    }
}
