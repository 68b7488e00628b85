//! Faults on purpose: for tests of what is built on ledgers, and for audits that must prove that they notice.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::bookie::MemoryBookies;
use crate::entry::Entry;
use crate::id::{BookieId, EntryId, LedgerId};
use crate::transport::{
    BookieError, BookieTransport, CompletionSink, Request, RequestId, Response, ResponseBody,
};

/// What is wrong with a bookie, or with the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Requests never arrive and are never answered.
    LoseRequests,
    /// Requests are carried out, but the answers are lost.
    LoseResponses,
    /// Requests are carried out; the answers wait until they are released.
    HoldResponses,
    /// Every answer comes twice.
    DuplicateResponses,
    /// Requests are answered with this error and not carried out.
    Answer(BookieError),
    /// One bit of every entry that is read is wrong.
    CorruptReads,
}

/// In which order held responses are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOrder {
    /// As they came.
    Oldest,
    /// The last one first.
    Newest,
}

/// A transport with faults that are switched per bookie. Without any it is the transport it wraps.
pub struct FaultTransport {
    inner: Arc<dyn BookieTransport>,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    active: Mutex<HashMap<BookieId, Fault>>,
    held: Mutex<BTreeMap<BookieId, Vec<Held>>>,
}

/// A response and where it goes once it is released.
struct Held {
    sink: Arc<dyn CompletionSink>,
    response: Response,
}

impl FaultTransport {
    /// Wraps a transport.
    #[must_use]
    pub fn new(inner: Arc<dyn BookieTransport>) -> Self {
        Self { inner, faults: Arc::default() }
    }

    /// Gives a bookie a fault, instead of the one it has. Requests that are under way have theirs already.
    pub fn inject(&self, bookie: &BookieId, fault: Fault) {
        self.faults.active.lock().insert(bookie.clone(), fault);
    }

    /// Takes a bookie's fault away. What is held stays held.
    pub fn heal(&self, bookie: &BookieId) {
        self.faults.active.lock().remove(bookie);
    }

    /// How many responses of a bookie are held.
    #[must_use]
    pub fn held(&self, bookie: &BookieId) -> usize {
        self.faults.held.lock().get(bookie).map_or(0, Vec::len)
    }

    /// Delivers the held responses of a bookie, each one by itself.
    pub fn release(&self, bookie: &BookieId, order: ReleaseOrder) {
        let mut held = self.faults.held.lock().remove(bookie).unwrap_or_default();
        if order == ReleaseOrder::Newest {
            held.reverse();
        }
        for Held { sink, response } in held {
            sink.complete(&mut vec![response]);
        }
    }
}

impl BookieTransport for FaultTransport {
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>) {
        let fault = self.faults.active.lock().get(bookie).copied();
        match fault {
            None => self.inner.submit(bookie, batch, sink),
            Some(Fault::LoseRequests) => batch.clear(),
            Some(Fault::Answer(error)) => {
                let answer = |id: RequestId| Response {
                    id,
                    bookie: bookie.clone(),
                    instance: None,
                    result: Err(error),
                };
                sink.complete(&mut batch.drain(..).map(|request| answer(request.id)).collect());
            }
            Some(fault) => {
                let faults = self.faults.clone();
                let sink: Arc<dyn CompletionSink> =
                    Arc::new(FaultSink { sink: sink.clone(), fault, faults });
                self.inner.submit(bookie, batch, &sink);
            }
        }
    }
}

/// Does to the responses of one batch what the fault says.
struct FaultSink {
    sink: Arc<dyn CompletionSink>,
    fault: Fault,
    faults: Arc<Faults>,
}

impl CompletionSink for FaultSink {
    fn complete(&self, batch: &mut Vec<Response>) {
        match self.fault {
            Fault::LoseRequests | Fault::LoseResponses | Fault::Answer(_) => batch.clear(),
            Fault::HoldResponses => {
                let mut held = self.faults.held.lock();
                for response in batch.drain(..) {
                    let of_bookie = held.entry(response.bookie.clone()).or_default();
                    of_bookie.push(Held { sink: self.sink.clone(), response });
                }
            }
            Fault::DuplicateResponses => {
                batch.extend_from_within(..);
                self.sink.complete(batch);
            }
            Fault::CorruptReads => {
                for response in &mut *batch {
                    if let Ok(ResponseBody::Entry(entry)) = &mut response.result {
                        *entry = corrupted(entry);
                    }
                }
                self.sink.complete(batch);
            }
        }
    }
}

impl MemoryBookies {
    /// Loses a bookie's copy of an entry, and returns it.
    pub fn remove_entry(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        entry: EntryId,
    ) -> Option<Entry> {
        self.with_entries(bookie, ledger, |entries| entries.remove(entry)).flatten()
    }

    /// Puts another copy in the place of a bookie's copy of an entry, and returns the old one; without one there is
    /// none to replace. The entry is the one that `copy` names.
    pub fn replace_entry(&self, bookie: &BookieId, ledger: LedgerId, copy: Entry) -> Option<Entry> {
        let entry = copy.entry();
        self.with_entries(bookie, ledger, |entries| entries.replace(entry, copy)).flatten()
    }

    /// Damages a bookie's copy of an entry, so that its digest no longer fits, and returns the good one.
    pub fn corrupt_entry(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        entry: EntryId,
    ) -> Option<Entry> {
        let good = self.entries(bookie, ledger).into_iter().find(|copy| copy.entry() == entry)?;
        self.replace_entry(bookie, ledger, corrupted(&good))
    }
}

/// The entry with the lowest bit of its last byte turned over.
fn corrupted(entry: &Entry) -> Entry {
    let mut bytes = entry.to_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    Entry::from_bytes(Bytes::from(bytes))
        .expect("the last byte belongs to the payload or the digest")
}
