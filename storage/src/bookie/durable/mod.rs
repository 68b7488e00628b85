//! Bookies in this process that keep what they hold on disk.
//!
//! Each has a database file and two threads. One makes the changes: it takes everything that gathered while the
//! previous commit ran, applies it, commits once, and answers all of it; nothing is answered before the commit is
//! synced, a fence no more than an entry. The other one reads what is committed and never waits for a commit. An idle
//! bookie is two parked threads and no timer. The last thread to end closes the file.
//!
//! A commit is two syncs: of what is new, then of the page that makes it count. So an opening after a crash reads no
//! more than one after an orderly end, and a bit that has flipped since is never taken for a commit that was cut short.
//! The price was measured when it was introduced, in one run on two busy cores with appends of 1 KiB to three bookies:
//! with one append in flight half as many a second as with commits of one sync, with 64 four fifths, with 1 024 as many.
//! What appends cost now is among the benches.

mod changes;
mod held;
mod open;
mod reads;
mod serving;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use self::changes::{Change, Deletion};
use self::serving::Bookie;
use crate::disk::Disk;
use crate::id::{BookieId, Instance, LedgerId};
use crate::metadata::MetadataStore;
use crate::registry::{BookieRegistry, MemoryBookieRegistry};
use crate::transport::{BookieError, BookieTransport, CompletionSink, Request, Response};

pub use self::open::{OpenBookieError, RenewBookieError};

/// What a request without an entry counts for in a queue, in bytes.
const REQUEST_BYTES: usize = 64;

/// How many bytes of entries are read before they are answered, which bounds the memory of a turn.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Settings of durable bookies, the same for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableConfig {
    /// How many bytes a bookie's file may take before the bookie is read-only; none for what the disk has. With a limit
    /// 8 MiB more are kept for fences, recoveries and deletions, which a disk that is really full may refuse.
    pub bytes_max: Option<u64>,
    /// Memory for pages of a bookie's file, in bytes. More: fewer reads of the disk. Less: a reader that is far behind
    /// the writer reads the disk.
    pub cache_bytes: usize,
    /// How many requests may wait at a bookie; the ones beyond are refused as too many. As many may be under way.
    pub queue_requests_max: usize,
    /// How many bytes of entries may wait at a bookie; requests beyond are refused as too many. As many may be under
    /// way. More: larger commits and more memory when the disk is slow. Less: writers have to hold back earlier.
    pub queue_bytes_max: usize,
}

impl Default for DurableConfig {
    fn default() -> Self {
        Self {
            bytes_max: None,
            cache_bytes: 64 << 20,
            queue_requests_max: 1 << 16,
            queue_bytes_max: 64 << 20,
        }
    }
}

/// A fixed set of bookies on disk, and the transport to them.
///
/// Dropping it carries out what was accepted, except for deletions, closes the files and waits for the threads, so it may
/// block for as long as a few commits take. The registry is empty then. A bookie whose thread panics, because a
/// [`CompletionSink`] did, is unregistered and answers everything later as unreachable; what it had in hand then it never
/// answers.
pub struct DurableBookies {
    bookies: BTreeMap<BookieId, Running>,
    registry: Arc<MemoryBookieRegistry>,
}

/// Why ledgers could not be deleted on a bookie.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bookie {bookie} {error}: some ledgers were not deleted; ask for it again")]
pub struct DeleteLedgersError {
    /// The bookie; others may have failed as well.
    pub bookie: BookieId,
    /// What was wrong.
    pub error: BookieError,
}

/// A bookie and its threads.
struct Running {
    bookie: Arc<Bookie>,
    threads: Vec<JoinHandle<()>>,
}

