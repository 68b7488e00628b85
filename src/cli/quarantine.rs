//! The commands on entries in quarantine.

use clap::{Args, Subcommand};
use georepl::cursor::Position;

use super::region::{Output, Place, Rule};
use super::topic::topic;

/// A command on entries that replication has passed over.
#[derive(Subcommand)]
pub(crate) enum QuarantineCommand {
    /// Lists them, and what is to become of them.
    #[command(after_help = "\
States:
  quarantined  it was passed over, and the remote does not have it
  released     it is to be sent before anything else
  sending      it was sent or is just to be, and has no receipt yet
  in-doubt     as quarantined, but the remote may have it: it was being sent when somebody seeked

Examples:
  georepl quarantine list --region data/west orders --remote east")]
    List(Lane),
    /// Lets an entry be sent, before anything else that is not.
    #[command(after_help = "\
Examples:
  georepl quarantine release --region data/west orders 3:17 --remote east")]
    Release(Settled),
    /// Gives an entry up: it is never sent.
    #[command(after_help = "\
Examples:
  georepl quarantine discard --region data/west orders 3:17 --remote east --dry-run
  georepl quarantine discard --region data/west orders 3:17 --remote east --yes")]
    Discard(Settled),
}

/// A topic on its way to a remote.
#[derive(Args)]
pub(crate) struct Lane {
    #[command(flatten)]
    pub(crate) place: Place,
    /// The topic
    #[arg(value_parser = topic)]
    pub(crate) topic: String,
    /// The remote region's name
    #[arg(long, value_name = "NAME")]
    pub(crate) remote: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// An entry in quarantine.
#[derive(Args)]
pub(crate) struct Settled {
    #[command(flatten)]
    pub(crate) lane: Lane,
    /// The entry, by its position such as 3:17
    #[arg(value_name = "POSITION")]
    pub(crate) position: Position,
    #[command(flatten)]
    pub(crate) rule: Rule,
}
