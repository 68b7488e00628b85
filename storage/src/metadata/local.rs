//! A metadata store on the local disk.
//!
//! | table | key | value |
//! |---|---|---|
//! | `values` | path | version, digest, bytes |
//! | `keys` | path | version |
//! | `counters` | `version`, `ledger` | the last version given to any key or the next ledger id, digest |
//!
//! One thread does everything in the order it was asked for: it takes what gathered while the previous commit ran,
//! applies it, commits once, and answers all of it. Ephemeral keys are in the memory of that thread and never in the
//! file, so that nothing of them can be found by whoever opens it next; only their versions are counted there.

mod rows;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;
use redb::WriteTransaction;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::exchange::Version;
use super::store::{Expected, MetadataError, MetadataStore, Versioned};
use crate::disk::{
    Changed, DatabaseFile, Disk, Door, FileError, FileSpec, OpenFileError, Patience, Presence,
    Refused, Remedy, WorkQueue,
};
use crate::id::LedgerId;
use rows::{Counter, Rows, Stop};

const FILE_NAME: &str = "metadata.redb";

/// Memory for pages: records are small, and those in use fit.
const CACHE_BYTES: usize = 16 << 20;

/// How many operations may wait. Beyond that they fail as unavailable, which callers have to expect anyway.
const QUEUE_OPERATIONS_MAX: usize = 1 << 16;

/// How many bytes of values may wait.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// What an operation without a value counts for in the queue, in bytes.
const OPERATION_BYTES: usize = 64;

/// A [`MetadataStore`] in one file of a disk: a change is durable when it is answered, and a read sees the newest
/// value. Its session is this handle, of which a file has one.
///
/// Dropping it carries out what was accepted, closes the file and waits for the thread. Idle, it is a parked thread.
pub struct LocalMetadataStore {
    file: PathBuf,
    operations: Arc<WorkQueue<Box<dyn Operation>>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is asked for. One that is dropped untold says with it that the outcome is unknown.
trait Operation: Send {
    fn carry_out(&mut self, tables: &mut Tables<'_>) -> Result<(), redb::Error>;
    /// Tells the outcome, once it is durable or the turn has failed.
    fn tell(self: Box<Self>, turn: Result<(), &FileError>);
}

struct Asked<F, R> {
    key: String,
    file: PathBuf,
    run: Option<F>,
    answer: Option<Answer<R>>,
    done: oneshot::Sender<Answer<R>>,
}

impl<F, R> Operation for Asked<F, R>
where
    F: FnOnce(&mut Tables<'_>) -> Result<R, Stop> + Send,
    R: Send,
{
    fn carry_out(&mut self, tables: &mut Tables<'_>) -> Result<(), redb::Error> {
        let run = self.run.take().expect("an operation is carried out once");
        self.answer = Some(match run(tables) {
            Ok(answer) => Ok(answer),
            Err(Stop::Refused(error)) => Err(error),
            Err(Stop::Damaged(row)) => Err(damaged(self.key.clone(), &self.file, &row)),
            Err(Stop::Failed(error)) => return Err(error),
        });
        Ok(())
    }

    fn tell(self: Box<Self>, turn: Result<(), &FileError>) {
        let answer = match turn {
            Ok(()) => self.answer.expect("all of a turn that was committed was carried out"),
            Err(error) => {
                Err(MetadataError::Unavailable { key: self.key, reason: error.to_string() })
            }
        };
        // Who asked may have lost interest.
        let _ = self.done.send(answer);
    }
}

/// What an operation is answered.
type Answer<R> = Result<R, MetadataError>;

impl LocalMetadataStore {
    /// Opens the store on a disk, in the file `metadata.redb`, or begins an empty one. Opening is done on the runtime's
    /// blocking threads; if the future is dropped, the store is opened and closed again, and the file is in use until
    /// then.
    ///
    /// # Errors
    /// [`OpenFileError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(disk: Arc<dyn Disk>) -> Result<Self, OpenFileError> {
        Self::open_file(disk, Presence::MayBeNew).await
    }

    /// Opens a store that was there before. One that is gone or empty is refused, and none is begun in its place.
    /// Otherwise as [`open`](Self::open).
    ///
    /// # Errors
    /// [`OpenFileError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open_existing(disk: Arc<dyn Disk>) -> Result<Self, OpenFileError> {
        Self::open_file(disk, Presence::MustExist).await
    }

