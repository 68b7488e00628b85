//! The commands on regions in directories.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::quarantine::QuarantineCommand;
use super::topic::{TopicCommand, topic};
use crate::service::words::{Consent, Run, Start, Until};

/// A command on a region.
#[derive(Subcommand)]
pub(crate) enum RegionCommand {
    /// Publishes lines, one message each; begins the region if there is none.
    ///
    /// It ends when every line is durable. It waits when storage or a backlog quota says so.
    #[command(after_help = "\
Examples:
  georepl publish --region data/west orders --input orders.log
  seq 1000 | georepl publish --region data/west orders
  georepl publish --region data/west persistent://acme/eu/orders --json < orders.log")]
    Publish {
        #[command(flatten)]
        place: Place,
        /// The topic; a short name is one in persistent://public/default
        #[arg(value_parser = topic)]
        topic: String,
        /// A file with one message a line, `-` for standard input
        #[arg(long, value_name = "FILE", default_value = "-")]
        input: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Prints messages, one a line, without leaving a trace.
    #[command(after_help = "\
Examples:
  georepl consume --region data/west orders
  georepl consume --region data/west orders --from latest --follow
  georepl consume --region data/west orders --from 3:17 --count 10 --json")]
    Consume {
        #[command(flatten)]
        place: Place,
        /// The topic
        #[arg(value_parser = topic)]
        topic: String,
        /// Where to begin: earliest, latest, or a position such as 3:17
        #[arg(long, value_name = "PLACE", default_value = "earliest")]
        from: Start,
        /// Wait for more at the end, until interrupted
        #[arg(long)]
        follow: bool,
        /// Stop after this many messages
        #[arg(long, value_name = "N")]
        count: Option<u64>,
        #[command(flatten)]
        output: Output,
    },
    /// Holds a region and serves the other commands until it is interrupted; begins the region if
    /// there is none.
    #[command(after_help = "\
Examples:
  georepl serve --region data/west
Ctrl-C or SIGTERM lets commands that are under way come to their end; a second one cuts them off.")]
    Serve {
        #[command(flatten)]
        place: Place,
    },
    /// Replicates topics to another region, until everything is there.
    ///
    /// If another process holds the first region, that process does it. The second region is
    /// begun if there is none. A topic that fails keeps no other from its end; the exit status is
    /// 1 then.
    #[command(after_help = "\
Examples:
  georepl replicate --from data/west --to data/east orders
  georepl replicate --from data/west --to data/east orders payments --follow
  georepl replicate --from data/west --to data/east orders --quarantine-after 3")]
    Replicate {
        /// The directory of the region that has the topics
        #[arg(long, value_name = "DIR")]
        from: PathBuf,
        /// The directory of the region they are replicated to
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// The topics
        #[arg(required = true, value_name = "TOPIC", value_parser = topic)]
        topics: Vec<String>,
        /// Go on with what is published later, until interrupted
        #[arg(long)]
        follow: bool,
        /// Put an entry into quarantine that is refused so often in a row, or is not readable, and
        /// go on with the others [default: it blocks them]
        #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..))]
        quarantine_after: Option<u32>,
        #[command(flatten)]
        output: Output,
    },
    /// Shows bookies, topics and cursors; exit status 1 if something is missing or has failed.
    #[command(after_help = "\
Examples:
  georepl status --region data/west
  georepl status --region data/west orders --json")]
    Status {
        #[command(flatten)]
        place: Place,
        /// Only these topics
        #[arg(value_name = "TOPIC", value_parser = topic)]
        topics: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Says why topics do not get on to their remotes; exit status 1 if one waits for an operator.
    ///
    /// Where no replicator runs, it says why the last one stopped, if it did not come to its end.
    #[command(after_help = "\
Examples:
  georepl why --region data/west
  georepl why --region data/west orders --json")]
    Why {
        #[command(flatten)]
        place: Place,
        /// Only these topics
        #[arg(value_name = "TOPIC", value_parser = topic)]
        topics: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Prints the state of a topic as JSON, by the names of Pulsar's `topics stats-internal`; without
    /// one, of all topics by their names.
    #[command(after_help = "\
Examples:
  georepl stats-internal --region data/west orders
  georepl stats-internal --region data/west > topics.json
Exit status 1 if there is a topic that cannot be opened; it has an error in the place of its state.")]
    StatsInternal {
        #[command(flatten)]
        place: Place,
        /// Only this topic
        #[arg(value_parser = topic)]
        topic: Option<String>,
    },
    /// Looks at ledgers and recovers them.
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Replaces bookies whose files are lost.
    #[command(subcommand)]
    Bookie(BookieCommand),
    /// Lists, trims and ends topics.
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Looks at entries that replication has passed over, and settles what becomes of them.
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
    /// Lets the replication to a remote go on from somewhere else.
    #[command(after_help = "\
Examples:
  georepl seek --region data/west orders --remote east --to 3:17 --dry-run
  georepl seek --region data/west orders --remote east --to earliest --yes")]
    Seek {
        #[command(flatten)]
        place: Place,
        /// The topic
        #[arg(value_parser = topic)]
        topic: String,
        /// The remote region's name
        #[arg(long, value_name = "NAME")]
        remote: String,
        /// earliest, latest, or the position of the next entry to replicate, such as 3:17
        #[arg(long, value_name = "PLACE")]
        to: Start,
        #[command(flatten)]
        rule: Rule,
        #[command(flatten)]
        output: Output,
    },
    /// Passes over the next entries that are not replicated to a remote.
    #[command(after_help = "\
Examples:
  georepl skip --region data/west orders --remote east 1")]
    Skip {
        #[command(flatten)]
        place: Place,
        /// The topic
        #[arg(value_parser = topic)]
        topic: String,
        /// The remote region's name
        #[arg(long, value_name = "NAME")]
        remote: String,
        /// How many entries
        #[arg(value_name = "ENTRIES", value_parser = clap::value_parser!(u64).range(1..))]
        entries: u64,
        #[command(flatten)]
        rule: Rule,
        #[command(flatten)]
        output: Output,
    },
    /// Passes over everything that is not replicated to a remote.
    #[command(after_help = "\
Examples:
  georepl clear --region data/west orders --remote east --dry-run
  georepl clear --region data/west orders --remote east --yes")]
    Clear {
        #[command(flatten)]
        place: Place,
        /// The topic
        #[arg(value_parser = topic)]
        topic: String,
        /// The remote region's name
        #[arg(long, value_name = "NAME")]
        remote: String,
        #[command(flatten)]
        rule: Rule,
        #[command(flatten)]
        output: Output,
    },
}

/// A command on ledgers.
#[derive(Subcommand)]
pub(crate) enum LedgerCommand {
    /// Lists all ledgers.
    #[command(after_help = "Examples:\n  georepl ledger list --region data/west")]
    List {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        output: Output,
    },
    /// Shows the record of a ledger.
    #[command(after_help = "Examples:\n  georepl ledger show --region data/west 3")]
    Show {
        #[command(flatten)]
        place: Place,
        /// The ledger
        ledger: u64,
        #[command(flatten)]
        output: Output,
    },
    /// Prints confirmed entries of a ledger as they are stored, in hexadecimal.
    #[command(
        after_help = "Examples:\n  georepl ledger read --region data/west 3 --first 10 --last 12"
    )]
    Read {
        #[command(flatten)]
        place: Place,
        /// The ledger
        ledger: u64,
        /// The first entry; it must be there
        #[arg(long, value_name = "ENTRY", default_value_t = 0)]
        first: u64,
        /// The last entry, which must be there too [default: the last that is confirmed]
        #[arg(long, value_name = "ENTRY")]
        last: Option<u64>,
        #[command(flatten)]
        output: Output,
    },
    /// Looks at every copy of every entry; exit status 1 if copies are missing.
    #[command(
        after_help = "Examples:\n  georepl ledger check --region data/west\n  georepl ledger check --region data/west 3 4"
    )]
    Check {
        #[command(flatten)]
        place: Place,
        /// Only these ledgers
        ledgers: Vec<u64>,
        #[command(flatten)]
        output: Output,
    },
    /// Finds out where a ledger ends whose writer is gone, and closes it there.
    #[command(after_help = "Examples:\n  georepl ledger recover --region data/west 3 --yes")]
    Recover {
        #[command(flatten)]
        place: Place,
        /// The ledger
        ledger: u64,
        /// Do it although a writer that still runs would be fenced
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
}

