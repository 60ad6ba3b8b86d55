//! `smartedify`: the tenant service, its relay, a downstream consumer and the tools to look after them.

mod cli;

use clap::Parser;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let logs =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(logs).with_writer(std::io::stderr).init();
    match cli::Cli::parse().run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("smartedify: {error:#}");
            ExitCode::FAILURE
        }
    }
}
