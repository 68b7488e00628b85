//! The handle to write a ledger.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::id::{EntryId, LedgerId};
use crate::metadata::{LedgerEnd, LedgerMetadata};
use crate::read::{Core, LedgerReader};
use crate::shortfall::Shortfall;
use crate::write::{self, CloseError, WriterStats, Writing};

/// The one writer of a ledger. Dropping it stops the ledger's task and leaves the ledger open.
pub struct LedgerWriter {
    pub(super) core: Arc<Core>,
    pub(super) ledger: LedgerId,
    pub(super) writing: Writing,
}

impl LedgerWriter {
    /// The ledger's id.
    #[must_use]
    pub const fn id(&self) -> LedgerId {
        self.ledger
    }

    /// Appends payloads, one entry each, and returns the id of the first; the others follow it. The sink is told when
    /// they are acknowledged. An empty batch returns the id that the next entry will get.
    ///
    /// Never blocks and never waits: what is appended is held in memory until its bookies have answered or their
    /// request timeout is over, so the caller bounds the bytes it has unconfirmed. The iterator runs under the
    /// ledger's lock and must not use the ledger.
    ///
    /// # Errors
    /// [`write::Error`] if the ledger takes no more entries; none of the batch was appended.
    pub fn append(
        &self,
        payloads: impl IntoIterator<Item = Bytes>,
    ) -> Result<EntryId, write::Error> {
        self.writing.append(payloads)
    }

    /// Everything up to this entry is acknowledged. Once the ledger takes no more entries: or is known to be part of it,
    /// because a [`reader`](Self::reader) of this writer has learnt what others found.
    #[must_use]
    pub fn last_add_confirmed(&self) -> Option<EntryId> {
        self.writing.lac().get()
    }

    /// The newest record of the ledger that the writer knows.
    #[must_use]
    pub fn metadata(&self) -> Arc<LedgerMetadata> {
        self.writing.report().record.0
    }

    /// What the writer has been through.
    #[must_use]
    pub fn stats(&self) -> WriterStats {
        self.writing.report().stats
    }

    /// Where acknowledged entries may lack a copy, because a bookie was lost before it had answered: what a repair of
    /// the ledger must check in full. At most one range per bookie. The ledger is marked for them in the metadata store
    /// before its ensemble changes again and before it is closed, and [checks](crate::LedgerClient::check) read that.
    #[must_use]
    pub fn shortfalls(&self) -> Vec<Shortfall> {
        self.writing.report().shortfalls
    }

    /// A reader whose bound is this writer's LAC at every moment. It may outlive the writer: once that has ended, it
    /// goes on like one that [opened](crate::LedgerClient::open) the ledger, and finds what a recovery found.
    #[must_use]
    pub fn reader(&self) -> LedgerReader {
        LedgerReader::of_writer(
            self.core.clone(),
            self.ledger,
            self.writing.report().record,
            self.writing.lac().clone(),
        )
    }

    /// Closes the ledger: refuses further appends, waits until those before are decided, and writes the end into the
    /// record. After a failed append too the ledger is closed at its last confirmed entry, unless it is fenced.
    ///
    /// May be called again and by several at once; all learn the same end. If the future is dropped, appends stay
    /// refused, and whether the ledger is closed is unknown until it is called again.
    ///
    /// # Errors
    /// [`CloseError`].
    pub async fn close(&self) -> Result<LedgerEnd, CloseError> {
        self.writing.close(self.ledger).await
    }
}

impl fmt::Debug for LedgerWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerWriter")
            .field("ledger", &self.ledger)
            .field("last_add_confirmed", &self.last_add_confirmed())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
