//! From one ledger to the next, and the end of the last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use georepl_storage::{
    CloseError as LedgerCloseError, CreateError, EntryId, LedgerClient, LedgerEnd, LedgerId,
    LedgerOptions, LedgerState, LedgerWriter, MetadataError, recover,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::append::Replies;
use super::error::{CloseError, OpenError, Refusal};
use super::trimming::Recorded;
use super::{
    Confirmations, Current, Door, Ending, Inner, Intake, ManagedLedger, ManagedLedgerConfig,
    Progress, State, now_ms,
};
use crate::names::FOR_TOPIC;
use crate::position::{Offset, Place};
use crate::records::{ListedEnd, ListedLedger};

/// How many ledgers in a row may fail with nothing confirmed before the topic takes no more appends. The first may have
/// met bookies that are about to leave the registry; three in a row say that this storage cannot be written to.
const LEDGERS_FAILED_IN_ROW_MAX: u32 = 3;

/// How long a close waits for ledgers that are being deleted. What is left is noted, and the next opening deletes it.
const DELETION_PATIENCE: Duration = Duration::from_secs(1);

impl ManagedLedger {
    /// Closes the topic: refuses appends, waits until those that were taken are decided, closes
    /// the last ledger, records its exact end, and closes the cursors. Reads are refused after.
    ///
    /// May be called again, and must be if the future is dropped or the error advises it.
    ///
    /// # Errors
    /// [`CloseError`] when the end could not be recorded. Cursors are closed regardless.
    pub async fn close(&self) -> Result<(), CloseError> {
        let inner = &self.0;
        {
            let mut state = inner.state.lock();
            if let Intake::Open = state.intake {
                let topic = inner.topic.clone();
                state.intake = Intake::Refused(Refusal::Closed { topic });
            }
        }
        inner.stop_waiting();
        // Or a topic that is opened often and for a moment would leave a ledger behind each time.
        let patience_until = Instant::now() + DELETION_PATIENCE;
        let _ = tokio::time::timeout_at(patience_until, inner.delete_ledgers()).await;
        let closed = inner.close_current().await;
        // Under the register's lock, so that no cursor is registered behind the closed door.
        {
            let _register = inner.cursors.lock();
            inner.state.lock().door = Door::Closed;
        }
        let cursors = inner.registered_by_name().map(|(_, cursor)| cursor.closed());
        // At once, so that none waits for the others' bookies.
        futures::future::join_all(cursors).await;
        inner.end_deletions(patience_until).await;
        inner.handles.clear();
        closed
    }
}

impl ManagedLedger {
    /// Begins another ledger if the last one has entries that nobody needs any more and is as old as the retention time, or
    /// [`ROLLOVER_AGE`] if there is none: the last ledger of a topic never goes, so an idle topic would keep it for ever.
    /// Time alone does not bring it about.
    pub fn roll_over_aged(&self) {
        let inner = &self.0;
        let floor = inner.floor();
        let mut state = inner.state.lock();
        if state.is_aged(floor, now_ms())
            && let Some(current) = &mut state.current
        {
            current.progress = Progress::RollingOver;
            // Only a close waits for its end.
            drop(inner.start_rollover());
        }
    }
}

impl State {
    fn is_aged(&self, floor: Offset, now_ms: u64) -> bool {
        let (Some(time), Some(current)) = (self.retention.time, &self.current) else {
            return false;
        };
        // With no time at all each entry would have a ledger of its own.
        let age_max = if time.is_zero() { ROLLOVER_AGE } else { time };
        let age_ms = now_ms.saturating_sub(current.created_at_ms);
        let open = self.chain.ledgers().next_back();
        matches!(self.intake, Intake::Open)
            && current.progress == Progress::Writing
            && self.queue.len() == 0
            && open.is_some_and(|info| info.entries > 0)
            && floor >= self.chain.end()
            && u128::from(age_ms) >= age_max.as_millis()
    }
}

/// How old the last ledger of a topic becomes whose entries go as soon as they are acknowledged.
pub const ROLLOVER_AGE: Duration = Duration::from_secs(600);

