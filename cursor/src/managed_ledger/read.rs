//! Reading a topic by offset, across its ledgers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use georepl_storage::{EntryId, LedgerId, LedgerReader};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::error::ReadError;
use super::{Door, Inner, ManagedLedger};
use crate::position::{Offset, Position};

/// An entry of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its address, which stays the same for ever.
    pub position: Position,
    /// Its place in the topic, for as long as the topic is open.
    pub offset: Offset,
    /// What was appended; shared, never copied.
    pub payload: Bytes,
}

/// What to ask storage for next.
struct Plan {
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
    reader: Option<Arc<LedgerReader>>,
}

impl ManagedLedger {
    /// Reads the entries `from..to`, or those of them that exist: at least one, and no more than
    /// `bytes_max` of payload, except that a single larger entry is returned alone.
    ///
    /// Entries are asked for in steps that fit the bytes by the average of their ledger. An error
    /// after the first entry ends the read early; the next read meets it. Cancel-safe.
    ///
    /// # Errors
    /// [`ReadError`]; there being no entry at `from` is one.
    pub async fn read(
        &self,
        from: Offset,
        to: Offset,
        bytes_max: u64,
    ) -> Result<Vec<Entry>, ReadError> {
        let mut entries = Vec::new();
        let (mut at, mut bytes_left) = (from, bytes_max);
        while let Some(plan) = self.0.plan(at, to, bytes_left)? {
            let read = match self.0.read_ledger(&plan).await {
                Ok(read) => read,
                Err(error) if entries.is_empty() => return Err(error),
                Err(_) => return Ok(entries),
            };
            entries.reserve(read.len());
            for (id, payload) in read {
                let bytes = payload.len() as u64;
                if bytes > bytes_left && !entries.is_empty() {
                    return Ok(entries);
                }
                bytes_left = bytes_left.saturating_sub(bytes);
                let position = Position::new(plan.ledger, id);
                entries.push(Entry { position, offset: at, payload });
                at = at.plus(1);
            }
            if bytes_left == 0 {
                break;
            }
        }
        if entries.is_empty() {
            let (topic, start, end) = (self.0.topic.clone(), self.start(), self.end());
            if from < start {
                return Err(ReadError::Trimmed { topic, from, start });
            }
            return Err(ReadError::BeyondEnd { topic, from, end });
        }
        Ok(entries)
    }

    /// Reads one entry. Cancel-safe.
    ///
    /// # Errors
    /// [`ReadError`]; there being no such entry is one.
    pub async fn read_at(&self, position: Position) -> Result<Entry, ReadError> {
        let missing = || ReadError::NoSuchEntry { topic: self.0.topic.clone(), position };
        let offset = self.offset_of(position).ok_or_else(missing)?;
        let entries = self.read(offset, offset.plus(1), u64::MAX).await?;
        entries.into_iter().next().ok_or_else(missing)
    }
}

impl Inner {
    /// The next step of a read; none when no entry is left in the range.
    fn plan(&self, at: Offset, to: Offset, bytes_left: u64) -> Result<Option<Plan>, ReadError> {
        let state = self.state.lock();
        if state.door == Door::Closed {
            return Err(ReadError::Closed { topic: self.topic.clone() });
        }
        let Some(segment) = state.chain.first_segment(at, to) else { return Ok(None) };
        let average_bytes = (segment.info.bytes / segment.info.entries).max(1);
        let fitting = (bytes_left / average_bytes).max(1);
        let last = segment.first.get().saturating_add(fitting - 1).min(segment.last.get());
        let ledger = segment.info.ledger;
        let current = state.current.as_ref().filter(|current| current.writer.id() == ledger);
        let reader = current.map(|current| current.reader.clone());
        Ok(Some(Plan { ledger, first: segment.first, last: EntryId(last), reader }))
    }

    async fn read_ledger(&self, plan: &Plan) -> Result<Vec<(EntryId, Bytes)>, ReadError> {
        let reader = match &plan.reader {
            Some(reader) => reader.clone(),
            None => self.handles.get(self, plan.ledger).await?,
        };
        match reader.read(plan.first, plan.last).await {
            Ok(entries) => Ok(entries.into_iter().map(|entry| (entry.id, entry.payload)).collect()),
            Err(error) => {
                // The next read opens the ledger afresh.
                self.handles.remove(plan.ledger);
                Err(error.into())
            }
        }
    }
}

/// Read handles of closed ledgers, opened once for all who read at the same time.
#[derive(Default)]
pub(super) struct Handles(Mutex<BTreeMap<LedgerId, Arc<OnceCell<Arc<LedgerReader>>>>>);

/// Handles kept. Readers move forward, so that of too many the oldest ledger's is dropped.
const HANDLES_MAX: usize = 64;

impl Handles {
    async fn get(&self, inner: &Inner, ledger: LedgerId) -> Result<Arc<LedgerReader>, ReadError> {
        let cell = self.cell(ledger, OnceCell::new);
        let opened = cell.get_or_try_init(async || {
            let reader = inner.client.open(ledger, &inner.config.password).await?;
            Ok::<_, ReadError>(Arc::new(reader))
        });
        Ok(opened.await?.clone())
    }

    pub(super) fn insert(&self, ledger: LedgerId, reader: Arc<LedgerReader>) {
        self.cell(ledger, || OnceCell::new_with(Some(reader)));
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    pub(super) fn remove(&self, ledger: LedgerId) {
        self.0.lock().remove(&ledger);
    }

    fn cell(
        &self,
        ledger: LedgerId,
        new: impl FnOnce() -> OnceCell<Arc<LedgerReader>>,
    ) -> Arc<OnceCell<Arc<LedgerReader>>> {
        let mut handles = self.0.lock();
        let cell = handles.entry(ledger).or_insert_with(|| Arc::new(new())).clone();
        if handles.len() > HANDLES_MAX {
            let oldest = handles.keys().find(|kept| **kept != ledger).copied();
            oldest.map(|oldest| handles.remove(&oldest));
        }
        cell
    }
}
