//! One database file: opened and judged, changed in durable commits, and what becomes of it when its disk fails.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition, TableError, WriteTransaction,
};

use super::{Disk, Presence};

/// The version of what is stored in the files. Another one is refused by name.
const FORMAT: &str = "2";

/// What a file says of itself: `format`, `owner`, and what its owner adds.
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");

/// How long a file that could not be opened again is left alone before the next attempt.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// What is said after a sync that failed.
const AFTER_A_FAILED_SYNC: &str = "a sync failed, so the system may show what the disk does not have; \
    restart the machine, or mount the file system anew, before the file is opened again";

/// What a file should be.
#[derive(Clone, Debug)]
pub(crate) struct FileSpec {
    /// Its name on the disk.
    pub(crate) name: String,
    /// Whose it is, as it is stored in the file.
    pub(crate) owner: String,
    /// Memory for pages, in bytes.
    pub(crate) cache_bytes: usize,
    /// What to do when it is damaged.
    pub(crate) remedy: Remedy,
    /// Makes its tables, in the transaction in which it becomes the owner's.
    pub(crate) create: fn(&WriteTransaction) -> Result<(), redb::Error>,
    /// Opens its tables, to see that they are there.
    pub(crate) check: fn(&ReadTransaction) -> Result<(), redb::Error>,
}

/// What to do about a damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Begin without it: what it held has other replicas.
    Replicas,
    /// Restore a copy: there is nothing else to take its content from.
    Copy,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replicas => {
                "move it away, and what it held is taken from its other replicas, if there are any"
            }
            Self::Copy => {
                "restore it from a copy, and keep the damaged one; without it no ledger is found"
            }
        })
    }
}

/// Why a database file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFileError {
    /// Somebody else has it open.
    #[error("{} is in use by another process; stop that one first", .file.display())]
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// It is not, or is no longer, what was written.
    #[error("{} is damaged ({reason}); {remedy}", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What to do about it.
        remedy: Remedy,
    },
    /// It was written by a version of this program with another format.
    #[error("{} has format {found}, this version reads format {FORMAT}; use the version that wrote it", .file.display())]
    OtherFormat {
        /// The file.
        file: PathBuf,
        /// The format it says it has.
        found: String,
    },
    /// It belongs to somebody else.
    #[error("{} belongs to {found}, not to {expected}; it was renamed or copied here", .file.display())]
    OtherOwner {
        /// The file.
        file: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        expected: String,
    },
    /// The disk failed or refused.
    #[error("{} cannot be opened: {reason}", .file.display())]
    Disk {
        /// The file.
        file: PathBuf,
        /// The disk's error.
        reason: String,
    },
    /// The system has no thread for it.
    #[error("{} was opened, but there is no thread to serve it: {reason}", .file.display())]
    NoThread {
        /// The file.
        file: PathBuf,
        /// The system's error.
        reason: String,
    },
}

/// Why a file could not be read or changed. A change may have been made all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileError {
    /// There is no space left. The file can still be read, and changed if there is space for it.
    #[error("there is no space left for {}", .file.display())]
    Full { file: PathBuf },
    /// Anything else.
    #[error("{} failed: {reason}", .file.display())]
    Failed { file: PathBuf, reason: String },
}

/// Whether a turn has changed something that must be durable before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Something,
    Nothing,
}

/// A database file that is open, or is opened again when it is needed after its disk failed.
///
/// What is opened again must exist, be no other file and have its tables. After a failed *sync* it is not opened again:
/// the system may have dropped the pages it could not write and yet show them to who reads the file, so that later
/// commits would stand on nothing.
#[derive(Debug)]
pub(crate) struct DatabaseFile {
    disk: Arc<dyn Disk>,
    spec: FileSpec,
    watch: Arc<Watch>,
    slot: RwLock<Slot>,
}

#[derive(Debug)]
struct Slot {
    access: Access,
    /// Counts openings, so that of two threads that meet the same failure only one closes the file.
    opening: u64,
    /// What the file says of itself.
    meta: Meta,
}

#[derive(Debug)]
enum Access {
    Open(Database),
    /// Closed for this reason; opened again from then on, or never.
    Closed {
        error: FileError,
        retry_at: Option<Instant>,
    },
}

/// The rows of [`META`].
type Meta = BTreeMap<String, String>;

