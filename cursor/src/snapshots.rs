//! Where the state of a cursor is kept: in its record, or in a ledger that the record names.
//!
//! ```text
//!   record ── state                          while nothing changes
//!      └────► cursor ledger: 0, 1, 2 …       while it does; the last entry counts
//! ```
//!
//! 1. The record names a ledger only when that ledger holds a whole snapshot.
//! 2. The record moves by compare-and-set and carries a token of the handle that wrote it, so that nobody else ever
//!    writes the same bytes.
//! 3. A ledger is deleted after the record no longer names it; until then the record notes it, for the next owner. There
//!    is none when the cursor was removed: a crash right after that leaves its ledgers to whoever finds that nobody
//!    names them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use georepl_storage::{
    Advice, Answers, AppendSink, CreateError, EntryId, Evidence, LedgerClient, LedgerId,
    LedgerOptions, LedgerReader, LedgerState, LedgerWriter, MetadataError, OpenError, ReadError,
    ReplicaError, Version, recover, write,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::deletion::deleted;
use crate::managed_ledger::ManagedLedger;
use crate::names::{FOR_CURSOR, FOR_TOPIC};
use crate::own_record::OwnRecord;
use crate::progress::{InvalidProperty, KEPT_MAX};
use crate::records::{CursorRecord, RecordError, Snapshot};

/// Snapshots after which a cursor begins another ledger.
pub const SNAPSHOTS_PER_LEDGER_MAX: u64 = 50_000;

/// Ranges of single acknowledged entries that the record may hold; with more, a ledger is used.
pub const RECORD_RANGES_MAX: usize = 1_000;

/// The property with the token of the handle that wrote the record.
const OWNER: &str = "#pulsar.internal.georepl.owner";

/// The property with the ledgers that the record names no more and that may still be there.
const LEFT: &str = "#pulsar.internal.georepl.left";

/// Keeps the state of one cursor. Whoever holds it may write.
pub(crate) struct Snapshots {
    topic: ManagedLedger,
    cursor: Arc<str>,
    own: OwnRecord,
    /// What was written last.
    record: CursorRecord,
    log: Option<Log>,
    /// Ledgers that the record names no more, or may come to name if a change lands late.
    left: Arc<Mutex<BTreeSet<LedgerId>>>,
}

/// What was found of a cursor.
pub(crate) struct Found {
    pub(crate) state: Snapshot,
    /// What had to be passed over to find it, for people.
    pub(crate) notes: Vec<String>,
}

/// Why the state of a cursor could not be read. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Its record or a snapshot is not understood.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A property that its replicator has stored is not understood.
    #[error(transparent)]
    Property(#[from] InvalidProperty),
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The ledger with its snapshots could not be recovered.
    #[error("ledger {ledger}, which has its state, could not be recovered: {error}")]
    Recovery {
        /// The ledger.
        ledger: LedgerId,
        /// Why.
        #[source]
        error: recover::Error,
    },
    /// The ledger with its snapshots could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A snapshot could not be read.
    #[error("ledger {ledger}, which has its state, could not be read: {error}")]
    Read {
        /// The ledger.
        ledger: LedgerId,
        /// Why.
        #[source]
        error: ReadError,
    },
}

impl LoadError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Record(_) | Self::Property(_) => Advice::GiveUp,
            // Reading changes nothing, so it may be repeated whatever became of it.
            Self::Metadata(_) => Advice::Retry,
            Self::Recovery { error, .. } => error.advice(),
            Self::Open(error) => error.advice(),
            Self::Read { error, .. } => error.advice(),
        }
    }
}

/// Why the state of a cursor could not be written. The state in memory is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PersistError {
    /// Somebody else has taken the cursor, or deleted it. It is closed.
    #[error("cursor {cursor} was taken or deleted by somebody else; open it again")]
    Fenced {
        /// The cursor.
        cursor: Arc<str>,
    },
    /// The cursor was closed before it was stored.
    #[error("cursor {cursor} is closed; open it again")]
    Closed {
        /// The cursor.
        cursor: Arc<str>,
    },
    /// Too many entries are kept. Nothing was changed.
    #[error("cursor {cursor} keeps {KEPT_MAX} entries already; release or skip some")]
    TooMuchKept {
        /// The cursor.
        cursor: Arc<str>,
    },
    /// Neither bookies nor the metadata store took it. It is tried again as long as the cursor is open.
    #[error("the state of cursor {cursor} was not stored: {reason}; it is tried again")]
    Unavailable {
        /// The cursor.
        cursor: Arc<str>,
        /// What failed last.
        reason: Arc<str>,
    },
}

