//! Every command: what it takes, what it prints, how it ends.
//!
//! A command is a struct of options with `run`. It prints through `Output` (tables for people, JSON for
//! programs) and ends with an exit code of [`exit`].

mod adopt;
mod ask;
mod config;
mod dead_letters;
mod doctor;
mod explain;
mod failure;
#[doc(hidden)]
pub mod fuzzing;
mod generate;
mod globals;
mod init;
mod migrate;
mod output;
mod publish;
mod retention;
mod show;
mod status;
mod subscriptions;
mod tail;
mod topology;
mod why;

use clap::{CommandFactory, Parser, Subcommand};
use failure::{Failure, Outcome};
use output::Output;
use std::process::ExitCode;

pub use failure::{exit, exit_code};
pub use globals::{Globals, STORE_VARIABLE};

const EXAMPLES: &str = "\
Begin with:
  relevo demo                       see it work; nothing to install or configure
  relevo init && relevo migrate     a configuration and a store of your own
  relevo publish order.placed '{\"total\": 12}' --key order-1
  relevo status

Exit codes:
  0  done
  1  a check found something wrong (doctor: a problem; topology check: a
     difference; demo: a broken promise)
  2  the command line, the configuration or the event is wrong
  3  the store or the broker cannot be reached, refuses, or is not fit
  4  there is no such event, subscription, dead letter or operation
  5  not done: refused (messages would be lost, or something done twice),
     or not confirmed

Errors have codes: `relevo explain R0002` tells what one means and what to do.";

#[cfg(feature = "demo")]
const DEMO: &str = "\
The shop floor and two systems of systems/, TicketFlow and SmartEdify, with
people who use them. Their APIs are open, and listen on loopback only; their
addresses are printed. At the end what was committed is joined with its
effects; the exit code is 0 only if nothing was lost and nothing done twice.

With --json the end is one object: the shop floor's figures, and beside them
those of each system under its name. A part alone has its own object only.

Examples:
  relevo demo                           watch it, and break it with keys
  relevo demo --for 20s --break kill,ticketflow-mail,smartedify-twice
  relevo demo --for 20s --json          no terminal needed
  relevo demo ticketflow                one system alone
  relevo demo ticketflow --profile real
                                        on PostgreSQL, RabbitMQ and SMTP:
                                        DATABASE_URL, RABBITMQ_URL, SMTP_URL
                                        (systems/ticketflow/compose.yaml)";

const RUN: &str = "\
It ends with SIGTERM or SIGINT: what is under way is finished first, and its
lanes are given back.

Examples:
  relevo run                            the configuration in this folder
  relevo run -c etc/relevo.toml --migrate
  relevo run --store sqlite:relevo.db --to stdout:";

/// Publish inside your own transaction; everything after that commit is Relevo's job.
#[derive(Debug, Parser)]
#[command(name = "relevo", version, after_help = EXAMPLES, max_term_width = 110, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See it work: a shop floor and two systems, failures and recovery, on embedded stores
    #[cfg(feature = "demo")]
    #[command(after_help = DEMO)]
    Demo(crate::demo::DemoArgs),
    /// Write a commented relevo.toml
    Init(init::Init),
    /// Check the configuration, or show every key with its default
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Make or update Relevo's tables, or print the SQL and the GRANTs
    Migrate(migrate::Migrate),
    /// The daemon: work every subscription of the configuration
    #[command(after_help = RUN)]
    Run(crate::run::RunArgs),
    /// Compare exchanges, queues and streams with the configuration, and make them so
    #[command(subcommand)]
    Topology(topology::TopologyCommand),
    /// Look at an outbox table that is there already, and propose how to relay it
    #[command(subcommand)]
    Adopt(adopt::AdoptCommand),
    /// Publish one event
    Publish(publish::Publish),
    /// Look at the newest events of the log
    Tail(tail::Tail),
    /// How every subscription stands
    Status(status::Status),
    /// Why is this event where it is?
    Why(why::WhyArgs),
    /// List, add, pause, resume, rewind or remove subscriptions
    #[command(subcommand)]
    Subscriptions(subscriptions::SubscriptionsCommand),
    /// List, show, replay, edit or archive what failed for good
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLettersCommand),
    /// What of the log would go now, and what holds the rest
    Retention(retention::Retention),
    /// Look at everything that commonly goes wrong
    Doctor(doctor::Doctor),
    /// What an error code means, and what to do
    Explain(explain::Explain),
    /// Write completions for a shell
    Completions(generate::Completions),
    /// Write the manual pages
    Man(generate::Man),
}

/// Reads the command line, does what it says and returns the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let json = cli.globals.json;
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failure::report(&Failure::from(error), json),
    };
    let code =
        runtime.block_on(cli.run()).unwrap_or_else(|failure| failure::report(&failure, json));
    // Nothing that still hangs somewhere (a name server that does not answer) may hold up the end.
    runtime.shutdown_background();
    code
}

/// Help and version are answers; everything else is a wrong command line.
fn refuse(error: &clap::Error) -> ExitCode {
    let code = if error.use_stderr() { exit::USAGE } else { 0 };
    match error.print() {
        Ok(()) => ExitCode::from(code),
        Err(_) => ExitCode::from(exit::USAGE),
    }
}

impl Cli {
    async fn run(self) -> Outcome {
        let Self { globals, command } = self;
        let out = Output::new(globals.json);
        if !command.has_its_own_log() {
            log_warnings();
        }
        match command {
            #[cfg(feature = "demo")]
            Command::Demo(args) => Ok(crate::demo::demo(args, &globals).await?),
            Command::Run(args) => Ok(crate::run::run(args, &globals).await?),
            Command::Init(args) => args.run(&globals, &out),
            Command::Config(command) => command.run(&globals, &out),
            Command::Migrate(args) => args.run(&globals, &out).await,
            Command::Topology(command) => command.run(&globals, &out).await,
            Command::Adopt(command) => command.run(&globals, &out).await,
            Command::Publish(args) => args.run(&globals, &out).await,
            Command::Tail(args) => args.run(&globals, &out).await,
            Command::Status(args) => args.run(&globals, &out).await,
            Command::Why(args) => args.run(&globals, &out).await,
            Command::Subscriptions(command) => command.run(&globals, &out).await,
            Command::DeadLetters(command) => command.run(&globals, &out).await,
            Command::Retention(args) => args.run(&globals, &out).await,
            Command::Doctor(args) => args.run(&globals, &out).await,
            Command::Explain(args) => args.run(&out),
            Command::Completions(args) => args.run(Cli::command()),
            Command::Man(args) => args.run(Cli::command(), &out),
        }
    }
}

impl Command {
    fn has_its_own_log(&self) -> bool {
        match self {
            #[cfg(feature = "demo")]
            Self::Demo(_) => true,
            other => matches!(other, Self::Run(_)),
        }
    }
}

/// A command is quiet; `RELEVO_LOG=debug` makes it talk.
fn log_warnings() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("RELEVO_LOG")
        // The client for RabbitMQ calls every answer other than yes an error.
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error,lapin=off"));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    crate::logging::set_up(subscriber.finish());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_put_together_well() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_help_says_fits_eighty_columns() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn every_exit_code_is_in_the_help() {
        for code in 0..=exit::REFUSED {
            assert!(
                EXAMPLES.lines().any(|line| line.starts_with(&format!("  {code}  "))),
                "{code}"
            );
        }
    }
}