/// What the disk said to the database, and the limit the database is held to.
#[derive(Debug)]
struct Watch {
    bytes_max: AtomicU64,
    full: AtomicBool,
    sync_failed: AtomicBool,
}

impl DatabaseFile {
    /// Opens the file, or makes a new one of an empty one. One that was not closed has the last commit that was made.
    /// Blocks.
    pub(crate) fn open(disk: Arc<dyn Disk>, spec: FileSpec) -> Result<Self, OpenFileError> {
        let watch = Arc::new(Watch {
            bytes_max: AtomicU64::new(u64::MAX),
            full: AtomicBool::new(false),
            sync_failed: AtomicBool::new(false),
        });
        let (database, meta) = open_database(&*disk, &spec, &watch, Presence::MayBeNew)?;
        let slot = RwLock::new(Slot { access: Access::Open(database), opening: 0, meta });
        Ok(Self { disk, spec, watch, slot })
    }

    fn failed(&self, reason: impl ToString) -> FileError {
        FileError::Failed { file: self.path(), reason: reason.to_string() }
    }

    fn path(&self) -> PathBuf {
        self.disk.locate(&self.spec.name)
    }

    /// From now on nothing is written at or beyond this many bytes; what would be fails as on a full disk.
    pub(crate) fn limit(&self, bytes_max: u64) {
        self.watch.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Whether the file is open, as far as it was tried.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.slot.read().access, Access::Open(_))
    }

    /// What the file says of itself under a name.
    pub(crate) fn meta(&self, name: &str) -> Option<String> {
        self.slot.read().meta.get(name).cloned()
    }

    /// Lets the file say more of itself, durably. From then on a file that does not say so is another one. Blocks.
    pub(crate) fn set_meta<const N: usize>(
        &self,
        rows: [(&str, String); N],
    ) -> Result<(), FileError> {
        self.change(|transaction| {
            let mut meta = transaction.open_table(META)?;
            for (name, value) in &rows {
                meta.insert(*name, value.as_str())?;
            }
            Ok(((), Changed::Something))
        })?;
        self.slot.write().meta.extend(rows.map(|(name, value)| (name.to_owned(), value)));
        Ok(())
    }

    /// Reads what is committed and durable. Does not wait for a change that is under way. Blocks.
    pub(crate) fn read<R>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<R, redb::Error>,
    ) -> Result<R, FileError> {
        self.with_database(|database| read(&database.begin_read()?))
    }

    /// Applies a change as one: it is durable when this returns. After an error nothing of it may be taken for done, nor
    /// for not done. Blocks.
    pub(crate) fn change<R>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(R, Changed), redb::Error>,
    ) -> Result<R, FileError> {
        self.with_database(|database| {
            let mut transaction = database.begin_write()?;
            transaction.set_quick_repair(true);
            let (result, changed) = change(&transaction)?;
            match changed {
                Changed::Something => transaction.commit()?,
                Changed::Nothing => transaction.abort()?,
            }
            Ok(result)
        })
    }

    /// Closes the file for good. Blocks.
    pub(crate) fn close(&self) {
        let closed = Access::Closed { error: self.failed("it was closed"), retry_at: None };
        if let Access::Open(database) = mem::replace(&mut self.slot.write().access, closed) {
            close(database);
        }
    }

    fn with_database<R>(
        &self,
        run: impl FnOnce(&Database) -> Result<R, redb::Error>,
    ) -> Result<R, FileError> {
        let slot = self.opened()?;
        let Access::Open(database) = &slot.access else {
            return Err(self.failed("it was closed after a failure"));
        };
        match guarded(|| run(database)) {
            Ok(result) => Ok(result),
            Err(error) => {
                let opening = slot.opening;
                drop(slot);
                Err(self.on_failure(opening, &error))
            }
        }
    }

    fn opened(&self) -> Result<RwLockReadGuard<'_, Slot>, FileError> {
        let slot = self.slot.read();
        if let Access::Open(_) = slot.access {
            return Ok(slot);
        }
        drop(slot);
        let mut slot = self.slot.write();
        self.reopen(&mut slot)?;
        Ok(RwLockWriteGuard::downgrade(slot))
    }

    /// Opens the file again if it is closed and may be opened by now.
    fn reopen(&self, slot: &mut Slot) -> Result<(), FileError> {
        match &slot.access {
            Access::Open(_) => return Ok(()),
            Access::Closed { error, retry_at } => {
                if retry_at.is_none_or(|retry_at| Instant::now() < retry_at) {
                    return Err(error.clone());
                }
            }
        }
        let opened = match self.watch.sync_failed.load(Ordering::Relaxed) {
            true => Err(self.failed(AFTER_A_FAILED_SYNC)),
            false => self.open_again(&slot.meta),
        };
        match opened {
            Ok(database) => {
                slot.access = Access::Open(database);
                slot.opening += 1;
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "it stays closed");
                let retry_at = Some(Instant::now() + REOPEN_PAUSE);
                slot.access = Access::Closed { error: error.clone(), retry_at };
                Err(error)
            }
        }
    }

    fn open_again(&self, known: &Meta) -> Result<Database, FileError> {
        let opened = open_database(&*self.disk, &self.spec, &self.watch, Presence::MustExist);
        let (database, meta) = opened.map_err(|error| self.failed(error))?;
        if meta != *known {
            return Err(self.failed("another file was put in its place; put the right one back"));
        }
        Ok(database)
    }

    /// Closes the file: after a failed operation the database refuses every further one. Tries to open it again.
    fn on_failure(&self, opening: u64, error: &redb::Error) -> FileError {
        let mut slot = self.slot.write();
        if slot.opening == opening && matches!(slot.access, Access::Open(_)) {
            tracing::error!(file = %self.path().display(), %error, "the disk failed");
            let closed =
                Access::Closed { error: self.failed(error), retry_at: Some(Instant::now()) };
            if let Access::Open(failed) = mem::replace(&mut slot.access, closed) {
                close(failed);
            }
        }
        let full = self.watch.full.swap(false, Ordering::Relaxed);
        match self.reopen(&mut slot) {
            Ok(()) if full => FileError::Full { file: self.path() },
            Ok(()) => self.failed(error),
            Err(error) => error,
        }
    }
}

