//! The command line.

mod quarantine;
mod region;
mod topic;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use quarantine::{Lane, QuarantineCommand, Settled};
pub(crate) use region::{
    BookieCommand, LedgerCommand, Output, Place, RegionCommand, consent, until,
};
pub(crate) use topic::{OneTopic, TopicCommand};

/// Geo-replication for message brokers.
#[derive(Parser)]
#[command(name = "georepl", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Replicates a topic between two regions in this process while faults are injected, and
    /// audits the outcome.
    #[command(after_help = EXAMPLES)]
    Demo(DemoArgs),
    #[command(flatten)]
    OnRegion(RegionCommand),
}

const EXAMPLES: &str = "\
Examples:
  georepl demo                               200,000 messages, every fault
  georepl demo --messages 1000000 --seed 7   more of them, faults at other points
  georepl demo --input app.log --no-faults   the lines of a file
  seq 1000 | georepl demo --input -          standard input
  georepl demo --topics 4                    four topics at once
  georepl demo --data /tmp/demo              two regions on disk, which stay there
  georepl demo --plant swapped               see the audit fail
  georepl demo --json > report.json          the report for programs

Exit status: 0 when nothing is missing, repeated, out of order or unacknowledged; 1 when something
is, when the input cannot be used, or after Ctrl-C, which closes both regions first; 2 for a wrong
command line. RUST_LOG=info shows the log.";

#[derive(Args, Clone, Debug)]
pub(crate) struct DemoArgs {
    /// A file with one message a line, `-` for standard input [default: 1,707 real earthquakes]
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Messages to publish over all topics; the input is repeated as often as it takes
    #[arg(long, value_name = "N", default_value_t = 200_000,
          value_parser = clap::value_parser!(u64).range(1..=MESSAGES_MAX))]
    pub(crate) messages: u64,
    /// Topics to spread the messages over, each with a replicator and faults of its own
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=TOPICS_MAX))]
    pub(crate) topics: u64,
    /// Inject no faults
    #[arg(long)]
    pub(crate) no_faults: bool,
    /// Keep the regions in DIR/west and DIR/east instead of in memory. A bookie that is killed is
    /// only cut off then, and keeps what it holds
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Decides where in the traffic the faults fall
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Damage east's bookies before the audit, to see it fail
    #[arg(long, value_name = "DAMAGE")]
    pub(crate) plant: Option<Damage>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is done to one topic in every bookie of east.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Damage {
    /// An entry is removed
    Lost,
    /// An entry is stored again in the place of the next
    Doubled,
    /// An entry and the next change places
    Swapped,
}

/// Every message is kept in memory twice.
const MESSAGES_MAX: u64 = 100_000_000;
/// Each topic has tasks of its own.
const TOPICS_MAX: u64 = 64;
