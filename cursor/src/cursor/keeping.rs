//! Keeping the state of a cursor: one write at a time, and each takes along all that changed meanwhile.

use std::sync::{Arc, Weak};
use std::time::Duration;

use georepl_storage::MetadataError;

use super::{ManagedCursor, State};
use crate::managed_ledger::Registered;
use crate::position::{Offset, Place};
use crate::progress::Progress;
use crate::records::Snapshot;
use crate::snapshots::PersistError;

/// How long a write waits after the one before it, unless somebody waits for it.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a write waits after one that failed, at most: it doubles from [`PAUSE`] on.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Ranges of single acknowledged entries in one snapshot. With more, the lowest are kept: the others are delivered
/// again after a restart. Each takes up to 50 bytes, so that a snapshot is an entry of at most 2.5 MB.
pub const ACKED_RANGES_MAX: usize = 50_000;

/// What is stored of a cursor.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// How many of its changes.
    changes: u64,
    /// Everything before this is acknowledged in what is stored.
    pub(super) mark_delete: Offset,
    /// Writes that were tried.
    attempts: u64,
    /// Why the last of them failed.
    failure: Option<PersistError>,
}

/// Who writes what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeper {
    /// Nobody: everything is stored.
    Idle,
    /// A task.
    Running,
    /// Whoever closes the cursor.
    Closing,
    /// Nobody any more: it is closed, and what there was is stored.
    Closed,
}

impl Kept {
    pub(super) fn all(mark_delete: Offset) -> Self {
        Self { changes: 0, mark_delete, attempts: 0, failure: None }
    }

    fn fenced(&self) -> bool {
        matches!(self.failure, Some(PersistError::Fenced { .. }))
    }
}

