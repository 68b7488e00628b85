//! A read of consecutive entries: which replicas each of them waits for. Pure.
//!
//! Each entry is asked for at the replicas of its write set, in that order: the next one when a replica has failed,
//! and also when none has answered for a while. The first good copy counts, whichever replica it comes from. Replicas
//! that were overtaken may still answer until the last one that was asked is overdue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::LedgerEntry;
use super::error::ReadError;
use crate::id::{BookieId, EntryId, LedgerId};
use crate::metadata::LedgerMetadata;
use crate::quorum::{Slot, SlotSet};
use crate::replica::{Answers, ReplicaError, verified};
use crate::time::Time;
use crate::transport::{BookieError, Evidence, Request, RequestBody, RequestId, Response};

/// How long replicas are waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// After this, counted from when the last replica was asked, the next one is asked as well.
    pub(super) speculative_delay: Duration,
    /// After this, counted likewise, all that have not answered have failed.
    pub(super) request_timeout: Duration,
}

/// A read of consecutive entries.
pub(super) struct Range {
    ledger: LedgerId,
    first: EntryId,
    metadata: Arc<LedgerMetadata>,
    patience: Patience,
    pass: Pass,
    reads: Vec<Read>,
    /// How many reads wait for a response.
    waiting: usize,
    /// The reads to send to their next replica.
    unsent: Vec<usize>,
}

/// Which time the write sets are gone over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    First = 0,
    /// With a newer record.
    Second = 1,
}

/// The read of one entry.
struct Read {
    state: ReadState,
    /// Replicas of the write set that have been asked, in this pass over it.
    asked: usize,
    /// All that failed, in both passes.
    answers: Vec<(BookieId, ReplicaError)>,
}

enum ReadState {
    Unsent,
    Waiting {
        /// The replicas that may still answer, by their place in the write set.
        outstanding: SlotSet,
        /// When the last replica was asked.
        since: Time,
    },
    Found(Bytes),
    Failed,
}

impl Range {
    pub(super) fn new(
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        metadata: Arc<LedgerMetadata>,
        patience: Patience,
    ) -> Self {
        let count = (last.get() - first.get() + 1) as usize;
        let reads = (0..count)
            .map(|_| Read { state: ReadState::Unsent, asked: 0, answers: Vec::new() })
            .collect();
        let (pass, unsent) = (Pass::First, (0..count).collect());
        Self { ledger, first, metadata, patience, pass, reads, waiting: 0, unsent }
    }

    /// The next replica of every read that needs one: one batch per bookie, in the order of their ids.
    pub(super) fn requests(&mut self, now: Time) -> BTreeMap<BookieId, Vec<Request>> {
        let mut batches = BTreeMap::<BookieId, Vec<Request>>::new();
        let metadata = self.metadata.clone();
        let replicas = metadata.sizes().write();
        let unsent = std::mem::take(&mut self.unsent);
        for &index in &unsent {
            let replica = self.reads[index].asked;
            // Two replicas may have failed since with one left to ask.
            if replica == replicas {
                continue;
            }
            let bookie = replica_of(&metadata, self.entry(index), replica);
            let id = self.request_id(index, replica);
            let body = RequestBody::Read { entry: self.entry(index), fence: None };
            let read = &mut self.reads[index];
            let mut outstanding = match read.state {
                ReadState::Waiting { outstanding, .. } => outstanding,
                ReadState::Unsent => {
                    self.waiting += 1;
                    SlotSet::default()
                }
                // Found by a replica that had been overtaken, between the decision to ask on and now.
                ReadState::Found(_) | ReadState::Failed => continue,
            };
            outstanding.insert(Slot::new(replica));
            read.asked += 1;
            read.state = ReadState::Waiting { outstanding, since: now };
            let request = Request { id, ledger: self.ledger, body };
            if let Some(batch) = batches.get_mut(bookie) {
                batch.push(request);
            } else {
                // Reads of consecutive entries begin at each bookie of the ensemble in turn.
                let mut batch = Vec::with_capacity(unsent.len() / metadata.sizes().ensemble() + 1);
                batch.push(request);
                batches.insert(bookie.clone(), batch);
            }
        }
        batches
    }

    pub(super) fn on_response(&mut self, response: Response) {
        let (index, replica) = Self::place(response.id);
        let Some(Read { state: ReadState::Waiting { outstanding, .. }, .. }) =
            self.reads.get(index)
        else {
            return;
        };
        // What is no longer waited for was given up, answered before or asked for in the first pass.
        let waited_for = self.request_id(index, replica) == response.id
            && outstanding.contains(Slot::new(replica))
            && *self.replica(index, replica) == response.bookie;
        if !waited_for {
            return;
        }
        match verified(self.ledger, self.entry(index), response.result) {
            // A good copy is one whichever life of the bookie it comes from.
            Ok(found) => {
                self.waiting -= 1;
                self.reads[index].state = ReadState::Found(found.into_payload());
            }
            Err(error) => {
                // A bookie that was set up anew knows nothing of what it had before.
                let recorded = self.metadata.instance_of(&response.bookie);
                let other_life = recorded.is_some()
                    && response.instance.is_some_and(|instance| Some(instance) != recorded);
                let error = if is_denial(&error) && other_life {
                    ReplicaError::OtherInstance
                } else {
                    error
                };
                self.fail(index, replica, error);
            }
        }
    }

