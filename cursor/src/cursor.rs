//! The handle of a cursor: the machine behind one short lock, and its reads in storage.
//!
//! A cursor has no task. A call takes the lock, feeds the machine, and after releasing the lock
//! starts the reads and delivers the completions that follow from it. Completions are delivered
//! one at a time and in order, by whichever call comes first; a sink may call the cursor.

mod deleting;
mod keeping;
mod moving;
mod reading;

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use georepl_storage::{Advice, MetadataError};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

pub use deleting::DeleteError;
pub use keeping::ACKED_RANGES_MAX;
pub use moving::MarkDeleteError;
pub use reading::ReadEntriesError;

use crate::acked::Acked;
use crate::chain::Located;
use crate::machine::{
    Machine, Output, ReadFailed, ReadId, ReadLimits, ReadOutcome, ReadRefused, ReadStart, Rewound,
};
use crate::managed_ledger::{ChangeError, Entry, ManagedLedger, Registered};
use crate::names::InvalidName;
use crate::position::{Offset, Position, StartAt};
use crate::progress::{InvalidProperty, Progress};
use crate::snapshots::{Found, LoadError, PersistError, Snapshots};
use crate::stats::CursorInternalStats;
use keeping::{Keeper, Stored};

/// A durable reader of a topic: where it reads, and what it has acknowledged.
///
/// What is acknowledged is stored soon, and durable when a call that says so returns, or
/// [`ManagedCursor::persist`] does. A crash loses at most acknowledgements that nobody was told are
/// durable: their entries are delivered again.
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
/// cursor.mark_delete(entries[0].position).await?;
/// assert_eq!(cursor.backlog(), 0);
/// # Ok(())
/// # }
/// ```
pub struct ManagedCursor {
    ledger: ManagedLedger,
    name: Arc<str>,
    key: String,
    /// What had to be passed over to open it.
    notes: Vec<String>,
    state: Mutex<State>,
    /// None for a reader. Held while something is written.
    snapshots: Option<tokio::sync::Mutex<Snapshots>>,
    stored: watch::Sender<Stored>,
    /// Somebody waits for the next write.
    demanded: Notify,
    this: Weak<Self>,
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
    /// What is stored of the cursor could not be read, or not understood.
    #[error("cursor {cursor}: {error}")]
    Load {
        /// The cursor.
        cursor: Arc<str>,
        /// Why.
        #[source]
        error: LoadError,
    },
    /// The topic is closed, or somebody else's by now.
    #[error(transparent)]
    Topic(#[from] ChangeError),
    /// The state could not be stored. A conflict means that somebody else opened the cursor.
    #[error(transparent)]
    Persist(#[from] PersistError),
    /// The topic is closed.
    #[error("the topic of cursor {cursor} is closed; open it again")]
    LedgerClosed {
        /// The cursor.
        cursor: Arc<str>,
    },
    /// The record could not be removed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl OpenCursorError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Name(_) => Advice::GiveUp,
            Self::Load { error, .. } => error.advice(),
            Self::LedgerClosed { .. } => Advice::Reopen,
            Self::Topic(error) => error.advice(),
            // Opening decides afresh from what is stored.
            Self::Metadata(_) | Self::Persist(_) => Advice::Retry,
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
    /// What was changed and is to be stored, counted.
    changes: u64,
    keeper: Keeper,
    /// The version with which the cursor was taken last; 0 while it was not.
    owner: u64,
}

/// A cursor that is about to be made.
struct Opened {
    machine: Machine<Entry>,
    notes: Vec<String>,
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
    /// object per topic and name: while it is open, opening again returns the same; while it is being closed, opening
    /// waits for that.
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
        let key = ledger.cursor_key(name)?;
        let _opening = ledger.opening().await;
        if let Some(known) = ledger.registered(name) {
            let any: Arc<dyn Any + Send + Sync> = known;
            let known: Arc<Self> = any.downcast().expect("only cursors are registered");
            if !known.state.lock().machine.is_closed() {
                return Ok(known);
            }
            // What it does not manage to store is delivered again.
            known.closed().await;
        }
        let cursor = Arc::<str>::from(name);
        // Before anything is taken from whoever owns the topic by now.
        ledger.still_owned().await?;
        ledger.decide_deletion().await?;
        let load = |error| OpenCursorError::Load { cursor: cursor.clone(), error };
        let (snapshots, found) =
            Snapshots::load(ledger, cursor.clone(), key.clone()).await.map_err(load)?;
        let opened = match found {
            None => Opened::at(ledger, start),
            Some(found) => Opened::restored(ledger, found).map_err(|error| {
                OpenCursorError::Load { cursor: cursor.clone(), error: error.into() }
            })?,
        };
        for note in &opened.notes {
            tracing::warn!(topic = ledger.name(), cursor = name, "{note}");
        }
        let opened = Self::made(ledger, cursor.clone(), key, opened, Some(snapshots));
        // Only now, so that the position that is stored is the one that is used.
        opened.fold().await?;
        if !ledger.register(name, opened.registered(), Some(opened.floor())) {
            return Err(OpenCursorError::LedgerClosed { cursor });
        }
        opened.see_termination();
        Ok(opened)
    }

    /// A cursor without a record: it is gone with its last handle, and holds nothing back in the topic. What is
    /// deleted under it counts as acknowledged.
    ///
    /// # Errors
    /// [`OpenCursorError::LedgerClosed`].
    pub fn reader(ledger: &ManagedLedger, start: StartAt) -> Result<Arc<Self>, OpenCursorError> {
        let name: Arc<str> = format!("reader-{:016x}", fastrand::u64(..)).into();
        let opened = Opened::at(ledger, start);
        let reader = Self::made(ledger, name.clone(), String::new(), opened, None);
        if !ledger.register(&name, reader.registered(), None) {
            return Err(OpenCursorError::LedgerClosed { cursor: name });
        }
        reader.see_termination();
        // What was deleted before it was registered.
        Registered::trimmed(reader.clone(), ledger.start());
        Ok(reader)
    }

    /// Removes the cursor `name` and all that is stored of it. One that is open is closed. There being none is a
    /// success.
    ///
    /// If the future is dropped, call it again.
    ///
    /// # Errors
    /// [`OpenCursorError`]; call it again.
    pub async fn remove(ledger: &ManagedLedger, name: &str) -> Result<(), OpenCursorError> {
        let (key, cursor) = (ledger.cursor_key(name)?, Arc::<str>::from(name));
        let _opening = ledger.opening().await;
        if let Some(open) = ledger.registered(name) {
            open.closed().await;
        }
        ledger.still_owned().await?;
        // Whatever its state is, and whether or not that can be read.
        Snapshots::found(ledger, cursor, key).await?.delete().await?;
        ledger.forget(name);
        Ok(())
    }

    fn made(
        ledger: &ManagedLedger,
        name: Arc<str>,
        key: String,
        Opened { machine, notes }: Opened,
        snapshots: Option<Snapshots>,
    ) -> Arc<Self> {
        let stored = watch::Sender::new(Stored::nothing_changed(machine.mark_delete_offset()));
        Arc::new_cyclic(|this| Self {
            ledger: ledger.clone(),
            name,
            key,
            notes,
            state: Mutex::new(State {
                machine,
                sinks: Vec::new(),
                completions: VecDeque::new(),
                delivery: Delivery::Idle,
                changes: 0,
                keeper: Keeper::Idle,
                owner: 0,
            }),
            snapshots: snapshots.map(tokio::sync::Mutex::new),
            stored,
            demanded: Notify::new(),
            this: this.clone(),
        })
    }

    async fn fold(&self) -> Result<(), PersistError> {
        let Some(snapshots) = &self.snapshots else { return Ok(()) };
        snapshots.lock().await.fold(self.capture().state).await
    }

    /// What ended before it was registered.
    fn see_termination(self: &Arc<Self>) {
        if self.ledger.is_terminated() {
            Registered::terminated(self.clone());
        }
    }

    fn registered(&self) -> Weak<dyn Registered> {
        self.this.clone()
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

    /// Entries of the topic that are not acknowledged.
    pub fn backlog(&self) -> u64 {
        let state = self.state.lock();
        let machine = &state.machine;
        self.ledger.end().since(machine.mark_delete_offset()) - machine.acked().len()
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

    /// What a replicator keeps with the cursor.
    pub fn progress(&self) -> Progress {
        self.state.lock().machine.progress().clone()
    }

    /// What had to be passed over when it was opened: snapshots that are damaged, entries that its
    /// topic lost. For people; empty as a rule.
    pub fn recovery_notes(&self) -> &[String] {
        &self.notes
    }

    /// The cursor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The topic it reads.
    pub fn ledger(&self) -> &ManagedLedger {
        &self.ledger
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
            let Some(asking) = self.ask(&fetch) else { return };
            self.ledger.runtime().spawn(async move {
                let answer = asking.cursor.fetch(&fetch).await;
                asking.answer(answer);
            });
        }
    }

    /// Lets storage read; when it has the entries at hand, without a task.
    fn start_now(&self, fetch: Fetch) {
        let Some(asking) = self.ask(&fetch) else { return };
        let mut reading = Box::pin(async move {
            let answer = asking.cursor.fetch(&fetch).await;
            (asking, answer)
        });
        let first_poll = {
            let _runtime = self.ledger.runtime().enter();
            pin!(&mut reading).poll(&mut Context::from_waker(Waker::noop()))
        };
        match first_poll {
            Poll::Ready((asking, answer)) => asking.answer(answer),
            Poll::Pending => {
                self.ledger.runtime().spawn(async move {
                    let (asking, answer) = reading.await;
                    asking.answer(answer);
                });
            }
        }
    }

    fn ask(&self, fetch: &Fetch) -> Option<Asking> {
        Some(Asking { cursor: self.this.upgrade()?, id: Some(fetch.id) })
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

/// A read that storage was asked for. When the runtime ends, its task is dropped: whoever waits for the read hears of it,
/// or a reader that has the cursor, and that the cursor has, would stay for ever.
struct Asking {
    cursor: Arc<ManagedCursor>,
    /// None once it is answered.
    id: Option<ReadId>,
}

impl Asking {
    fn answer(mut self, answer: Result<Vec<Entry>, ReadFailed>) {
        let id = self.id.take().expect("it is answered once");
        self.cursor.answer(id, answer);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let message = "the topic's runtime ended while storage read".into();
            self.cursor.answer(id, Err(ReadFailed { message }));
        }
    }
}

impl Opened {
    fn at(ledger: &ManagedLedger, start: StartAt) -> Self {
        let (at, end) = ledger.with_chain(|chain| (moving::offset_of(chain, start), chain.end()));
        Self { machine: Machine::new(at, end), notes: Vec::new() }
    }

    fn restored(ledger: &ManagedLedger, found: Found) -> Result<Self, InvalidProperty> {
        let Found { state, mut notes } = found;
        let progress = Progress::from_properties(state.properties)?;
        let machine = ledger.with_chain(|chain| {
            let at = state.mark_delete;
            let at = at.map_or_else(|| Located::At(chain.start()), |at| chain.locate(at));
            if let (Located::Beyond(_), Some(place)) = (at, state.mark_delete) {
                notes.push(format!(
                    "it has acknowledged {place}, which its topic does not have: the topic lost \
                     entries; it goes on behind the last that there is"
                ));
            }
            let mut acked = Acked::default();
            for (from, to) in state.acked {
                let (from, to) = (chain.locate(from).offset(), chain.locate(to).offset());
                acked.insert_range(from.max(at.offset())..to.max(at.offset()));
            }
            Machine::restored(at.offset(), acked, progress, chain.end())
        });
        Ok(Self { machine, notes })
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

    fn closed(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.end();
        Box::pin(async move {
            // Why it was not stored is in the log, and what it lacks is delivered again.
            let _ = self.close().await;
        })
    }

    fn terminated(self: Arc<Self>) {
        self.step(|state| {
            state.machine.appended(self.ledger.end());
            state.machine.terminate();
        });
    }

    fn trimmed(self: Arc<Self>, start: Offset) {
        self.step(|state| {
            state.machine.appended(self.ledger.end());
            if state.machine.mark_delete_offset() < start {
                // Refused only by one that is closed, which reads no more.
                let _ = state.machine.mark_delete(start, None);
            }
        });
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
            messages_consumed_counter: (acknowledged.get() + machine.acked().len()) as i64
                - opened_at.get() as i64,
            individually_deleted_messages: self.individually_deleted(machine),
            total_non_contiguous_deleted_messages_range: machine.acked().ranges().count() as u64,
            number_of_entries_since_first_not_acked_message: read.since(acknowledged) + 1,
            state: "Open".into(),
        }
    }
}

impl ManagedCursor {
    /// The first of the ranges of single acknowledged entries, in Pulsar's words: from behind the one
    /// to the other.
    fn individually_deleted(&self, machine: &Machine<Entry>) -> String {
        let ranges = self.ledger.with_chain(|chain| {
            let shown = machine.acked().ranges().take(SHOWN_RANGES_MAX);
            let place = |at| chain.place_of(at).map_or_else(String::new, |place| place.to_string());
            shown.map(|r| format!("({}..{}]", place(r.start), place(r.end))).collect::<Vec<_>>()
        });
        format!("[{}]", ranges.join(","))
    }
}

/// Ranges of single acknowledged entries in the stats of a cursor.
const SHOWN_RANGES_MAX: usize = 100;

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