impl Drop for DatabaseFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// Closing writes what makes the next opening quick. If it fails, the next opening is a repair.
fn close(database: Database) {
    let closed = guarded(|| {
        drop(database);
        Ok::<_, redb::Error>(())
    });
    if let Err(error) = closed {
        tracing::error!(%error, "a database file was not closed well and will be repaired");
    }
}

fn open_database(
    disk: &dyn Disk,
    spec: &FileSpec,
    watch: &Arc<Watch>,
    presence: Presence,
) -> Result<(Database, Meta), OpenFileError> {
    let file = disk.locate(&spec.name);
    let failed = |error| refusal(file.clone(), spec.remedy, error);
    let backend = disk.open(&spec.name, presence).map_err(|error| failed(error.into()))?;
    let backend = WatchedFile { backend, watch: watch.clone() };
    let prepared = prepare(&backend, presence);
    prepared.map_err(|error| failed(error.into()))?;
    let database = guarded(|| {
        Ok(Builder::new().set_cache_size(spec.cache_bytes).create_with_backend(backend)?)
    });
    let database = database.map_err(failed)?;
    let meta = guarded(|| identity(&database, spec, presence)).map_err(failed)?;
    let stored = |name: &str| match meta.get(name) {
        Some(value) => Ok(value.clone()),
        None => Err(failed(redb::Error::Corrupted(format!("it does not say its {name}")))),
    };
    let (found, owner) = (stored("format")?, stored("owner")?);
    if found != FORMAT {
        return Err(OpenFileError::OtherFormat { file, found });
    }
    if owner != spec.owner {
        let expected = spec.owner.clone();
        return Err(OpenFileError::OtherOwner { file, found: owner, expected });
    }
    guarded(|| (spec.check)(&database.begin_read()?)).map_err(failed)?;
    Ok((database, meta))
}

/// What an error of the database means for who opens a file.
fn refusal(file: PathBuf, remedy: Remedy, error: redb::Error) -> OpenFileError {
    let reason = match error {
        redb::Error::DatabaseAlreadyOpen => return OpenFileError::InUse { file },
        redb::Error::UpgradeRequired(version) => {
            return OpenFileError::OtherFormat { file, found: format!("{version} of redb") };
        }
        // The database's own word for a file that it did not write.
        redb::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            "it is no database".into()
        }
        redb::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
            "it was cut short".into()
        }
        redb::Error::Io(error) => {
            return OpenFileError::Disk { file, reason: error.to_string() };
        }
        error => error.to_string(),
    };
    OpenFileError::Damaged { file, reason, remedy }
}