/// A command on bookies.
#[derive(Subcommand)]
pub(crate) enum BookieCommand {
    /// Lets a bookie whose file is lost begin again, empty; its old file is refused from then on.
    ///
    /// Nobody may hold the region, and the file must not be there: move a damaged one away, and keep it.
    #[command(after_help = "\
Examples:
  georepl ledger check --region data/west
  georepl bookie renew --region data/west west-bookie-2 --yes
  georepl ledger check --region data/west
The first check says whether other bookies hold copies of all that the lost file had, the second
one what has too few copies now. If so many are lost that the region does not open, nothing can be
checked before it does: renew just enough of them, check, and renew the others.")]
    Renew {
        #[command(flatten)]
        place: Place,
        /// The bookie
        bookie: String,
        /// It is meant, although it cannot be undone
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
}

/// Where the region is.
#[derive(Args)]
pub(crate) struct Place {
    /// The directory of the region
    #[arg(long, value_name = "DIR")]
    pub(crate) region: PathBuf,
}

/// How the outcome is printed.
#[derive(Args)]
pub(crate) struct Output {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whether a change is made.
#[derive(Args)]
pub(crate) struct Rule {
    /// Only say what would happen
    #[arg(long)]
    dry_run: bool,
    /// It is meant, although entries are sent again, passed over or deleted
    #[arg(long)]
    yes: bool,
}

impl Rule {
    pub(crate) fn run(&self) -> Run {
        if self.dry_run { Run::Dry } else { Run::Real }
    }

    pub(crate) fn consent(&self) -> Consent {
        consent(self.yes)
    }
}

pub(crate) fn consent(yes: bool) -> Consent {
    if yes { Consent::Given } else { Consent::Missing }
}

pub(crate) fn until(follow: bool) -> Until {
    if follow { Until::Told } else { Until::End }
}
