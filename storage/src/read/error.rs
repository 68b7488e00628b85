//! Why a read can fail.

use super::record::RecordError;
use crate::error::Advice;
use crate::id::{EntryId, LedgerId, Shown};
use crate::replica::Answers;

/// Why entries could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The range is empty or runs backwards.
    #[error("there are no entries from {first} to {last}")]
    EmptyRange {
        /// First entry asked for.
        first: EntryId,
        /// Last entry asked for.
        last: EntryId,
    },
    /// The range ends beyond what is known to be confirmed, also by the newest record. No bookie was asked.
    #[error("entry {last} of ledger {ledger} is beyond the last confirmed entry, {}", Shown(*last_add_confirmed))]
    BeyondLac {
        /// The ledger.
        ledger: LedgerId,
        /// Last entry asked for.
        last: EntryId,
        /// What the reader knows to be confirmed.
        last_add_confirmed: Option<EntryId>,
    },
    /// Every bookie that should hold a confirmed entry says that it never did, and the newest record names no others.
    #[error("no bookie has entry {entry} of ledger {ledger}, which was confirmed: {answers}")]
    NoSuchEntry {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// What the bookies said.
        answers: Answers,
    },
    /// No copy could be read, but there may be one.
    #[error("no copy of entry {entry} of ledger {ledger} could be read: {answers}")]
    Unreadable {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// What the bookies said.
        answers: Answers,
    },
    /// The record was needed to judge a failure and could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl ReadError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::EmptyRange { .. } | Self::NoSuchEntry { .. } => Advice::GiveUp,
            Self::BeyondLac { .. } | Self::Unreadable { .. } => Advice::Retry,
            Self::Record(error) => error.advice(),
        }
    }
}

/// Too few bookies answered to know a ledger's LAC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too few bookies of ledger {ledger} answered to know its last confirmed entry: {answers}")]
pub struct LacUnknown {
    /// The ledger.
    pub ledger: LedgerId,
    /// What the bookies that failed said.
    pub answers: Answers,
}

/// Why the LAC of a ledger could not be learned. It is then unknown, which is not "none".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LacError {
    /// Too few bookies answered.
    #[error(transparent)]
    Unknown(#[from] LacUnknown),
    /// The record could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl LacError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Unknown(_) => Advice::Retry,
            Self::Record(error) => error.advice(),
        }
    }
}
