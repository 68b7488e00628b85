//! A topic: a chain of ledgers with one owner, who appends to the last of them.
//!
//! ```text
//!   append ──► queue ──► open ledger ──► confirmed ──► end moves, reply, cursors wake
//!                ▲            │ full
//!                │            ▼
//!                └── close it, and create the next ──► list both by compare-and-set ──► send
//! ```
//!
//! Promises, each kept at one place:
//!
//! 1. A ledger is listed in the topic's record before an entry of it is acknowledged: nothing is
//!    sent to it earlier. An owner that crashes loses at most an empty ledger.
//! 2. The record moves by compare-and-set on the version this owner knows. A conflict means that
//!    somebody else owns the topic: it is fenced, for ever.
//! 3. A ledger gets entries only after the one before it is closed at a known end, so that
//!    acknowledged entries have no gap before them.
//! 4. After an append failed, none succeeds until the topic is opened again.
//!
//! A ledger that fails, other than by a fence, is no failure of an append yet: it is closed, by a recovery if its writer
//! cannot, and what it ends without goes to the next ledger, in order.

mod append;
mod config;
mod error;
mod read;
mod register;
mod rollover;
mod trimming;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use georepl_storage::{
    AppendSink, ClosedElsewhere, EntryId, LedgerClient, LedgerEnd, LedgerId, LedgerReader,
    LedgerWriter, MetadataError, MetadataStore, write,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinSet;

pub use append::{AppendBatch, AppendPermit};
pub use config::ManagedLedgerConfig;
pub use error::{AppendError, BacklogFull, ChangeError, CloseError, OpenError, ReadError, Refusal};
pub use read::Entry;
pub(crate) use register::Registered;
pub use rollover::ROLLOVER_AGE;
pub(crate) use trimming::has_in_record;
pub use trimming::{BacklogQuota, BeyondQuota, Expired, Retention};

use crate::chain::{Chain, LedgerState};
use crate::names::{InvalidName, cursor_key, persistence_path, topic_key};
use crate::own_record::OwnRecord;
use crate::position::{Offset, Place, Position};
use crate::records::{ListedEnd, ListedLedger, TopicRecord};
use crate::stats::{LedgerInternalStats, ManagedLedgerInternalStats, timestamp};
use crate::store::Store;
use append::{Queue, Replies};
use read::Handles;
use register::Registration;
use trimming::Recorded;

/// A topic that is open here. A clone is the same topic.
///
/// Dropping the last handle without [`ManagedLedger::close`] is safe: what was acknowledged is
/// durable, but the last ledger stays open, and the next owner has to recover it.
///
/// ```
/// # use std::sync::Arc;
/// # use georepl_cursor::{ManagedLedger, ManagedLedgerConfig, Offset};
/// # use georepl_storage::{
/// #     BookieId, ClientConfig, LedgerClient, MemoryBookieRegistry, MemoryBookies,
/// #     MemoryMetadataStore,
/// # };
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ids = ["b1", "b2", "b3"].map(BookieId::from);
/// let bookies = Arc::new(MemoryBookies::new(ids.clone()));
/// let store = Arc::new(MemoryMetadataStore::new());
/// let registry = Arc::new(MemoryBookieRegistry::new(ids));
/// let client = LedgerClient::new(bookies, store.clone(), registry, ClientConfig::default());
///
/// let name = "persistent://acme/eu/orders";
/// let topic = ManagedLedger::open(name, client, store, ManagedLedgerConfig::default()).await?;
/// let position = topic.append("first".into()).await?;
///
/// let entries = topic.read(Offset::ZERO, topic.end(), 1 << 20).await?;
/// assert_eq!(entries[0].position, position);
/// assert_eq!(entries[0].payload, "first");
/// topic.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ManagedLedger(Arc<Inner>);

struct Inner {
    topic: Arc<str>,
    path: String,
    client: LedgerClient,
    store: Store,
    config: ManagedLedgerConfig,
    runtime: Handle,
    /// Entries confirmed before this owner opened the topic.
    opened_at: Offset,
    /// The chain's end, for cursors, who ask at every read and every wake-up.
    end: AtomicU64,
    budget: Arc<Semaphore>,
    state: Mutex<State>,
    record: tokio::sync::Mutex<Recorded>,
    handles: Handles,
    /// By name.
    cursors: Mutex<BTreeMap<String, Registration>>,
    /// What some cursor holds back may have become less.
    floor_moved: Notify,
    /// Whether a task deletes ledgers.
    trimming: AtomicBool,
    /// Held while a cursor is opened, so that there is one per name.
    opening: tokio::sync::Mutex<()>,
    /// Held while ledgers are deleted, so that each is deleted once.
    deletion: tokio::sync::Mutex<()>,
    /// Tasks that delete ledgers.
    deletions: Mutex<JoinSet<()>>,
}

struct State {
    chain: Chain,
    /// When each closed ledger of the chain was closed.
    closed_at_ms: BTreeMap<LedgerId, u64>,
    retention: Retention,
    queue: Queue,
    intake: Intake,
    door: Door,
    /// Ledgers in a row that failed and had nothing confirmed.
    failed_in_row: u32,
    /// None once the last ledger is closed for good.
    current: Option<Current>,
}

/// Whether appends are taken.
enum Intake {
    Open,
    Refused(Refusal),
}

/// Whether reads are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    Open,
    Closed,
}

