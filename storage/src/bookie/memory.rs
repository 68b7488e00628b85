//! Bookies in the memory of this process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::rules::{self, LedgerRecord, Mode, RecordChange};
use crate::entry::{Entry, MasterKey};
use crate::id::{BookieId, EntryId, LedgerId};
use crate::transport::{
    AddKind, BookieError, BookieTransport, CompletionSink, Request, RequestBody, Response,
    ResponseBody,
};

/// A fixed set of bookies in memory, and the transport to them.
///
/// A batch is carried out under one short lock of its bookie and answered before `submit` returns. What the bookies
/// hold is lost with the value. Copies of an entry share its payload; a copy costs about 80 bytes.
#[derive(Debug)]
pub struct MemoryBookies {
    bookies: BTreeMap<BookieId, Mutex<Bookie>>,
}

#[derive(Debug, Default)]
struct Bookie {
    mode: Mode,
    ledgers: HashMap<LedgerId, Ledger>,
}

#[derive(Debug)]
struct Ledger {
    record: LedgerRecord,
    entries: Entries,
}

/// Entries in order of their ids. They nearly always arrive in that order.
#[derive(Debug, Default)]
pub(crate) struct Entries(Vec<Entry>);

impl MemoryBookies {
    /// Empty, writable bookies with these ids.
    pub fn new(ids: impl IntoIterator<Item = BookieId>) -> Self {
        Self { bookies: ids.into_iter().map(|id| (id, Mutex::default())).collect() }
    }

    /// The ids of the bookies, sorted.
    pub fn ids(&self) -> impl Iterator<Item = BookieId> + '_ {
        self.bookies.keys().cloned()
    }

    /// Makes a bookie writable or read-only; one that is not there stays so.
    pub fn set_mode(&self, bookie: &BookieId, mode: Mode) {
        if let Some(bookie) = self.bookies.get(bookie) {
            bookie.lock().mode = mode;
        }
    }

    /// The copies of a ledger's entries that a bookie holds, in order of their ids.
    #[must_use]
    pub fn entries(&self, bookie: &BookieId, ledger: LedgerId) -> Vec<Entry> {
        self.with_entries(bookie, ledger, |entries| entries.0.clone()).unwrap_or_default()
    }

    /// Forgets the ledgers for which `keep` is false: those that were deleted from the metadata store. Only an id that
    /// will never be used again may be forgotten, or its fence would be forgotten with it.
    pub fn retain_ledgers(&self, keep: impl Fn(LedgerId) -> bool) {
        for bookie in self.bookies.values() {
            bookie.lock().ledgers.retain(|ledger, _| keep(*ledger));
        }
    }

    /// Runs `f` on what a bookie holds of a ledger; none if it has no such ledger.
    pub(crate) fn with_entries<R>(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        f: impl FnOnce(&mut Entries) -> R,
    ) -> Option<R> {
        let mut bookie = self.bookies.get(bookie)?.lock();
        bookie.ledgers.get_mut(&ledger).map(|ledger| f(&mut ledger.entries))
    }
}

impl BookieTransport for MemoryBookies {
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>) {
        let mut responses = Vec::with_capacity(batch.len());
        let mut answer = |id, result| {
            responses.push(Response { id, bookie: bookie.clone(), instance: None, result })
        };
        match self.bookies.get(bookie) {
            Some(found) => {
                let mut found = found.lock();
                batch.drain(..).for_each(|request| {
                    answer(request.id, found.apply(request.ledger, request.body))
                });
            }
            None => batch
                .drain(..)
                .for_each(|request| answer(request.id, Err(BookieError::Unreachable))),
        }
        sink.complete(&mut responses);
    }
}

impl Bookie {
    fn apply(&mut self, ledger: LedgerId, body: RequestBody) -> Result<ResponseBody, BookieError> {
        match body {
            RequestBody::Add { entry, key, kind } => {
                let change = rules::add(self.record(ledger), self.mode, key, kind)?;
                self.change(ledger, change);
                let ledger =
                    self.ledgers.get_mut(&ledger).expect("an add that is taken creates its ledger");
                ledger.entries.put(entry, kind);
                Ok(ResponseBody::Added)
            }
            RequestBody::Read { entry, fence } => {
                self.fence(ledger, fence)?;
                let stored = self.ledgers.get(&ledger).and_then(|ledger| ledger.entries.get(entry));
                rules::read(self.record(ledger), stored).map(ResponseBody::Entry)
            }
            RequestBody::ReadLac { fence } => {
                self.fence(ledger, fence)?;
                self.last_add_confirmed(ledger)
            }
            RequestBody::WaitLac { .. } => self.last_add_confirmed(ledger),
            RequestBody::WriteLac { lac, key } => {
                let change = rules::write_lac(self.record(ledger), lac, key)?;
                self.change(ledger, change);
                Ok(ResponseBody::LacWritten)
            }
        }
    }

    fn last_add_confirmed(&self, ledger: LedgerId) -> Result<ResponseBody, BookieError> {
        let highest = self.ledgers.get(&ledger).and_then(|ledger| ledger.entries.0.last());
        let lac = rules::last_add_confirmed(self.record(ledger), highest)?;
        Ok(ResponseBody::LastAddConfirmed { lac })
    }

    fn fence(&mut self, ledger: LedgerId, key: Option<MasterKey>) -> Result<(), BookieError> {
        if let Some(key) = key {
            let change = rules::fence(self.record(ledger), key)?;
            self.change(ledger, change);
        }
        Ok(())
    }

    fn record(&self, ledger: LedgerId) -> Option<&LedgerRecord> {
        self.ledgers.get(&ledger).map(|ledger| &ledger.record)
    }

    fn change(&mut self, ledger: LedgerId, change: RecordChange) {
        if let RecordChange::Write(record) = change {
            self.ledgers
                .entry(ledger)
                .and_modify(|ledger| ledger.record = record)
                .or_insert_with(|| Ledger { record, entries: Entries::default() });
        }
    }
}

impl Entries {
    fn get(&self, id: EntryId) -> Option<&Entry> {
        self.position(id).ok().map(|at| &self.0[at])
    }

    /// Stores an entry. A second normal add of an id is the first one again; a recovery's copy takes its place.
    fn put(&mut self, entry: Entry, kind: AddKind) {
        if self.0.last().is_none_or(|last| last.entry() < entry.entry()) {
            self.0.push(entry);
            return;
        }
        match (self.position(entry.entry()), kind) {
            (Ok(_), AddKind::Normal) => {}
            (Ok(at), AddKind::Recovery) => self.0[at] = entry,
            (Err(at), _) => self.0.insert(at, entry),
        }
    }

    pub(crate) fn remove(&mut self, id: EntryId) -> Option<Entry> {
        self.position(id).ok().map(|at| self.0.remove(at))
    }

    pub(crate) fn replace(&mut self, id: EntryId, copy: Entry) -> Option<Entry> {
        self.position(id).ok().map(|at| std::mem::replace(&mut self.0[at], copy))
    }

    fn position(&self, id: EntryId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&id, Entry::entry)
    }
}
