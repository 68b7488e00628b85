//! The handle of a cursor: the machine behind one short lock, and its reads in storage.
//!
//! A cursor has no task. A call takes the lock, feeds the machine, and after releasing the lock
//! starts the reads and delivers the completions that follow from it. Completions are delivered
//! one at a time and in order, by whichever call comes first; a sink may call the cursor.

mod reading;

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use georepl_storage::{Advice, Expected, MetadataError, Version};
use parking_lot::Mutex;

pub use reading::ReadEntriesError;

use crate::machine::{
    Machine, MarkDeleteRefused, Output, ReadFailed, ReadId, ReadLimits, ReadOutcome, ReadRefused,
    ReadStart, Rewound,
};
use crate::managed_ledger::{Entry, ManagedLedger, Registered};
use crate::names::InvalidName;
use crate::position::{Offset, Position};
use crate::records::{CursorRecord, RecordError};
use crate::stats::CursorInternalStats;

/// A durable reader of a topic: where it reads, and what it has acknowledged.
///
/// Acknowledgements are kept in memory for now: after a restart the cursor is where it was
/// created, and delivers again.
///
/// ```
/// # use std::sync::Arc;
/// # use georepl_cursor::{ManagedCursor, ManagedLedger, ManagedLedgerConfig, ReadLimits, StartAt};
/// # use georepl_storage::{
/// #     BookieId, ClientConfig, LedgerClient, MemoryBookieRegistry, MemoryBookies,
/// #     MemoryMetadataStore,
/// # };
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let ids = ["b1", "b2", "b3"].map(BookieId::from);
/// # let bookies = Arc::new(MemoryBookies::new(ids.clone()));
/// # let store = Arc::new(MemoryMetadataStore::new());
/// # let registry = Arc::new(MemoryBookieRegistry::new(ids));
/// # let client = LedgerClient::new(bookies, store.clone(), registry, ClientConfig::default());
/// # let name = "persistent://acme/eu/orders";
/// # let topic = ManagedLedger::open(name, client, store, ManagedLedgerConfig::default()).await?;
/// let cursor = ManagedCursor::open(&topic, "audit", StartAt::Earliest).await?;
/// topic.append("first".into()).await?;
///
/// let limits = ReadLimits { entries: 100, bytes: 1 << 20 };
/// let entries = cursor.read_entries_or_wait(limits).await?;
/// assert_eq!(entries[0].payload, "first");
/// cursor.mark_delete(entries[0].position)?;
/// assert_eq!(cursor.backlog(), 0);
/// # Ok(())
/// # }
/// ```
pub struct ManagedCursor {
    ledger: ManagedLedger,
    name: Arc<str>,
    key: String,
    state: Mutex<State>,
    record: CursorRecord,
    /// The record's version. Held while the record is written; none while the outcome of a write
    /// is unknown.
    version: tokio::sync::Mutex<Option<Version>>,
    this: Weak<Self>,
}

/// Where a new cursor starts. One that exists stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartAt {
    /// Before the first entry of the topic.
    Earliest,
    /// Behind the last entry acknowledged so far.
    Latest,
}

/// Learns how a read ended.
///
/// Called exactly once per read that was taken, in the order in which reads end, by whichever
/// thread ends it, without a lock of the cursor. It should only enqueue: other completions of the
/// cursor wait for it. It must not panic.
pub trait ReadSink: Send + Sync {
    /// The read `id` ended.
    fn read_completed(&self, id: ReadId, outcome: ReadOutcome<Entry>);
}

/// Why a cursor could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenCursorError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The cursor's record was not understood.
    #[error("the record of cursor {cursor}: {error}")]
    Record {
        /// The cursor.
        cursor: Arc<str>,
        /// Why.
        #[source]
        error: RecordError,
    },
    /// The topic does not have the entry that the cursor has acknowledged last.
    #[error("cursor {cursor} has acknowledged {position}, which its topic does not have")]
    NoSuchEntry {
        /// The cursor.
        cursor: Arc<str>,
        /// What it has acknowledged.
        position: Position,
    },
    /// The topic is closed.
    #[error("the topic of cursor {cursor} is closed; open it again")]
    LedgerClosed {
        /// The cursor.
        cursor: Arc<str>,
    },
    /// The record could not be written. A conflict means that somebody else opened the cursor.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl OpenCursorError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Name(_) | Self::Record { .. } | Self::NoSuchEntry { .. } => Advice::GiveUp,
            Self::LedgerClosed { .. } => Advice::Reopen,
            // Opening decides afresh from what is stored.
            Self::Metadata(_) => Advice::Retry,
        }
    }
}