/// The last ledger.
struct Current {
    writer: Arc<LedgerWriter>,
    reader: Arc<LedgerReader>,
    entries_sent: u64,
    bytes_sent: u64,
    created_at_ms: u64,
    progress: Progress,
    ending: Ending,
    /// Why it takes no more entries, if it failed.
    failure: Option<write::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Appends go to the ledger.
    Writing,
    /// It is full or has failed: it is being closed and the next one created, while appends queue.
    RollingOver,
    /// The topic takes no more appends. What storage says of the ledger later counts no more.
    Failed,
}

/// Who finds out where the last ledger ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Its writer, by closing it.
    Writer,
    /// A recovery of the topic's own, because the writer could not tell. To the writer that is somebody else, so what it
    /// says of the end from then on is not asked for.
    Recovery,
}

/// The ledger's reports go through this: it must not keep the topic alive.
struct Confirmations(Weak<Inner>);

impl ManagedLedger {
    /// Opens the topic `name`, or creates it, and becomes its owner. Whoever owned it before is
    /// fenced: its appends fail from now on, and it cannot begin another ledger.
    ///
    /// A ledger that the last owner did not close is recovered. Then entries whose append failed or
    /// was never answered may be part of the topic, behind all that was acknowledged. If the future
    /// is dropped, an empty ledger may be left, listed or not.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(
        name: &str,
        client: LedgerClient,
        store: Arc<dyn MetadataStore>,
        config: ManagedLedgerConfig,
    ) -> Result<Self, OpenError> {
        let topic: Arc<str> = name.into();
        let store = Store::new(store, client.config().metadata_timeout);
        let path = persistence_path(name)?;
        let key = topic_key(&path);
        let stored = store.get(&key).await?;
        // No record at all is read as an empty one.
        let value = stored.as_ref().map_or(&[][..], |stored| &stored.value);
        let record = TopicRecord::decode(value)
            .map_err(|error| OpenError::Record { topic: topic.clone(), error })?;
        let own = OwnRecord::new(key.clone(), stored.map(|stored| stored.version));
        let mut recorded = Recorded::new(own, &record);
        let (mut chain, mut closed_at_ms) = (Chain::new(), BTreeMap::new());
        let out_of_order = |error| OpenError::OutOfOrder { topic: topic.clone(), error };
        for listed in record.ledgers {
            let end = rollover::end_of(&client, &config, listed, record.terminated).await?;
            if end.entries == 0 {
                recorded.noted.deleting.push(listed.ledger);
                continue;
            }
            chain.push_closed(listed.ledger, end.entries, end.bytes).map_err(out_of_order)?;
            closed_at_ms.insert(listed.ledger, end.closed_at_ms);
        }
        let opened_at = chain.end();
        let intake = match record.terminated {
            None => Intake::Open,
            Some(_) => Intake::Refused(Refusal::Terminated { topic: topic.clone() }),
        };
        let state = State {
            chain,
            closed_at_ms,
            retention: recorded.noted.retention(config.retention),
            queue: Queue::default(),
            intake,
            door: Door::Open,
            failed_in_row: 0,
            current: None,
        };
        let inner = Arc::new(Inner {
            budget: Arc::new(Semaphore::new(config.append_bytes_in_flight_max as usize)),
            topic: topic.clone(),
            path,
            client,
            store,
            config,
            runtime: Handle::current(),
            opened_at,
            end: AtomicU64::new(opened_at.get()),
            state: Mutex::new(state),
            record: tokio::sync::Mutex::new(recorded),
            handles: Handles::default(),
            cursors: Mutex::default(),
            floor_moved: Notify::new(),
            trimming: AtomicBool::new(false),
            opening: tokio::sync::Mutex::default(),
            deletion: tokio::sync::Mutex::default(),
            deletions: Mutex::default(),
        });
        inner.begin(&key, record.terminated).await?;
        Ok(Self(inner))
    }

    /// Takes `bytes` of payload from the topic's budget, and waits while it is used up. A request
    /// above the whole budget is admitted alone. Served in the order of the calls.
    ///
    /// Cancel-safe: dropping the future gives up the place in the order, and nothing else.
    ///
    /// A topic that is at its backlog quota makes it wait too, or refuses.
    ///
    /// # Errors
    /// [`AppendError::Refused`] when the topic takes no appends, also while waiting;
    /// [`AppendError::BacklogFull`].
    pub async fn reserve(&self, bytes: u64) -> Result<AppendPermit, AppendError> {
        self.0.within_quota().await?;
        // An empty entry is charged too, or their number would have no bound.
        let budget = u64::from(self.0.config.append_bytes_in_flight_max);
        let charged = bytes.clamp(1, budget.max(1)) as u32;
        match self.0.budget.clone().acquire_many_owned(charged).await {
            Ok(held) => Ok(AppendPermit { bytes, _held: held }),
            Err(_) => Err(self.refusal().expect("the budget is closed after the intake").into()),
        }
    }

    /// Why publishers wait or are refused, if the topic is at its backlog quota.
    pub fn backlog_full(&self) -> Option<BacklogFull> {
        self.0.backlog_full()
    }

    /// Appends a batch, one entry per payload, with a permit for its whole size. Returns at once;
    /// batches get their places in the order of the calls.
    pub fn append_batch(&self, permit: AppendPermit, payloads: Vec<Bytes>) -> AppendBatch {
        let (reply, receiver) = oneshot::channel();
        let checked = self.0.check_batch(&permit, &payloads);
        let mut state = self.0.state.lock();
        let first_offset = state.chain.end().plus(state.queue.len() as u64);
        let refused = checked.and_then(|()| match &state.intake {
            Intake::Open => Ok(()),
            Intake::Refused(refusal) => Err(refusal.clone().into()),
        });
        match refused {
            Ok(()) if !payloads.is_empty() => {
                state.queue.push(payloads, permit, reply);
                self.0.send_unsent(&mut state);
            }
            other => {
                let _ = reply.send(other.map(|()| Vec::new()));
            }
        }
        drop(state);
        AppendBatch { first_offset, topic: self.0.topic.clone(), reply: receiver }
    }

    /// Appends one entry, and waits until it is acknowledged.
    ///
    /// If the future is dropped the entry may be in the topic or not.
    ///
    /// # Errors
    /// [`AppendError`]; it says whether the outcome is known.
    pub async fn append(&self, payload: Bytes) -> Result<Position, AppendError> {
        let permit = self.reserve(payload.len() as u64).await?;
        let positions = self.append_batch(permit, vec![payload]).await?;
        Ok(*positions.first().expect("a batch of one entry has one position"))
    }

    /// The topic's name.
    pub fn name(&self) -> &str {
        &self.0.topic
    }

    /// Whether both are handles of the same opening.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The number of acknowledged entries, which is the place behind the last of them.
    pub fn end(&self) -> Offset {
        self.0.end()
    }

    /// Why the topic takes no appends; none while it takes them.
    pub fn refusal(&self) -> Option<Refusal> {
        match &self.0.state.lock().intake {
            Intake::Open => None,
            Intake::Refused(refusal) => Some(refusal.clone()),
        }
    }

    /// The largest entry that is taken, in bytes.
    pub fn entry_bytes_max(&self) -> usize {
        self.0.config.entry_bytes_max
    }

    /// The position of the last acknowledged entry; none while the topic is empty.
    pub fn last_confirmed(&self) -> Option<Position> {
        self.0.state.lock().chain.last_confirmed()
    }

    /// The place of an acknowledged entry; none when there is no such entry.
    pub fn offset_of(&self, position: Position) -> Option<Offset> {
        self.0.state.lock().chain.offset_of(position)
    }

    /// The position of the acknowledged entry at a place; none at and beyond the end.
    pub fn position_of(&self, offset: Offset) -> Option<Position> {
        self.0.state.lock().chain.position_of(offset)
    }

    /// Whether the place of this entry was deleted from the topic. There may never have been one.
    pub fn is_trimmed(&self, position: Position) -> bool {
        self.with_chain(|chain| chain.locate(Place::after(position)).is_trimmed())
    }

    /// The state of the topic and its cursors, for operators.
    pub fn internal_stats(&self) -> ManagedLedgerInternalStats {
        // First the cursors, without the topic's lock: they use it.
        let opened_at = self.0.opened_at;
        let cursors: BTreeMap<_, _> =
            self.0.registered_by_name().map(|(n, c)| (n, c.stats(opened_at))).collect();
        let state = self.0.state.lock();
        let newest = state.chain.ledgers().next_back();
        ManagedLedgerInternalStats {
            entries_added_counter: state.chain.end().since(opened_at),
            number_of_entries: state.chain.end().since(state.chain.start()),
            total_size: state.chain.bytes(),
            current_ledger_entries: newest.map_or(0, |info| info.entries),
            current_ledger_size: newest.map_or(0, |info| info.bytes),
            last_ledger_created_timestamp: state
                .current
                .as_ref()
                .map(|current| timestamp(current.created_at_ms)),
            waiting_cursors_count: cursors.values().filter(|cursor| cursor.waiting_read_op).count(),
            pending_add_entries_count: state.queue.len(),
            last_confirmed_entry: state.place_before(state.chain.end()),
            state: state.word().into(),
            ledgers: state.chain.ledgers().map(ledger_stats).collect(),
            cursors,
        }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    /// Runs what deletes ledgers in a task. It is dropped wherever it is when the topic is closed, so that nothing of a
    /// topic that was closed uses the store: what it leaves must be noted for the next owner.
    pub(crate) fn delete_in_task(&self, deletion: impl Future<Output = ()> + Send + 'static) {
        self.0.delete_in_task(deletion);
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn client(&self) -> &LedgerClient {
        &self.0.client
    }

    pub(crate) fn config(&self) -> &ManagedLedgerConfig {
        &self.0.config
    }

    /// The name under which its records are kept.
    pub(crate) fn path(&self) -> &str {
        &self.0.path
    }

    /// The place of the first entry that was not deleted.
    pub fn start(&self) -> Offset {
        self.0.state.lock().chain.start()
    }

    /// Runs `f` on the chain of ledgers, under the topic's lock.
    pub(crate) fn with_chain<R>(&self, f: impl FnOnce(&Chain) -> R) -> R {
        f(&self.0.state.lock().chain)
    }

    pub(crate) fn cursor_key(&self, cursor: &str) -> Result<String, InvalidName> {
        cursor_key(&self.0.path, cursor)
    }

    /// The place before `offset`, in Pulsar's words: the entry there, or entry -1.
    pub(crate) fn place_before(&self, offset: Offset) -> String {
        self.0.state.lock().place_before(offset)
    }

    /// The place at `offset`, in Pulsar's words: the entry there, or the one that will be next.
    pub(crate) fn place_at(&self, offset: Offset) -> String {
        self.0.state.lock().place_at(offset)
    }
}

impl fmt::Debug for ManagedLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (topic, end) = (&self.0.topic, self.end());
        f.debug_struct("ManagedLedger")
            .field("topic", topic)
            .field("end", &end)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Takes the topic over, by writing its record: with a first ledger, unless it was terminated.
    async fn begin(
        self: &Arc<Self>,
        key: &str,
        terminated: Option<Place>,
    ) -> Result<(), OpenError> {
        let mut record = self.record.lock().await;
        let writer = match terminated {
            Some(_) => None,
            None => Some(self.create_ledger().await?),
        };
        let listed = {
            let mut state = self.state.lock();
            if let Some(writer) = &writer {
                let pushed = state.chain.push_open(writer.id());
                pushed
                    .map_err(|error| OpenError::OutOfOrder { topic: self.topic.clone(), error })?;
            }
            state.listed()
        };
        if let Err(error) = record.put(&self.store, listed).await {
            if let Some(writer) = &writer {
                self.discard_unlisted(writer, &error).await;
            }
            return Err(match error {
                MetadataError::VersionConflict { .. } => {
                    OpenError::Fenced { topic: self.topic.clone() }
                }
                other => other.into(),
            });
        }
        self.state.lock().current = writer.map(Current::new);
        drop(record);
        // Only now: an earlier owner can create no cursor any more.
        let chain = self.state.lock().chain.clone();
        let cursors = register::listed(&self.store, key, &chain).await?;
        *self.cursors.lock() = cursors;
        self.start_deleting();
        Ok(())
    }

    fn end(&self) -> Offset {
        Offset::new(self.end.load(Ordering::Acquire))
    }

    fn check_batch(&self, permit: &AppendPermit, payloads: &[Bytes]) -> Result<(), AppendError> {
        let bytes_max = self.config.entry_bytes_max;
        if let Some(large) = payloads.iter().find(|payload| payload.len() > bytes_max) {
            return Err(AppendError::EntryTooLarge { bytes: large.len(), bytes_max });
        }
        let (bytes, reserved) = (payloads.iter().map(|p| p.len() as u64).sum(), permit.bytes);
        if bytes > reserved {
            return Err(AppendError::BeyondPermit { bytes, reserved });
        }
        Ok(())
    }

    /// Sends what the open ledger has room for. When it becomes full, the rollover begins.
    fn send_unsent(self: &Arc<Self>, state: &mut State) {
        if let Sent::Full = self.send_to_current(state) {
            // Only a close waits for its end.
            drop(self.start_rollover());
        }
    }

    fn send_to_current(&self, state: &mut State) -> Sent {
        let Some(current) = &mut state.current else { return Sent::All };
        if current.progress != Progress::Writing {
            return Sent::All;
        }
        let (entries_max, bytes_max) =
            (self.config.ledger_entries_max.max(1), self.config.ledger_bytes_max.max(1));
        let room = (entries_max - current.entries_sent, bytes_max - current.bytes_sent);
        let (payloads, bytes) = state.queue.take_unsent(room.0, room.1);
        let count = payloads.len() as u64;
        if count == 0 {
            return Sent::All;
        }
        match current.writer.append(payloads) {
            Ok(_) => {}
            // Its owner has closed it, which is no failure.
            Err(write::Error::Closed { .. }) => return Sent::All,
            // It says so through its sink as well, but that may have been before it was the current one.
            Err(error) => {
                current.failure = Some(error);
                current.progress = Progress::RollingOver;
                return Sent::Full;
            }
        }
        current.entries_sent += count;
        current.bytes_sent += bytes;
        if current.entries_sent < entries_max && current.bytes_sent < bytes_max {
            return Sent::All;
        }
        current.progress = Progress::RollingOver;
        Sent::Full
    }

    /// Counts entries of the last ledger as confirmed, from `first` on. Cursors are woken after the lock is released.
    fn confirm(
        &self,
        state: &mut State,
        ledger: LedgerId,
        first: EntryId,
        count: u64,
        replies: &mut Replies,
    ) {
        let bytes = state.queue.confirm(ledger, first, count as usize, replies);
        state.chain.confirm(count, bytes);
        // Published before anybody is woken: a cursor that begins to wait after this sees the end, one that began
        // before is woken.
        self.end.store(state.chain.end().get(), Ordering::Release);
    }

    /// Refuses appends from now on and fails those under way. The gravest reason stays, and of those alike the first.
    fn fail(&self, refusal: Refusal) {
        match &refusal {
            Refusal::Lost { .. } => tracing::error!(topic = &*self.topic, "{refusal}"),
            _ => tracing::warn!(topic = &*self.topic, "{refusal}"),
        }
        let mut replies = Replies::default();
        let mut state = self.state.lock();
        if let Some(current) = &mut state.current {
            current.progress = Progress::Failed;
        }
        if state.intake.gravity() < refusal.gravity() {
            state.intake = Intake::Refused(refusal.clone());
        }
        state.queue.fail_all(&refusal, &mut replies);
        drop(state);
        self.stop_waiting();
        replies.send();
    }

    fn fenced(&self) -> Refusal {
        Refusal::Fenced { topic: self.topic.clone() }
    }

    /// The refusal of an owner whose ledger somebody else has closed.
    fn closed_elsewhere(&self, elsewhere: ClosedElsewhere) -> Refusal {
        match elsewhere.lost() {
            Some(_) => Refusal::Lost { topic: self.topic.clone(), elsewhere },
            None => self.fenced(),
        }
    }

    fn write_failed(&self, reason: impl fmt::Display) -> Refusal {
        Refusal::WriteFailed { topic: self.topic.clone(), reason: reason.to_string().into() }
    }
}