impl Intake {
    /// How grave the reason is for which appends are refused.
    pub(super) const fn gravity(&self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Refused(refusal) => refusal.gravity(),
        }
    }

    /// What a close has to say when somebody else decides where the topic ends.
    fn close_error(&self) -> Option<CloseError> {
        match self {
            Self::Refused(Refusal::Fenced { topic }) => {
                Some(CloseError::Fenced { topic: topic.clone() })
            }
            Self::Refused(Refusal::Lost { topic, elsewhere }) => {
                Some(CloseError::Lost { topic: topic.clone(), elsewhere: *elsewhere })
            }
            Self::Open
            | Self::Refused(
                Refusal::WriteFailed { .. } | Refusal::Closed { .. } | Refusal::Terminated { .. },
            ) => None,
        }
    }
}

impl Inner {
    pub(super) async fn create_ledger(self: &Arc<Self>) -> Result<LedgerWriter, CreateError> {
        let custom =
            [("application", "pulsar"), ("component", "managed-ledger"), (FOR_TOPIC, &self.path)];
        let custom = custom.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        let options = LedgerOptions {
            sizes: self.config.sizes,
            password: self.config.password.clone(),
            custom: BTreeMap::from(custom),
        };
        self.client.create(options, Arc::new(Confirmations(Arc::downgrade(self)))).await
    }

    /// Starts a task that closes full ledgers and begins the next until one has room for all that
    /// waits. Of two tasks the first does it all, and the other finds nothing left to do.
    pub(super) fn start_rollover(self: &Arc<Self>) -> JoinHandle<()> {
        let inner = self.clone();
        self.runtime.spawn(async move {
            let mut record = inner.record.lock().await;
            while inner.is_rolling_over() {
                if let Err(refusal) = inner.begin_next(&mut record).await {
                    return inner.fail(refusal);
                }
            }
        })
    }

    fn is_rolling_over(&self) -> bool {
        let state = self.state.lock();
        state.current.as_ref().is_some_and(|current| current.progress == Progress::RollingOver)
    }

    async fn begin_next(self: &Arc<Self>, record: &mut Recorded) -> Result<(), Refusal> {
        let Some(old) = self.writer() else { return Ok(()) };
        // The close waits for the last entries, the creation does not: both run at once.
        let (end, created) = tokio::join!(self.end_ledger(&old), self.create_ledger());
        let (end, next) = match (end, created) {
            (Ok(end), Ok(next)) => (end, next),
            // That it is somebody else's, or what was lost, is the reason that counts.
            (Err(refusal), created) => {
                if let Ok(next) = created {
                    self.discard(&next).await;
                }
                return Err(refusal);
            }
            (Ok(_), Err(error)) => return Err(self.write_failed(error)),
        };
        let listed = match self.chain_next(&old, end, &next) {
            Ok(listed) => listed,
            Err(refusal) => {
                self.discard(&next).await;
                return Err(refusal);
            }
        };
        if let Err(error) = record.put(&self.store, listed).await {
            self.discard_unlisted(&next, &error).await;
            return Err(self.refusal_for(&error));
        }
        let mut state = self.state.lock();
        let current = state.current.replace(Current::new(next));
        if let Some(old) = current {
            self.handles.insert(old.writer.id(), old.reader);
        }
        self.send_to_current(&mut state);
        drop(state);
        self.let_go();
        Ok(())
    }

    /// Closes the last ledger; by a recovery, if its writer cannot tell whether or where it did.
    async fn end_ledger(&self, writer: &LedgerWriter) -> Result<LedgerEnd, Refusal> {
        let ledger = writer.id();
        match writer.close().await {
            Ok(end) => Ok(end),
            Err(LedgerCloseError::Fenced { .. }) => Err(self.fenced()),
            Err(LedgerCloseError::ClosedElsewhere(elsewhere)) => {
                Err(self.closed_elsewhere(elsewhere))
            }
            Err(
                error @ (LedgerCloseError::Stopped { .. }
                | LedgerCloseError::Refused { .. }
                | LedgerCloseError::Record { .. }
                | LedgerCloseError::Unknown { .. }),
            ) => {
                tracing::warn!(topic = &*self.topic, "recovers its own ledger: {error}");
                // Before the first request, since the recovery may be cut short at any.
                if let Some(current) = &mut self.state.lock().current {
                    current.ending = Ending::Recovery;
                }
                let end = recovered_end(&self.client, &self.config, ledger).await;
                end.map_err(|error| self.write_failed(error))
            }
        }
    }

