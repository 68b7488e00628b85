//! The cursor: what is read, what is acknowledged, and which reads still count.
//!
//! ```text
//!            acknowledged       delivered        dispatched        not read
//!   0 ──────────────────┬────────────────┬──────────────────┬──────────────┬
//!                  mark-delete     read position         reserved         end
//!                       └── single entries behind it may be acknowledged too ──┘
//!
//!   read ──► Dispatched ── fetched ──► delivered in order (exactly one completion each)
//!     └────► Waiting ── appended ──► Dispatched
//!                └── cancel, rewind, close, terminate ──► completed without entries
//! ```
//!
//! The machine has no clock, lock or I/O. Each method is one step; afterwards the caller drains
//! [`Machine::poll_output`] until `None`: it starts every [`Output::Fetch`], answers each with
//! exactly one [`Machine::fetched`], and passes every [`Output::Complete`] on, in that order.
//!
//! Invariants, asserted where they could break:
//!
//! 1. mark-delete ≤ read position ≤ reserved ≤ end.
//! 2. Dispatched reads are disjoint and in order, the last ends at `reserved`, and between two of
//!    them lie only entries that are acknowledged.
//! 3. At most one read waits, and only where there is nothing to read.
//! 4. Every started read is completed exactly once.
//! 5. An id that was dispatched is never used again: whatever takes a dispatched read back
//!    raises the generation. A late fetch of an older generation therefore moves nothing.
//!    Without this, a read that was overtaken by a rewind moves the read position past entries
//!    nobody will publish: the acknowledgement hole of Apache Pulsar's pull request 20931.

use std::collections::VecDeque;
use std::sync::Arc;

use georepl_storage::Advice;

use crate::acked::Acked;
use crate::position::{Offset, Position};
use crate::progress::Progress;

/// Raised by everything that takes dispatched reads back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    /// The generation with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Which read: its generation and its first entry. Dispatched reads of a generation are disjoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId {
    /// The generation it was issued under.
    pub generation: Generation,
    /// Its first entry.
    pub from: Offset,
}

/// How much one read may return. A read that returns anything returns at least one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadLimits {
    /// Entries, at least 1.
    pub entries: u32,
    /// Bytes of payload after which a read ends; a single larger entry is still returned.
    pub bytes: u64,
}

/// How a read that was taken goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadStart {
    /// Storage is reading it. It cannot be cancelled, only superseded.
    Dispatched(ReadId),
    /// It waits for the next entry.
    Waiting(ReadId),
}

/// Why a read was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReadRefused {
    /// Every entry was read, and this read does not wait.
    #[error("there is nothing to read yet")]
    NothingToRead,
    /// A cursor has at most one waiting read.
    #[error("a read is waiting already; cancel it first")]
    AlreadyWaiting,
    /// [`READS_IN_FLIGHT_MAX`] reads are in storage.
    #[error("{READS_IN_FLIGHT_MAX} reads are in flight already; wait for one")]
    TooManyInFlight,
    /// The topic was terminated and everything was read.
    #[error("the topic is terminated: there is no more to read")]
    Terminated {
        /// The number of entries in the topic.
        end: Offset,
    },
    /// The cursor is closed.
    #[error("the cursor is closed")]
    Closed,
}

impl ReadRefused {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::NothingToRead | Self::AlreadyWaiting | Self::TooManyInFlight => Advice::Retry,
            Self::Terminated { .. } => Advice::GiveUp,
            Self::Closed => Advice::Reopen,
        }
    }
}

/// Storage could not answer a read. The read position is where it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{message}")]
pub struct ReadFailed {
    /// What failed, for people.
    pub message: Arc<str>,
}

/// How a read ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReadOutcome<E> {
    /// The entries, in order, without those that were acknowledged meanwhile; fewer than asked for
    /// when storage had fewer at hand, none when it answered without any (ask again later, not at
    /// once).
    Entries(Vec<E>),
    /// [`Machine::cancel_pending_read`] took it while it waited.
    Cancelled,
    /// A rewind or an earlier read's failure took it back. It does not follow the rewind.
    Superseded,
    /// The topic was terminated while it waited, at the end: its id names the end.
    Terminated,
    /// The cursor was closed.
    Closed,
    /// Storage failed; the read position is where it was.
    Failed(ReadFailed),
}