    async fn open_file(disk: Arc<dyn Disk>, presence: Presence) -> Result<Self, OpenFileError> {
        let located = disk.locate(FILE_NAME);
        let opening = spawn_blocking(move || {
            let spec = FileSpec {
                name: FILE_NAME.into(),
                owner: "metadata".into(),
                cache_bytes: CACHE_BYTES,
                remedy: Remedy::Copy,
                create: |transaction| Rows::begin(transaction),
                check: rows::check,
            };
            DatabaseFile::open(disk, spec, presence)
        });
        // A runtime that is shutting down drops its blocking tasks.
        let file = opening.await.unwrap_or_else(|error| {
            Err(OpenFileError::Disk { file: located.clone(), reason: error.to_string() })
        })?;
        let operations = Arc::new(WorkQueue::new(QUEUE_OPERATIONS_MAX, QUEUE_BYTES_MAX));
        let queue = operations.clone();
        let thread = std::thread::Builder::new().name("metadata".into());
        let thread = thread.spawn(move || serve(&file, &queue)).map_err(|error| {
            OpenFileError::NoThread { file: located.clone(), reason: error.to_string() }
        })?;
        Ok(Self { file: located, operations, thread: Some(thread) })
    }

    async fn ask<R: Send + 'static>(
        &self,
        key: &str,
        bytes: usize,
        run: impl FnOnce(&mut Tables<'_>) -> Result<R, Stop> + Send + 'static,
    ) -> Answer<R> {
        let (done, told) = oneshot::channel();
        let operation: Box<dyn Operation> = Box::new(Asked {
            key: key.to_owned(),
            file: self.file.clone(),
            run: Some(run),
            answer: None,
            done,
        });
        let unavailable =
            |reason: &str| MetadataError::Unavailable { key: key.into(), reason: reason.into() };
        self.operations.push(operation, bytes).map_err(|(_, why)| match why {
            Refused::Full => unavailable("too many operations are waiting"),
            Refused::Closed => unavailable("it is closing"),
        })?;
        told.await.map_err(|_| {
            let file = self.file.display();
            unavailable(&format!("{file} was closed, or its thread ended, as the log says then"))
        })?
    }
}

#[async_trait]
impl MetadataStore for LocalMetadataStore {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        let wanted = key.to_owned();
        self.ask(key, OPERATION_BYTES, move |tables| tables.get(&wanted)).await
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        let (bytes, wanted) = (OPERATION_BYTES + value.len(), key.to_owned());
        self.ask(key, bytes, move |tables| tables.put(wanted, value, expected)).await
    }

    async fn create_ephemeral(&self, key: &str, value: Bytes) -> Result<Version, MetadataError> {
        let (bytes, wanted) = (OPERATION_BYTES + value.len(), key.to_owned());
        self.ask(key, bytes, move |tables| tables.create_ephemeral(wanted, value)).await
    }

    async fn delete(&self, key: &str, version: Version) -> Result<(), MetadataError> {
        let wanted = key.to_owned();
        self.ask(key, OPERATION_BYTES, move |tables| tables.delete(&wanted, version)).await
    }

    async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError> {
        let wanted = key.to_owned();
        self.ask(key, OPERATION_BYTES, move |tables| tables.children(&wanted)).await
    }

    async fn allocate_ledger_id(&self) -> Result<LedgerId, MetadataError> {
        let allocate = |tables: &mut Tables<'_>| tables.allocate_ledger_id();
        self.ask("a ledger id", OPERATION_BYTES, allocate).await
    }
}

impl fmt::Debug for LocalMetadataStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalMetadataStore").finish_non_exhaustive()
    }
}

impl Drop for LocalMetadataStore {
    fn drop(&mut self) {
        self.operations.close();
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended {
            tracing::error!("the thread of the metadata store had panicked");
        }
    }
}

/// The queue of the thread, as long as that runs. When it ends, orderly or not, what is in the queue is dropped, and
/// with it the outcome is unknown.
struct Serving<'q>(&'q WorkQueue<Box<dyn Operation>>);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