impl DurableBookies {
    /// Opens bookies of these ids, those that are new empty and in a life of their own, and says which could not be
    /// opened and why: the others serve without them, and they are not registered.
    ///
    /// A bookie's life is recorded in `store`, under `cookies/ID`, with the number of its opening. A bookie that has one
    /// there and whose file is gone or empty is refused, and nothing is made in the file's place; see
    /// [`renew`](Self::renew). Copies of one side that are older than the other side are
    /// refused: the file of a bookie without the store, or the store without the file. So is a store that gives out an
    /// id which a bookie holds a ledger of; to see that, one id is used up unless all bookies are empty.
    ///
    /// Files are named after the ids. Opening and closing is done on the runtime's blocking threads. If the future is
    /// dropped, call it again; files are in use until they are closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(
        disk: Arc<dyn Disk>,
        ids: impl IntoIterator<Item = BookieId>,
        store: &dyn MetadataStore,
        config: &DurableConfig,
    ) -> (Self, Vec<(BookieId, OpenBookieError)>) {
        let registry = Arc::new(MemoryBookieRegistry::new([]));
        let (mut bookies, mut failed) = (BTreeMap::new(), Vec::new());
        for (id, opened) in open::open_all(disk, ids, store, config).await {
            let started = opened.and_then(|(file, instance)| {
                let bookie = Bookie::new(id.clone(), instance, file, registry.clone(), config);
                Running::start(Arc::new(bookie))
            });
            match started {
                Ok(running) => drop(bookies.insert(id, running)),
                Err(error) => failed.push((id, error)),
            }
        }
        (Self { bookies, registry }, failed)
    }

    /// Lets a bookie whose file is lost begin another life, empty and in another instance, when it is next opened. The
    /// file must not be there, and is refused for ever if it is put back later. What the bookie had has one copy less:
    /// look first whether others hold copies of all of it ([`LedgerClient::check`](crate::client::LedgerClient::check)).
    ///
    /// If the future is dropped, the bookie may be renewed or not.
    ///
    /// # Errors
    /// [`RenewBookieError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn renew(
        disk: Arc<dyn Disk>,
        bookie: &BookieId,
        store: &dyn MetadataStore,
    ) -> Result<(), RenewBookieError> {
        open::renew(disk, bookie, store).await
    }

    /// The bookies that serve, kept up to date: one whose disk is full is read-only, one whose disk has failed is gone.
    #[must_use]
    pub fn registry(&self) -> Arc<dyn BookieRegistry> {
        self.registry.clone()
    }

    /// The ids of the bookies that were opened, sorted.
    pub fn ids(&self) -> impl Iterator<Item = BookieId> + '_ {
        self.bookies.keys().cloned()
    }

    /// Which life of a bookie this is; none if it was not opened.
    #[must_use]
    pub fn instance(&self, bookie: &BookieId) -> Option<Instance> {
        self.bookies.get(bookie).map(|running| running.bookie.instance)
    }

    /// The ledgers that are held, as far as bookies can say: a bookie that has failed says nothing, and what it holds
    /// shows once it is back.
    ///
    /// That the metadata store has no record of one of them is no evidence that it was deleted: the record may be one that
    /// a damaged store does not find. If the future is dropped, nothing happens.
    pub async fn ledgers(&self) -> BTreeSet<LedgerId> {
        let asked = self.bookies.values().map(|running| {
            let (done, told) = oneshot::channel();
            // One that is not taken is dropped, and with it the end that would tell.
            let _ = running.bookie.changes.push(Change::List(done), REQUEST_BYTES);
            told
        });
        let mut ledgers = BTreeSet::new();
        for told in asked.collect::<Vec<_>>() {
            ledgers.extend(told.await.unwrap_or_default());
        }
        ledgers
    }

    /// Drops ledgers whose records were deleted. Only an id that will never be used again may be deleted, or its fence would be forgotten with it. A bookie that
    /// was read-only because its disk was full is writable again afterwards if there is space now, whether or not there
    /// was anything to delete.
    ///
    /// Waits for the LAC of these ledgers end. Long ledgers are deleted in several commits, so that others are served in
    /// between. If the future is dropped, the deletion goes on; if the bookies are dropped, it stops, and what is left of
    /// a ledger keeps its fence.
    ///
    /// # Errors
    /// [`DeleteLedgersError`], of the first bookie that failed; all were tried.
    pub async fn delete_ledgers(
        &self,
        ledgers: impl IntoIterator<Item = LedgerId>,
    ) -> Result<(), DeleteLedgersError> {
        let ledgers: Vec<_> = ledgers.into_iter().collect();
        let ask = |running: &Running| {
            let (done, told) = oneshot::channel();
            let change = Change::Delete(Deletion::new(ledgers.clone(), done));
            let pushed = running.bookie.changes.push(change, REQUEST_BYTES);
            (running.bookie.id.clone(), pushed.map(|()| told).map_err(|(_, why)| why.into()))
        };
        let asked: Vec<_> = self.bookies.values().map(ask).collect();
        let mut result = Ok(());
        for (bookie, asked) in asked {
            let deleted = match asked {
                // A bookie that closes meanwhile drops its end.
                Ok(told) => told.await.unwrap_or(Err(BookieError::Unreachable)),
                Err(error) => Err(error),
            };
            let deleted = deleted.map_err(|error| DeleteLedgersError { bookie, error });
            result = result.and(deleted);
        }
        result
    }
}

impl BookieTransport for DurableBookies {
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>) {
        let mut refused = Vec::new();
        match self.bookies.get(bookie) {
            Some(running) => running.bookie.accept(batch, sink, &mut refused),
            None => {
                let unreachable = |request: Request| Response {
                    id: request.id,
                    bookie: bookie.clone(),
                    instance: None,
                    result: Err(BookieError::Unreachable),
                };
                refused.extend(batch.drain(..).map(unreachable));
            }
        }
        if !refused.is_empty() {
            sink.complete(&mut refused);
        }
    }
}

impl fmt::Debug for DurableBookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bookies = self.bookies.values().map(|running| &running.bookie);
        f.debug_list().entries(bookies).finish()
    }
}

impl Drop for DurableBookies {
    fn drop(&mut self) {
        // All are told first, so that they end side by side.
        self.bookies.values().for_each(Running::close);
        for running in std::mem::take(&mut self.bookies).into_values() {
            running.join();
        }
    }
}

impl Running {
    fn start(bookie: Arc<Bookie>) -> Result<Self, OpenBookieError> {
        let work: [fn(&Bookie); THREADS] = [Bookie::make_changes, Bookie::serve_reads];
        let mut running = Self { bookie, threads: Vec::with_capacity(THREADS) };
        for (verb, run) in ["write", "read"].into_iter().zip(work) {
            let bookie = running.bookie.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{verb} {}", bookie.id))
                .spawn(move || run(&bookie));
            match thread {
                Ok(thread) => running.threads.push(thread),
                Err(error) => {
                    let (bookie, reason) = (running.bookie.id.clone(), error.to_string());
                    (running.threads.len()..THREADS).for_each(|_| running.bookie.leave());
                    running.join();
                    return Err(OpenBookieError::NoThreads { bookie, reason });
                }
            }
        }
        Ok(running)
    }

    fn close(&self) {
        self.bookie.changes.close();
        self.bookie.reads.close();
    }

    fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!(bookie = %self.bookie.id, "a thread of the bookie had panicked");
            }
        }
    }
}

/// How many threads a bookie has.
const THREADS: usize = 2;

#[cfg(test)]
mod tests;