impl PersistError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Fenced { .. } | Self::Closed { .. } => Advice::Reopen,
            Self::TooMuchKept { .. } => Advice::GiveUp,
            Self::Unavailable { .. } => Advice::Retry,
        }
    }
}

impl Snapshots {
    /// Reads the state of a cursor; none when there is no such cursor. Its ledger is recovered, so that no earlier
    /// owner adds to it.
    pub(crate) async fn load(
        topic: &ManagedLedger,
        cursor: Arc<str>,
        key: String,
    ) -> Result<(Self, Option<Found>), LoadError> {
        let stored = topic.store().get(&key).await?;
        let record =
            stored.as_ref().map(|stored| CursorRecord::decode(&stored.value)).transpose()?;
        let version = stored.map(|stored| stored.version);
        let snapshots = Self::of(topic, cursor, OwnRecord::new(key, version), record);
        let found = match version {
            Some(_) => Some(snapshots.newest().await?),
            None => None,
        };
        Ok((snapshots, found))
    }

    /// What is stored of a cursor, whether or not it can be understood: to be deleted.
    pub(crate) async fn found(
        topic: &ManagedLedger,
        cursor: Arc<str>,
        key: String,
    ) -> Result<Self, MetadataError> {
        let stored = topic.store().get(&key).await?;
        let record = stored.as_ref().and_then(|stored| CursorRecord::decode(&stored.value).ok());
        let version = stored.map(|stored| stored.version);
        Ok(Self::of(topic, cursor, OwnRecord::new(key, version), record))
    }

    fn of(
        topic: &ManagedLedger,
        cursor: Arc<str>,
        own: OwnRecord,
        record: Option<CursorRecord>,
    ) -> Self {
        let mut record = record.unwrap_or_default();
        let left = left_in(record.properties.remove(LEFT).as_deref());
        // Nobody else's bytes are ever the same.
        record.properties.insert(OWNER.into(), format!("{:016x}", fastrand::u64(..)));
        let left = Arc::new(Mutex::new(left));
        Self { topic: topic.clone(), cursor, own, record, log: None, left }
    }

    /// The newest snapshot that can be read. One that is damaged on all bookies is passed over; one that cannot be read
    /// just now is not.
    async fn newest(&self) -> Result<Found, LoadError> {
        let (mut notes, state) = (Vec::new(), self.record.state.clone());
        let Some(ledger) = self.record.cursor_ledger else {
            return Ok(Found { state, notes });
        };
        let reader = match self.client().recover(ledger, &self.topic.config().password).await {
            Ok(reader) => reader,
            Err(recover::Error::NoSuchLedger { .. }) => {
                notes.push(format!("ledger {ledger}, which had its state, does not exist"));
                return Ok(Found { state, notes });
            }
            // Fenced it is. What was damaged is lost whoever recovers it; what was confirmed before is not.
            Err(recover::Error::Doubt { entry, answers, .. }) if no_copy_is_whole(&answers) => {
                notes.push(format!("its snapshot {ledger}:{entry} was passed over: {answers}"));
                self.client().open(ledger, &self.topic.config().password).await?
            }
            Err(error) => return Err(LoadError::Recovery { ledger, error }),
        };
        let mut next = reader.last_add_confirmed();
        while let Some(entry) = next {
            match Self::read(&reader, entry).await {
                Ok(state) => return Ok(Found { state, notes }),
                Err(SnapshotLost::Damaged(reason)) => {
                    notes.push(format!("its snapshot {ledger}:{entry} was passed over: {reason}"));
                }
                Err(SnapshotLost::Unsupported(error)) => return Err(error.into()),
                Err(SnapshotLost::Unread(error)) => return Err(LoadError::Read { ledger, error }),
            }
            next = entry.get().checked_sub(1).map(EntryId);
        }
        notes.push(format!("ledger {ledger}, which had its state, has no readable snapshot"));
        Ok(Found { state, notes })
    }

    async fn read(reader: &LedgerReader, entry: EntryId) -> Result<Snapshot, SnapshotLost> {
        let read = reader.read(entry, entry).await.map_err(|error| match error {
            ReadError::NoSuchEntry { .. } => SnapshotLost::Damaged(error.to_string()),
            ReadError::Unreadable { ref answers, .. } if no_copy_is_whole(answers) => {
                SnapshotLost::Damaged(error.to_string())
            }
            other => SnapshotLost::Unread(other),
        })?;
        let payload = &read.first().expect("a read of one entry returns it").payload;
        Snapshot::decode(payload).map_err(|error| match error {
            unsupported @ RecordError::Unsupported { .. } => SnapshotLost::Unsupported(unsupported),
            damaged => SnapshotLost::Damaged(damaged.to_string()),
        })
    }

