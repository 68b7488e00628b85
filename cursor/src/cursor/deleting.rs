//! Deleting a topic, with its cursors.

use georepl_storage::Advice;

use super::{ManagedCursor, OpenCursorError};
use crate::managed_ledger::{ChangeError, ManagedLedger};

/// Why a topic was not deleted, or not to the end. It is closed; open it and delete it again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// A cursor was not removed.
    #[error(transparent)]
    Cursor(#[from] OpenCursorError),
    /// The ledgers or the record were not removed.
    #[error(transparent)]
    Topic(#[from] ChangeError),
}

impl DeleteError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Cursor(error) => error.advice(),
            Self::Topic(error) => error.advice(),
        }
    }
}

impl ManagedLedger {
    /// Deletes the topic: its cursors, its ledgers, its record, in this order, so that what is left by a crash is a topic
    /// that can be opened and deleted again. Whoever owns it elsewhere keeps it.
    ///
    /// If the future is dropped, part of it may be deleted.
    ///
    /// # Errors
    /// [`DeleteError`].
    pub async fn delete(&self) -> Result<(), DeleteError> {
        for name in self.cursors() {
            ManagedCursor::remove(self, &name).await?;
        }
        Ok(self.delete_without_cursors().await?)
    }
}
