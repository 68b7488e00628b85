//! Writing a ledger: the machine that decides, and the task that carries it out.

#[cfg(feature = "io")]
mod driver;
mod machine;

use crate::error::Advice;
use crate::id::{BookieId, EntryId, LedgerId};
use crate::transport::BookieError;

#[cfg(feature = "io")]
pub use driver::AppendSink;
#[cfg(feature = "io")]
pub(crate) use driver::{Writing, start};
pub use machine::{Config, Input, Machine, Output};

/// Why a ledger takes no more entries. The first reason stays.
///
/// Of the entries above the last one that was confirmed, each may or may not be part of the ledger in the end:
/// whoever closes it decides.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A bookie refused an entry because somebody else is recovering or has closed the ledger.
    #[error("ledger {ledger} is fenced: somebody else is closing it; go on in a new ledger")]
    Fenced {
        /// The ledger.
        ledger: LedgerId,
    },
    /// The ledger was closed by its owner.
    #[error("ledger {ledger} is closed; go on in a new ledger")]
    Closed {
        /// The ledger.
        ledger: LedgerId,
    },
    /// A bookie knows the ledger under another password.
    #[error("bookie {bookie} refused the key of ledger {ledger}; check the password")]
    Unauthorized {
        /// The ledger.
        ledger: LedgerId,
        /// The bookie that refused.
        bookie: BookieId,
    },
    /// So many bookies failed that an entry cannot get its ack quorum.
    #[error("entry {entry} of ledger {ledger} cannot reach its ack quorum: {}", Failures(failures))]
    QuorumLost {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// The latest failure of each bookie of the entry's write set that failed.
        failures: Vec<(BookieId, BookieError)>,
    },
    /// An entry was not acknowledged within the add quorum timeout.
    #[error("entry {entry} of ledger {ledger} was not acknowledged in time; look for slow bookies")]
    AddQuorumTimeout {
        /// The ledger.
        ledger: LedgerId,
        /// The oldest entry without its ack quorum.
        entry: EntryId,
    },
    /// The task of the ledger is gone: its runtime was shut down, or the sink panicked.
    #[error("the task of ledger {ledger} was stopped with its runtime; recover the ledger")]
    Stopped {
        /// The ledger.
        ledger: LedgerId,
    },
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Unauthorized { .. } => Advice::GiveUp,
            Self::Fenced { .. }
            | Self::Closed { .. }
            | Self::QuorumLost { .. }
            | Self::AddQuorumTimeout { .. }
            | Self::Stopped { .. } => Advice::Reopen,
        }
    }
}

/// `b1 is read-only, b2 cannot be reached`.
struct Failures<'a>(&'a [(BookieId, BookieError)]);

impl std::fmt::Display for Failures<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (bookie, error)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{bookie} {error}")?;
        }
        Ok(())
    }
}