/// Where a rewind put the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rewound {
    /// The generation that reads have from now on.
    pub generation: Generation,
    /// The next entry to read: the first that is not acknowledged.
    pub read_position: Offset,
}

/// Why an acknowledgement was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MarkDeleteRefused {
    /// Acknowledgements only move forward.
    #[error("{asked} entries are to be acknowledged, but {acknowledged} already are")]
    Backwards {
        /// Entries acknowledged so far.
        acknowledged: Offset,
        /// What the call asked for.
        asked: Offset,
    },
    /// There is no such entry yet.
    #[error("{asked} entries are to be acknowledged, but the topic has {end}")]
    BeyondEnd {
        /// Entries in the topic.
        end: Offset,
        /// What the call asked for.
        asked: Offset,
    },
    /// The cursor is closed.
    #[error("the cursor is closed")]
    Closed,
}

impl MarkDeleteRefused {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Backwards { .. } | Self::BeyondEnd { .. } => Advice::GiveUp,
            Self::Closed => Advice::Reopen,
        }
    }
}

/// What the machine wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output<E> {
    /// Read the entries `from..to` from storage, and answer with [`Machine::fetched`] once.
    Fetch {
        /// Names the answer.
        id: ReadId,
        /// One past the last entry wanted.
        to: Offset,
        /// Stop after this many bytes, but not before one entry.
        bytes: u64,
    },
    /// Tell the reader how its read ended.
    Complete {
        /// Which read.
        id: ReadId,
        /// How it ended.
        outcome: ReadOutcome<E>,
    },
}

/// Reads that may be in storage at once.
pub const READS_IN_FLIGHT_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Fetched<E> {
    Pending,
    Entries(Vec<E>),
    Failed(ReadFailed),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Dispatched<E> {
    from: Offset,
    to: Offset,
    fetched: Fetched<E>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    Open,
    Terminated,
    Closed,
}

/// One cursor over one topic. `E` is whatever storage returns for an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine<E> {
    life: Life,
    generation: Generation,
    mark_delete: Offset,
    /// Single entries behind mark-delete that are acknowledged; never the one at mark-delete.
    acked: Acked,
    progress: Progress,
    reserved: Offset,
    end: Offset,
    dispatched: VecDeque<Dispatched<E>>,
    waiting: Option<ReadLimits>,
    outputs: VecDeque<Output<E>>,
}

impl<E> Machine<E> {
    /// A cursor that has acknowledged everything before `mark_delete`, on a topic of `end` entries.
    ///
    /// # Panics
    /// When `mark_delete` is beyond `end`.
    pub fn new(mark_delete: Offset, end: Offset) -> Self {
        Self::restored(mark_delete, Acked::default(), Progress::default(), end)
    }

    /// A cursor that has also acknowledged the single entries `acked`, with what whoever
    /// acknowledges keeps with it.
    ///
    /// # Panics
    /// When `mark_delete` is beyond `end`.
    pub fn restored(mark_delete: Offset, acked: Acked, progress: Progress, end: Offset) -> Self {
        assert!(mark_delete <= end, "a cursor starts within its topic");
        let mut machine = Self {
            life: Life::Open,
            generation: Generation(0),
            mark_delete,
            acked,
            progress,
            reserved: mark_delete,
            end,
            dispatched: VecDeque::new(),
            waiting: None,
            outputs: VecDeque::new(),
        };
        machine.acknowledge_up_to(mark_delete);
        machine.reserved = machine.mark_delete;
        machine
    }

    /// Starts a read at the read position, or refuses when there is nothing to read.
    pub fn read(&mut self, limits: ReadLimits) -> Result<ReadStart, ReadRefused> {
        self.may_read()?;
        self.reserved = self.acked.end_of_run(self.reserved);
        if self.reserved == self.end {
            return Err(match self.life {
                Life::Terminated => ReadRefused::Terminated { end: self.end },
                Life::Open | Life::Closed => ReadRefused::NothingToRead,
            });
        }
        Ok(ReadStart::Dispatched(self.dispatch(limits)))
    }

