//! Entries of ledgers that were deleted, and when they go.
//!
//! 1. Which ledgers do the bookies hold? A bookie holds a ledger only after its record was stored.
//! 2. Which ledgers does the metadata store list?
//! 3. What was held and is not listed was deleted, and its id is never used again: the bookies drop it.
//!
//! In any other order a ledger could be dropped that was created in between.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
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
}

/// Lets the bookies drop what was deleted. Says how many ledgers that were.
pub(super) async fn collect(bookies: &Bookies, store: &dyn MetadataStore) -> Result<usize, Error> {
    let mut doomed = bookies.ledgers().await;
    for name in store.children(LEDGERS).await? {
        // What is no ledger's record names no ledger to keep.
        if let Some(ledger) = name.strip_prefix('L').and_then(|id| id.parse().ok()) {
            doomed.remove(&LedgerId(ledger));
        }
    }
    let dropped = doomed.len();
    if dropped > 0 {
        bookies.delete_ledgers(doomed).await?;
    }
    Ok(dropped)
}

/// The folder of the ledgers' records.
const LEDGERS: &str = "ledgers";

/// A metadata store that says when a ledger was deleted.
pub(super) struct Watched {
    store: Arc<dyn MetadataStore>,
    deleted: Arc<Notify>,
}

impl Watched {
    pub(super) fn new(store: Arc<dyn MetadataStore>, deleted: Arc<Notify>) -> Self {
        debug_assert!(ledger_key(LedgerId(0)).starts_with(LEDGERS), "records are in that folder");
        Self { store, deleted }
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
        let deleted = self.store.delete(key, version).await;
        if deleted.is_ok() && key.split('/').next() == Some(LEDGERS) {
            self.deleted.notify_one();
        }
        deleted
    }

    async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError> {
        self.store.children(key).await
    }

    async fn allocate_ledger_id(&self) -> Result<LedgerId, MetadataError> {
        self.store.allocate_ledger_id().await
    }
}
