//! The command line.

mod cli;
mod client;
mod demo;
mod exit;
mod interrupt;
mod service;

use std::ffi::OsString;
use std::io::Write;
use std::panic::Location;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command, RegionCommand};
use crate::client::Found;
use crate::exit::Failure;
use crate::interrupt::Interrupt;

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { command } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    // Silent unless asked: the commands have their own words.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    report_panics_once();
    let (message, code) = match command {
        Command::Demo(args) => match demo::run(&args).await {
            Ok(demo::Verdict::Passed) => return ExitCode::SUCCESS,
            Ok(demo::Verdict::Failed) => return ExitCode::FAILURE,
            Err(error) => (error.to_string(), error.exit_code()),
        },
        Command::OnRegion(command) => match on_region(command).await {
            Ok(Found::Healthy) => return ExitCode::SUCCESS,
            Ok(Found::Unhealthy) => return ExitCode::FAILURE,
            Err(failure) => (failure.message, failure.exit.code()),
        },
    };
    // Nobody may be listening; then there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "georepl: {message}");
    ExitCode::from(code)
}

/// A damaged file makes its database panic, which is caught where it is opened and told as an error. It goes to the log
/// alone; every other panic is a defect, and shown as always.
fn report_panics_once() {
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let in_database = |at: &Location<'_>| at.file().contains("/redb-");
        match panic.location().is_some_and(in_database) {
            true => tracing::error!("{panic}"),
            false => shown(panic),
        }
    }));
}

async fn on_region(command: RegionCommand) -> Result<Found, Failure> {
    let interrupt = Interrupt::listen();
    let interrupt = interrupt.map_err(|error| Failure::failed(format!("no signals: {error}")))?;
    Box::pin(client::run(command, interrupt)).await
}

/// What was asked for instead of a run, or one line on what is wrong with the command line.
fn refuse(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => {}
    }
    let text = error.to_string();
    let what = in_one_line(&text);
    let command = command_at_hand(std::env::args_os().skip(1));
    let _ = writeln!(std::io::stderr(), "georepl: {what}; see {command} --help");
    ExitCode::from(2)
}

/// What is wrong and the tips on it, without the usage, which the help has.
fn in_one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let ends = ["\nUsage:", "\nFor more information"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    let parts = text[..end].split("\n\n");
    let parts = parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The command whose help has more, as far as the arguments name one.
fn command_at_hand(args: impl Iterator<Item = OsString>) -> String {
    let (mut command, mut path) = (Cli::command(), "georepl".to_owned());
    for arg in args {
        let Some(next) = command.find_subcommand(&arg) else { break };
        path = format!("{path} {}", next.get_name());
        command = next.clone();
    }
    path
}
