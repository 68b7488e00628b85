//! The writer of one ledger, without clock, bookies or store.
//!
//! ```text
//!                Append                        Close                 all decided
//!  ── new ──► Open ────► Open ──────────────────────────► Closing ─────────────────► Ended(Settled)
//!               │   Responses: acks move LAC                 │
//!               │                                            │
//!               └──── fenced, unauthorised, AQ impossible, too late ────► Ended(Failed)
//!
//!  entries   0 ........ retired │ confirmed, sends outstanding │ pushed, not confirmed │ next
//!                             first                LAC ─┘                          LAP ┘
//! ```
//!
//! Invariants:
//! 1. retired ≤ LAC ≤ LAP; ids are given in order and never twice.
//! 2. LAC moves one entry at a time, only onto an entry with AQ acks, and never after the end.
//! 3. An ack counts only for a slot the entry was sent to, from the bookie it was sent to, and once.
//! 4. The header of an entry carries the LAC of the moment it was first sent; its bytes never change.
//! 5. A failed entry is the end: nothing after it is confirmed, so the log has no hole. The first reason stays.
//! 6. The length at the end is the one in the header of the entry at LAC.
//!
//! Obligations of the driver: submit every `Submit`, in order per bookie; feed all responses, however late; call
//! `handle` with `Wake` at `wake_at`; on `Failed` and `Settled` stop. There is no change of the ensemble yet: a failed
//! bookie is done without as long as every entry finds AQ others.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::Error;
use crate::entry::{Entry, MasterKey};
use crate::id::{BookieId, EntryId, LedgerId};
use crate::metadata::LedgerEnd;
use crate::quorum::{AckSet, Coverage, QuorumSizes, Slot};
use crate::time::Time;
use crate::transport::{
    AddKind, BookieError, Request, RequestBody, RequestId, Response, ResponseBody,
};

/// What a writer is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// The ledger.
    pub ledger: LedgerId,
    /// Its sizes.
    pub sizes: QuorumSizes,
    /// The key its bookies ask for.
    pub key: MasterKey,
    /// The members of its ensemble, as many as the sizes say.
    pub ensemble: Vec<BookieId>,
    /// How long a bookie may take to answer one add before it has failed for that entry.
    pub request_timeout: Duration,
    /// How long an entry may wait for its ack quorum before the writer ends.
    pub add_quorum_timeout: Duration,
}

/// All that can happen to a writer. Buffers are emptied and keep their capacity.
#[derive(Debug)]
pub enum Input<'a> {
    /// Entries to append. The first one's id has been promised to the caller.
    Append {
        /// The id the first payload gets; must be the next one.
        first: EntryId,
        /// The payloads, in order.
        payloads: &'a mut Vec<Bytes>,
    },
    /// Responses of bookies: late, repeated and foreign ones too.
    Responses(&'a mut Vec<Response>),
    /// `wake_at` has come.
    Wake,
    /// No more appends will come; settle what is there.
    Close,
}

/// All that a writer can ask for.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Send these adds.
    Submit {
        /// To this bookie.
        bookie: BookieId,
        /// In this order.
        requests: Vec<Request>,
    },
    /// Everything up to this entry is acknowledged.
    Confirmed {
        /// The new LAC.
        through: EntryId,
    },
    /// The writer has ended; nothing more will be confirmed.
    Failed(Error),
    /// After `Close`: every entry is confirmed, and the ledger may be closed at this end.
    Settled(LedgerEnd),
}

/// The writer of one ledger: one input, then outputs until there is none, then the next input.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    state: State,
    /// From the oldest entry with outstanding sends or without confirmation to LAP, without gaps.
    pending: VecDeque<Pending>,
    /// The id of the first pending entry.
    first: EntryId,
    /// LAC and the length at it.
    confirmed: LedgerEnd,
    /// The LAC that was last given out.
    announced: Option<EntryId>,
    /// Payload bytes up to LAP.
    length: u64,
    /// The latest failure of each slot, to name the causes when a quorum is lost.
    failures: Vec<Option<BookieError>>,
    /// Adds to be submitted, per slot.
    outbox: Vec<Vec<Request>>,
}

#[derive(Debug)]
struct Pending {
    entry: Entry,
    acks: AckSet,
    sent_at: Time,
}

#[derive(Debug)]
enum State {
    Open,
    Closing,
    /// With what is still to be said about it.
    Ended(Option<Output>),
}