    /// Stores the state durably, in the cursor's ledger if that takes it.
    pub(crate) async fn write(&mut self, state: Snapshot) -> Result<(), PersistError> {
        if let Some(log) = &self.log {
            if log.writer.metadata().state() == LedgerState::Open
                && log.entries() < SNAPSHOTS_PER_LEDGER_MAX
                && log.append(state.encode()).await.is_ok()
            {
                return Ok(());
            }
            // It stays named by the record, and holds what was stored before, until the next is.
            self.log = None;
        }
        self.begin_ledger(state).await
    }

    /// Stores the state in the record alone if it is small, else in a ledger. For the moments after which nothing may
    /// follow for long: opening and closing.
    pub(crate) async fn fold(&mut self, state: Snapshot) -> Result<(), PersistError> {
        if state.acked.len() > RECORD_RANGES_MAX {
            self.write(state).await?;
            if let Some(log) = self.log.take()
                && let Err(error) = log.writer.close().await
            {
                // The next opening recovers it.
                tracing::debug!(cursor = &*self.cursor, "its ledger is left open: {error}");
            }
            return Ok(());
        }
        self.log = None;
        self.change_record(None, state).await
    }

    /// Writes the record as it is, which makes its version a new one, and returns that.
    pub(crate) async fn touch(&mut self) -> Result<Version, MetadataError> {
        self.put(self.record.clone()).await
    }

    /// Removes the cursor: first what names its ledger, then that.
    pub(crate) async fn delete(&mut self) -> Result<(), MetadataError> {
        self.own.delete(self.topic.store()).await?;
        self.log = None;
        self.left.lock().extend(self.record.cursor_ledger.take());
        self.discard(self.left.lock().clone());
        Ok(())
    }

    /// Begins a ledger with the state as its first entry. If the bookies take none, the record takes a small state.
    async fn begin_ledger(&mut self, state: Snapshot) -> Result<(), PersistError> {
        let log = match self.begun(&state).await {
            Ok(log) => log,
            Err(reason) if state.acked.len() <= RECORD_RANGES_MAX => {
                tracing::warn!(cursor = &*self.cursor, "no ledger took its state: {reason}");
                return self.change_record(None, state).await;
            }
            Err(reason) => return Err(self.unavailable(reason)),
        };
        let ledger = log.writer.id();
        // The ranges are in the ledger; the record is kept small.
        let state = Snapshot { acked: Vec::new(), ..state };
        let stored = self.change_record(Some(ledger), state).await;
        match stored {
            Ok(()) => self.log = Some(log),
            // Until another change is certain, the record may come to name it.
            Err(_) => {
                self.left.lock().insert(ledger);
            }
        }
        stored
    }

    /// A new ledger whose first entry is the state.
    async fn begun(&self, state: &Snapshot) -> Result<Log, String> {
        let log = self.create().await.map_err(|error| error.to_string())?;
        match log.append(state.encode()).await {
            Ok(()) => Ok(log),
            Err(reason) => {
                // No record names it, nor will: as long as bookies take nothing, each attempt leaves one.
                let ledger = log.writer.id();
                self.left.lock().insert(ledger);
                self.discard([ledger].into());
                Err(reason)
            }
        }
    }

    async fn create(&self) -> Result<Log, CreateError> {
        let custom = [
            ("application", "pulsar"),
            ("component", "managed-ledger"),
            (FOR_TOPIC, self.topic.path()),
            (FOR_CURSOR, &self.cursor),
        ];
        let custom = custom.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        let options = LedgerOptions {
            sizes: self.topic.config().sizes,
            password: self.topic.config().password.clone(),
            custom: BTreeMap::from(custom),
        };
        let (progress, watched) = watch::channel(Confirmed::default());
        let writer = self.client().create(options, Arc::new(Confirmations(progress))).await?;
        Ok(Log { writer, watched })
    }