/// Why a position could not be acknowledged. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkDeleteError {
    /// The topic has no such entry.
    #[error("the topic has no entry {0}")]
    NoSuchEntry(Position),
    /// The cursor refused.
    #[error(transparent)]
    Refused(#[from] MarkDeleteRefused),
}

impl MarkDeleteError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::NoSuchEntry(_) => Advice::GiveUp,
            Self::Refused(refused) => refused.advice(),
        }
    }
}

struct State {
    machine: Machine<Entry>,
    /// Of the reads that were taken and have not ended: at most
    /// [`READS_IN_FLIGHT_MAX`](crate::READS_IN_FLIGHT_MAX) and the one that waits.
    sinks: Vec<(ReadId, Arc<dyn ReadSink>)>,
    completions: VecDeque<(ReadId, Arc<dyn ReadSink>, ReadOutcome<Entry>)>,
    delivery: Delivery,
}

/// Whether a call is delivering completions. It delivers those that come meanwhile too.
enum Delivery {
    Idle,
    Running,
}

/// A read that storage is to do.
struct Fetch {
    id: ReadId,
    to: Offset,
    bytes: u64,
}

#[derive(Clone, Copy)]
enum Patience {
    Answer,
    Wait,
}

impl ManagedCursor {
    /// Opens the cursor `name` of a topic, or creates it, and becomes its owner. There is one
    /// object per topic and name: while it is open, opening again returns the same.
    ///
    /// If the future is dropped, the cursor may have been created.
    ///
    /// # Errors
    /// [`OpenCursorError`].
    pub async fn open(
        ledger: &ManagedLedger,
        name: &str,
        start: StartAt,
    ) -> Result<Arc<Self>, OpenCursorError> {
        let (key, cursor) = (ledger.cursor_key(name)?, Arc::<str>::from(name));
        let _opening = ledger.opening().await;
        if let Some(open) = ledger.registered(name) {
            let any: Arc<dyn Any + Send + Sync> = open;
            return Ok(any.downcast().expect("only cursors are registered"));
        }
        let stored = ledger.store().get(&key).await?;
        let (record, expected) = match stored {
            Some(stored) => {
                let record = CursorRecord::decode(&stored.value)
                    .map_err(|error| OpenCursorError::Record { cursor: cursor.clone(), error })?;
                (record, Expected::Version(stored.version))
            }
            None => {
                let mark_delete = match start {
                    StartAt::Earliest => None,
                    StartAt::Latest => ledger.last_confirmed(),
                };
                (CursorRecord { mark_delete }, Expected::Absent)
            }
        };
        let acknowledged = match record.mark_delete {
            None => Offset::ZERO,
            Some(position) => {
                let missing = || OpenCursorError::NoSuchEntry { cursor: cursor.clone(), position };
                ledger.offset_of(position).ok_or_else(missing)?.plus(1)
            }
        };
        let version = ledger.store().put(&key, record.encode(), expected).await?;
        let opened = Arc::new_cyclic(|this: &Weak<Self>| Self {
            ledger: ledger.clone(),
            name: cursor.clone(),
            key,
            state: Mutex::new(State {
                machine: Machine::new(acknowledged, ledger.end()),
                sinks: Vec::new(),
                completions: VecDeque::new(),
                delivery: Delivery::Idle,
            }),
            record,
            version: tokio::sync::Mutex::new(Some(version)),
            this: this.clone(),
        });
        let this: Weak<dyn Registered> = opened.this.clone();
        if !ledger.register(name, this) {
            return Err(OpenCursorError::LedgerClosed { cursor });
        }
        Ok(opened)
    }

    /// Writes the cursor's record again, so that whoever owned it before cannot, and returns its
    /// new version: of two owners the later one has the higher.
    ///
    /// May be called again, also after the future was dropped. When the outcome of a call is
    /// unknown, the next one starts from what is stored, as opening the cursor does: it takes the
    /// cursor from whoever took it in between.
    ///
    /// # Errors
    /// A version conflict when somebody else has taken the cursor.
    pub async fn take_ownership(&self) -> Result<u64, MetadataError> {
        let (store, value) = (self.ledger.store(), self.record.encode());
        let mut version = self.version.lock().await;
        // Out of its place until the answer is there: dropping this future leaves a doubt.
        let before = version.take();
        let found = match before {
            Some(known) => known,
            None => self.stored_version().await?,
        };
        match store.put(&self.key, value, Expected::Version(found)).await {
            Ok(written) => {
                *version = Some(written);
                Ok(written.0)
            }
            Err(error) => {
                // After a doubt even a conflict may be with a write of this cursor that came late.
                if !matches!(error, MetadataError::Unavailable { .. }) {
                    *version = before;
                }
                Err(error)
            }
        }
    }