/// What became of the entries that wait for a ledger.
enum Sent {
    /// There is nothing to do until something happens.
    All,
    /// The ledger is full now.
    Full,
}

impl AppendSink for Confirmations {
    fn confirmed(&self, ledger: LedgerId, through: EntryId) {
        let Some(inner) = self.0.upgrade() else { return };
        let mut replies = Replies::default();
        {
            let mut state = inner.state.lock();
            let Some(info) = state.chain.ledgers().next_back() else { return };
            let failed = |current: &Current| current.progress == Progress::Failed;
            if info.ledger != ledger || state.current.as_ref().is_none_or(failed) {
                return;
            }
            let first = EntryId(info.entries);
            let count = (through.get() + 1).saturating_sub(info.entries);
            inner.confirm(&mut state, ledger, first, count, &mut replies);
        }
        replies.send();
        inner.wake_cursors();
    }

    fn failed(&self, ledger: LedgerId, error: write::Error) {
        let Some(inner) = self.0.upgrade() else { return };
        let mut state = inner.state.lock();
        let Some(current) = state.current.as_mut().filter(|current| current.writer.id() == ledger)
        else {
            return;
        };
        let refusal = match error {
            // Its owner closed it, which is no failure.
            write::Error::Closed { .. } => return,
            write::Error::Fenced { .. } => inner.fenced(),
            write::Error::ClosedElsewhere(elsewhere) => inner.closed_elsewhere(elsewhere),
            // With its runtime; there is nobody to begin another.
            write::Error::Stopped { .. } => inner.write_failed(error),
            other => {
                tracing::warn!(topic = &*inner.topic, "goes on in another ledger: {other}");
                current.failure = Some(other);
                if current.progress == Progress::Writing {
                    current.progress = Progress::RollingOver;
                    // Only a close waits for its end.
                    drop(inner.start_rollover());
                }
                return;
            }
        };
        drop(state);
        inner.fail(refusal);
    }
}

