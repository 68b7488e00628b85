//! The LAC that a writer or reader shares with those who read and wait.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::id::EntryId;

/// A LAC that one task moves and others look at or wait for. Once a writer has ended, its readers move it instead, each
/// by what it has learnt: it only rises, until one of them meets the end of the closed ledger, which is exact and stays.
#[derive(Debug, Default)]
pub(crate) struct SharedLac {
    /// LAC + 1, so that 0 stands for none.
    following: AtomicU64,
    /// The last entry of the closed ledger. Whoever still has an older record may go on raising; it counts no more.
    end: OnceLock<Option<EntryId>>,
    /// Whether the writer has said its last word. Set after the last move of its own.
    writer_ended: AtomicBool,
    moved: Notify,
}

impl SharedLac {
    pub(crate) fn new(lac: Option<EntryId>) -> Self {
        Self { following: AtomicU64::new(EntryId::following(lac).get()), ..Self::default() }
    }

    pub(crate) fn get(&self) -> Option<EntryId> {
        match self.end.get() {
            Some(end) => *end,
            None => EntryId(self.following.load(Ordering::Acquire)).checked_prev(),
        }
    }

    /// Sets it for ever, also to a lower one. A ledger has one end, so whoever says it first says what all would.
    pub(crate) fn end_at(&self, last_entry: Option<EntryId>) {
        if self.end.set(last_entry).is_ok() {
            self.moved.notify_waiters();
        }
    }

    /// Raises it, if `lac` is higher.
    pub(crate) fn raise(&self, lac: Option<EntryId>) {
        let following = EntryId::following(lac).get();
        if self.following.fetch_max(following, Ordering::AcqRel) < following {
            self.moved.notify_waiters();
        }
    }

    /// The writer moves it no more.
    pub(crate) fn end_writer(&self) {
        self.writer_ended.store(true, Ordering::Release);
        self.moved.notify_waiters();
    }

    pub(crate) fn has_writer_ended(&self) -> bool {
        self.writer_ended.load(Ordering::Acquire)
    }

    /// Waits until the writer has ended. Cancel-safe.
    pub(crate) async fn writer_end(&self) {
        loop {
            // Listens before it looks, so that the end does not fall in between.
            let moved = self.moved.notified();
            if self.has_writer_ended() {
                return;
            }
            moved.await;
        }
    }

    /// Waits until it is beyond `known`. Cancel-safe.
    pub(crate) async fn beyond(&self, known: Option<EntryId>) -> EntryId {
        loop {
            // Listens before it looks, so that no move falls in between.
            let moved = self.moved.notified();
            if let Some(lac) = self.get().filter(|lac| Some(*lac) > known) {
                return lac;
            }
            moved.await;
        }
    }
}
