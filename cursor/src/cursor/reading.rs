//! Reading as a future.

use std::sync::Arc;

use georepl_storage::Advice;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{ManagedCursor, Patience, ReadSink};
use crate::machine::{ReadFailed, ReadId, ReadLimits, ReadOutcome, ReadRefused, ReadStart};
use crate::managed_ledger::Entry;

/// Why a read ended without entries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadEntriesError {
    /// It was not taken.
    #[error(transparent)]
    Refused(#[from] ReadRefused),
    /// It was cancelled while it waited.
    #[error("the read was cancelled")]
    Cancelled,
    /// The cursor was rewound, or an earlier read failed; read again from where it is now.
    #[error("the read was taken back; read again from where the cursor is now")]
    Superseded,
    /// The topic was terminated while it waited.
    #[error("the topic was terminated: there is no more to read")]
    Terminated,
    /// The cursor was closed.
    #[error("the cursor was closed")]
    Closed,
    /// Storage failed; the read position is where it was.
    #[error(transparent)]
    Failed(#[from] ReadFailed),
}

impl ReadEntriesError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Refused(refused) => refused.advice(),
            Self::Cancelled | Self::Superseded | Self::Failed(_) => Advice::Retry,
            Self::Terminated => Advice::GiveUp,
            Self::Closed => Advice::Reopen,
        }
    }
}

impl ManagedCursor {
    /// Reads at the read position; no entries when every entry was read.
    ///
    /// If the future is dropped before it completes, the cursor is rewound, so that what the read
    /// has taken, or may have taken, is delivered again.
    ///
    /// # Errors
    /// [`ReadEntriesError`].
    pub async fn read_entries(&self, limits: ReadLimits) -> Result<Vec<Entry>, ReadEntriesError> {
        match self.take(limits, Patience::Answer) {
            Ok(taken) => taken.outcome().await,
            Err(ReadRefused::NothingToRead) => Ok(Vec::new()),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Reads at the read position, or waits there for the next entry.
    ///
    /// If the future is dropped while it waits, the read is cancelled and nothing moves. If it is
    /// dropped later, the cursor is rewound, so that what the read has taken is delivered again,
    /// and so is whatever else is not acknowledged.
    ///
    /// # Errors
    /// [`ReadEntriesError`].
    pub async fn read_entries_or_wait(
        &self,
        limits: ReadLimits,
    ) -> Result<Vec<Entry>, ReadEntriesError> {
        self.take(limits, Patience::Wait)?.outcome().await
    }

    fn take(&self, limits: ReadLimits, patience: Patience) -> Result<Taken<'_>, ReadRefused> {
        let (reply, outcome) = oneshot::channel();
        let sink = Arc::new(Reply(Mutex::new(Some(reply))));
        let (ReadStart::Dispatched(id) | ReadStart::Waiting(id)) =
            self.submit(limits, sink, patience)?;
        Ok(Taken { cursor: self, id, outcome })
    }

    /// The reader of `id` is gone without having seen how it ended.
    fn abandon(&self, id: ReadId) {
        self.step(|state| {
            if state.machine.waiting_read() == Some(id) {
                state.machine.cancel_pending_read();
            } else {
                state.machine.rewind();
            }
        });
    }
}

/// Hands the outcome of one read to its future.
struct Reply(Mutex<Option<oneshot::Sender<ReadOutcome<Entry>>>>);

impl ReadSink for Reply {
    fn read_completed(&self, _: ReadId, outcome: ReadOutcome<Entry>) {
        let reply = self.0.lock().take().expect("a read completes once");
        // A reader that is gone has told the cursor.
        let _ = reply.send(outcome);
    }
}

/// A read that was taken. Dropped before its outcome was seen, it gives the cursor back what it
/// took.
struct Taken<'a> {
    cursor: &'a ManagedCursor,
    id: ReadId,
    outcome: oneshot::Receiver<ReadOutcome<Entry>>,
}

impl Taken<'_> {
    async fn outcome(mut self) -> Result<Vec<Entry>, ReadEntriesError> {
        match (&mut self.outcome).await.expect("every read that was taken completes") {
            ReadOutcome::Entries(entries) => Ok(entries),
            ReadOutcome::Cancelled => Err(ReadEntriesError::Cancelled),
            ReadOutcome::Superseded => Err(ReadEntriesError::Superseded),
            ReadOutcome::Terminated => Err(ReadEntriesError::Terminated),
            ReadOutcome::Closed => Err(ReadEntriesError::Closed),
            ReadOutcome::Failed(failed) => Err(failed.into()),
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        match self.outcome.try_recv() {
            // Seen by `outcome`, which took it out.
            Err(oneshot::error::TryRecvError::Closed) => {}
            Ok(ReadOutcome::Entries(_)) | Err(oneshot::error::TryRecvError::Empty) => {
                self.cursor.abandon(self.id);
            }
            // It took nothing.
            Ok(_) => {}
        }
    }
}
