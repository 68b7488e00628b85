//! Entries of ledgers that were deleted, and when they go.
//!
//! 1. Before the record of a ledger is deleted, a note of that is stored.
//! 2. A ledger that is noted and has no record was deleted, and its id is never used again: the bookies drop it.
//! 3. When every bookie of the region has dropped it, the note goes.
//!
//! That a record is not found says nothing by itself: a damaged store finds less than there is, and its file can be put
//! back; what bookies have dropped cannot. A note whose ledger has a record is of a deletion that was cut off, and counts
//! when it is made up for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use georepl_storage::{
    DeleteLedgersError, Expected, LedgerId, MetadataError, MetadataStore, Version, Versioned,
    ledger_key,
};
use tokio::sync::Notify;

use super::Bookies;

/// Why what was deleted may still be on the bookies. It is tried again after the next deletion and at the next opening.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Bookie(#[from] DeleteLedgersError),
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("{folder}/{name} names no ledger; restore the metadata from a copy")]
    NoLedger { folder: &'static str, name: String },
}

/// Whether all bookies of a region are open: what one has that is not may show later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attendance {
    All,
    Some,
}

/// Lets the bookies drop what was deleted. Says how many ledgers that were.
pub(super) async fn collect(
    bookies: &Bookies,
    attendance: Attendance,
    store: &dyn MetadataStore,
) -> Result<usize, Error> {
    let mut doomed = Vec::new();
    for ledger in ledgers_in(store, NOTES).await? {
        let Some(note) = store.get(&note_key(ledger)).await? else { continue };
        if store.get(&ledger_key(ledger)).await?.is_none() {
            doomed.push((ledger, note.version));
        }
    }
    if doomed.is_empty() {
        return Ok(0);
    }
    // Of all bookies, also of those that do not seem to have any: one that has failed does not say.
    bookies.delete_ledgers(doomed.iter().map(|(ledger, _)| *ledger).collect()).await?;
    if attendance == Attendance::All {
        let forgotten =
            stream::iter(&doomed).for_each_concurrent(AT_ONCE, async |(ledger, note)| {
                // One that stays is looked at again.
                let _ = store.delete(&note_key(*ledger), *note).await;
            });
        forgotten.await;
    }
    Ok(doomed.len())
}

/// The ledgers whose records or notes are in a folder. If one of them cannot be understood, none is.
pub(super) async fn ledgers_in(
    store: &dyn MetadataStore,
    folder: &'static str,
) -> Result<Vec<LedgerId>, Error> {
    let names = store.children(folder).await?;
    let ledger = |name: String| {
        let id = name.strip_prefix('L').and_then(|id| id.parse().ok()).map(LedgerId);
        let whole = id.filter(|id| ledger_key(*id) == format!("{LEDGERS}/{name}"));
        whole.ok_or(Error::NoLedger { folder, name })
    };
    names.into_iter().map(ledger).collect()
}

/// The folder of the ledgers' records.
pub(super) const LEDGERS: &str = "ledgers";
/// The folder of the notes.
const NOTES: &str = "deleted";
/// Notes that are removed at once, and share what the store writes for one.
const AT_ONCE: usize = 64;

fn note_key(ledger: LedgerId) -> String {
    format!("{NOTES}/L{:010}", ledger.get())
}

/// The metadata store of a region: it notes which ledgers are deleted, and knows which were created in this opening.
pub(super) struct Watched {
    pub(super) store: Arc<dyn MetadataStore>,
    deleted: Arc<Notify>,
    /// The least id that was given out; the largest number while none was.
    first_given: AtomicU64,
}

impl Watched {
    pub(super) fn new(store: Arc<dyn MetadataStore>, deleted: Arc<Notify>) -> Self {
        Self { store, deleted, first_given: AtomicU64::new(u64::MAX) }
    }

    /// Every ledger with a lesser id was created in an earlier opening: nobody is creating it. May use up an id.
    pub(super) async fn first_given(&self) -> Result<LedgerId, MetadataError> {
        if self.first_given.load(Ordering::Acquire) == u64::MAX {
            self.allocate_ledger_id().await?;
        }
        Ok(LedgerId(self.first_given.load(Ordering::Acquire)))
    }

    /// Notes that a ledger is about to be deleted.
    async fn note(&self, ledger: LedgerId) -> Result<(), MetadataError> {
        match self.store.put(&note_key(ledger), Bytes::new(), Expected::Absent).await {
            // Or it was noted before.
            Ok(_) | Err(MetadataError::VersionConflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl MetadataStore for Watched {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        self.store.get(key).await
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        self.store.put(key, value, expected).await
    }

    async fn create_ephemeral(&self, key: &str, value: Bytes) -> Result<Version, MetadataError> {
        self.store.create_ephemeral(key, value).await
    }

    async fn delete(&self, key: &str, version: Version) -> Result<(), MetadataError> {
        let id = key.strip_prefix(LEDGERS).and_then(|name| name.strip_prefix("/L")?.parse().ok());
        let Some(ledger) = id.map(LedgerId) else { return self.store.delete(key, version).await };
        self.note(ledger).await?;
        let deleted = self.store.delete(key, version).await;
        if deleted.is_ok() {
            self.deleted.notify_one();
        }
        deleted
    }

    async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError> {
        self.store.children(key).await
    }

    async fn allocate_ledger_id(&self) -> Result<LedgerId, MetadataError> {
        let given = self.store.allocate_ledger_id().await?;
        self.first_given.fetch_min(given.get(), Ordering::AcqRel);
        Ok(given)
    }
}
