//! One database file: opened and judged, changed in durable commits, and what becomes of it when its disk fails.

use std::collections::BTreeMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    TableError, WriteTransaction,
};

use super::error::{FORMAT, FileError, OpenFileError, Remedy, refusal};
use super::watched::{AFTER_A_FAILED_SYNC, Watch, WatchedFile, prepare};
use super::{Disk, Presence};

/// What a file says of itself: `format`, `owner`, and what its owner adds.
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");

/// How long a file that could not be opened again is left alone before the next attempt.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

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

impl DatabaseFile {
    /// Opens the file; one that may be new is made of an empty one. One that was not closed has the last commit that was
    /// made. Blocks.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        spec: FileSpec,
        presence: Presence,
    ) -> Result<Self, OpenFileError> {
        let watch = Arc::new(Watch {
            bytes_max: AtomicU64::new(u64::MAX),
            full: AtomicBool::new(false),
            sync_failed: AtomicBool::new(false),
        });
        let (database, meta) = open_database(&*disk, &spec, &watch, presence)?;
        let slot = RwLock::new(Slot { access: Access::Open(database), opening: 0, meta });
        Ok(Self { disk, spec, watch, slot })
    }

    fn failed(&self, reason: impl ToString) -> FileError {
        FileError::Failed { file: self.path(), reason: reason.to_string() }
    }

    /// Where it is, for people.
    pub(crate) fn path(&self) -> PathBuf {
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

/// Whether something lies on the disk under this name that is not empty. Blocks.
pub(crate) fn holds_something(disk: &dyn Disk, name: &str) -> Result<bool, OpenFileError> {
    let failed = |error| refusal(disk.locate(name), Remedy::Replicas, error);
    match disk.open(name, Presence::MustExist).map_err(|error| failed(error.into())) {
        Ok(file) => Ok(file.len().map_err(|error| failed(error.into()))? > 0),
        Err(OpenFileError::Gone { .. }) => Ok(false),
        Err(error) => Err(error),
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

/// Runs what the database does. A damaged file can make it panic; that is an error of the file, not of this program.
fn guarded<R>(run: impl FnOnce() -> Result<R, redb::Error>) -> Result<R, redb::Error> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("the database gave up");
        Err(redb::Error::Corrupted(text.into()))
    })
}