    /// Starts a read at the read position, or waits there for the next entry.
    pub fn read_or_wait(&mut self, limits: ReadLimits) -> Result<ReadStart, ReadRefused> {
        match self.read(limits) {
            Err(ReadRefused::NothingToRead) => {
                self.waiting = Some(limits);
                Ok(ReadStart::Waiting(self.next_id()))
            }
            other => other,
        }
    }

    /// Takes the waiting read, if there is one: it completes with [`ReadOutcome::Cancelled`].
    /// False when none waits; a read that is in storage cannot be cancelled.
    pub fn cancel_pending_read(&mut self) -> bool {
        self.end_waiting(ReadOutcome::Cancelled)
    }

    /// Puts the read position back to the first entry that is not acknowledged. Every read that
    /// is waiting or in storage completes with [`ReadOutcome::Superseded`] and counts no more.
    pub fn rewind(&mut self) -> Rewound {
        self.take_back(self.mark_delete);
        Rewound { generation: self.generation, read_position: self.reserved }
    }

    /// Acknowledges every entry before `to`, and notes the last published position among them
    /// (`None` leaves it as it was). Acknowledging what is acknowledged already is no error.
    pub fn mark_delete(
        &mut self,
        to: Offset,
        last_published: Option<Position>,
    ) -> Result<(), MarkDeleteRefused> {
        if self.life == Life::Closed {
            return Err(MarkDeleteRefused::Closed);
        }
        if to < self.mark_delete {
            let acknowledged = self.mark_delete;
            return Err(MarkDeleteRefused::Backwards { acknowledged, asked: to });
        }
        if to > self.end {
            return Err(MarkDeleteRefused::BeyondEnd { end: self.end, asked: to });
        }
        self.progress.last_published = self.progress.last_published.max(last_published);
        self.acknowledge_up_to(to);
        self.check_invariants();
        Ok(())
    }

    /// Acknowledges one entry, wherever it is. Mark-delete moves over it and what follows it if
    /// nothing before it is left. Acknowledging what is acknowledged already is no error.
    pub fn delete(&mut self, at: Offset) -> Result<(), MarkDeleteRefused> {
        if self.life == Life::Closed {
            return Err(MarkDeleteRefused::Closed);
        }
        if at >= self.end {
            return Err(MarkDeleteRefused::BeyondEnd { end: self.end, asked: at.plus(1) });
        }
        if at == self.mark_delete {
            self.acknowledge_up_to(at.plus(1));
        } else if at > self.mark_delete {
            self.acked.insert(at);
        }
        self.check_invariants();
        Ok(())
    }

    /// Moves the read position to `to`, or to the first entry behind mark-delete if that lies
    /// further on. Reads that are waiting or in storage end with [`ReadOutcome::Superseded`].
    ///
    /// # Panics
    /// When `to` is beyond the end.
    pub fn seek(&mut self, to: Offset) -> Rewound {
        assert!(to <= self.end, "a cursor stays within its topic");
        self.take_back(to.max(self.mark_delete));
        Rewound { generation: self.generation, read_position: self.reserved }
    }

    /// Acknowledges exactly the entries before `to`, and reads on from there: what was acknowledged
    /// behind it is not any more. Reads end as by [`Machine::seek`].
    ///
    /// # Panics
    /// When `to` is beyond the end.
    pub fn reset(&mut self, to: Offset) -> Result<Rewound, MarkDeleteRefused> {
        assert!(to <= self.end, "a cursor stays within its topic");
        if self.life == Life::Closed {
            return Err(MarkDeleteRefused::Closed);
        }
        self.acked.clear();
        self.mark_delete = to;
        Ok(self.seek(to))
    }

    /// The place behind the first `entries` entries that are not acknowledged, or the end.
    pub fn place_after(&self, entries: u64) -> Offset {
        let (mut at, mut left) = (self.mark_delete, entries);
        for run in self.acked.ranges() {
            let before = run.start.since(at);
            if left <= before {
                break;
            }
            left -= before;
            at = run.end;
        }
        at.plus(left.min(self.end.since(at)))
    }

