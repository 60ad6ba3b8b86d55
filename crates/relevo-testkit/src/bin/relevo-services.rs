//! Starts a server of the test kit for programs that are not tests.
//!
//! `relevo-services postgres 18` prints the URL of an empty database, then one of a new database
//! for each line it reads, and stops the server when its input ends. Brokers likewise.

use relevo_testkit::services::{Kafka, Nats, Postgres, RabbitMq, Smtp};
use std::error::Error;
use std::io::{BufRead, Write};

const HELP: &str = "\
relevo-services postgres [MAJOR]
relevo-services rabbitmq | nats | kafka [cluster]
relevo-services smtp

Starts a PostgreSQL (18 unless told) on a free port of 127.0.0.1 and prints the URL of an empty
database, or starts a broker (with `cluster` three nodes of it) or a mail server and prints where it is. Enter makes
another database or virtual host; Ctrl-D stops the server and removes its data.
";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["postgres"] => serve_postgres(18),
        ["postgres", major] => serve_postgres(major.parse()?),
        ["rabbitmq"] => {
            let server = RabbitMq::start()?;
            serve(|| Ok(server.fresh_vhost()?))
        }
        ["nats"] => {
            let server = Nats::start()?;
            serve(|| Ok(server.url()))
        }
        ["kafka"] => {
            let server = Kafka::start()?;
            serve(|| Ok(server.bootstrap()))
        }
        ["rabbitmq", "cluster"] => {
            let cluster = RabbitMq::cluster()?;
            serve(|| Ok(cluster.url()))
        }
        ["nats", "cluster"] => {
            let cluster = Nats::cluster()?;
            serve(|| Ok(cluster.urls().join(",")))
        }
        ["kafka", "cluster"] => {
            let cluster = Kafka::cluster()?;
            serve(|| Ok(cluster.bootstrap()))
        }
        ["smtp"] => {
            let server = Smtp::start()?;
            serve(|| Ok(server.url()))
        }
        ["--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => Err(format!("what is to be started?\n\n{HELP}").into()),
    }
}

fn serve_postgres(major: u16) -> Result<(), Box<dyn Error>> {
    let server = Postgres::start(major)?;
    serve(|| Ok(server.create_database()?))
}

/// Prints a URL at once and for each line read.
fn serve(url: impl Fn() -> Result<String, Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let mut requests = std::io::stdin().lock().lines();
    loop {
        println!("{}", url()?);
        std::io::stdout().flush()?;
        if requests.next().transpose()?.is_none() {
            return Ok(());
        }
    }
}
