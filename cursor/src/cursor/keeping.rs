//! Keeping the state of a cursor: one write at a time, and each takes along all that changed meanwhile.

use std::sync::Arc;
use std::time::Duration;

use georepl_storage::MetadataError;

use super::{ManagedCursor, State};
use crate::managed_ledger::{ChangeError, Refusal};
use crate::position::{Offset, Place};
use crate::progress::{KEPT_MAX, Progress};
use crate::records::Snapshot;
use crate::snapshots::{PersistError, Snapshots};

/// How long a write waits after the one before it, unless somebody waits for it.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a write waits after one that failed, at most: it doubles from [`PAUSE`] on.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Ranges of single acknowledged entries in one snapshot. With more, the lowest are kept: the others are delivered
/// again after a restart. Each takes up to 50 bytes, so that a snapshot is an entry of at most 2.5 MB.
pub const ACKED_RANGES_MAX: usize = 50_000;

/// What is stored of a cursor.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// How many of its changes.
    changes: u64,
    /// Everything before this is acknowledged in what is stored.
    pub(super) mark_delete: Offset,
    /// The first entry that must stay in the topic for it.
    floor: Offset,
    /// Whether single acknowledged entries are missing in it.
    holes: Holes,
    /// Writes that were tried.
    attempts: u64,
    /// Why the last of them failed.
    failure: Option<PersistError>,
    keeper: Keeper,
}

/// Whether every single acknowledged entry has found its place in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holes {
    All,
    TooMany,
}

/// Who writes what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeper {
    /// Nobody: everything is stored.
    Idle,
    /// A task.
    Running,
    /// Nobody any more: the cursor is closed.
    Over,
}

/// The task that writes. When the runtime ends it is dropped, wherever it is, or before it began: whoever waits for a
/// write, or for the cursor's end, hears of that, or they would wait for ever.
struct Keeping {
    /// None once it has ended by itself.
    cursor: Option<Arc<ManagedCursor>>,
}

impl Keeping {
    async fn run(mut self) {
        if let Some(cursor) = &self.cursor {
            cursor.keep().await;
        }
        self.cursor = None;
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        let Some(cursor) = self.cursor.take() else { return };
        let changes = cursor.step(|state| {
            state.machine.close();
            state.changes
        });
        cursor.stored.send_modify(|stored| {
            if stored.changes < changes {
                let (cursor, reason) = (cursor.name.clone(), "the topic's runtime ended".into());
                stored.failure = Some(PersistError::Unavailable { cursor, reason });
            }
        });
        cursor.keep_no_more();
    }
}

/// The state as it is to be stored.
pub(super) struct Captured {
    changes: u64,
    mark_delete: Offset,
    floor: Offset,
    holes: Holes,
    closed: bool,
    pub(super) state: Snapshot,
}

impl Stored {
    pub(super) fn nothing_changed(mark_delete: Offset) -> Self {
        Self {
            changes: 0,
            mark_delete,
            floor: mark_delete,
            holes: Holes::All,
            attempts: 0,
            failure: None,
            keeper: Keeper::Idle,
        }
    }
}

impl ManagedCursor {
    /// Waits until everything that was acknowledged, moved or noted before this call is durable.
    ///
    /// Cancel-safe: a dropped call leaves nothing behind, and the state is written all the same.
    ///
    /// # Errors
    /// [`PersistError`]. Unless the cursor is closed or somebody else has taken it, it is written as soon as storage
    /// takes it.
    pub async fn persist(&self) -> Result<(), PersistError> {
        let asked = self.state.lock().changes;
        let mut stored = self.stored.subscribe();
        let attempts = stored.borrow().attempts;
        self.demanded.notify_one();
        let decided = |stored: &Stored| {
            let failed = stored.attempts > attempts && stored.failure.is_some();
            stored.changes >= asked || stored.keeper == Keeper::Over || failed
        };
        if self.snapshots.is_none() {
            return Ok(());
        }
        let stored = stored.wait_for(decided).await.expect("the cursor has the other end");
        if stored.changes >= asked {
            return Ok(());
        }
        let closed = || PersistError::Closed { cursor: self.name.clone() };
        Err(stored.failure.clone().unwrap_or_else(closed))
    }

    /// Everything before this is acknowledged, durably. Never ahead of [`ManagedCursor::mark_delete_offset`], except
    /// while a reset moves the cursor back.
    pub fn persisted_mark_delete_offset(&self) -> Offset {
        self.stored.borrow().mark_delete
    }

    /// Whether the newest snapshot lacks single entries that are acknowledged, because there are too many ranges.
    pub(super) fn stored_holes(&self) -> Holes {
        self.stored.borrow().holes
    }

