//! The writer of one ledger, without clock, bookies or store.
//!
//! ```text
//!                Append                      Close                     all decided
//!  ── new ──► Open ────► Open ────────────────────────► Closing ─────────┐
//!              │                                           │             ▼
//!              │ key refused, quorum lost, too late        │        close the record ──► Ended
//!              ├───────────────────────────────────────────┴─► Failing ──┘  ▲             ▲
//!              └─ fenced ───────────────────────────────────────────────────┼─────────────┘
//!                                                            Close again ───┘ while its outcome is unknown
//!
//!  meanwhile   at rest ──► changing the ensemble (frozen) ──► at rest
//!                 member lost, spare there    record settled, all pending switched
//! ```
//!
//! Invariants:
//! 1. retired ≤ LAC ≤ LAP; ids are given in order and never twice.
//! 2. LAC moves one entry at a time, only onto an entry with AQ acks of members that the record names for it, never
//!    while the ensemble changes, and never after the end.
//! 3. An ack counts only for a slot the entry was sent to, from its present member and under its present epoch, once.
//! 4. The header of an entry carries the LAC of the moment it was first sent; its bytes never change.
//! 5. A failed entry is the end: nothing after it is confirmed, so the log has no hole. The first reason stays.
//! 6. The length at the end is the one in the header of the entry at LAC.
//! 7. A new ensemble starts at LAC + 1, fixed in the freeze. The freeze ends when none of this side's writes to the
//!    record can land any more.
//! 8. A fenced writer writes nothing to the record.
//!
//! Obligations of the driver: submit every `Submit`, in order per bookie; feed all responses, however late; answer
//! every `Record` once; feed the registry's list at the start and whenever it changes, the preferred bookies first; call
//! `handle` with `Wake` at `wake_at`. After `Failed` go on: a `Close` may come.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::adds::{Adds, LAC_ID, PROBE_ID, Progress};
use super::bookies::{Bookies, Standing};
use super::record::Record;
use super::{CloseError, Error, Failure, Limits, WriterStats};
use crate::id::{BookieId, EntryId, LedgerId};
use crate::metadata::{LedgerEnd, LedgerMetadata, RecordAnswer, RecordRequest, Version};
use crate::quorum::Slot;
use crate::registry::RegisteredBookie;
use crate::shortfall::Shortfall;
use crate::time::Time;
use crate::transport::{BookieError, Request, RequestBody, Response, ResponseBody};

/// What a writer is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// The ledger.
    pub ledger: LedgerId,
    /// Its record: open, and without entries.
    pub record: Arc<LedgerMetadata>,
    /// The version of the record.
    pub version: Version,
    /// What it waits for and puts up with.
    pub limits: Limits,
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
    /// The answer to the one question about the record.
    Record(RecordAnswer),
    /// The registered bookies, the preferred ones first.
    Bookies(Arc<[RegisteredBookie]>),
    /// `wake_at` has come.
    Wake,
    /// No more appends will come; settle what is there and close the record. Comes again when the outcome was unknown.
    Close,
}

/// All that a writer can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send these requests.
    Submit {
        /// To this bookie.
        bookie: BookieId,
        /// In this order.
        requests: Vec<Request>,
    },
    /// Ask the metadata store about the ledger's record. One question at a time.
    Record(RecordRequest),
    /// Everything up to this entry is acknowledged.
    Confirmed {
        /// The new LAC.
        through: EntryId,
    },
    /// The record names a new ensemble, and what is pending goes to it.
    EnsembleChanged {
        /// The first entry that it holds.
        key: EntryId,
        /// Its members.
        members: Vec<BookieId>,
    },
    /// The writer has ended; nothing more will be confirmed. Said once.
    Failed(Error),
    /// What became of closing the record: the answer to `Close`, or what a failing writer did by itself.
    Closed(Result<LedgerEnd, CloseError>),
}

/// The writer of one ledger: one input, then outputs until there is none, then the next input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    pub(super) ledger: LedgerId,
    pub(super) limits: Limits,
    pub(super) state: State,
    pub(super) work: Work,
    pub(super) adds: Adds,
    pub(super) bookies: Bookies,
    pub(super) record: Record,
    pub(super) repair: Repair,
    /// When bookies that failed are asked whether they are better; none while nobody is missed.
    pub(super) probe_at: Option<Time>,
    /// The LAC that was last given out.
    announced: Option<EntryId>,
    /// The LAC that bookies have been sent, in an entry or by itself.
    lac_told: Option<EntryId>,
    /// When to tell a higher one by itself.
    tell_lac_at: Option<Time>,
    pub(super) ensemble_changes: u64,
    /// Requests besides adds.
    asides: VecDeque<(BookieId, Request)>,
    /// What is to be said, in order.
    words: VecDeque<Word>,
}