    /// Asks the next replica where none has answered for a while, and gives up what is overdue.
    pub(super) fn on_time(&mut self, now: Time) {
        let replicas = self.metadata.sizes().write();
        for index in 0..self.reads.len() {
            let read = &self.reads[index];
            let ReadState::Waiting { outstanding, since } = read.state else {
                continue;
            };
            if read.asked < replicas && since + self.patience.speculative_delay <= now {
                self.unsent.push(index);
            } else if since + self.patience.request_timeout <= now {
                for slot in outstanding.iter() {
                    self.fail(index, slot.index(), BookieError::Timeout.into());
                }
            }
        }
    }

    /// A replica that is waited for has failed.
    fn fail(&mut self, index: usize, replica: usize, error: ReplicaError) {
        let bookie = self.replica(index, replica).clone();
        let replicas = self.metadata.sizes().write();
        let read = &mut self.reads[index];
        read.answers.push((bookie, error));
        let ReadState::Waiting { outstanding, since } = read.state else {
            return;
        };
        let outstanding = outstanding.iter().filter(|slot| slot.index() != replica).collect();
        read.state = ReadState::Waiting { outstanding, since };
        if read.asked < replicas {
            self.unsent.push(index);
        } else if outstanding.is_empty() {
            self.waiting -= 1;
            read.state = ReadState::Failed;
        }
    }

    /// When something must be done although nothing was answered; none when nothing is waited for.
    pub(super) fn wake_at(&self) -> Option<Time> {
        if self.waiting == 0 {
            return None;
        }
        let replicas = self.metadata.sizes().write();
        let Patience { speculative_delay, request_timeout } = self.patience;
        let patience = |asked| {
            if asked < replicas { speculative_delay.min(request_timeout) } else { request_timeout }
        };
        let next = |read: &Read| match read.state {
            ReadState::Waiting { since, .. } => Some(since + patience(read.asked)),
            ReadState::Unsent | ReadState::Found(_) | ReadState::Failed => None,
        };
        self.reads.iter().filter_map(next).min()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.reads.iter().any(|read| matches!(read.state, ReadState::Failed))
    }

    /// Lets failed reads go over their write set again where the new record names other bookies. Called once.
    pub(super) fn retry_moved(&mut self, metadata: Arc<LedgerMetadata>) {
        self.pass = Pass::Second;
        let stale = std::mem::replace(&mut self.metadata, metadata);
        for index in 0..self.reads.len() {
            let entry = self.entry(index);
            let moved = stale.ensemble_of(entry) != self.metadata.ensemble_of(entry);
            let read = &mut self.reads[index];
            if moved && matches!(read.state, ReadState::Failed) {
                (read.state, read.asked) = (ReadState::Unsent, 0);
                self.unsent.push(index);
            }
        }
    }

    pub(super) fn into_entries(self) -> Result<Vec<LedgerEntry>, ReadError> {
        let (ledger, first) = (self.ledger, self.first);
        let mut entries = Vec::with_capacity(self.reads.len());
        for (read, id) in self.reads.into_iter().zip(first.get()..) {
            let ReadState::Found(payload) = read.state else {
                let (entry, answers) = (EntryId(id), Answers(read.answers));
                // One doubtful answer is enough: the entry may exist there.
                return Err(if answers.0.iter().all(|(_, error)| is_denial(error)) {
                    ReadError::NoSuchEntry { ledger, entry, answers }
                } else {
                    ReadError::Unreadable { ledger, entry, answers }
                });
            };
            entries.push(LedgerEntry { id: EntryId(id), payload });
        }
        Ok(entries)
    }

    const fn entry(&self, index: usize) -> EntryId {
        EntryId(self.first.get() + index as u64)
    }

    /// The bookie of a read that stands at this place of its write set.
    fn replica(&self, index: usize, replica: usize) -> &BookieId {
        replica_of(&self.metadata, self.entry(index), replica)
    }

    /// Names the read, the pass and the replica, so that late answers are told apart.
    const fn request_id(&self, index: usize, replica: usize) -> RequestId {
        RequestId(
            (index as u64) << PLACE_BITS | (self.pass as u64) << REPLICA_BITS | replica as u64,
        )
    }

    const fn place(id: RequestId) -> (usize, usize) {
        ((id.0 >> PLACE_BITS) as usize, (id.0 & ((1 << REPLICA_BITS) - 1)) as usize)
    }
}

/// The bookie that stands at this place of the entry's write set.
fn replica_of(metadata: &LedgerMetadata, entry: EntryId, replica: usize) -> &BookieId {
    let slot = metadata.sizes().write_set(entry).nth(replica);
    let slot = slot.expect("no more replicas are asked than the write quorum has");
    &metadata.ensemble_of(entry)[slot.index()]
}

/// Bits of a request id that hold a place in a write set, below 64.
const REPLICA_BITS: u32 = 6;
/// Bits of a request id that hold place and pass.
const PLACE_BITS: u32 = REPLICA_BITS + 1;

fn is_denial(error: &ReplicaError) -> bool {
    matches!(error, ReplicaError::Bookie(error) if error.evidence() == Evidence::Absent)
}
