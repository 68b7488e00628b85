//! Bookies in this process that keep what they hold on disk.
//!
//! Each has a database file and two threads. One makes the changes: it takes everything that gathered while the
//! previous commit ran, applies it, commits once, and answers all of it; nothing is answered before the commit is
//! synced, a fence no more than an entry. The other one reads what is committed and never waits for a commit. An idle
//! bookie is two parked threads and no timer. The last thread to end closes the file.
//!
//! A commit is two syncs: of what is new, then of the page that makes it count. So an opening after a crash reads no
//! more than one after an orderly end, and a bit that has flipped since is never taken for a commit that was cut short.
//! The price, on two busy cores with appends of 1 KiB to three bookies: with one append in flight 190 a second instead of
//! 370 for commits of one sync, with 64 in flight 4 600 instead of 5 900, with 1 024 no less. Without the allocator's state
//! in each commit, which is what spares the reading, two syncs make 270 and 5 900.

mod changes;
mod held;
mod open;
mod reads;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::changes::{Change, Deletion};
use super::rules::Mode;
use crate::disk::{DatabaseFile, Disk, FileError, Refused, WorkQueue};
use crate::id::{BookieId, Instance, LedgerId};
use crate::metadata::MetadataStore;
use crate::registry::{BookieRegistry, MemoryBookieRegistry, RegisteredBookie};
use crate::transport::{
    BookieError, BookieTransport, CompletionSink, Request, RequestBody, RequestId, Response,
    ResponseBody,
};

pub use self::open::OpenBookieError;

/// What a bookie may use beyond [`DurableConfig::bytes_max`] once it is read-only because of it: fences, recoveries and
/// deletions need a few pages each.
const RESERVE_BYTES: u64 = 8 << 20;

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

/// A request, and whom the response is for.
struct Ask {
    request: Request,
    sink: Arc<dyn CompletionSink>,
}

/// Why a request is not carried out.
#[derive(Debug)]
enum Stop {
    /// The bookie refuses it; other requests of the turn are not concerned.
    Refused(BookieError),
    /// The file failed, and with it the turn.
    Failed(redb::Error),
}

/// What the threads of a bookie share.
struct Bookie {
    id: BookieId,
    instance: Instance,
    file: Arc<DatabaseFile>,
    bytes_max: Option<u64>,
    registry: Arc<MemoryBookieRegistry>,
    standing: Mutex<Standing>,
    changes: WorkQueue<Change>,
    reads: WorkQueue<Ask>,
    /// How many of its threads have not ended.
    threads: AtomicUsize,
}

/// How a bookie stands with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It serves, and takes entries or not.
    Serving(Mode),
    /// Its file is closed and could not be opened again. It is not registered.
    Failed,
    /// A thread of it has ended, and with it the bookie. It is not registered.
    Ended,
}

impl DurableBookies {
    /// Opens bookies of these ids, those that are new empty and in a life of their own, and says which could not be
    /// opened and why: the others serve without them, and they are not registered.
    ///
    /// A bookie's life is recorded in `store`, under `cookies/ID`, with the number of its opening. A bookie whose file is
    /// gone begins another life, in another instance. Copies of one side that are older than the other side are
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
    /// To find what may be deleted, ask for this first, and then ask the metadata store which ledgers there are: a
    /// ledger that is created in between is not in the answer. The other way round it would seem deleted. If the future
    /// is dropped, nothing happens.
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

    /// Deletes ledgers: those that [`ledgers`](Self::ledgers) named and the metadata store, asked afterwards, did not.
    /// Only an id that will never be used again may be deleted, or its fence would be forgotten with it. A bookie that
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

impl Bookie {
    fn new(
        id: BookieId,
        instance: Instance,
        file: Arc<DatabaseFile>,
        registry: Arc<MemoryBookieRegistry>,
        config: &DurableConfig,
    ) -> Self {
        let queue = || (config.queue_requests_max, config.queue_bytes_max);
        let ((changes_max, bytes_max), (reads_max, _)) = (queue(), queue());
        let bookie = Self {
            id,
            instance,
            file,
            bytes_max: config.bytes_max,
            registry,
            standing: Mutex::new(Standing::Failed),
            changes: WorkQueue::new(changes_max, bytes_max),
            reads: WorkQueue::new(reads_max, bytes_max),
            threads: AtomicUsize::new(THREADS),
        };
        bookie.change_standing(Standing::Failed, Standing::Serving(Mode::Writable));
        bookie
    }

    /// Queues requests for the thread that serves them; answers those that are too many.
    fn accept(
        &self,
        batch: &mut Vec<Request>,
        sink: &Arc<dyn CompletionSink>,
        refused: &mut Vec<Response>,
    ) {
        let ask = |request: Request| {
            let bytes = match &request.body {
                RequestBody::Add { entry, .. } => entry.size_bytes(),
                _ => REQUEST_BYTES,
            };
            (Ask { request, sink: sink.clone() }, bytes)
        };
        let mut refuse = |ask: Ask, why: Refused| {
            refused.push(self.response(ask.request.id, Err(why.into())));
        };
        if batch.iter().any(reads_only) {
            let reads = batch.extract_if(.., |request| reads_only(request)).map(ask);
            self.reads.push_all(reads, &mut refuse);
        }
        let changes = batch.drain(..).map(ask).map(|(ask, bytes)| (Change::Ask(ask), bytes));
        self.changes.push_all(changes, |change, why| {
            if let Change::Ask(ask) = change {
                refuse(ask, why);
            }
        });
    }

