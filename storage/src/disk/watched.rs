//! A file of the disk under a database: watched for what its disk says, and held to a limit.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redb::StorageBackend;

use super::Presence;

/// What is said after a sync that failed.
pub(super) const AFTER_A_FAILED_SYNC: &str = "a sync failed, so the system may show what the disk does not have; \
    restart the machine, or mount the file system anew, before the file is opened again";

/// What the disk said to the database, and the limit the database is held to.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) bytes_max: AtomicU64,
    pub(super) full: AtomicBool,
    pub(super) sync_failed: AtomicBool,
}

/// A file of the disk that keeps a watch and a limit.
#[derive(Debug)]
pub(super) struct WatchedFile {
    pub(super) backend: Box<dyn StorageBackend>,
    pub(super) watch: Arc<Watch>,
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

/// Makes sure that what is read of the file is on the disk, and that an empty one is only taken for a new one.
pub(super) fn prepare(file: &WatchedFile, presence: Presence) -> io::Result<()> {
    if file.len()? > 0 {
        // Another process may have died with changes that the system has not written, or could not write.
        file.sync_data().map_err(|error| {
            io::Error::other(format!("it cannot be synced ({error}): {AFTER_A_FAILED_SYNC}"))
        })?;
    }
    match presence {
        Presence::MayBeNew => clear_unfinished(file),
        Presence::MustExist if file.len()? == 0 => Err(ErrorKind::NotFound.into()),
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