    /// Closes the old ledger in the chain and adds the next; the list that is to be stored.
    ///
    /// What the ledger holds beyond the confirmed entries is the oldest of what was sent to it, since nobody else writes
    /// to it: that is confirmed. The rest it will never hold: that goes to the next.
    ///
    /// Nothing reads or confirms in the next one before it is stored; if that fails the topic
    /// is at its end, and an empty ledger at the end of the chain does no harm.
    fn chain_next(
        &self,
        old: &LedgerWriter,
        end: LedgerEnd,
        next: &LedgerWriter,
    ) -> Result<Vec<ListedLedger>, Refusal> {
        let mut replies = Replies::default();
        let listed = {
            let mut state = self.state.lock();
            self.count_failure(&mut state, end)?;
            let more = state.beyond_confirmed(old.id(), end);
            let more = more.map_err(|elsewhere| self.closed_elsewhere(elsewhere))?;
            let info = state.chain.ledgers().next_back().expect("a topic has an open ledger");
            if more > state.queue.sent() as u64 {
                let reason = format!("ledger {} has entries that were never appended", old.id());
                return Err(self.write_failed(reason));
            }
            self.confirm(&mut state, info.ledger, EntryId(info.entries), more, &mut replies);
            state.queue.take_back();
            state.chain.close_last();
            state.closed_at_ms.insert(old.id(), now_ms());
            state.chain.push_open(next.id()).map_err(|error| self.write_failed(error))?;
            state.listed()
        };
        replies.send();
        self.wake_cursors();
        Ok(listed)
    }

    /// A storage on which one ledger after the other fails with nothing confirmed gets no more of them.
    fn count_failure(&self, state: &mut State, end: LedgerEnd) -> Result<(), Refusal> {
        let failure = state.current.as_mut().and_then(|current| current.failure.take());
        let Some(failure) = failure.filter(|_| end.last_entry.is_none()) else {
            state.failed_in_row = 0;
            return Ok(());
        };
        state.failed_in_row += 1;
        match state.failed_in_row < LEDGERS_FAILED_IN_ROW_MAX {
            true => Ok(()),
            false => Err(self.write_failed(failure)),
        }
    }

    fn refusal_for(&self, error: &MetadataError) -> Refusal {
        match error {
            // A record that is gone was deleted by somebody who owns the topic.
            MetadataError::VersionConflict { .. } | MetadataError::NotFound { .. } => self.fenced(),
            MetadataError::Unavailable { .. } => self.write_failed(error),
        }
    }

    /// Discards a ledger that the record does not list because of `error`; not when that leaves
    /// open whether it does, or will. A topic whose record lists a ledger that is gone cannot be
    /// opened.
    pub(super) async fn discard_unlisted(&self, ledger: &LedgerWriter, error: &MetadataError) {
        if !matches!(error, MetadataError::Unavailable { .. }) {
            self.discard(ledger).await;
        }
    }

    /// Deletes a ledger that was created and not listed. If that fails it is left, empty.
    async fn discard(&self, ledger: &LedgerWriter) {
        if let Err(error) = self.client.delete(ledger.id()).await {
            tracing::warn!(topic = &*self.topic, ledger = %ledger.id(), "left an empty ledger: {error}");
        }
    }

    pub(super) async fn close_current(self: &Arc<Self>) -> Result<(), CloseError> {
        loop {
            // A rollover that is due or runs is waited for: it still sends what was taken. It fails only together with
            // its runtime.
            let rolled = self.start_rollover().await;
            let record = self.record.lock().await;
            let Some(writer) = self.writer() else {
                return self.state.lock().intake.close_error().map_or(Ok(()), Err);
            };
            let closed = self.closed(&writer).await;
            // It failed, and what it had taken goes to another. That ends, since nothing more is taken.
            if rolled.is_ok() && self.is_rolling_over() {
                continue;
            }
            return self.list_end(record, &writer, closed).await;
        }
    }

