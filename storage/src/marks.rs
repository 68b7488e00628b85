//! The ledgers that are marked for a full check of some of their bookies, kept in the metadata store until somebody
//! repairs them.
//!
//! A mark is only ever added to, so that the order of those who add does not matter; it goes with its ledger.

use crate::error::Advice;
use crate::id::LedgerId;
use crate::metadata::{Expected, MetadataError};
use crate::read::Core;
use crate::shortfall::Shortfall;

/// How often a mark is tried for when others change it meanwhile, which is rare: a ledger has one writer.
const ATTEMPTS_MAX: usize = 4;

/// Why the mark of a ledger could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    /// The mark is damaged or of an unknown kind. That there is one says that the ledger lacks copies.
    #[error(
        "the mark of ledger {ledger} as under-replicated cannot be read; check the whole ledger, then remove the mark"
    )]
    Damaged {
        /// The ledger.
        ledger: LedgerId,
    },
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl MarkError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Damaged { .. } => Advice::GiveUp,
            // Reading changes nothing, so it may be repeated whatever became of it.
            Self::Metadata(_) => Advice::Retry,
        }
    }
}

/// The key of a ledger's mark.
pub(crate) fn mark_key(ledger: LedgerId) -> String {
    format!("underreplicated/L{:010}", ledger.get())
}

/// What a ledger is marked for; empty if it is not.
pub(crate) async fn read(core: &Core, ledger: LedgerId) -> Result<Vec<Shortfall>, MarkError> {
    let key = mark_key(ledger);
    match core.metadata(&key, core.store.get(&key)).await? {
        Some(found) => Shortfall::decode(&found.value).ok_or(MarkError::Damaged { ledger }),
        None => Ok(Vec::new()),
    }
}

/// Adds to what a ledger is marked for. Cancel-safe: it was added or not, and may be again.
pub(crate) async fn add(
    core: &Core,
    ledger: LedgerId,
    shortfalls: &[Shortfall],
) -> Result<(), MetadataError> {
    let key = mark_key(ledger);
    let mut attempts = 1..ATTEMPTS_MAX;
    loop {
        let found = core.metadata(&key, core.store.get(&key)).await?;
        // What cannot be understood is replaced: the new list is what is known.
        let known = found.as_ref().and_then(|found| Shortfall::decode(&found.value));
        let mut list = known.clone().unwrap_or_default();
        for Shortfall { bookie, first, last } in shortfalls {
            Shortfall::note(&mut list, bookie, *first, *last);
        }
        if known.as_ref() == Some(&list) {
            return Ok(());
        }
        let expected = found.map_or(Expected::Absent, |found| Expected::Version(found.version));
        let put = core.store.put(&key, Shortfall::encode(&list), expected);
        match core.metadata(&key, put).await {
            Ok(_) => return Ok(()),
            // Also after a lost answer: if that write came through there is nothing left to add.
            Err(error) => attempts.next().map(|_| ()).ok_or(error)?,
        }
    }
}

/// Takes the mark off a ledger that was deleted. That there is none is a success.
pub(crate) async fn remove(core: &Core, ledger: LedgerId) -> Result<(), MetadataError> {
    let key = mark_key(ledger);
    let mut attempts = 1..ATTEMPTS_MAX;
    loop {
        let Some(found) = core.metadata(&key, core.store.get(&key)).await? else {
            return Ok(());
        };
        match core.metadata(&key, core.store.delete(&key, found.version)).await {
            Ok(()) | Err(MetadataError::NotFound { .. }) => return Ok(()),
            Err(error) => attempts.next().map(|_| ()).ok_or(error)?,
        }
    }
}