impl Machine {
    /// A writer of a ledger without entries.
    ///
    /// # Panics
    /// If the ensemble has not the size that the sizes say.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let slots = config.sizes.ensemble();
        assert_eq!(
            config.ensemble.len(),
            slots,
            "an ensemble has as many members as its size says"
        );
        Self {
            state: State::Open,
            pending: VecDeque::new(),
            first: EntryId::FIRST,
            confirmed: LedgerEnd::default(),
            announced: None,
            length: 0,
            failures: vec![None; slots],
            outbox: (0..slots).map(|_| Vec::new()).collect(),
            config,
        }
    }

    /// Takes one input. Drain [`poll_output`](Self::poll_output) before the next one.
    ///
    /// # Panics
    /// If an append does not start at the next id: ids that were promised would be given twice.
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Append { first, payloads } => self.on_append(now, first, payloads),
            Input::Responses(responses) => {
                for response in responses.drain(..) {
                    self.on_response(response);
                }
            }
            Input::Wake => self.on_wake(now),
            Input::Close => {
                if let State::Open = self.state {
                    self.state = State::Closing;
                }
            }
        }
        self.settle();
    }

    /// The next thing to do, none when everything has been said.
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.announced != self.confirmed.last_entry {
            self.announced = self.confirmed.last_entry;
            return self.announced.map(|through| Output::Confirmed { through });
        }
        if let State::Ended(last_word) = &mut self.state {
            return last_word.take();
        }
        let slot = self.outbox.iter().position(|requests| !requests.is_empty())?;
        let requests = std::mem::take(&mut self.outbox[slot]);
        Some(Output::Submit { bookie: self.config.ensemble[slot].clone(), requests })
    }

    /// When to call `handle` with [`Input::Wake`]; none while nothing is outstanding. It moves later only.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        if let State::Ended(_) = self.state {
            return None;
        }
        // The front is never settled: `settle` confirms it and takes it away, or a failure has ended the writer.
        let request =
            self.pending.front().map(|oldest| oldest.sent_at + self.config.request_timeout);
        let unconfirmed = self.pending.get(self.confirmed_pending());
        let quorum = unconfirmed.map(|oldest| oldest.sent_at + self.config.add_quorum_timeout);
        request.into_iter().chain(quorum).min()
    }

    /// Everything up to this entry is acknowledged.
    #[must_use]
    pub const fn last_add_confirmed(&self) -> Option<EntryId> {
        self.confirmed.last_entry
    }

    /// LAC and the payload bytes up to it: where the ledger may be closed now.
    #[must_use]
    pub const fn confirmed(&self) -> LedgerEnd {
        self.confirmed
    }

    fn on_append(&mut self, now: Time, first: EntryId, payloads: &mut Vec<Bytes>) {
        let State::Open = self.state else {
            payloads.clear();
            return;
        };
        let mut id = self.next();
        assert_eq!(first, id, "invariant 1: the ids promised are those given");
        self.pending.reserve(payloads.len());
        for requests in &mut self.outbox {
            requests.reserve(payloads.len());
        }
        let Config { ledger, sizes, key, .. } = self.config;
        for payload in payloads.drain(..) {
            self.length += payload.len() as u64;
            let entry = Entry::seal(ledger, id, self.confirmed.last_entry, self.length, payload);
            for slot in sizes.write_set(id) {
                let body = RequestBody::Add { entry: entry.clone(), key, kind: AddKind::Normal };
                self.outbox[slot.index()].push(Request { id: request_id(id, slot), ledger, body });
            }
            self.pending.push_back(Pending { entry, acks: AckSet::default(), sent_at: now });
            id = id.next();
        }
    }

    fn on_response(&mut self, response: Response) {
        let (entry, slot) = entry_and_slot(response.id);
        let ledger = self.config.ledger;
        if let State::Ended(_) = self.state {
            return;
        }
        // A fence is the end whoever reports it and for whichever entry: somebody else decides where the ledger ends.
        if response.result == Err(BookieError::Fenced) {
            return self.end(Error::Fenced { ledger });
        }
        if self.config.ensemble.get(slot.index()) != Some(&response.bookie)
            || !self.config.sizes.write_set(entry).any(|sent| sent == slot)
        {
            return;
        }
        let index =
            entry.get().checked_sub(self.first.get()).and_then(|index| usize::try_from(index).ok());
        let Some(pending) = index.and_then(|index| self.pending.get_mut(index)) else {
            return;
        };
        match response.result {
            Ok(ResponseBody::Added) => pending.acks.record(slot),
            // An answer to another question is no answer; the timeout will say so.
            Ok(_) => {}
            Err(BookieError::Unauthorized) => {
                self.end(Error::Unauthorized { ledger, bookie: response.bookie })
            }
            Err(error) => self.on_failure(entry, slot, error),
        }
    }

    fn on_failure(&mut self, entry: EntryId, slot: Slot, error: BookieError) {
        let Config { ledger, sizes, .. } = self.config;
        let index = (entry.get() - self.first.get()) as usize;
        let acks = &mut self.pending[index].acks;
        if acks.is_settled(slot) {
            return;
        }
        acks.record_failure(slot);
        self.failures[slot.index()] = Some(error);
        if let Coverage::Impossible = acks.coverage(sizes) {
            let named = |slot: Slot| {
                let error = self.failures[slot.index()]?;
                Some((self.config.ensemble[slot.index()].clone(), error))
            };
            let failures = acks.failed().iter().filter_map(named).collect();
            self.end(Error::QuorumLost { ledger, entry, failures });
        }
    }

    fn on_wake(&mut self, now: Time) {
        let Config { ledger, sizes, request_timeout, add_quorum_timeout, .. } = self.config;
        if let Some(oldest) = self.pending.get(self.confirmed_pending())
            && oldest.sent_at + add_quorum_timeout <= now
        {
            let entry = oldest.entry.entry();
            return self.end(Error::AddQuorumTimeout { ledger, entry });
        }
        // Entries were sent in order, so those that are due stand in front.
        for index in 0..self.pending.len() {
            if self.pending[index].sent_at + request_timeout > now {
                break;
            }
            let entry = self.pending[index].entry.entry();
            for slot in sizes.write_set(entry) {
                self.on_failure(entry, slot, BookieError::Timeout);
                if let State::Ended(_) = self.state {
                    return;
                }
            }
        }
    }

    /// Moves LAC over what has its quorum, retires what nothing is outstanding for, and ends a close.
    fn settle(&mut self) {
        if let State::Ended(_) = self.state {
            return;
        }
        while let Some(pending) = self.pending.get(self.confirmed_pending())
            && let Coverage::Reached(_) = pending.acks.coverage(self.config.sizes)
        {
            let id = pending.entry.entry();
            assert_eq!(
                id,
                EntryId::following(self.confirmed.last_entry),
                "invariant 2: LAC moves entry by entry"
            );
            self.confirmed = LedgerEnd { last_entry: Some(id), length: pending.entry.length() };
        }
        while let Some(oldest) = self.pending.front()
            && Some(self.first) <= self.confirmed.last_entry
            && self.is_settled(oldest)
        {
            self.pending.pop_front();
            self.first = self.first.next();
        }
        if let State::Closing = self.state
            && self.confirmed_pending() == self.pending.len()
        {
            self.finish(Output::Settled(self.confirmed));
        }
    }

    fn end(&mut self, error: Error) {
        if !matches!(self.state, State::Ended(_)) {
            self.finish(Output::Failed(error));
        }
    }

    fn finish(&mut self, last_word: Output) {
        self.state = State::Ended(Some(last_word));
        self.pending.clear();
        self.outbox.clear();
    }

    /// How many of the pending entries, from the front, are confirmed.
    fn confirmed_pending(&self) -> usize {
        (EntryId::following(self.confirmed.last_entry).get() - self.first.get()) as usize
    }

    fn is_settled(&self, pending: &Pending) -> bool {
        pending.acks.settled() == self.config.sizes.write()
    }

    fn next(&self) -> EntryId {
        EntryId(self.first.get() + self.pending.len() as u64)
    }
}

/// Bits of a request id that hold the slot; the entry's id stands above them.
const SLOT_BITS: u32 = 6;

fn request_id(entry: EntryId, slot: Slot) -> RequestId {
    RequestId(entry.get() << SLOT_BITS | slot.index() as u64)
}

fn entry_and_slot(id: RequestId) -> (EntryId, Slot) {
    let slot = id.0 & ((1 << SLOT_BITS) - 1);
    (EntryId(id.0 >> SLOT_BITS), Slot::new(slot as usize))
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