    /// Changes what a replicator keeps with the cursor, and waits until it is durable. `change` must not call the
    /// cursor or its topic.
    ///
    /// If the future is dropped, it is changed and will be stored.
    ///
    /// # Errors
    /// [`PersistError`]. Nothing is changed if the cursor is closed or too much would be kept; else it is changed in
    /// memory.
    pub async fn store_progress(
        &self,
        change: impl FnOnce(&mut Progress),
    ) -> Result<(), PersistError> {
        self.change(|state| {
            if state.machine.is_closed() {
                return Err(PersistError::Closed { cursor: self.name.clone() });
            }
            let mut progress = state.machine.progress().clone();
            change(&mut progress);
            if progress.noted() > KEPT_MAX {
                return Err(PersistError::TooMuchKept { cursor: self.name.clone() });
            }
            *state.machine.progress_mut() = progress;
            Ok(())
        })?;
        self.persist().await
    }

    /// Writes the cursor's record again, and returns its new version: of two owners the later one has the higher.
    ///
    /// May be called again, also after the future was dropped.
    ///
    /// # Errors
    /// A version conflict when somebody else has taken the cursor; that is for ever.
    pub async fn take_ownership(&self) -> Result<u64, MetadataError> {
        let mut snapshots = self.snapshots()?.lock().await;
        let version = snapshots.touch().await?.0;
        self.state.lock().owner = version;
        Ok(version)
    }

    /// The same for the owner that took it with the version `taken`; none, and nothing is written, if the cursor was
    /// taken since.
    ///
    /// # Errors
    /// As for [`ManagedCursor::take_ownership`].
    pub async fn keep_ownership(&self, taken: u64) -> Result<Option<u64>, MetadataError> {
        let mut snapshots = self.snapshots()?.lock().await;
        if self.state.lock().owner != taken {
            return Ok(None);
        }
        let version = snapshots.touch().await?.0;
        self.state.lock().owner = version;
        Ok(Some(version))
    }

    fn snapshots(&self) -> Result<&tokio::sync::Mutex<Snapshots>, MetadataError> {
        self.snapshots.as_ref().ok_or_else(|| MetadataError::NotFound { key: self.key.clone() })
    }

