//! From one ledger to the next, and the end of the last.

use std::collections::BTreeMap;
use std::sync::Arc;

use georepl_storage::{
    CloseError as LedgerCloseError, CreateError, EntryId, Expected, LedgerClient, LedgerEnd,
    LedgerOptions, LedgerState, LedgerWriter, MetadataError, Version,
};
use tokio::task::JoinHandle;

use super::error::{CloseError, OpenError, Refusal};
use super::{
    Confirmations, Current, Door, Inner, Intake, ManagedLedger, ManagedLedgerConfig, Progress,
    now_ms,
};
use crate::names::topic_key;
use crate::records::{ListedEnd, ListedLedger, TopicRecord};

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
        inner.budget.close();
        let closed = inner.close_current().await;
        // Under the register's lock, so that no cursor is registered behind the closed door.
        {
            let _register = inner.cursors.lock();
            inner.state.lock().door = Door::Closed;
        }
        for (_, cursor) in inner.registered_by_name() {
            cursor.closed();
        }
        inner.handles.clear();
        closed
    }
}

impl Inner {
    pub(super) async fn create_ledger(self: &Arc<Self>) -> Result<LedgerWriter, CreateError> {
        let custom = [
            ("application", "pulsar"),
            ("component", "managed-ledger"),
            ("pulsar/managed-ledger", &self.path),
        ];
        let custom = custom.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        let options = LedgerOptions {
            sizes: self.config.sizes,
            password: self.config.password.clone(),
            custom: BTreeMap::from(custom),
        };
        self.client.create(options, Arc::new(Confirmations(Arc::downgrade(self)))).await
    }

    /// Writes the topic's record. A conflict is judged by what is stored: if that is what was to
    /// be written, it is the work of this call, whose first answer was lost on the way.
    pub(super) async fn put_record(
        &self,
        ledgers: Vec<ListedLedger>,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        let (key, value) = (topic_key(&self.path), TopicRecord { ledgers }.encode());
        let error = match self.store.put(&key, value.clone(), expected).await {
            Ok(version) => return Ok(version),
            Err(error) => error,
        };
        // Every record names a ledger that only its writer created, so equal bytes are ours.
        match self.store.get(&key).await {
            Ok(Some(stored)) if stored.value == value => Ok(stored.version),
            _ => Err(error),
        }
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

    async fn begin_next(self: &Arc<Self>, version: &mut Version) -> Result<(), Refusal> {
        let Some(old) = self.writer() else { return Ok(()) };
        // The close waits for the last entries, the creation does not: both run at once.
        let (closed, created) = tokio::join!(old.close(), self.create_ledger());
        let next = created.map_err(|error| self.write_failed(error))?;
        let listed = match closed {
            Ok(end) => self.chain_next(&old, end, &next),
            Err(LedgerCloseError::Fenced { .. }) => Err(self.fenced()),
            Err(error) => Err(self.write_failed(error)),
        };
        let listed = match listed {
            Ok(listed) => listed,
            Err(refusal) => {
                self.discard(&next).await;
                return Err(refusal);
            }
        };
        match self.put_record(listed, Expected::Version(*version)).await {
            Ok(stored) => *version = stored,
            Err(error) => {
                self.discard_unlisted(&next, &error).await;
                return Err(self.refusal_for(&error));
            }
        }
        let mut state = self.state.lock();
        let current = state.current.replace(Current::new(next));
        if let Some(old) = current {
            self.handles.insert(old.writer.id(), old.reader);
        }
        self.send_to_current(&mut state);
        Ok(())
    }

    /// Closes the old ledger in the chain and adds the next; the list that is to be stored.
    ///
    /// Nothing reads or confirms in the next one before it is stored; if that fails the topic
    /// is at its end, and an empty ledger at the end of the chain does no harm.
    fn chain_next(
        &self,
        old: &LedgerWriter,
        end: LedgerEnd,
        next: &LedgerWriter,
    ) -> Result<Vec<ListedLedger>, Refusal> {
        let mut state = self.state.lock();
        let confirmed = state.chain.ledgers().next_back().map_or(0, |info| info.entries);
        if EntryId::following(end.last_entry).get() != confirmed {
            let reason = format!("ledger {} ended before its last entries", old.id());
            return Err(self.write_failed(reason));
        }
        state.chain.close_last();
        state.closed_at_ms.insert(old.id(), now_ms());
        state.chain.push_open(next.id()).map_err(|error| self.write_failed(error))?;
        Ok(state.listed())
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
        // A rollover that is due or runs is waited for: it still sends what was taken. No other
        // follows it, since nothing more is taken. It fails only together with its runtime.
        let _ = self.start_rollover().await;
        let mut version = self.record.lock().await;
        if let Intake::Refused(Refusal::Fenced { .. }) = self.state.lock().intake {
            return Err(CloseError::Fenced { topic: self.topic.clone() });
        }
        let Some(writer) = self.writer() else { return Ok(()) };
        let end = writer.close().await?;
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
        *version = match self.put_record(listed, Expected::Version(*version)).await {
            Ok(version) => version,
            Err(MetadataError::Unavailable { key, reason }) => {
                return Err(MetadataError::Unavailable { key, reason }.into());
            }
            Err(_) => {
                self.fail(self.fenced());
                return Err(CloseError::Fenced { topic: self.topic.clone() });
            }
        };
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
) -> Result<ListedEnd, OpenError> {
    if let Some(end) = listed.end {
        return Ok(end);
    }
    let reader = client.recover(listed.ledger, &config.password).await?;
    match reader.metadata().state() {
        LedgerState::Closed(end) => Ok(ListedEnd {
            entries: EntryId::following(end.last_entry).get(),
            bytes: end.length,
            closed_at_ms: now_ms(),
        }),
        LedgerState::Open | LedgerState::InRecovery => {
            unreachable!("a ledger that was recovered is closed")
        }
    }
}
