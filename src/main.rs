//! The command line.

mod cli;
mod demo;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { command: Command::Demo(args) } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    // Silent unless asked: the demo has its own words.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match demo::run(&args).await {
        Ok(demo::Verdict::Passed) => ExitCode::SUCCESS,
        Ok(demo::Verdict::Failed) => ExitCode::FAILURE,
        Err(error) => {
            // Nobody may be listening; then there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "georepl: {error}");
            ExitCode::from(error.exit_code())
        }
    }
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
    let what = text.lines().next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(what);
    let _ = writeln!(std::io::stderr(), "georepl: {what}; see georepl demo --help");
    ExitCode::from(2)
}
