//! A bookie as its threads share it: what is taken for them, how it stands with its disk, and who is told.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::changes::Change;
use super::{DurableConfig, REQUEST_BYTES, THREADS};
use crate::bookie::rules::Mode;
use crate::disk::{DatabaseFile, FileError, Refused, WorkQueue};
use crate::id::{BookieId, Instance};
use crate::registry::{MemoryBookieRegistry, RegisteredBookie};
use crate::transport::{
    BookieError, CompletionSink, Request, RequestBody, RequestId, Response, ResponseBody,
};

/// What a bookie may use beyond [`DurableConfig::bytes_max`] once it is read-only because of it: fences, recoveries and
/// deletions need a few pages each.
const RESERVE_BYTES: u64 = 8 << 20;

/// A request, and whom the response is for.
pub(super) struct Ask {
    pub(super) request: Request,
    pub(super) sink: Arc<dyn CompletionSink>,
}

/// Why a request is not carried out.
#[derive(Debug)]
pub(super) enum Stop {
    /// The bookie refuses it; other requests of the turn are not concerned.
    Refused(BookieError),
    /// The file failed, and with it the turn.
    Failed(redb::Error),
}

/// What the threads of a bookie share.
pub(super) struct Bookie {
    pub(super) id: BookieId,
    pub(super) instance: Instance,
    pub(super) file: Arc<DatabaseFile>,
    bytes_max: Option<u64>,
    registry: Arc<MemoryBookieRegistry>,
    pub(super) standing: Mutex<Standing>,
    pub(super) changes: WorkQueue<Change>,
    pub(super) reads: WorkQueue<Ask>,
    /// How many of its threads have not ended.
    threads: AtomicUsize,
}

/// How a bookie stands with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It serves, and takes entries or not.
    Serving(Mode),
    /// Its file is closed and could not be opened again. It is not registered.
    Failed,
    /// A thread of it has ended, and with it the bookie. It is not registered.
    Ended,
}

impl Bookie {
    pub(super) fn new(
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
    pub(super) fn accept(
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

    pub(super) fn response(
        &self,
        id: RequestId,
        result: Result<ResponseBody, BookieError>,
    ) -> Response {
        Response { id, bookie: self.id.clone(), instance: Some(self.instance), result }
    }

    /// Answers requests, those in a row for the same sink in one batch.
    pub(super) fn answer(
        &self,
        answers: impl IntoIterator<Item = (Ask, Result<ResponseBody, BookieError>)>,
    ) {
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
    pub(super) fn leave(&self) {
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
    pub(super) fn abandon(&self, id: RequestId, sink: &dyn CompletionSink) {
        let mut response = vec![self.response(id, Err(BookieError::Unreachable))];
        let told = catch_unwind(AssertUnwindSafe(|| sink.complete(&mut response)));
        if told.is_err() {
            tracing::error!(bookie = %self.id, "whoever waits for an answer has panicked");
        }
    }

    /// Changes how the bookie stands, if it still stands like that.
    pub(super) fn change_standing(&self, from: Standing, to: Standing) {
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
    pub(super) fn limit(&self, mode: Mode) -> u64 {
        match (self.bytes_max, mode) {
            (None, _) => u64::MAX,
            (Some(bytes_max), Mode::Writable) => bytes_max,
            (Some(bytes_max), Mode::ReadOnly) => bytes_max.saturating_add(RESERVE_BYTES),
        }
    }

    /// What an outcome of the file means for the bookie, and the answer to who is concerned.
    pub(super) fn settle<R>(&self, outcome: Result<R, FileError>) -> Result<R, BookieError> {
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