    /// The topic has `end` entries now: a waiting read is dispatched.
    ///
    /// # Panics
    /// When the topic would shrink.
    pub fn appended(&mut self, end: Offset) {
        assert!(end >= self.end, "a topic never shrinks while it is open");
        self.end = end;
        if self.reserved < end
            && let Some(limits) = self.waiting.take()
        {
            self.dispatch(limits);
        }
        self.check_invariants();
    }

    /// No entry will follow. What is there can still be read; a waiting read ends.
    pub fn terminate(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Terminated;
            self.end_waiting(ReadOutcome::Terminated);
        }
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.life == Life::Closed
    }

    /// Ends every read, and refuses what comes later.
    pub fn close(&mut self) {
        if self.life == Life::Closed {
            return;
        }
        self.life = Life::Closed;
        self.end_waiting(ReadOutcome::Closed);
        while let Some(read) = self.dispatched.pop_front() {
            self.complete(read.from, ReadOutcome::Closed);
        }
        self.generation.0 += 1;
        self.reserved = self.mark_delete;
    }

    /// Storage answers an [`Output::Fetch`]. An answer that no longer counts is dropped: its read
    /// was completed when it was taken back.
    ///
    /// # Panics
    /// When storage returns more entries than were asked for.
    pub fn fetched(&mut self, id: ReadId, answer: Result<Vec<E>, ReadFailed>) {
        if id.generation != self.generation {
            return;
        }
        let Some(read) = self.dispatched.iter_mut().find(|read| read.from == id.from) else {
            return;
        };
        read.fetched = match answer {
            Ok(entries) => {
                let asked = read.to.since(read.from);
                assert!(entries.len() as u64 <= asked, "storage answers what was asked");
                Fetched::Entries(entries)
            }
            Err(failed) => Fetched::Failed(failed),
        };
        self.deliver();
        self.check_invariants();
    }

    /// The next thing to do, until `None`.
    pub fn poll_output(&mut self) -> Option<Output<E>> {
        self.outputs.pop_front()
    }

    /// Entries that are not acknowledged. Arithmetic on three numbers, whatever the backlog.
    pub fn backlog(&self) -> u64 {
        self.end.since(self.mark_delete) - self.acked.len()
    }

    /// The single entries behind mark-delete that are acknowledged.
    pub fn acked(&self) -> &Acked {
        &self.acked
    }

    /// What whoever acknowledges keeps with the cursor.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Changes what whoever acknowledges keeps with the cursor.
    pub fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    /// The first entry that is not acknowledged.
    pub fn mark_delete_offset(&self) -> Offset {
        self.mark_delete
    }

    /// The last position at or below mark-delete that a remote holds, as noted by
    /// [`Machine::mark_delete`].
    pub fn last_published(&self) -> Option<Position> {
        self.progress.last_published
    }

    /// The next entry to be delivered.
    pub fn read_position(&self) -> Offset {
        self.dispatched.front().map_or(self.reserved, |read| read.from)
    }

    /// The number of entries in the topic.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// The current generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The read that waits for an entry.
    pub fn waiting_read(&self) -> Option<ReadId> {
        self.waiting.map(|_| self.next_id())
    }

    /// Reads that storage works on.
    pub fn reads_in_flight(&self) -> usize {
        self.dispatched.len()
    }

    /// Gives the current generation another number, so that an exploration recognises
    /// situations that differ in nothing else.
    ///
    /// # Panics
    /// When outputs, which carry the old number, were not drained.
    pub fn renumber(&mut self, generation: Generation) {
        assert!(self.outputs.is_empty(), "outputs name the old generation");
        self.generation = generation;
    }

    fn may_read(&self) -> Result<(), ReadRefused> {
        if self.life == Life::Closed {
            return Err(ReadRefused::Closed);
        }
        if self.waiting.is_some() {
            return Err(ReadRefused::AlreadyWaiting);
        }
        if self.dispatched.len() == READS_IN_FLIGHT_MAX {
            return Err(ReadRefused::TooManyInFlight);
        }
        Ok(())
    }

    fn next_id(&self) -> ReadId {
        ReadId { generation: self.generation, from: self.reserved }
    }

    fn dispatch(&mut self, limits: ReadLimits) -> ReadId {
        let id = self.next_id();
        // Up to the next entry that is acknowledged.
        let end = self.acked.first_from(id.from).unwrap_or(self.end);
        let entries = u64::from(limits.entries.max(1)).min(end.since(id.from));
        let to = id.from.plus(entries);
        self.dispatched.push_back(Dispatched { from: id.from, to, fetched: Fetched::Pending });
        self.reserved = to;
        self.outputs.push_back(Output::Fetch { id, to, bytes: limits.bytes });
        id
    }

    /// Delivers what is complete at the front. A read that ended early leaves a gap in front of
    /// the reads behind it, so those are taken back and the next read starts at the gap.
    fn deliver(&mut self) {
        while let Some(front) = self.dispatched.front()
            && !matches!(front.fetched, Fetched::Pending)
        {
            let read = self.dispatched.pop_front().expect("the front was just seen");
            let (outcome, delivered) = match read.fetched {
                Fetched::Entries(entries) => {
                    let delivered = read.from.plus(entries.len() as u64);
                    (ReadOutcome::Entries(self.unacknowledged(read.from, entries)), delivered)
                }
                Fetched::Failed(failed) => (ReadOutcome::Failed(failed), read.from),
                Fetched::Pending => unreachable!("only complete reads are delivered"),
            };
            self.complete(read.from, outcome);
            if delivered < read.to {
                self.take_back(delivered);
            }
        }
    }

    /// Without those that were acknowledged while storage read them.
    fn unacknowledged(&self, from: Offset, entries: Vec<E>) -> Vec<E> {
        if self.acked.is_empty() {
            return entries;
        }
        let at = (from.get()..).map(Offset::new);
        let left = at.zip(entries).filter(|(at, _)| !self.acked.contains(*at));
        left.map(|(_, entry)| entry).collect()
    }

    /// Moves mark-delete to `to`, and over what is acknowledged right behind it.
    fn acknowledge_up_to(&mut self, to: Offset) {
        let to = self.acked.end_of_run(to);
        self.acked.remove_before(to);
        self.mark_delete = to;
        if to > self.read_position() {
            self.take_back(to);
        }
    }

    /// Takes back every read from `at` on, and goes on from there under a new generation.
    fn take_back(&mut self, at: Offset) {
        self.end_waiting(ReadOutcome::Superseded);
        while let Some(read) = self.dispatched.pop_front() {
            self.complete(read.from, ReadOutcome::Superseded);
        }
        self.generation.0 += 1;
        self.reserved = at;
    }

    fn end_waiting(&mut self, outcome: ReadOutcome<E>) -> bool {
        let waited = self.waiting.take().is_some();
        if waited {
            self.complete(self.reserved, outcome);
        }
        waited
    }

    fn complete(&mut self, from: Offset, outcome: ReadOutcome<E>) {
        let id = ReadId { generation: self.generation, from };
        self.outputs.push_back(Output::Complete { id, outcome });
    }

    fn check_invariants(&self) {
        debug_assert!(self.mark_delete <= self.read_position(), "1: mark-delete <= read position");
        debug_assert!(self.reserved <= self.end, "1: reserved <= end");
        debug_assert!(self.waiting.is_none() || self.reserved == self.end, "3: waits at the end");
        debug_assert!(
            self.dispatched
                .iter()
                .zip(self.dispatched.iter().skip(1))
                .all(|(a, b)| a.to <= b.from && self.acked.end_of_run(a.to) >= b.from),
            "2: between two dispatched reads everything is acknowledged"
        );
        debug_assert!(
            self.dispatched.back().is_none_or(|last| last.to <= self.reserved),
            "2: dispatched reads end at reserved"
        );
        debug_assert!(!self.acked.contains(self.mark_delete), "mark-delete moves over its holes");
    }
}

#[cfg(test)]
mod tests;