impl Current {
    fn new(writer: LedgerWriter) -> Self {
        let (reader, writer) = (Arc::new(writer.reader()), Arc::new(writer));
        Self {
            writer,
            reader,
            entries_sent: 0,
            bytes_sent: 0,
            created_at_ms: now_ms(),
            progress: Progress::Writing,
            ending: Ending::Writer,
            failure: None,
        }
    }
}

impl State {
    /// The ledgers as the record lists them.
    fn listed(&self) -> Vec<ListedLedger> {
        let listed = self.chain.ledgers().map(|info| {
            let end = self.closed_at_ms.get(&info.ledger).map(|&closed_at_ms| ListedEnd {
                entries: info.entries,
                bytes: info.bytes,
                closed_at_ms,
            });
            ListedLedger { ledger: info.ledger, end }
        });
        listed.collect()
    }

    /// How many entries a ledger of the chain holds beyond those that are confirmed, given where it ends.
    fn beyond_confirmed(&self, ledger: LedgerId, end: LedgerEnd) -> Result<u64, ClosedElsewhere> {
        let info = self.chain.ledgers().rfind(|info| info.ledger == ledger);
        let info = info.expect("the last ledger that was listed is in the chain");
        let more = EntryId::following(end.last_entry).get().checked_sub(info.entries);
        more.ok_or_else(|| {
            let last_entry = EntryId(info.entries).checked_prev();
            let confirmed = LedgerEnd { last_entry, length: info.bytes };
            ClosedElsewhere { ledger, found: end, confirmed }
        })
    }