/// Carries out operations until the queue is closed.
fn serve(file: &DatabaseFile, queue: &WorkQueue<Box<dyn Operation>>) {
    let _serving = Serving(queue);
    let mut operations = Vec::new();
    let mut ephemeral = Ephemeral::new();
    loop {
        let door = queue.take_into(&mut operations, Patience::Wait);
        if operations.is_empty() && door == Door::Closed {
            return;
        }
        let committed = file.change(|transaction| {
            let mut tables = Tables::open(transaction, &ephemeral)?;
            operations.iter_mut().try_for_each(|operation| operation.carry_out(&mut tables))?;
            let Tables { changed, ephemeral, .. } = tables;
            let changed_ephemeral = match ephemeral {
                Cow::Owned(changed) => Some(changed),
                Cow::Borrowed(_) => None,
            };
            Ok((changed_ephemeral, changed))
        });
        let turn = committed.map(|changed| {
            if let Some(changed) = changed {
                ephemeral = changed;
            }
        });
        if let Err(error) = &turn {
            tracing::error!(%error, "operations of the metadata store failed");
        }
        operations.drain(..).for_each(|operation| operation.tell(turn.as_ref().copied()));
    }
}

fn damaged(key: String, file: &Path, row: &str) -> MetadataError {
    let file = file.display();
    let reason =
        format!("{file} is damaged: it holds of {row} what was not written; {}", Remedy::Copy);
    tracing::error!("{reason}");
    MetadataError::Unavailable { key, reason }
}

/// Keys that end with the session.
type Ephemeral = BTreeMap<String, Versioned>;

/// What the file and the session hold, as of the operation that is being carried out.
struct Tables<'t> {
    rows: Rows<'t>,
    /// Copied by the first change of a turn, and kept if the turn is committed: were it changed in place, a version
    /// would be given again whose count was not stored.
    ephemeral: Cow<'t, Ephemeral>,
    changed: Changed,
}

impl<'t> Tables<'t> {
    fn open(
        transaction: &'t WriteTransaction,
        ephemeral: &'t Ephemeral,
    ) -> Result<Self, redb::Error> {
        let rows = Rows::open(transaction)?;
        Ok(Self { rows, ephemeral: Cow::Borrowed(ephemeral), changed: Changed::Nothing })
    }

    fn get(&self, key: &str) -> Result<Option<Versioned>, Stop> {
        match self.ephemeral.get(key) {
            Some(found) => Ok(Some(found.clone())),
            None => self.rows.get(key),
        }
    }

    fn put(&mut self, key: String, value: Bytes, expected: Expected) -> Result<Version, Stop> {
        self.check(&key, expected)?;
        let version = self.next_version()?;
        if self.ephemeral.contains_key(&key) {
            self.ephemeral.to_mut().insert(key, Versioned { value, version });
        } else {
            self.rows.insert(&key, version, &value)?;
        }
        Ok(version)
    }

    fn create_ephemeral(&mut self, key: String, value: Bytes) -> Result<Version, Stop> {
        self.check(&key, Expected::Absent)?;
        let version = self.next_version()?;
        self.ephemeral.to_mut().insert(key, Versioned { value, version });
        Ok(version)
    }

    fn delete(&mut self, key: &str, version: Version) -> Result<(), Stop> {
        self.check(key, Expected::Version(version))?;
        if self.ephemeral.contains_key(key) {
            self.ephemeral.to_mut().remove(key);
        } else {
            self.changed = Changed::Something;
            self.rows.remove(key)?;
        }
        Ok(())
    }

    fn children(&self, key: &str) -> Result<Vec<String>, Stop> {
        let prefix = format!("{key}/");
        let below = self.ephemeral.range(prefix.clone()..);
        let below = below.map_while(|(path, _)| path.strip_prefix(&prefix));
        let mut names: Vec<_> = below.map(first_name).collect();
        let stored = self.rows.below(&prefix)?;
        names.extend(stored.iter().map(|path| first_name(&path[prefix.len()..])));
        // Paths sort by their separators too, so equal names need not stand together.
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn allocate_ledger_id(&mut self) -> Result<LedgerId, Stop> {
        let id = self.rows.count(Counter::Ledger)?;
        self.changed = Changed::Something;
        self.rows.set_count(Counter::Ledger, id + 1)?;
        Ok(LedgerId(id))
    }

    fn check(&self, key: &str, expected: Expected) -> Result<(), Stop> {
        let found = self.get(key)?.map(|found| found.version);
        Ok(expected.check(key, found)?)
    }

    /// Of one counter for all keys, so that a key that is deleted and created again does not repeat a version.
    fn next_version(&mut self) -> Result<Version, Stop> {
        let version = self.rows.count(Counter::Version)? + 1;
        self.changed = Changed::Something;
        self.rows.set_count(Counter::Version, version)?;
        Ok(Version(version))
    }
}

fn first_name(path: &str) -> String {
    path.split_once('/').map_or(path, |(name, _)| name).to_owned()
}

#[cfg(test)]
mod tests;
