//! One database file: opened and judged, changed in durable commits, and what becomes of it when its disk fails.

use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;
use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, StorageBackend,
    TableDefinition, TableError, WriteTransaction,
};

use super::Disk;

/// The version of what is stored in the files. Another one is refused by name.
const FORMAT: &str = "1";

/// What a file says of itself: `format`, `owner`, and what its owner adds.
pub(crate) const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");

/// What a file should be.
#[derive(Clone, Debug)]
pub(crate) struct FileSpec {
    /// Its name on the disk.
    pub(crate) name: String,
    /// Whose it is, as it is stored in the file.
    pub(crate) owner: String,
    /// Memory for pages, in bytes.
    pub(crate) cache_bytes: usize,
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
    #[error(
        "{} is damaged ({reason}); move it away, and what it held is taken from its other replicas, if there are any",
        .file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
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
/// After a failed *sync* it is not opened again: the system may have dropped the pages it could not write and yet show
/// them to who reads the file, so that later commits would stand on nothing.
#[derive(Debug)]
pub(crate) struct DatabaseFile {
    disk: Arc<dyn Disk>,
    spec: FileSpec,
    watch: Arc<Watch>,
    slot: RwLock<Slot>,
}

#[derive(Debug)]
struct Slot {
    database: Option<Database>,
    /// Counts openings, so that of two threads that meet the same failure only one closes the file.
    opening: u64,
}

/// What the disk said to the database, and the limit the database is held to.
#[derive(Debug)]
struct Watch {
    bytes_max: AtomicU64,
    full: AtomicBool,
    sync_failed: AtomicBool,
}

impl DatabaseFile {
    /// Opens the file, or makes a new one of an empty one. A file that was not closed is repaired first, which reads
    /// all of it; it then has the last commit that is whole. Blocks.
    pub(crate) fn open(disk: Arc<dyn Disk>, spec: FileSpec) -> Result<Self, OpenFileError> {
        let watch = Arc::new(Watch {
            bytes_max: AtomicU64::new(u64::MAX),
            full: AtomicBool::new(false),
            sync_failed: AtomicBool::new(false),
        });
        let database = open_database(&*disk, &spec, &watch)?;
        let slot = RwLock::new(Slot { database: Some(database), opening: 0 });
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
        self.slot.read().database.is_some()
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
            let transaction = database.begin_write()?;
            let (result, changed) = change(&transaction)?;
            match changed {
                Changed::Something => transaction.commit()?,
                Changed::Nothing => transaction.abort()?,
            }
            Ok(result)
        })
    }

    fn with_database<R>(
        &self,
        run: impl FnOnce(&Database) -> Result<R, redb::Error>,
    ) -> Result<R, FileError> {
        self.reopen()?;
        let slot = self.slot.read();
        let Some(database) = &slot.database else {
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

    /// Opens the file again if it is closed.
    fn reopen(&self) -> Result<(), FileError> {
        if self.is_open() {
            return Ok(());
        }
        if self.watch.sync_failed.load(Ordering::Relaxed) {
            return Err(self.failed("a sync failed, and what is on the disk is not known"));
        }
        let mut slot = self.slot.write();
        if slot.database.is_none() {
            let opened = open_database(&*self.disk, &self.spec, &self.watch);
            slot.database = Some(opened.map_err(|error| self.failed(error))?);
            slot.opening += 1;
        }
        Ok(())
    }

    /// Closes the file: after a failed operation the database refuses every further one. Tries to open it again.
    fn on_failure(&self, opening: u64, error: &redb::Error) -> FileError {
        let mut slot = self.slot.write();
        if slot.opening == opening
            && let Some(failed) = slot.database.take()
        {
            tracing::error!(file = %self.path().display(), %error, "the disk failed");
            close(failed);
        }
        drop(slot);
        let full = self.watch.full.swap(false, Ordering::Relaxed);
        match self.reopen() {
            Ok(()) if full => FileError::Full { file: self.path() },
            Ok(()) => self.failed(error),
            Err(error) => {
                tracing::error!(%error, "it stays closed");
                error
            }
        }
    }
}

impl Drop for DatabaseFile {
    fn drop(&mut self) {
        if let Some(database) = self.slot.get_mut().database.take() {
            close(database);
        }
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
) -> Result<Database, OpenFileError> {
    let file = disk.locate(&spec.name);
    let failed = |error: redb::Error| match error {
        redb::Error::DatabaseAlreadyOpen => OpenFileError::InUse { file: file.clone() },
        // The database's own word for a file that it did not write.
        redb::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            OpenFileError::Damaged { file: file.clone(), reason: "it is no database".into() }
        }
        redb::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
            OpenFileError::Damaged { file: file.clone(), reason: "it was cut short".into() }
        }
        redb::Error::Io(error) => {
            OpenFileError::Disk { file: file.clone(), reason: error.to_string() }
        }
        error => OpenFileError::Damaged { file: file.clone(), reason: error.to_string() },
    };
    let backend = disk.open(&spec.name).map_err(|error| failed(error.into()))?;
    let backend = WatchedFile { backend, watch: watch.clone() };
    clear_unfinished(&backend).map_err(|error| failed(DatabaseError::from(error).into()))?;
    let database = guarded(|| {
        Ok(Builder::new().set_cache_size(spec.cache_bytes).create_with_backend(backend)?)
    });
    let database = database.map_err(failed)?;
    let identity = guarded(|| identity(&database, &spec.owner)).map_err(failed)?;
    match identity {
        Identity { format, .. } if format != FORMAT => {
            Err(OpenFileError::OtherFormat { file, found: format })
        }
        Identity { owner, .. } if owner != spec.owner => {
            let expected = spec.owner.clone();
            Err(OpenFileError::OtherOwner { file, found: owner, expected })
        }
        _ => Ok(database),
    }
}

/// What a file says it is.
struct Identity {
    format: String,
    owner: String,
}

/// Reads what the file says it is; a new one is made the owner's.
fn identity(database: &Database, owner: &str) -> Result<Identity, redb::Error> {
    match database.begin_read()?.open_table(META) {
        Ok(meta) => {
            let stored = |key| {
                let value = meta.get(key)?.map(|value| value.value().to_owned());
                value.ok_or_else(|| redb::Error::Corrupted(format!("it does not say its {key}")))
            };
            return Ok(Identity { format: stored("format")?, owner: stored("owner")? });
        }
        Err(TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(error.into()),
    }
    if database.begin_read()?.list_tables()?.next().is_some() {
        return Err(redb::Error::Corrupted("it is a database of another program".into()));
    }
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert("format", FORMAT)?;
        meta.insert("owner", owner)?;
    }
    transaction.commit()?;
    Ok(Identity { format: FORMAT.into(), owner: owner.into() })
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
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::StorageFull) {
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
