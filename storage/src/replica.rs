//! What single replicas of an entry were found to be worth.

use std::fmt;

use crate::entry::{Entry, EntryError};
use crate::id::{BookieId, EntryId, LedgerId};
use crate::transport::{BookieError, ResponseBody};

/// Why a replica of an entry could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum ReplicaError {
    /// The bookie refused or did not answer.
    #[error(transparent)]
    Bookie(#[from] BookieError),
    /// What it sent is damaged or another entry.
    #[error("sent a bad copy: {0}")]
    Copy(#[from] EntryError),
    /// It answered another question.
    #[error("answered another question")]
    Unexpected,
    /// It was wiped and set up again since it became a member, so that what it has not says nothing.
    #[error("was set up anew since it became a member of the ledger")]
    OtherInstance,
}

/// What each bookie that was asked said, in the order of asking.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answers(pub Vec<(BookieId, ReplicaError)>);

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (bookie, error)) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{bookie} {error}")?;
        }
        Ok(())
    }
}

/// The copy that a bookie sent, if it is an undamaged copy of the entry that was asked for.
///
/// # Errors
/// [`ReplicaError`]; it concerns this copy only.
pub(crate) fn verified(
    ledger: LedgerId,
    entry: EntryId,
    result: Result<ResponseBody, BookieError>,
) -> Result<Entry, ReplicaError> {
    match result? {
        ResponseBody::Entry(found) => {
            found.verify(ledger, entry)?;
            Ok(found)
        }
        _ => Err(ReplicaError::Unexpected),
    }
}