    fn place_before(&self, offset: Offset) -> String {
        let before =
            offset.get().checked_sub(1).and_then(|at| self.chain.position_of(Offset::new(at)));
        before.map_or_else(
            || format!("{}:-1", self.chain.ledgers().next().map_or(0, |info| info.ledger.get())),
            |position| position.to_string(),
        )
    }

    fn place_at(&self, offset: Offset) -> String {
        let next = || {
            let newest = self.chain.ledgers().next_back();
            newest.map(|info| Position::new(info.ledger, EntryId(info.entries)))
        };
        let place = self.chain.position_of(offset).or_else(next);
        place.map_or_else(String::new, |position| position.to_string())
    }

    fn word(&self) -> &'static str {
        match (&self.intake, &self.current) {
            (Intake::Refused(Refusal::Fenced { .. } | Refusal::Lost { .. }), _) => "Fenced",
            (Intake::Refused(Refusal::WriteFailed { .. }), _) => "WriteFailed",
            (Intake::Refused(Refusal::Closed { .. }), _) => "Closed",
            (Intake::Refused(Refusal::Terminated { .. }), _) => "Terminated",
            (Intake::Open, Some(Current { progress: Progress::RollingOver, .. })) => {
                "ClosingLedger"
            }
            (Intake::Open, _) => "LedgerOpened",
        }
    }
}

fn ledger_stats(info: crate::chain::LedgerInfo) -> LedgerInternalStats {
    let (entries, size) = match info.state {
        LedgerState::Open => (0, 0),
        LedgerState::Closed => (info.entries, info.bytes),
    };
    LedgerInternalStats { ledger_id: info.ledger.get(), entries, size }
}

/// Milliseconds since 1970-01-01 UTC. Never 0, which stands for "open" in the record.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_millis() as u64).max(1)
}

#[cfg(test)]
mod tests;
