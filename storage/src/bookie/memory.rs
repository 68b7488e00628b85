//! Bookies in the memory of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::lac_waits::{LacWait, LacWaits};
use super::rules::{self, LedgerRecord, Mode, RecordChange};
use crate::entry::{Entry, MasterKey};
use crate::id::{BookieId, EntryId, Instance, LedgerId};
use crate::transport::{
    AddKind, BookieError, BookieTransport, CompletionSink, Request, RequestBody, RequestId,
    Response, ResponseBody,
};

/// A fixed set of bookies in memory, and the transport to them.
///
/// A batch is carried out under one short lock of its bookie and answered before `submit` returns; only waits for the
/// LAC are answered later. What the bookies hold is lost with the value. Copies of an entry share its payload; a copy
/// costs about 80 bytes.
#[derive(Debug)]
pub struct MemoryBookies {
    bookies: BTreeMap<BookieId, Mutex<Bookie>>,
}

#[derive(Debug)]
struct Bookie {
    id: BookieId,
    instance: Instance,
    mode: Mode,
    reach: Reach,
    ledgers: FxHashMap<LedgerId, Ledger>,
    limbo: FxHashSet<LedgerId>,
    lac_waits: LacWaits,
    /// Empty; its memory is used for the responses of the next batch.
    spare: Vec<Response>,
}

/// Whether requests reach a bookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Up,
    Down,
}

#[derive(Debug)]
struct Ledger {
    record: LedgerRecord,
    entries: Entries,
}

/// Responses that leave once the lock of their bookie is released.
type Outgoing = Vec<(Arc<dyn CompletionSink>, Response)>;

/// Entries in order of their ids. They nearly always arrive in that order.
#[derive(Debug, Default)]
pub(crate) struct Entries(Vec<Entry>);

impl MemoryBookies {
    /// Empty, writable bookies with these ids, in their first life, which is `Instance(1)`.
    pub fn new(ids: impl IntoIterator<Item = BookieId>) -> Self {
        let bookie = |id: BookieId| (id.clone(), Mutex::new(Bookie::new(id, Instance(1))));
        Self { bookies: ids.into_iter().map(bookie).collect() }
    }

    /// The ids of the bookies, sorted.
    pub fn ids(&self) -> impl Iterator<Item = BookieId> + '_ {
        self.bookies.keys().cloned()
    }

    /// Makes a bookie writable or read-only; one that is not there stays so.
    pub fn set_mode(&self, bookie: &BookieId, mode: Mode) {
        self.change(bookie, |bookie| {
            bookie.mode = mode;
            Outgoing::new()
        });
    }

    /// Takes a bookie down: it keeps what it holds and cannot be reached. Waits at it end with that.
    pub fn down(&self, bookie: &BookieId) {
        self.change(bookie, |bookie| {
            bookie.reach = Reach::Down;
            bookie.end_lac_waits()
        });
    }

    /// Brings a bookie back that was taken down, in the same life and with all it held.
    pub fn up(&self, bookie: &BookieId) {
        self.change(bookie, |bookie| {
            bookie.reach = Reach::Up;
            Outgoing::new()
        });
    }

    /// Takes a bookie down and brings it back at once: the same life, but connections and waits are lost.
    pub fn restart(&self, bookie: &BookieId) {
        self.down(bookie);
        self.up(bookie);
    }

    /// Brings a bookie back empty, under its id in another life: it has forgotten entries and fences.
    pub fn wipe(&self, bookie: &BookieId, instance: Instance) {
        self.change(bookie, |bookie| {
            let outgoing = bookie.end_lac_waits();
            *bookie = Bookie { mode: bookie.mode, ..Bookie::new(bookie.id.clone(), instance) };
            outgoing
        });
    }

    /// Which life of a bookie this is; none if there is no such bookie.
    #[must_use]
    pub fn instance(&self, bookie: &BookieId) -> Option<Instance> {
        self.bookies.get(bookie).map(|bookie| bookie.lock().instance)
    }

    /// Makes a bookie doubt whether it still has all of a ledger. It returns what it has and denies nothing; it takes
    /// no normal adds of the ledger and tells no LAC of it.
    pub fn enter_limbo(&self, bookie: &BookieId, ledger: LedgerId) {
        self.change(bookie, |bookie| {
            bookie.limbo.insert(ledger);
            Outgoing::new()
        });
    }

    /// The copies of a ledger's entries that a bookie holds, in order of their ids.
    #[must_use]
    pub fn entries(&self, bookie: &BookieId, ledger: LedgerId) -> Vec<Entry> {
        self.with_entries(bookie, ledger, |entries| entries.0.clone()).unwrap_or_default()
    }

    /// The ledgers that are held.
    #[must_use]
    pub fn ledgers(&self) -> BTreeSet<LedgerId> {
        let held =
            |bookie: &Mutex<Bookie>| bookie.lock().ledgers.keys().copied().collect::<Vec<_>>();
        self.bookies.values().flat_map(held).collect()
    }

    /// Drops ledgers whose records were deleted. Only an id that will never be used again may be deleted, or its fence would be forgotten with it. Waits for the
    /// LAC of these ledgers end.
    pub fn delete_ledgers(&self, ledgers: impl IntoIterator<Item = LedgerId>) {
        let ledgers: Vec<_> = ledgers.into_iter().collect();
        for bookie in self.bookies.keys() {
            self.change(bookie, |bookie| {
                let mut outgoing = Outgoing::new();
                for ledger in &ledgers {
                    bookie.ledgers.remove(ledger);
                    bookie.limbo.remove(ledger);
                    for wait in bookie.lac_waits.take_passed(*ledger, Some(EntryId(u64::MAX))) {
                        let gone = bookie.response(wait.id, Err(BookieError::NoSuchLedger));
                        outgoing.push((wait.sink, gone));
                    }
                }
                outgoing
            });
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

    fn change(&self, bookie: &BookieId, change: impl FnOnce(&mut Bookie) -> Outgoing) {
        if let Some(bookie) = self.bookies.get(bookie) {
            let outgoing = change(&mut bookie.lock());
            send(outgoing);
        }
    }
}

impl BookieTransport for MemoryBookies {
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>) {
        let Some(found) = self.bookies.get(bookie) else {
            let unreachable = |request: Request| unreachable(bookie.clone(), request.id);
            return sink.complete(&mut batch.drain(..).map(unreachable).collect());
        };
        let mut outgoing = Outgoing::new();
        let mut responses = {
            let mut found = found.lock();
            let mut responses = std::mem::take(&mut found.spare);
            responses.reserve(batch.len());
            for request in batch.drain(..) {
                if let Some(response) = found.serve(request, sink, &mut outgoing) {
                    responses.push(response);
                }
            }
            responses
        };
        if !responses.is_empty() {
            sink.complete(&mut responses);
        }
        send(outgoing);
        responses.clear();
        if responses.capacity() <= SPARE_RESPONSES_MAX {
            found.lock().spare = responses;
        }
    }
}