    fn response(&self, id: RequestId, result: Result<ResponseBody, BookieError>) -> Response {
        Response { id, bookie: self.id.clone(), instance: Some(self.instance), result }
    }

    /// Answers requests, those in a row for the same sink in one batch.
    fn answer(&self, answers: impl IntoIterator<Item = (Ask, Result<ResponseBody, BookieError>)>) {
        let mut batch = Vec::new();
        let mut to: Option<Arc<dyn CompletionSink>> = None;
        for (Ask { request, sink }, result) in answers {
            match &to {
                Some(to) if Arc::ptr_eq(to, &sink) => {}
                _ => {
                    if let Some(to) = to.replace(sink) {
                        to.complete(&mut batch);
                        batch.clear();
                    }
                }
            }
            batch.push(self.response(request.id, result));
        }
        if let Some(to) = to {
            to.complete(&mut batch);
        }
    }

    /// Ends the bookie's work on behalf of a thread that ends, orderly or not: nothing more is taken. The last thread to
    /// leave answers what nobody will carry out any more and closes the file.
    fn leave(&self) {
        self.stand(&mut self.standing.lock(), Standing::Ended);
        self.changes.close();
        self.reads.close();
        if self.threads.fetch_sub(1, Ordering::AcqRel) == 1 {
            let changes = self.changes.end().into_iter().filter_map(Change::into_ask);
            for Ask { request, sink } in self.reads.end().into_iter().chain(changes) {
                self.abandon(request.id, &*sink);
            }
            self.file.close();
        }
    }

    /// Answers a request that nobody will carry out. A sink that panics here, where a panic may be what ends the thread,
    /// would end the process.
    fn abandon(&self, id: RequestId, sink: &dyn CompletionSink) {
        let mut response = vec![self.response(id, Err(BookieError::Unreachable))];
        let told = catch_unwind(AssertUnwindSafe(|| sink.complete(&mut response)));
        if told.is_err() {
            tracing::error!(bookie = %self.id, "whoever waits for an answer has panicked");
        }
    }

    /// Changes how the bookie stands, if it still stands like that.
    fn change_standing(&self, from: Standing, to: Standing) {
        let mut known = self.standing.lock();
        if *known == from {
            self.stand(&mut known, to);
        }
    }

    /// Notes how the bookie stands, and says so in the registry.
    fn stand(&self, known: &mut Standing, standing: Standing) {
        *known = standing;
        match standing {
            Standing::Serving(mode) => {
                self.file.limit(self.limit(mode));
                let (id, instance) = (self.id.clone(), self.instance);
                self.registry.register(RegisteredBookie { id, instance, mode });
            }
            Standing::Failed | Standing::Ended => self.registry.unregister(&self.id),
        }
        tracing::info!(bookie = %self.id, ?standing, "the bookie stands otherwise");
    }

    /// How many bytes the file may have.
    fn limit(&self, mode: Mode) -> u64 {
        match (self.bytes_max, mode) {
            (None, _) => u64::MAX,
            (Some(bytes_max), Mode::Writable) => bytes_max,
            (Some(bytes_max), Mode::ReadOnly) => bytes_max.saturating_add(RESERVE_BYTES),
        }
    }

    /// What an outcome of the file means for the bookie, and the answer to who is concerned.
    fn settle<R>(&self, outcome: Result<R, FileError>) -> Result<R, BookieError> {
        if let Err(error) = &outcome {
            tracing::error!(bookie = %self.id, %error, "requests were answered as failed");
        }
        // Both threads come here. The lock is held while the file is looked at, so that the last to look decides.
        let mut known = self.standing.lock();
        match (self.file.is_open(), *known) {
            (true, Standing::Failed) => {
                self.stand(&mut known, Standing::Serving(Mode::Writable));
            }
            (false, Standing::Serving(_)) => self.stand(&mut known, Standing::Failed),
            _ => {}
        }
        outcome.map_err(|_| BookieError::Io)
    }
}

/// Whether a request is served without a change and at once.
const fn reads_only(request: &Request) -> bool {
    matches!(
        request.body,
        RequestBody::Read { fence: None, .. } | RequestBody::ReadLac { fence: None }
    )
}

impl From<BookieError> for Stop {
    fn from(error: BookieError) -> Self {
        Self::Refused(error)
    }
}

impl From<redb::StorageError> for Stop {
    fn from(error: redb::StorageError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Refused> for BookieError {
    fn from(why: Refused) -> Self {
        match why {
            Refused::Full => Self::TooManyRequests,
            Refused::Closed => Self::Unreachable,
        }
    }
}

impl fmt::Debug for Bookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bookie")
            .field("id", &self.id)
            .field("instance", &self.instance)
            .field("standing", &*self.standing.lock())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
