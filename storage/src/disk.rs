//! Where the durable half keeps its files: one redb database per bookie and one for the metadata, on a disk that tests
//! replace.

mod database;
mod error;
mod queue;
mod watched;

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;

use redb::backends::FileBackend;
use redb::{DatabaseError, StorageBackend};

pub(crate) use database::{Changed, DatabaseFile, FileSpec, holds_something};
pub(crate) use error::FileError;
pub use error::{OpenFileError, Remedy};
pub(crate) use queue::{Door, Patience, Refused, WorkQueue};

/// Where database files are. The seam that tests put a disk with faults into.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Opens the file of this name. Once a sync of the file has returned, the file survives a loss of power, its name
    /// included.
    ///
    /// # Errors
    /// [`DatabaseError::DatabaseAlreadyOpen`] if the file is open already, here or in another process;
    /// [`DatabaseError::Storage`] with the disk's error.
    fn open(
        &self,
        name: &str,
        presence: Presence,
    ) -> Result<Box<dyn StorageBackend>, DatabaseError>;

    /// Where the file of this name is, for people.
    fn locate(&self, name: &str) -> PathBuf;
}

/// Whether a file may be made when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// If there is none, an empty one is made.
    MayBeNew,
    /// If there is none, that is an error.
    MustExist,
}

/// A [`Disk`] that is a directory. Its files are locked while they are open; the lock dies with the process.
#[derive(Clone, Debug)]
pub struct DirectoryDisk {
    directory: PathBuf,
}

impl DirectoryDisk {
    /// Files in this directory, which must exist when the first one is opened.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }
}

impl Disk for DirectoryDisk {
    fn open(
        &self,
        name: &str,
        presence: Presence,
    ) -> Result<Box<dyn StorageBackend>, DatabaseError> {
        let create = presence == Presence::MayBeNew;
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .open(self.locate(name))?;
        // The database asks its backend for locks, and gets none from the one that wraps this one.
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => DatabaseError::DatabaseAlreadyOpen,
            TryLockError::Error(error) => error.into(),
        })?;
        if file.metadata()?.len() == 0 {
            // Or a loss of power could take the name of a file away whose content is safe.
            File::open(&self.directory)?.sync_all()?;
        }
        Ok(Box::new(FileBackend::new(file)?))
    }

    fn locate(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