/// What a bookie keeps memory for between batches: about 120 KiB.
const SPARE_RESPONSES_MAX: usize = 1_000;

fn send(outgoing: Outgoing) {
    for (sink, response) in outgoing {
        sink.complete(&mut vec![response]);
    }
}

const fn unreachable(bookie: BookieId, id: RequestId) -> Response {
    Response { id, bookie, instance: None, result: Err(BookieError::Unreachable) }
}

impl Bookie {
    fn new(id: BookieId, instance: Instance) -> Self {
        Self {
            id,
            instance,
            mode: Mode::default(),
            reach: Reach::Up,
            ledgers: FxHashMap::default(),
            limbo: FxHashSet::default(),
            lac_waits: LacWaits::default(),
            spare: Vec::new(),
        }
    }

    /// Carries out a request. Without a response it waits for the LAC.
    fn serve(
        &mut self,
        request: Request,
        sink: &Arc<dyn CompletionSink>,
        outgoing: &mut Outgoing,
    ) -> Option<Response> {
        let Request { id, ledger, body } = request;
        if self.reach == Reach::Down {
            return Some(unreachable(self.id.clone(), id));
        }
        let in_limbo = self.limbo.contains(&ledger);
        if in_limbo && let Err(error) = rules::admit_in_limbo(&body) {
            return Some(self.response(id, Err(error)));
        }
        if let RequestBody::WaitLac { beyond } = body {
            let wait = LacWait { id, beyond, sink: sink.clone() };
            return self.wait_lac(ledger, wait, outgoing);
        }
        let moves_lac = matches!(body, RequestBody::Add { .. } | RequestBody::WriteLac { .. });
        let mut result = self.apply(ledger, body);
        if in_limbo {
            result = result.map_err(rules::refusal_in_limbo);
        }
        if moves_lac {
            self.wake_lac_waits(ledger, outgoing);
        }
        Some(self.response(id, result))
    }

    fn response(&self, id: RequestId, result: Result<ResponseBody, BookieError>) -> Response {
        Response { id, bookie: self.id.clone(), instance: Some(self.instance), result }
    }

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

    /// Answers a wait if it is over already, and keeps it if it is not.
    fn wait_lac(
        &mut self,
        ledger: LedgerId,
        wait: LacWait,
        outgoing: &mut Outgoing,
    ) -> Option<Response> {
        if let Some(lac) = self.awaited_lac(ledger, wait.beyond) {
            return Some(self.lac_response(wait.id, Some(lac)));
        }
        if let Some(LacWait { id, sink, .. }) = self.lac_waits.push(ledger, wait) {
            outgoing.push((sink, self.lac_response(id, self.awaited_lac(ledger, None))));
        }
        None
    }

    /// Answers the waits that the ledger's LAC has passed.
    fn wake_lac_waits(&mut self, ledger: LedgerId, outgoing: &mut Outgoing) {
        if !self.lac_waits.contains(ledger) {
            return;
        }
        let lac = self.awaited_lac(ledger, None);
        for wait in self.lac_waits.take_passed(ledger, lac) {
            outgoing.push((wait.sink, self.lac_response(wait.id, lac)));
        }
    }

    /// The answers to all waits when the connections to the bookie break.
    fn end_lac_waits(&mut self) -> Outgoing {
        let waits = self.lac_waits.take_all();
        waits.map(|wait| (wait.sink, unreachable(self.id.clone(), wait.id))).collect()
    }

    fn awaited_lac(&self, ledger: LedgerId, beyond: Option<EntryId>) -> Option<EntryId> {
        rules::awaited_lac(self.record(ledger), self.highest(ledger), beyond)
    }

    fn lac_response(&self, id: RequestId, lac: Option<EntryId>) -> Response {
        self.response(id, Ok(ResponseBody::LastAddConfirmed { lac }))
    }

    fn last_add_confirmed(&self, ledger: LedgerId) -> Result<ResponseBody, BookieError> {
        let lac = rules::last_add_confirmed(self.record(ledger), self.highest(ledger))?;
        Ok(ResponseBody::LastAddConfirmed { lac })
    }

    fn highest(&self, ledger: LedgerId) -> Option<&Entry> {
        self.ledgers.get(&ledger).and_then(|ledger| ledger.entries.0.last())
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

#[cfg(test)]
mod tests;
