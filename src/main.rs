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
    // A wrong command line ends here, with status 2.
    let Cli { command: Command::Demo(args) } = Cli::parse();
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