    async fn change_record(
        &mut self,
        cursor_ledger: Option<LedgerId>,
        state: Snapshot,
    ) -> Result<(), PersistError> {
        let properties = self.record.properties.clone();
        match self.put(CursorRecord { cursor_ledger, state, properties }).await {
            Ok(_) => {
                self.discard(self.left.lock().clone());
                Ok(())
            }
            Err(MetadataError::VersionConflict { .. } | MetadataError::NotFound { .. }) => {
                Err(PersistError::Fenced { cursor: self.cursor.clone() })
            }
            Err(error) => Err(self.unavailable(error)),
        }
    }

    async fn put(&mut self, mut record: CursorRecord) -> Result<Version, MetadataError> {
        let (before, named) = (self.record.cursor_ledger, record.cursor_ledger);
        let noted = {
            let left = self.left.lock();
            let left = left.iter().copied().chain(before).filter(|left| Some(*left) != named);
            left.map(|left| left.to_string()).collect::<Vec<_>>().join(",")
        };
        match noted.is_empty() {
            true => record.properties.remove(LEFT),
            false => record.properties.insert(LEFT.into(), noted),
        };
        let version = self.own.put(self.topic.store(), record.encode()).await?;
        self.record = record;
        let mut left = self.left.lock();
        left.extend(before);
        left.retain(|left| Some(*left) != named);
        Ok(version)
    }

    /// Deletes ledgers of those that are left and that nothing names, in a task: nobody waits for it. What fails is tried
    /// again after the next change of the record, which notes it as long.
    fn discard(&self, ledgers: BTreeSet<LedgerId>) {
        if ledgers.is_empty() {
            return;
        }
        let (left, client) = (self.left.clone(), self.client().clone());
        self.topic.delete_in_task(async move {
            let gone = deleted(&client, ledgers).await;
            left.lock().retain(|left| !gone.contains(left));
        });
    }

    fn client(&self) -> &LedgerClient {
        self.topic.client()
    }

    fn unavailable(&self, reason: impl ToString) -> PersistError {
        PersistError::Unavailable { cursor: self.cursor.clone(), reason: reason.to_string().into() }
    }
}

/// Ledgers that are noted as left. A number that is none can only be somebody else's: it is left alone.
fn left_in(noted: Option<&str>) -> BTreeSet<LedgerId> {
    let noted = noted.unwrap_or_default().split(',');
    noted.filter_map(|id| id.parse().ok()).map(LedgerId).collect()
}

/// Whether the record of a cursor has use for a ledger, or notes that it is to be deleted.
pub(crate) fn names_in_record(record: &CursorRecord, ledger: LedgerId) -> bool {
    let left = left_in(record.properties.get(LEFT).map(String::as_str));
    record.cursor_ledger == Some(ledger) || left.contains(&ledger)
}

/// Whether every bookie says that its copy is damaged or that it has none.
fn no_copy_is_whole(answers: &Answers) -> bool {
    answers.0.iter().all(|(_, error)| match error {
        ReplicaError::Copy(_) => true,
        ReplicaError::Bookie(error) => error.evidence() == Evidence::Absent,
        ReplicaError::Unexpected | ReplicaError::OtherInstance => false,
    })
}

/// Why a snapshot is not used.
enum SnapshotLost {
    /// No copy of it is whole; an older one is better than none.
    Damaged(String),
    /// It is whole, and written by something newer.
    Unsupported(RecordError),
    /// It may be whole.
    Unread(ReadError),
}

/// A ledger that takes snapshots.
struct Log {
    writer: LedgerWriter,
    watched: watch::Receiver<Confirmed>,
}

#[derive(Clone, Debug, Default)]
struct Confirmed {
    through: Option<EntryId>,
    failed: Option<write::Error>,
}

struct Confirmations(watch::Sender<Confirmed>);

impl AppendSink for Confirmations {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        self.0.send_modify(|progress| progress.through = Some(through));
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        self.0.send_modify(|progress| progress.failed = Some(error));
    }
}

impl Log {
    fn entries(&self) -> u64 {
        EntryId::following(self.writer.last_add_confirmed()).get()
    }

    async fn append(&self, snapshot: Bytes) -> Result<(), String> {
        let entry = self.writer.append([snapshot]).map_err(|error| error.to_string())?;
        let mut watched = self.watched.clone();
        let decided = watched
            .wait_for(|progress| progress.through >= Some(entry) || progress.failed.is_some())
            .await;
        match decided {
            Ok(progress) if progress.through >= Some(entry) => Ok(()),
            Ok(progress) => {
                Err(progress.failed.as_ref().map_or_else(String::new, ToString::to_string))
            }
            Err(_) => Err("its task has ended".into()),
        }
    }
}

#[cfg(test)]
mod tests;