    /// Closes the last ledger. A recovery that was begun is finished: it alone can tell the end.
    async fn closed(&self, writer: &LedgerWriter) -> Result<LedgerEnd, CloseError> {
        let ending = self.state.lock().current.as_ref().map(|current| current.ending);
        let Some(Ending::Recovery) = ending else {
            return Ok(writer.close().await?);
        };
        let end = recovered_end(&self.client, &self.config, writer.id()).await?;
        let more = self.state.lock().beyond_confirmed(writer.id(), end);
        more.map_err(LedgerCloseError::from)?;
        Ok(end)
    }

    /// Writes the end of the last ledger into the record, unless it is for somebody else to do so.
    async fn list_end(
        &self,
        mut record: tokio::sync::MutexGuard<'_, Recorded>,
        writer: &LedgerWriter,
        closed: Result<LedgerEnd, CloseError>,
    ) -> Result<(), CloseError> {
        let topic = || self.topic.clone();
        if let Err(CloseError::Ledger(LedgerCloseError::ClosedElsewhere(elsewhere))) = closed
            && elsewhere.lost().is_some()
        {
            self.fail(self.closed_elsewhere(elsewhere));
            return Err(CloseError::Lost { topic: topic(), elsewhere });
        }
        if let Some(error) = self.state.lock().intake.close_error() {
            return Err(error);
        }
        let end = closed?;
        let mut listed = self.state.lock().listed();
        let closed = ListedEnd {
            entries: EntryId::following(end.last_entry).get(),
            bytes: end.length,
            closed_at_ms: now_ms(),
        };
        // After a failed rollover the chain may end with a ledger that was never listed.
        listed.retain(|listed| listed.ledger <= writer.id());
        if let Some(last) = listed.last_mut() {
            last.end = Some(closed);
        }
        let terminated =
            matches!(self.state.lock().intake, Intake::Refused(Refusal::Terminated { .. }));
        let mut noted = record.noted.clone();
        if terminated {
            // Behind the last real entry, also when the last ledger is empty.
            let chain = &self.state.lock().chain;
            noted.terminated = chain.place_of(chain.end());
        }
        match record.put_noting(&self.store, listed, noted).await {
            Ok(()) => {}
            Err(MetadataError::Unavailable { key, reason }) => {
                return Err(MetadataError::Unavailable { key, reason }.into());
            }
            Err(_) => {
                self.fail(self.fenced());
                return Err(CloseError::Fenced { topic: topic() });
            }
        }
        self.state.lock().current = None;
        Ok(())
    }

    fn writer(&self) -> Option<Arc<LedgerWriter>> {
        self.state.lock().current.as_ref().map(|current| current.writer.clone())
    }
}

/// Where a listed ledger ends. One that the record lists as open is recovered, which fences whoever still writes to
/// it. All that is found is part of the topic, also what was never acknowledged: its readers may have seen it.
pub(super) async fn end_of(
    client: &LedgerClient,
    config: &ManagedLedgerConfig,
    listed: ListedLedger,
    terminated: Option<Place>,
) -> Result<ListedEnd, OpenError> {
    if let Some(end) = listed.end {
        return Ok(end);
    }
    let end = recovered_end(client, config, listed.ledger).await?;
    let found = EntryId::following(end.last_entry).get();
    // Where a topic was terminated its last ledger may be listed as open, and may hold more.
    let terminated = terminated.filter(|place| place.ledger == listed.ledger);
    let entries = terminated.map_or(found, |place| place.entries.min(found));
    Ok(ListedEnd { entries, bytes: end.length, closed_at_ms: now_ms() })
}

/// Recovers a ledger, and returns where it ends.
async fn recovered_end(
    client: &LedgerClient,
    config: &ManagedLedgerConfig,
    ledger: LedgerId,
) -> Result<LedgerEnd, recover::Error> {
    let reader = client.recover(ledger, &config.password).await?;
    match reader.metadata().state() {
        LedgerState::Closed(end) => Ok(end),
        LedgerState::Open | LedgerState::InRecovery => {
            unreachable!("a ledger that was recovered is closed")
        }
    }
}
