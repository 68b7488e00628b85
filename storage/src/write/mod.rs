//! Writing a ledger: the machine that decides, and the task that carries it out.

mod adds;
mod bookies;
mod change;
mod close;
#[cfg(feature = "io")]
mod driver;
mod error;
mod machine;
mod record;
#[cfg(test)]
mod testing;

use std::time::Duration;

#[cfg(feature = "io")]
pub use driver::AppendSink;
#[cfg(feature = "io")]
pub(crate) use driver::{Writing, start};
pub use error::{CloseError, ClosedElsewhere, Error, Failure};
pub use machine::{Config, Input, Machine, Output};

/// What a writer waits for and puts up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// How long a bookie may take to answer one add before it has failed for the ledger, and how often one that
    /// failed is asked whether it is better while nobody can take its place.
    pub request_timeout: Duration,
    /// How long an entry may wait for its ack quorum before the writer ends.
    pub add_quorum_timeout: Duration,
    /// How many bytes of confirmed entries may be kept for the sake of one bookie that has yet to answer.
    pub bookie_backlog_bytes_max: u64,
    /// How often the ensemble may change before the writer ends.
    pub ensemble_changes_max: u64,
    /// How long after a confirmation the LAC is told by itself, if no entry has carried it to the bookies; none for
    /// never.
    pub explicit_lac_interval: Option<Duration>,
}

/// What a writer has been through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WriterStats {
    /// How often the ensemble changed.
    pub ensemble_changes: u64,
    /// How many entries were confirmed and are held by fewer than WQ bookies: a member was lost before it had
    /// answered. Such an entry stays so until it is copied; [`Shortfall`](crate::Shortfall) says where to look, and what
    /// is not counted: of a bookie that hangs when the writer ends, what it was sent within the last
    /// [`request_timeout`](crate::ClientConfig::request_timeout).
    pub entries_below_write_quorum: u64,
    /// How many slots of the present ensemble have lost their member without anybody to take its place.
    pub lost_members: usize,
}