    async fn stored_version(&self) -> Result<Version, MetadataError> {
        let stored = self.ledger.store().get(&self.key).await?;
        let missing = || MetadataError::NotFound { key: self.key.clone() };
        stored.map(|stored| stored.version).ok_or_else(missing)
    }

    /// Starts a read at the read position, or waits there for the next entry. The sink learns how
    /// it ends, possibly before this call returns.
    ///
    /// # Errors
    /// [`ReadRefused`]; the sink is then not called.
    pub fn submit_read(
        &self,
        limits: ReadLimits,
        sink: Arc<dyn ReadSink>,
    ) -> Result<ReadStart, ReadRefused> {
        self.submit(limits, sink, Patience::Wait)
    }

    /// Takes the waiting read, if there is one: it ends with [`ReadOutcome::Cancelled`]. False
    /// when none waits; a read that is in storage cannot be cancelled.
    pub fn cancel_pending_read(&self) -> bool {
        self.step(|state| state.machine.cancel_pending_read())
    }

    /// Puts the read position back to the first entry that is not acknowledged. Reads that are
    /// waiting or in storage end with [`ReadOutcome::Superseded`].
    pub fn rewind(&self) -> Rewound {
        self.step(|state| state.machine.rewind())
    }

    /// Acknowledges every entry up to and including the one at `position`.
    ///
    /// # Errors
    /// [`MarkDeleteError`].
    pub fn mark_delete(&self, position: Position) -> Result<(), MarkDeleteError> {
        let offset = self.ledger.offset_of(position);
        let offset = offset.ok_or(MarkDeleteError::NoSuchEntry(position))?;
        Ok(self.acknowledge(offset.plus(1), None)?)
    }

    /// Acknowledges every entry before `through`, and notes the last published position among
    /// them; `None` leaves it as it was.
    ///
    /// # Errors
    /// [`MarkDeleteRefused`].
    pub fn acknowledge(
        &self,
        through: Offset,
        last_published: Option<Position>,
    ) -> Result<(), MarkDeleteRefused> {
        self.step(|state| {
            state.machine.appended(self.ledger.end());
            state.machine.mark_delete(through, last_published)
        })
    }

    /// Entries of the topic that are not acknowledged.
    pub fn backlog(&self) -> u64 {
        let mark_delete = self.state.lock().machine.mark_delete_offset();
        self.ledger.end().since(mark_delete)
    }

    /// The next entry to be delivered.
    pub fn read_position(&self) -> Offset {
        self.state.lock().machine.read_position()
    }

    /// The first entry that is not acknowledged.
    pub fn mark_delete_offset(&self) -> Offset {
        self.state.lock().machine.mark_delete_offset()
    }

    /// The last acknowledged entry; none when no entry of the topic is.
    pub fn mark_delete_position(&self) -> Option<Position> {
        let last = self.mark_delete_offset().get().checked_sub(1)?;
        self.ledger.position_of(Offset::new(last))
    }

    /// The last position that a remote is known to hold, as noted by
    /// [`ManagedCursor::acknowledge`].
    pub fn last_published(&self) -> Option<Position> {
        self.state.lock().machine.last_published()
    }

    /// The cursor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The topic it reads.
    pub fn ledger(&self) -> &ManagedLedger {
        &self.ledger
    }

    /// Ends every read with [`ReadOutcome::Closed`], and refuses what comes later. Opening the
    /// cursor again makes a new object.
    pub fn close(&self) {
        let this: Weak<dyn Registered> = self.this.clone();
        self.ledger.unregister(&self.name, &this);
        self.step(|state| state.machine.close());
    }

    fn submit(
        &self,
        limits: ReadLimits,
        sink: Arc<dyn ReadSink>,
        patience: Patience,
    ) -> Result<ReadStart, ReadRefused> {
        let mut fetches = Vec::new();
        let start = {
            let mut state = self.state.lock();
            // Asked for under the lock: an append that moves the end after this finds the read
            // waiting when it gets the lock.
            state.machine.appended(self.ledger.end());
            let start = match patience {
                Patience::Answer => state.machine.read(limits),
                Patience::Wait => state.machine.read_or_wait(limits),
            };
            if let Ok(ReadStart::Dispatched(id) | ReadStart::Waiting(id)) = start {
                state.sinks.push((id, sink));
            }
            state.drain(&mut fetches);
            start
        };
        for fetch in fetches {
            self.start_now(fetch);
        }
        self.deliver();
        start
    }

