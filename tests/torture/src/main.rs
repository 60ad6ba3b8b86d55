//! The tortured processes, and the campaign that tortures them for hours.

use anyhow::Result;
use clap::Parser;
use relevo_torture::campaign::{self, CampaignOptions};
use relevo_torture::worker::{self, RelayOptions};
use relevo_torture::writer::{self, WriterOptions};

#[derive(Debug, clap::Parser)]
#[command(about = "Tortures Relevo with real processes and real servers")]
enum Command {
    /// A relay, as a child of a test.
    Relay(RelayOptions),
    /// Writers, as a child of a test.
    Writer(WriterOptions),
    /// Every scenario, again and again, for hours; ends with a report.
    Campaign(CampaignOptions),
}

fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let command = Command::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let end = match command {
        Command::Relay(options) => {
            worker::end_with_parent();
            runtime.block_on(worker::run(options))
        }
        Command::Writer(options) => {
            worker::end_with_parent();
            runtime.block_on(writer::run(options))
        }
        Command::Campaign(options) => runtime.block_on(campaign::run(options)),
    };
    // Blocking reads of standard input must not hold the process.
    runtime.shutdown_background();
    end
}