    /// Ends every read with [`ReadOutcome::Closed`](crate::ReadOutcome::Closed), refuses what comes later, and stores
    /// the state where the next opening finds it fast. Opening the cursor again makes a new object.
    ///
    /// May be called again. If the future is dropped the cursor is closed, and the state is stored all the same.
    ///
    /// # Errors
    /// [`PersistError`]; the cursor is closed all the same, and the state is tried to be stored again by calling again.
    pub async fn close(&self) -> Result<(), PersistError> {
        self.end();
        if self.snapshots.is_none() {
            return Ok(());
        }
        let mut stored = self.stored.subscribe();
        let stored = stored.wait_for(|stored| stored.keeper == Keeper::Over).await;
        match &stored.expect("the cursor has the other end").failure {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Ends the reads, and has the state stored where it is found fast. Until that is over the topic knows the cursor:
    /// whoever opened it before would find an older state, and one of the two would be fenced.
    pub(super) fn end(&self) {
        if self.snapshots.is_none() {
            self.ledger.unregister(&self.name, &self.registered());
        }
        let unsaved =
            matches!(self.stored.borrow().failure, Some(PersistError::Unavailable { .. }));
        let begin = self.step(|state| {
            state.machine.close();
            let begin = state.keeper == Keeper::Idle || (state.keeper == Keeper::Over && unsaved);
            self.begin_keeping(state, begin)
        });
        self.demanded.notify_one();
        self.start_keeping(begin);
    }

    /// Changes something that is stored, if that is not refused.
    pub(super) fn change<R, E>(
        &self,
        change: impl FnOnce(&mut State) -> Result<R, E>,
    ) -> Result<R, E> {
        let (result, begin) = self.step(|state| {
            let result = change(state);
            state.changes += u64::from(result.is_ok());
            let begin = result.is_ok() && state.keeper == Keeper::Idle;
            (result, self.begin_keeping(state, begin))
        });
        self.start_keeping(begin);
        result
    }

    fn begin_keeping(&self, state: &mut State, begin: bool) -> bool {
        let begin = begin && self.snapshots.is_some();
        if begin {
            state.keeper = Keeper::Running;
            self.stored.send_modify(|stored| stored.keeper = Keeper::Running);
        }
        begin
    }

    fn start_keeping(&self, begin: bool) {
        if begin && let Some(this) = self.this.upgrade() {
            self.ledger.runtime().spawn(Keeping { cursor: Some(this) }.run());
        }
    }

    /// Writes until everything is stored, or the cursor is closed and its end was tried to be stored.
    async fn keep(&self) {
        let snapshots = self.snapshots.as_ref().expect("only a cursor with a record is kept");
        let mut pause = PAUSE;
        loop {
            let (taken, stored) = {
                let mut snapshots = snapshots.lock().await;
                let mut taken = self.capture();
                let state = std::mem::take(&mut taken.state);
                let stored = match self.rule_out_deletion(&taken).await {
                    Err(error) => Err(error),
                    Ok(()) if taken.closed => snapshots.fold(state).await,
                    Ok(()) => snapshots.write(state).await,
                };
                (taken, stored)
            };
            let fenced = matches!(stored, Err(PersistError::Fenced { .. }));
            self.note(&taken, &stored);
            if fenced {
                self.end();
            }
            if taken.closed || fenced {
                return self.keep_no_more();
            }
            pause = if stored.is_ok() { PAUSE } else { (2 * pause).min(RETRY_MAX) };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.demanded.notified() => {}
            }
            let mut state = self.state.lock();
            if stored.is_ok() && state.changes == taken.changes && !state.machine.is_closed() {
                state.keeper = Keeper::Idle;
                return;
            }
        }
    }

    fn keep_no_more(&self) {
        self.ledger.unregister(&self.name, &self.registered());
        self.state.lock().keeper = Keeper::Over;
        self.stored.send_modify(|stored| stored.keeper = Keeper::Over);
    }

    /// A cursor that goes back must not be told that this is durable while a deletion of what it goes back to may still
    /// land: the next owner would find nothing there. A topic that is being closed, or whose writes failed, rules nothing
    /// out any more: then whoever went back hears that it is not stored, and why.
    async fn rule_out_deletion(&self, taken: &Captured) -> Result<(), PersistError> {
        let goes_back = taken.floor < self.stored.borrow().floor;
        if !goes_back {
            return Ok(());
        }
        let cursor = || self.name.clone();
        self.ledger.decide_deletion().await.map_err(|error| match error {
            ChangeError::Refused(Refusal::Fenced { .. } | Refusal::Lost { .. }) => {
                PersistError::Fenced { cursor: cursor() }
            }
            other => {
                PersistError::Unavailable { cursor: cursor(), reason: other.to_string().into() }
            }
        })
    }

    /// The first entry that must stay in the topic for it, by what is stored and by what is not yet.
    pub(super) fn floor(&self) -> Offset {
        let stored = self.stored.borrow().floor;
        stored.min(self.floor_of(&self.state.lock()))
    }

    /// Tells the topic what must stay for it.
    pub(super) fn now_holds_back(&self) {
        self.ledger.holds_back(&self.name, &self.registered(), || self.floor());
    }

    fn floor_of(&self, state: &State) -> Offset {
        let acknowledged = state.machine.mark_delete_offset();
        let kept = state.machine.progress().kept.keys().next().copied();
        kept.map_or(acknowledged, |at| {
            let kept = self.ledger.with_chain(|chain| chain.locate(Place::before(at)).offset());
            kept.min(acknowledged)
        })
    }

    /// What was given up matters only until it is acknowledged; it goes with the snapshot that says it is.
    fn forget_discarded(&self, state: &mut State) {
        let acknowledged = state.machine.mark_delete_offset();
        let progress = state.machine.progress_mut();
        if progress.discarded.is_empty() {
            return;
        }
        self.ledger.with_chain(|chain| {
            progress.forget_discarded(|at| chain.locate(Place::after(at)).offset() <= acknowledged);
        });
    }

    fn note(&self, taken: &Captured, result: &Result<(), PersistError>) {
        self.stored.send_modify(|stored| {
            stored.attempts += 1;
            stored.failure = result.as_ref().err().cloned();
            if result.is_ok() {
                stored.changes = taken.changes;
                stored.mark_delete = taken.mark_delete;
                stored.floor = taken.floor;
                stored.holes = taken.holes;
            }
        });
        match result {
            Ok(()) => self.now_holds_back(),
            Err(error) => tracing::warn!(topic = self.ledger.name(), "{error}"),
        }
    }

    /// The state as it is to be stored, and how many changes are in it.
    pub(super) fn capture(&self) -> Captured {
        let (mut taken, ranges) = {
            let mut state = self.state.lock();
            self.forget_discarded(&mut state);
            let machine = &state.machine;
            let taken = Captured {
                changes: state.changes,
                mark_delete: machine.mark_delete_offset(),
                floor: self.floor_of(&state),
                holes: Holes::All,
                closed: machine.is_closed(),
                state: Snapshot {
                    properties: machine.progress().to_properties(),
                    ..Snapshot::default()
                },
            };
            (taken, machine.acked().ranges().take(ACKED_RANGES_MAX + 1).collect::<Vec<_>>())
        };
        let acked = &mut taken.state.acked;
        taken.state.mark_delete = self.ledger.with_chain(|chain| {
            for range in ranges {
                let mut from = range.start;
                while let Some(segment) = chain.first_segment(from, range.end) {
                    let at = |entries| Place { ledger: segment.info.ledger, entries };
                    let (first, end) = (segment.first.get(), segment.last.get() + 1);
                    acked.push((at(first), at(end)));
                    from = from.plus(end - first);
                }
            }
            chain.place_of(taken.mark_delete)
        });
        if acked.len() > ACKED_RANGES_MAX {
            acked.truncate(ACKED_RANGES_MAX);
            taken.holes = Holes::TooMany;
        }
        taken
    }
}