    /// One step of the machine and what follows from it.
    fn step<R>(&self, step: impl FnOnce(&mut State) -> R) -> R {
        let mut fetches = Vec::new();
        let result = {
            let mut state = self.state.lock();
            let result = step(&mut state);
            state.drain(&mut fetches);
            result
        };
        self.start(fetches);
        self.deliver();
        result
    }

    /// Lets storage read, one task per read.
    fn start(&self, fetches: Vec<Fetch>) {
        for fetch in fetches {
            let Some(this) = self.this.upgrade() else { return };
            self.ledger.runtime().spawn(async move {
                let answer = this.fetch(&fetch).await;
                this.answer(fetch.id, answer);
            });
        }
    }

    /// Lets storage read; when it has the entries at hand, without a task.
    fn start_now(&self, fetch: Fetch) {
        let Some(this) = self.this.upgrade() else { return };
        let id = fetch.id;
        let mut reading = Box::pin(async move {
            let answer = this.fetch(&fetch).await;
            (this, answer)
        });
        let first_poll = {
            let _runtime = self.ledger.runtime().enter();
            pin!(&mut reading).poll(&mut Context::from_waker(Waker::noop()))
        };
        match first_poll {
            Poll::Ready((_, answer)) => self.answer(id, answer),
            Poll::Pending => {
                self.ledger.runtime().spawn(async move {
                    let (this, answer) = reading.await;
                    this.answer(id, answer);
                });
            }
        }
    }

    async fn fetch(&self, fetch: &Fetch) -> Result<Vec<Entry>, ReadFailed> {
        let read = self.ledger.read(fetch.id.from, fetch.to, fetch.bytes).await;
        read.map_err(|error| ReadFailed { message: error.to_string().into() })
    }

    fn answer(&self, id: ReadId, answer: Result<Vec<Entry>, ReadFailed>) {
        self.step(|state| state.machine.fetched(id, answer));
    }

    /// Delivers completions in order. A call from within a sink leaves them to the call that is
    /// delivering, and so does another thread.
    fn deliver(&self) {
        let mut state = self.state.lock();
        if let Delivery::Running = state.delivery {
            return;
        }
        while let Some((id, sink, outcome)) = state.completions.pop_front() {
            state.delivery = Delivery::Running;
            drop(state);
            sink.read_completed(id, outcome);
            // Before the lock is taken: this may be the sink's end, and what it drops may call
            // the cursor.
            drop(sink);
            state = self.state.lock();
        }
        state.delivery = Delivery::Idle;
    }
}

impl State {
    /// Takes the machine's outputs: reads to start, and completions to deliver.
    fn drain(&mut self, fetches: &mut Vec<Fetch>) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Fetch { id, to, bytes } => fetches.push(Fetch { id, to, bytes }),
                Output::Complete { id, outcome } => {
                    let at = self.sinks.iter().position(|(taken, _)| *taken == id);
                    let at = at.expect("a read completes once, and was taken before");
                    let (_, sink) = self.sinks.remove(at);
                    self.completions.push_back((id, sink, outcome));
                }
            }
        }
    }
}

impl Registered for ManagedCursor {
    fn appended(self: Arc<Self>) {
        // Completes nothing, so there is nothing to deliver; and the append does not wait for
        // storage to read.
        let mut fetches = Vec::new();
        {
            let mut state = self.state.lock();
            state.machine.appended(self.ledger.end());
            state.drain(&mut fetches);
        }
        self.start(fetches);
    }

    fn closed(self: Arc<Self>) {
        self.close();
    }

    fn stats(&self, opened_at: Offset) -> CursorInternalStats {
        let state = self.state.lock();
        let (machine, ledger) = (&state.machine, &self.ledger);
        let (acknowledged, read) = (machine.mark_delete_offset(), machine.read_position());
        CursorInternalStats {
            mark_delete_position: ledger.place_before(acknowledged),
            read_position: ledger.place_at(read),
            waiting_read_op: machine.waiting_read().is_some(),
            pending_read_ops: machine.reads_in_flight(),
            messages_consumed_counter: acknowledged.get() as i64 - opened_at.get() as i64,
            individually_deleted_messages: "[]".into(),
            total_non_contiguous_deleted_messages_range: 0,
            number_of_entries_since_first_not_acked_message: read.since(acknowledged) + 1,
            state: "Open".into(),
        }
    }
}

impl fmt::Debug for ManagedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, read_position) = (&self.name, self.read_position());
        f.debug_struct("ManagedCursor")
            .field("name", name)
            .field("topic", &self.ledger.name())
            .field("read_position", &read_position)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