/// Whether entries are still taken and confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Open,
    Closing,
    /// Confirms nothing more, and closes the record before it says why.
    Failing(Error),
    Ended {
        /// Why, unless it was asked to.
        failure: Option<Error>,
        /// The end of the record or why it has none, once that is final.
        closed: Option<Result<LedgerEnd, CloseError>>,
    },
}

/// What is being done with the record. While it is anything, nothing is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Rest,
    /// The ensemble changes from this entry on.
    Changing(EntryId),
    Closing,
}

/// Whether the ensemble is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Repair {
    /// Nothing has happened since it was.
    NotDue,
    Due,
}

/// Something to be said that is not derived from where the machine stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Word {
    EnsembleChanged { key: EntryId, members: Vec<BookieId> },
    Failed(Error),
    Closed(Result<LedgerEnd, CloseError>),
}

impl Machine {
    /// A writer of a ledger without entries.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let Config { ledger, record, version, limits } = config;
        Self {
            ledger,
            limits,
            state: State::Open,
            work: Work::Rest,
            adds: Adds::new(ledger, &record),
            bookies: Bookies::default(),
            record: Record::new(record, version),
            repair: Repair::NotDue,
            probe_at: None,
            announced: None,
            lac_told: None,
            tell_lac_at: None,
            ensemble_changes: 0,
            asides: VecDeque::new(),
            words: VecDeque::new(),
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
                    self.on_response(now, response);
                }
            }
            Input::Record(answer) => self.on_record(now, answer),
            Input::Bookies(bookies) => self.on_bookies(now, bookies),
            Input::Wake => self.on_wake(now),
            Input::Close => self.on_close(),
        }
        // The ensemble comes first: with too many members lost nothing more may be confirmed.
        loop {
            while self.advance(now) == Progress::Made {}
            if self.confirm(now) == Progress::None {
                return;
            }
        }
    }

    /// The next thing to do, none when everything has been said.
    pub fn poll_output(&mut self) -> Option<Output> {
        let lac = self.adds.confirmed().last_entry;
        if self.announced != lac {
            self.announced = lac;
            return lac.map(|through| Output::Confirmed { through });
        }
        if let Some((bookie, requests)) = self.adds.poll_submit() {
            return Some(Output::Submit { bookie, requests });
        }
        if let Some((bookie, request)) = self.asides.pop_front() {
            return Some(Output::Submit { bookie, requests: vec![request] });
        }
        if let Some(question) = self.record.poll_question() {
            return Some(Output::Record(question));
        }
        self.words.pop_front().map(|word| match word {
            Word::EnsembleChanged { key, members } => Output::EnsembleChanged { key, members },
            Word::Failed(error) => Output::Failed(error),
            Word::Closed(result) => Output::Closed(result),
        })
    }

    /// When to call `handle` with [`Input::Wake`]; none while nothing is outstanding.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let of_entries = match self.state {
            State::Open | State::Closing => {
                [self.adds.wake_at(), self.tell_lac_at, self.probe_at].into_iter().flatten().min()
            }
            State::Failing(_) | State::Ended { .. } => None,
        };
        of_entries.into_iter().chain(self.record.wake_at()).min()
    }

    /// Everything up to this entry is acknowledged.
    #[must_use]
    pub const fn last_add_confirmed(&self) -> Option<EntryId> {
        self.adds.confirmed().last_entry
    }

    /// LAC and the payload bytes up to it: where the ledger may be closed now.
    #[must_use]
    pub const fn confirmed(&self) -> LedgerEnd {
        self.adds.confirmed()
    }

    /// The newest record that is known, and its version.
    #[must_use]
    pub const fn record(&self) -> (&Arc<LedgerMetadata>, Version) {
        (self.record.newest(), self.record.version())
    }

    /// What it has been through.
    #[must_use]
    pub fn stats(&self) -> WriterStats {
        WriterStats {
            ensemble_changes: self.ensemble_changes,
            entries_below_write_quorum: self.adds.entries_below_write_quorum(),
            lost_members: self.adds.lost().len(),
        }
    }

    /// Where confirmed entries lack a copy: at most one range per bookie.
    #[must_use]
    pub fn shortfalls(&self) -> &[Shortfall] {
        self.adds.shortfalls()
    }

    /// Makes `now` the origin of time, so that situations which differ in nothing else are equal.
    pub fn renumber(&mut self, now: Time) {
        self.adds.renumber(now);
        self.record.renumber(now);
        for time in self.probe_at.iter_mut().chain(&mut self.tell_lac_at) {
            *time = Time::ZERO + time.saturating_since(now);
        }
    }

    fn on_append(&mut self, now: Time, first: EntryId, payloads: &mut Vec<Bytes>) {
        let State::Open = self.state else {
            payloads.clear();
            return;
        };
        if !payloads.is_empty() {
            self.lac_told = self.adds.confirmed().last_entry;
            self.tell_lac_at = None;
            self.adds.append(now, first, payloads, &self.limits);
        }
    }

    fn on_response(&mut self, now: Time, response: Response) {
        if let State::Ended { .. } = self.state {
            return;
        }
        // A fence is the end whoever reports it and for whichever entry: somebody else decides where the ledger ends.
        if response.result == Err(BookieError::Fenced) {
            return self.on_fenced();
        }
        if !self.is_writing() || response.id == LAC_ID {
            return;
        }
        if response.id == PROBE_ID {
            return self.on_probed(now, &response);
        }
        // Everything else of a bookie that was replaced, or from before it was started again, says nothing.
        let Some(answered) = self.adds.answered(&response) else { return };
        if self.adds.is_other_instance(answered.slot, response.instance) {
            return self.lose(answered.slot, Failure::OtherInstance);
        }
        match response.result {
            Ok(ResponseBody::Added) => self.adds.acknowledge(answered),
            // An answer to another question is no answer; the timeout will say so.
            Ok(_) => {}
            // It will take the entry when it has caught up, or be overdue.
            Err(BookieError::TooManyRequests) => self.adds.hold_back(now, answered),
            Err(BookieError::Unauthorized) => {
                let (ledger, bookie) = (self.ledger, response.bookie);
                self.fail(Error::Unauthorized { ledger, bookie });
            }
            // An add makes a ledger that the bookie has never seen: one that is refused so was deleted and dropped there.
            Err(BookieError::NoSuchLedger) => {
                let (ledger, bookie) = (self.ledger, response.bookie);
                self.fail(Error::Dropped { ledger, bookie });
            }
            Err(error) => self.lose(answered.slot, error.into()),
        }
    }

    /// A bookie that failed has been asked whether it is better. Only what it says itself counts, in the life that
    /// the ledger knows.
    fn on_probed(&mut self, now: Time, response: &Response) {
        let answers = matches!(
            response.result,
            Ok(_) | Err(BookieError::NoSuchLedger | BookieError::NoSuchEntry)
        );
        let record = self.record.newest();
        let recorded = record.instance_of(&response.bookie);
        let is_other = recorded.zip(response.instance).is_some_and(|(one, other)| one != other);
        let standing = self.bookies.standing(record, &response.bookie);
        if is_other || standing == Standing::OtherInstance {
            let slots = self.adds.members().filter(|(_, m)| m.bookie == response.bookie);
            let slots: Vec<_> = slots.map(|(slot, _)| slot).collect();
            return slots.into_iter().for_each(|slot| self.lose(slot, Failure::OtherInstance));
        }
        if !answers {
            return;
        }
        self.bookies.on_answer(&response.bookie);
        self.repair = Repair::Due;
        let is_back = |member: &super::adds::Member| {
            member.bookie == response.bookie && member.failure().is_some()
        };
        let slot = self.adds.members().find(|(_, member)| is_back(member)).map(|(slot, _)| slot);
        if let Some(slot) = slot {
            self.adds.restart(now, slot, &self.limits);
        }
    }

    fn on_bookies(&mut self, now: Time, registered: Arc<[RegisteredBookie]>) {
        let record = self.record.newest().clone();
        let standing = |bookies: &Bookies, bookie: &BookieId| bookies.standing(&record, bookie);
        let before: Vec<_> =
            self.adds.members().map(|(_, m)| standing(&self.bookies, &m.bookie)).collect();
        let doubted_before: Vec<_> = self.bookies.doubted(&record).cloned().collect();
        self.bookies.on_news(registered);
        if !self.is_writing() {
            return;
        }
        self.repair = Repair::Due;
        for (slot, before) in self.adds.sizes().slots().zip(before) {
            let (_, member) = self.adds.members().nth(slot.index()).expect("a member per slot");
            let (is_lost, after) =
                (member.failure().is_some(), standing(&self.bookies, &member.bookie));
            let is_known = member.failure() == Some(Failure::OtherInstance);
            match (before, after) {
                // Also one that was lost before: what it had acknowledged counts no more.
                (_, Standing::OtherInstance) if !is_known => {
                    self.lose(slot, Failure::OtherInstance)
                }
                // It was started again, and what it had been sent and not answered is lost.
                (Standing::Away, Standing::Writable) if !is_lost => {
                    self.adds.restart(now, slot, &self.limits);
                }
                _ => {}
            }
        }
        // Those that failed and are there again have news of themselves, if asked.
        let back: Vec<_> = self
            .bookies
            .doubted(&record)
            .filter(|bookie| !doubted_before.contains(bookie))
            .cloned()
            .collect();
        back.into_iter().for_each(|bookie| self.probe(bookie));
    }

    fn on_wake(&mut self, now: Time) {
        self.record.on_wake(now);
        if !self.is_writing() {
            return;
        }
        if let Some((entry, confirm_by)) = self.adds.oldest_unconfirmed()
            && confirm_by <= now
        {
            return self.fail(self.quorum_timeout(entry));
        }
        for slot in self.adds.overdue(now).iter() {
            let error = match self.adds.is_held_back(slot) {
                true => BookieError::TooManyRequests,
                false => BookieError::Timeout,
            };
            self.lose(slot, error.into());
        }
        self.adds.release_held(now);
        if self.tell_lac_at.is_some_and(|at| at <= now) {
            self.tell_lac();
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = Some(now + self.limits.request_timeout);
            let doubted: Vec<_> = self.bookies.doubted(self.record.newest()).cloned().collect();
            doubted.into_iter().for_each(|bookie| self.probe(bookie));
        }
    }

    fn quorum_timeout(&self, entry: EntryId) -> Error {
        let (ledger, sizes, lost) = (self.ledger, self.adds.sizes(), self.adds.lost());
        let left = sizes.write_set(entry).filter(|slot| !lost.contains(*slot)).count();
        match left < sizes.ack() {
            true => Error::QuorumLost { ledger, entry, failures: self.adds.failures() },
            false => Error::AddQuorumTimeout { ledger, entry },
        }
    }

    /// Moves LAC, unless it must stand still.
    fn confirm(&mut self, now: Time) -> Progress {
        if !self.is_writing() || self.work != Work::Rest {
            return Progress::None;
        }
        let progress = self.adds.confirm();
        if progress == Progress::Made {
            for slot in self.adds.behind(self.limits.bookie_backlog_bytes_max).iter() {
                self.lose(slot, Failure::Behind);
            }
            self.tell_lac_at = self.limits.explicit_lac_interval.map(|interval| now + interval);
        }
        progress
    }

    /// Tells the bookies the LAC by itself, for readers that see no later entry. If that fails they learn it later.
    pub(super) fn tell_lac(&mut self) {
        self.tell_lac_at = None;
        let Some(lac) = self.adds.confirmed().last_entry else { return };
        if self.lac_told >= Some(lac) {
            return;
        }
        self.lac_told = Some(lac);
        let sizes = self.adds.sizes();
        for (slot, member) in self.adds.members() {
            if sizes.stores(slot, lac) && member.failure().is_none() {
                let body = RequestBody::WriteLac { lac, key: self.adds.key() };
                let request = Request { id: LAC_ID, ledger: self.ledger, body };
                self.asides.push_back((member.bookie.clone(), request));
            }
        }
    }

    /// Asks a bookie anything that changes nothing.
    fn probe(&mut self, bookie: BookieId) {
        let body = RequestBody::ReadLac { fence: None };
        self.asides.push_back((bookie, Request { id: PROBE_ID, ledger: self.ledger, body }));
    }

    /// Gives up on the member of a slot.
    pub(super) fn lose(&mut self, slot: Slot, failure: Failure) {
        let (_, member) = self.adds.members().nth(slot.index()).expect("a member per slot");
        self.bookies.on_failure(&member.bookie);
        self.adds.lose(slot, failure);
        self.repair = Repair::Due;
    }

    /// Whether entries are still confirmed.
    pub(super) const fn is_writing(&self) -> bool {
        matches!(self.state, State::Open | State::Closing)
    }

    pub(super) fn say(&mut self, word: Word) {
        self.words.push_back(word);
    }

    /// Forgets all that is for confirming entries.
    pub(super) fn stop_writing(&mut self) {
        self.adds.abandon();
        self.asides.clear();
        (self.probe_at, self.tell_lac_at) = (None, None);
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