/// Reads what the file says of itself; a new one is made the owner's, with its tables.
fn identity(database: &Database, spec: &FileSpec, presence: Presence) -> Result<Meta, redb::Error> {
    let transaction = database.begin_read()?;
    match transaction.open_table(META) {
        Ok(meta) => {
            let row =
                |row: Result<(redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, &str>), _>| {
                    let (name, value) = row?;
                    Ok((name.value().to_owned(), value.value().to_owned()))
                };
            return meta.iter()?.map(row).collect();
        }
        Err(TableError::TableDoesNotExist(_)) if presence == Presence::MayBeNew => {}
        Err(error) => return Err(error.into()),
    }
    if transaction.list_tables()?.next().is_some() {
        return Err(redb::Error::Corrupted("it is a database of another program".into()));
    }
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    let rows = [("format", FORMAT), ("owner", spec.owner.as_str())];
    {
        let mut meta = transaction.open_table(META)?;
        for (name, value) in rows {
            meta.insert(name, value)?;
        }
    }
    (spec.create)(&transaction)?;
    transaction.commit()?;
    Ok(rows.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
}

/// Makes sure that what is read of the file is on the disk, and that an empty one is only taken for a new one.
fn prepare(file: &WatchedFile, presence: Presence) -> io::Result<()> {
    if file.len()? > 0 {
        // Another process may have died with changes that the system has not written, or could not write.
        file.sync_data().map_err(|error| {
            io::Error::other(format!("it cannot be synced ({error}): {AFTER_A_FAILED_SYNC}"))
        })?;
    }
    match presence {
        Presence::MayBeNew => clear_unfinished(file),
        Presence::MustExist if file.len()? == 0 => Err(ErrorKind::UnexpectedEof.into()),
        Presence::MustExist => Ok(()),
    }
}

/// Empties a file that a crash left before it had become a database: it has a length but, except for the first page,
/// holds nothing, and its first bytes, which are written last, are missing.
fn clear_unfinished(file: &WatchedFile) -> io::Result<()> {
    const PAGE_BYTES: usize = 4096;
    const MAGIC_BYTES: usize = 9;
    let length = file.len()?;
    let mut page = [0; PAGE_BYTES];
    let mut offset = 0;
    while offset < length {
        let bytes =
            usize::try_from(length - offset).map_or(PAGE_BYTES, |left| left.min(PAGE_BYTES));
        file.read(offset, &mut page[..bytes])?;
        let looked_at = if offset == 0 { bytes.min(MAGIC_BYTES) } else { bytes };
        if page[..looked_at].iter().any(|byte| *byte != 0) {
            return Ok(());
        }
        offset += bytes as u64;
    }
    if length > 0 { file.set_len(0) } else { Ok(()) }
}

/// Runs what the database does. A damaged file can make it panic; that is an error of the file, not of this program.
fn guarded<R>(run: impl FnOnce() -> Result<R, redb::Error>) -> Result<R, redb::Error> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("the database gave up");
        Err(redb::Error::Corrupted(text.into()))
    })
}

/// A file of the disk that keeps a watch and a limit.
#[derive(Debug)]
struct WatchedFile {
    backend: Box<dyn StorageBackend>,
    watch: Arc<Watch>,
}

impl WatchedFile {
    fn watched<R>(&self, result: io::Result<R>) -> io::Result<R> {
        // No more space, or no more for this user, or in a file of this process.
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
        if result.as_ref().is_err_and(|error| full.contains(&error.kind())) {
            self.watch.full.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl StorageBackend for WatchedFile {
    fn len(&self) -> io::Result<u64> {
        self.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.backend.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // Not limited: what is not written takes no space.
        self.watched(self.backend.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let result = self.backend.sync_data();
        if result.is_err() {
            self.watch.sync_failed.store(true, Ordering::Relaxed);
        }
        self.watched(result)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset + data.len() as u64 > self.watch.bytes_max.load(Ordering::Relaxed) {
            return self.watched(Err(ErrorKind::StorageFull.into()));
        }
        self.watched(self.backend.write(offset, data))
    }

    fn close(&self) -> io::Result<()> {
        self.backend.close()
    }
}