impl ManagedCursor {
    /// Waits until everything that was acknowledged, moved or noted before this call is durable.
    ///
    /// Cancel-safe: a dropped call leaves nothing behind, and the state is written all the same.
    ///
    /// # Errors
    /// [`PersistError`]. Unless somebody else has taken the cursor, it is written as soon as storage takes it.
    pub async fn persist(&self) -> Result<(), PersistError> {
        if self.snapshots.is_none() {
            return Ok(());
        }
        let asked = self.state.lock().changes;
        let mut kept = self.kept.subscribe();
        let attempts = kept.borrow().attempts;
        self.demanded.notify_one();
        let decided = |kept: &Kept| {
            kept.changes >= asked
                || kept.fenced()
                || (kept.attempts > attempts && kept.failure.is_some())
        };
        let kept = kept.wait_for(decided).await.expect("the cursor has the other end");
        match &kept.failure {
            Some(error) if kept.changes < asked => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Everything before this is acknowledged, durably. Never ahead of [`ManagedCursor::mark_delete_offset`], except
    /// while a reset moves the cursor back.
    pub fn persisted_mark_delete_offset(&self) -> Offset {
        self.kept.borrow().mark_delete
    }

    /// Changes what a replicator keeps with the cursor, and waits until it is durable.
    ///
    /// If the future is dropped, it is changed and will be stored.
    ///
    /// # Errors
    /// [`PersistError`]; it is changed in memory.
    pub async fn store_progress(
        &self,
        change: impl FnOnce(&mut Progress),
    ) -> Result<(), PersistError> {
        self.change(|state| change(state.machine.progress_mut()));
        self.persist().await
    }

    /// Writes the cursor's record again, and returns its new version: of two owners the later one has the higher.
    ///
    /// May be called again, also after the future was dropped.
    ///
    /// # Errors
    /// A version conflict when somebody else has taken the cursor; that is for ever.
    pub async fn take_ownership(&self) -> Result<u64, MetadataError> {
        let Some(snapshots) = &self.snapshots else {
            return Err(MetadataError::NotFound { key: self.key.clone() });
        };
        Ok(snapshots.lock().await.touch().await?.0)
    }

    /// Ends every read with [`ReadOutcome::Closed`](crate::ReadOutcome::Closed), refuses what comes later, and stores
    /// the state where the next opening finds it fast. Opening the cursor again makes a new object.
    ///
    /// May be called again. If the future is dropped the cursor is closed; what was accepted and is not durable may be
    /// delivered again.
    ///
    /// # Errors
    /// [`PersistError`]; the cursor is closed all the same.
    pub async fn close(&self) -> Result<(), PersistError> {
        self.end();
        let Some(snapshots) = &self.snapshots else { return Ok(()) };
        let mut snapshots = snapshots.lock().await;
        if self.state.lock().keeper == Keeper::Closed {
            return Ok(());
        }
        let (changes, mark_delete, state) = self.snapshot();
        let stored = snapshots.fold(state).await;
        self.note(changes, mark_delete, &stored);
        if stored.is_ok() {
            self.state.lock().keeper = Keeper::Closed;
        }
        stored
    }

    /// Ends the reads and takes the cursor off its topic.
    pub(super) fn end(&self) {
        let this: Weak<dyn Registered> = self.this.clone();
        self.ledger.unregister(&self.name, &this);
        self.step(|state| {
            if state.keeper != Keeper::Closed {
                state.keeper = Keeper::Closing;
            }
            state.machine.close();
        });
    }

    /// Changes something that is stored.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, begin) = self.step(|state| {
            let result = change(state);
            state.changes += 1;
            let begin = state.keeper == Keeper::Idle && self.snapshots.is_some();
            if begin {
                state.keeper = Keeper::Running;
            }
            (result, begin)
        });
        if begin && let Some(this) = self.this.upgrade() {
            self.ledger.runtime().spawn(this.keep());
        }
        result
    }

    /// Writes until everything is stored.
    async fn keep(self: Arc<Self>) {
        let snapshots = self.snapshots.as_ref().expect("only a cursor with a record is kept");
        let mut pause = PAUSE;
        loop {
            let stored = {
                let mut snapshots = snapshots.lock().await;
                if self.state.lock().keeper != Keeper::Running {
                    return;
                }
                let (changes, mark_delete, state) = self.snapshot();
                let stored = snapshots.write(state).await;
                self.note(changes, mark_delete, &stored);
                let mut state = self.state.lock();
                if stored.is_ok() && state.changes == changes && state.keeper == Keeper::Running {
                    state.keeper = Keeper::Idle;
                    return;
                }
                stored
            };
            match stored {
                Ok(()) => pause = PAUSE,
                Err(PersistError::Fenced { .. }) => return self.end(),
                Err(PersistError::Unavailable { .. }) => pause = (2 * pause).min(RETRY_MAX),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.demanded.notified() => {}
            }
        }
    }

    /// The first entry that must stay in the topic for it.
    pub(super) fn floor(&self) -> Offset {
        let state = self.state.lock();
        let kept = state.machine.progress().kept.keys().next().copied();
        let kept =
            kept.map(|at| self.ledger.with_chain(|chain| chain.locate(Place::before(at)).offset()));
        let acknowledged = self.kept.borrow().mark_delete.min(state.machine.mark_delete_offset());
        kept.map_or(acknowledged, |kept| kept.min(acknowledged))
    }

    fn note(&self, changes: u64, mark_delete: Offset, stored: &Result<(), PersistError>) {
        self.kept.send_modify(|kept| {
            kept.attempts += 1;
            kept.failure = stored.as_ref().err().cloned();
            if stored.is_ok() {
                kept.changes = changes;
                kept.mark_delete = mark_delete;
            }
        });
        match stored {
            Ok(()) => self.ledger.holds_back(&self.name, self.floor()),
            Err(error) => tracing::warn!(topic = self.ledger.name(), "{error}"),
        }
    }

    /// The state as it is stored, and how many changes are in it.
    pub(super) fn snapshot(&self) -> (u64, Offset, Snapshot) {
        let state = self.state.lock();
        let (machine, mark_delete) = (&state.machine, state.machine.mark_delete_offset());
        let mut acked = Vec::new();
        let place = self.ledger.with_chain(|chain| {
            for range in machine.acked().ranges() {
                let mut from = range.start;
                while acked.len() < ACKED_RANGES_MAX
                    && let Some(segment) = chain.first_segment(from, range.end)
                {
                    let at = |entries| Place { ledger: segment.info.ledger, entries };
                    let (first, end) = (segment.first.get(), segment.last.get() + 1);
                    acked.push((at(first), at(end)));
                    from = from.plus(end - first);
                }
            }
            chain.place_of(mark_delete)
        });
        let properties = machine.progress().to_properties();
        (state.changes, mark_delete, Snapshot { mark_delete: place, acked, properties })
    }
}
