//! Faults of what a bookie in memory holds.

use bytes::Bytes;

use crate::bookie::MemoryBookies;
use crate::entry::Entry;
use crate::id::{BookieId, EntryId, LedgerId};

impl MemoryBookies {
    /// Loses a bookie's copy of an entry, and returns it.
    pub fn remove_entry(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        entry: EntryId,
    ) -> Option<Entry> {
        self.with_entries(bookie, ledger, |entries| entries.remove(entry)).flatten()
    }

    /// Puts another copy in the place of a bookie's copy of an entry, and returns the old one; without one there is
    /// none to replace. The entry is the one that `copy` names.
    pub fn replace_entry(&self, bookie: &BookieId, ledger: LedgerId, copy: Entry) -> Option<Entry> {
        let entry = copy.entry();
        self.with_entries(bookie, ledger, |entries| entries.replace(entry, copy)).flatten()
    }

    /// Damages a bookie's copy of an entry, so that its digest no longer fits, and returns the good one.
    pub fn corrupt_entry(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        entry: EntryId,
    ) -> Option<Entry> {
        let good = self.entries(bookie, ledger).into_iter().find(|copy| copy.entry() == entry)?;
        self.replace_entry(bookie, ledger, corrupted(&good))
    }
}

/// The entry with the lowest bit of its last byte turned over.
pub(super) fn corrupted(entry: &Entry) -> Entry {
    let mut bytes = entry.to_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    Entry::from_bytes(Bytes::from(bytes))
        .expect("the last byte belongs to the payload or the digest")
}
