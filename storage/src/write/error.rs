//! Why a ledger takes no more entries, and why it could not be closed.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::Advice;
use crate::id::{BookieId, EntryId, LedgerId, Shown};
use crate::metadata::{InvalidTransition, LedgerEnd};
use crate::transport::BookieError;

/// Why a ledger takes no more entries. The first reason stays.
///
/// Of the entries above the last one that was confirmed, each may or may not be part of the ledger in the end:
/// whoever closes it decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Error {
    /// Somebody else is recovering or has closed the ledger. The record was left alone.
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
    /// Somebody else closed the ledger, at another end than its writer knows.
    #[error(transparent)]
    ClosedElsewhere(#[from] ClosedElsewhere),
    /// A bookie knows the ledger under another password.
    #[error("bookie {bookie} refused the key of ledger {ledger}; check the password")]
    Unauthorized {
        /// The ledger.
        ledger: LedgerId,
        /// The bookie that refused.
        bookie: BookieId,
    },
    /// So many bookies failed, and nobody could take their place, that a further entry might not be recoverable.
    #[error("entry {entry} of ledger {ledger} cannot reach its ack quorum: {}", Failures(failures))]
    QuorumLost {
        /// The ledger.
        ledger: LedgerId,
        /// The first entry that was not confirmed.
        entry: EntryId,
        /// The members of the ensemble that failed, and why.
        failures: Vec<(BookieId, Failure)>,
    },
    /// An entry was not acknowledged within the add quorum timeout.
    #[error("entry {entry} of ledger {ledger} was not acknowledged in time; look for slow bookies")]
    AddQuorumTimeout {
        /// The ledger.
        ledger: LedgerId,
        /// The oldest entry without its ack quorum.
        entry: EntryId,
    },
    /// The ensemble changed as often as it may.
    #[error(
        "ledger {ledger} lost bookies {changes} times, more than one ledger should; look for bookies that come and go"
    )]
    TooManyChanges {
        /// The ledger.
        ledger: LedgerId,
        /// How often.
        changes: u64,
    },
    /// A bookie has dropped the ledger, which it does only after its record was deleted.
    #[error("bookie {bookie} has dropped ledger {ledger}; it was deleted while it was written")]
    Dropped {
        /// The ledger.
        ledger: LedgerId,
        /// The bookie that said so.
        bookie: BookieId,
    },
    /// The record is gone, damaged or does not allow what the writer must write; it was left alone.
    #[error("the record of ledger {ledger} is of no use to its writer: {reason}")]
    Record {
        /// The ledger.
        ledger: LedgerId,
        /// What is wrong with it.
        reason: Arc<str>,
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
            Self::Unauthorized { .. } | Self::Record { .. } => Advice::GiveUp,
            Self::Fenced { .. }
            | Self::Dropped { .. }
            | Self::Closed { .. }
            | Self::ClosedElsewhere(_)
            | Self::QuorumLost { .. }
            | Self::AddQuorumTimeout { .. }
            | Self::TooManyChanges { .. }
            | Self::Stopped { .. } => Advice::Reopen,
        }
    }
}

/// Why a member of the ensemble was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// It refused an entry, or did not answer.
    #[error(transparent)]
    Bookie(#[from] BookieError),
    /// It was so slow that too many bytes had to be kept for it.
    #[error("is too far behind the others")]
    Behind,
    /// It is not the bookie it was: it was wiped and set up again under its id.
    #[error("came back as another instance than the one that joined the ledger")]
    OtherInstance,
}

/// `b1 is read-only, b2 cannot be reached`.
struct Failures<'a>(&'a [(BookieId, Failure)]);

impl fmt::Display for Failures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (bookie, error)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{bookie} {error}")?;
        }
        Ok(())
    }
}

/// Somebody else closed a ledger at another end than its writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClosedElsewhere {
    /// The ledger.
    pub ledger: LedgerId,
    /// The end in the record, which is final.
    pub found: LedgerEnd,
    /// The end the writer knows: everything up to it was acknowledged.
    pub confirmed: LedgerEnd,
}

impl ClosedElsewhere {
    /// The entries that were acknowledged and are not part of the ledger: data loss. It takes more lost bookies than
    /// the quorums allow for, or one that forgot what it had promised.
    #[must_use]
    pub fn lost(&self) -> Option<RangeInclusive<EntryId>> {
        let last = self.confirmed.last_entry?;
        let first = EntryId::following(self.found.last_entry);
        (first <= last).then_some(first..=last)
    }
}

impl std::error::Error for ClosedElsewhere {}

impl fmt::Display for ClosedElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ledger, found, confirmed } = self;
        let (found, confirmed) = (Shown(found.last_entry), Shown(confirmed.last_entry));
        write!(
            f,
            "ledger {ledger} was closed by somebody else at entry {found}, this writer had confirmed up to {confirmed}"
        )?;
        match self.lost() {
            Some(lost) if lost.start() == lost.end() => {
                write!(f, "; entry {}, which was acknowledged, is lost", lost.start())
            }
            Some(lost) => {
                let (first, last) = (lost.start(), lost.end());
                write!(f, "; entries {first} to {last}, which were acknowledged, are lost")
            }
            None => Ok(()),
        }
    }
}

/// Why a writer could not close its ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CloseError {
    /// Somebody else is recovering the ledger and will close it, or has. The record was left alone.
    #[error(
        "ledger {ledger} is fenced: its end is decided by whoever recovers it; open it to learn the end"
    )]
    Fenced {
        /// The ledger.
        ledger: LedgerId,
    },
    /// The task of the ledger is gone, and with it the knowledge of where it ends.
    #[error("the task of ledger {ledger} was stopped with its runtime; recover the ledger")]
    Stopped {
        /// The ledger.
        ledger: LedgerId,
    },
    /// Somebody else closed the ledger, at another end.
    #[error(transparent)]
    ClosedElsewhere(#[from] ClosedElsewhere),
    /// The record does not allow the end.
    #[error("ledger {ledger} cannot be closed where its writer ends: {reason}")]
    Refused {
        /// The ledger.
        ledger: LedgerId,
        /// Why.
        #[source]
        reason: InvalidTransition,
    },
    /// The record is gone or damaged.
    #[error("the record of ledger {ledger} is of no use to its writer: {reason}")]
    Record {
        /// The ledger.
        ledger: LedgerId,
        /// What is wrong with it.
        reason: Arc<str>,
    },
    /// The metadata store does not answer. Whether the ledger is closed is unknown; close it again.
    #[error("whether ledger {ledger} is closed is unknown, close it again: {reason}")]
    Unknown {
        /// The ledger.
        ledger: LedgerId,
        /// What is known of the cause.
        reason: Arc<str>,
    },
}

impl CloseError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Unknown { .. } => Advice::Retry,
            Self::Fenced { .. } | Self::Stopped { .. } => Advice::Reopen,
            Self::ClosedElsewhere(_) | Self::Refused { .. } | Self::Record { .. } => Advice::GiveUp,
        }
    }
}
