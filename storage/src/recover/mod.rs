//! Recovering a ledger: finding out where it ends, whoever wrote it, and closing it there.

#[cfg(feature = "io")]
mod driver;
mod existence;
mod fencing;
mod machine;
mod request;
mod write_back;

use std::sync::Arc;

use crate::error::Advice;
use crate::id::{BookieId, EntryId, LedgerId};
use crate::metadata::{LedgerMetadata, LengthIs, Version};
use crate::replica::Answers;

#[cfg(feature = "io")]
pub(crate) use driver::run;
pub use machine::{Config, Input, Machine, Output};

/// How far a recovery has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// The last entry known to be part of the ledger; none before the bookies were asked, or if there is none.
    pub last_entry: Option<EntryId>,
    /// How many entries were found behind the last confirmed one and written back.
    pub entries_written_back: u64,
}

/// A ledger that is closed now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recovered {
    /// Its record.
    pub record: Arc<LedgerMetadata>,
    /// The version of the record.
    pub version: Version,
    /// Who decided where it ends.
    pub closed_by: ClosedBy,
}

/// Who decided where a ledger ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClosedBy {
    /// Its writer or another recovery, before this one or during it. Also this one, if the answer of the store was
    /// lost.
    Another,
    /// This recovery.
    ThisRecovery {
        /// Whether the length in the record is exact.
        length: LengthIs,
    },
}

/// Why a ledger could not be recovered. It is left in recovery, which is no obstacle to the next attempt, here or
/// elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum Error {
    /// There is no such ledger, or it was deleted.
    #[error("ledger {ledger} does not exist; it may have been deleted")]
    NoSuchLedger {
        /// The ledger.
        ledger: LedgerId,
    },
    /// The record is damaged or of an unknown kind.
    #[error("the record of ledger {ledger} cannot be used: {reason}")]
    Unusable {
        /// The ledger.
        ledger: LedgerId,
        /// What is wrong with it.
        reason: Arc<str>,
    },
    /// The password is not the ledger's.
    #[error("ledger {ledger} has another password")]
    WrongPassword {
        /// The ledger.
        ledger: LedgerId,
    },
    /// A bookie knows the ledger under another password than the record.
    #[error(
        "bookie {bookie} refused the key of ledger {ledger}; its record or that bookie is wrong"
    )]
    Unauthorized {
        /// The ledger.
        ledger: LedgerId,
        /// The bookie that refused.
        bookie: BookieId,
    },
    /// So few bookies could be fenced that the writer might go on without them.
    #[error(
        "too few bookies of ledger {ledger} could be fenced: {answers}; recover it again when they are back"
    )]
    Fencing {
        /// The ledger.
        ledger: LedgerId,
        /// What the others said.
        answers: Answers,
    },
    /// An entry may exist on bookies that cannot tell. The ledger is not cut on doubt.
    #[error(
        "entry {entry} of ledger {ledger} may exist or not: {answers}; recover it again when they are back"
    )]
    Doubt {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// The bookies that cause the doubt.
        answers: Answers,
    },
    /// An entry was found, but too few bookies took it back.
    #[error(
        "entry {entry} of ledger {ledger} was found but cannot be written back to its ack quorum: {answers}; start more bookies and recover it again"
    )]
    WriteBack {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// Who refused it.
        answers: Answers,
    },
    /// The record has left recovery and is not closed, or its ensembles have changed: nobody may do that.
    #[error(
        "the record of ledger {ledger} was changed during its recovery by other rules: {reason}"
    )]
    Tampered {
        /// The ledger.
        ledger: LedgerId,
        /// How.
        reason: Arc<str>,
    },
    /// The metadata store did not answer, or always with news. Whether the ledger is closed is unknown.
    #[error(
        "the record of ledger {ledger} could not be read or written: {reason}; recover it again"
    )]
    Metadata {
        /// The ledger.
        ledger: LedgerId,
        /// The last failure.
        reason: Arc<str>,
    },
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Fencing { .. }
            | Self::Doubt { .. }
            | Self::WriteBack { .. }
            | Self::Metadata { .. } => Advice::Retry,
            Self::NoSuchLedger { .. }
            | Self::Unusable { .. }
            | Self::WrongPassword { .. }
            | Self::Unauthorized { .. }
            | Self::Tampered { .. } => Advice::GiveUp,
        }
    }
}
