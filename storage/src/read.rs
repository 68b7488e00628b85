//! Reading a ledger: entries with failover from replica to replica, and the LAC by coverage.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::config::ClientConfig;
use crate::error::Advice;
use crate::id::{BookieId, EntryId, LedgerId, Shown};
use crate::lac::SharedLac;
use crate::mailbox::Mailbox;
use crate::metadata::{
    self, FormatError, LedgerMetadata, LedgerState, MetadataError, MetadataStore, Version,
    ledger_key,
};
use crate::quorum::{Coverage, LacAnswers, LacQuorum};
use crate::replica::{Answers, ReplicaError, verified};
use crate::time::{Clock, Time};
use crate::transport::{
    BookieError, BookieTransport, CompletionSink, Evidence, Request, RequestBody, RequestId,
    Response, ResponseBody,
};

/// What all handles of a client share.
pub(crate) struct Core {
    pub(crate) transport: Arc<dyn BookieTransport>,
    pub(crate) store: Arc<dyn MetadataStore>,
    pub(crate) config: ClientConfig,
    pub(crate) clock: Clock,
}

impl Core {
    /// Waits for the metadata store for the time it is given. After that the outcome is unknown.
    pub(crate) async fn metadata<T>(
        &self,
        key: &str,
        operation: impl Future<Output = Result<T, MetadataError>>,
    ) -> Result<T, MetadataError> {
        let timeout = self.config.metadata_timeout;
        tokio::time::timeout(timeout, operation).await.unwrap_or_else(|_| {
            Err(MetadataError::Unavailable {
                key: key.into(),
                reason: format!("no answer within {timeout:?}"),
            })
        })
    }

    /// The record of a ledger and its version.
    pub(crate) async fn record(
        &self,
        ledger: LedgerId,
    ) -> Result<(LedgerMetadata, Version), RecordError> {
        let key = ledger_key(ledger);
        let found = self.metadata(&key, self.store.get(&key)).await?;
        let found = found.ok_or(RecordError::NoSuchLedger { ledger })?;
        let metadata = metadata::decode(&found.value)
            .map_err(|error| RecordError::Format { ledger, error })?;
        Ok((metadata, found.version))
    }
}

/// Why the record of a ledger could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// There is no such ledger, or it was deleted.
    #[error("ledger {ledger} does not exist; it may have been deleted")]
    NoSuchLedger {
        /// The ledger.
        ledger: LedgerId,
    },
    /// The record is damaged or of an unknown kind.
    #[error("the record of ledger {ledger} cannot be used: {error}")]
    Format {
        /// The ledger.
        ledger: LedgerId,
        /// What is wrong with it.
        #[source]
        error: FormatError,
    },
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl RecordError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::NoSuchLedger { .. } | Self::Format { .. } => Advice::GiveUp,
            // Reading changes nothing, so it may be repeated whatever became of it.
            Self::Metadata(_) => Advice::Retry,
        }
    }
}

/// Why entries could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The range is empty or runs backwards.
    #[error("there are no entries from {first} to {last}")]
    EmptyRange {
        /// First entry asked for.
        first: EntryId,
        /// Last entry asked for.
        last: EntryId,
    },
    /// The range ends beyond what is known to be confirmed. Nothing was sent.
    #[error("entry {last} of ledger {ledger} is beyond the last confirmed entry, {}", Shown(*last_add_confirmed))]
    BeyondLac {
        /// The ledger.
        ledger: LedgerId,
        /// Last entry asked for.
        last: EntryId,
        /// What the reader knows to be confirmed.
        last_add_confirmed: Option<EntryId>,
    },
    /// Every bookie that should hold a confirmed entry says that it never did, and the newest record names no others.
    #[error("no bookie has entry {entry} of ledger {ledger}, which was confirmed: {answers}")]
    NoSuchEntry {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// What the bookies said.
        answers: Answers,
    },
    /// No copy could be read, but there may be one.
    #[error("no copy of entry {entry} of ledger {ledger} could be read: {answers}")]
    Unreadable {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// What the bookies said.
        answers: Answers,
    },
    /// The record was needed to judge a failure and could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl ReadError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::EmptyRange { .. } | Self::NoSuchEntry { .. } => Advice::GiveUp,
            Self::BeyondLac { .. } | Self::Unreadable { .. } => Advice::Retry,
            Self::Record(error) => error.advice(),
        }
    }
}

/// Too few bookies answered to know a ledger's LAC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too few bookies of ledger {ledger} answered to know its last confirmed entry: {answers}")]
pub struct LacUnknown {
    /// The ledger.
    pub ledger: LedgerId,
    /// What the bookies that failed said.
    pub answers: Answers,
}

/// Why the LAC of a ledger could not be learned. It is then unknown, which is not "none".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LacError {
    /// Too few bookies answered.
    #[error(transparent)]
    Unknown(#[from] LacUnknown),
    /// The record could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl LacError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Unknown(_) => Advice::Retry,
            Self::Record(error) => error.advice(),
        }
    }
}

/// One entry that was read and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Its id.
    pub id: EntryId,
    /// Its payload, shared with whatever buffer it arrived in.
    pub payload: Bytes,
}

/// Reads the confirmed entries of one ledger. Several calls may run at once.
pub struct LedgerReader {
    core: Arc<Core>,
    ledger: LedgerId,
    /// The newest record seen, and its version.
    record: Mutex<(Arc<LedgerMetadata>, Version)>,
    lac: Arc<SharedLac>,
    source: LacSource,
}

/// Who says what is confirmed.
enum LacSource {
    /// The ledger's writer in this process, which knows exactly.
    Writer,
    /// The record and the bookies, and what the bookies answered last.
    Bookies(Mutex<Option<EntryId>>),
}

impl LedgerReader {
    /// A reader that follows the writer of the ledger.
    pub(crate) fn of_writer(
        core: Arc<Core>,
        ledger: LedgerId,
        record: (Arc<LedgerMetadata>, Version),
        lac: Arc<SharedLac>,
    ) -> Self {
        Self { core, ledger, record: Mutex::new(record), lac, source: LacSource::Writer }
    }

    /// A reader of any ledger, with a LAC that was just learned.
    pub(crate) async fn open(
        core: Arc<Core>,
        ledger: LedgerId,
        (metadata, version): (LedgerMetadata, Version),
    ) -> Result<Self, LacUnknown> {
        let stored = match metadata.state() {
            LedgerState::Closed(_) => None,
            LedgerState::Open | LedgerState::InRecovery => {
                read_lac(&core, ledger, &metadata).await?
            }
        };
        let lac = Arc::new(SharedLac::new(last_add_confirmed(&metadata, stored)));
        let source = LacSource::Bookies(Mutex::new(stored));
        Ok(Self { core, ledger, record: Mutex::new((Arc::new(metadata), version)), lac, source })
    }

    /// The ledger's id.
    #[must_use]
    pub const fn id(&self) -> LedgerId {
        self.ledger
    }

    /// Everything up to this entry is known to be confirmed: the bound of reads.
    #[must_use]
    pub fn last_add_confirmed(&self) -> Option<EntryId> {
        self.lac.get()
    }

    /// What the bookies answered to the last LAC read; none also when they were not asked. It may be below what is
    /// confirmed, so nothing but a diagnosis should use it.
    #[must_use]
    pub fn stored_lac(&self) -> Option<EntryId> {
        match &self.source {
            LacSource::Writer => None,
            LacSource::Bookies(stored) => *stored.lock(),
        }
    }

    /// The newest record of the ledger that this reader has seen.
    #[must_use]
    pub fn metadata(&self) -> Arc<LedgerMetadata> {
        self.record.lock().0.clone()
    }

    /// Learns anew what is confirmed. On a closed ledger that is its last entry, exactly.
    ///
    /// Changes nothing on bookies or in the store. Cancel-safe: what was learned until then stays.
    ///
    /// # Errors
    /// [`LacError`]; the bound stays as it was.
    pub async fn read_last_add_confirmed(&self) -> Result<Option<EntryId>, LacError> {
        if let LacSource::Bookies(stored) = &self.source {
            let metadata = self.refresh().await?;
            if let LedgerState::Open | LedgerState::InRecovery = metadata.state() {
                let answered = read_lac(&self.core, self.ledger, &metadata).await?;
                *stored.lock() = answered;
                // A concurrent call may have seen the ledger closed; its end must not be raised by an older hint.
                let record = self.record.lock();
                match record.0.state() {
                    LedgerState::Closed(end) => self.lac.set(end.last_entry),
                    LedgerState::Open | LedgerState::InRecovery => {
                        self.lac.raise(last_add_confirmed(&record.0, answered));
                    }
                }
            }
        }
        Ok(self.lac.get())
    }

    /// Reads the entries from `first` to `last`, both included, in order. Each copy is verified; a replica that
    /// fails, lies or is late is passed over for the next one of its write set.
    ///
    /// Memory is needed for the whole range: the caller bounds it. Cancel-safe; reading changes nothing.
    ///
    /// # Errors
    /// [`ReadError`]; of several entries that cannot be read it names the first.
    pub async fn read(&self, first: EntryId, last: EntryId) -> Result<Vec<LedgerEntry>, ReadError> {
        if first > last {
            return Err(ReadError::EmptyRange { first, last });
        }
        let ledger = self.ledger;
        let last_add_confirmed = self.lac.get();
        if Some(last) > last_add_confirmed {
            return Err(ReadError::BeyondLac { ledger, last, last_add_confirmed });
        }
        let mut range = Range::new(ledger, first, last, self.metadata());
        self.fetch(&mut range).await;
        if range.has_failed() {
            // Entries may have been moved since the record was read; a stale record must not speak for them.
            range.retry_moved(self.refresh().await?);
            self.fetch(&mut range).await;
        }
        range.into_entries()
    }

    async fn fetch(&self, range: &mut Range) {
        let mailbox = Arc::new(Mailbox::new());
        let sink: Arc<dyn CompletionSink> = mailbox.clone();
        let mut responses = Vec::new();
        loop {
            let deadline = self.core.clock.now() + self.core.config.request_timeout;
            range.submit(deadline, &*self.core.transport, &sink);
            mailbox.take_into(&mut responses);
            if responses.is_empty() {
                let Some(wake_at) = range.wake_at() else {
                    return;
                };
                let until = self.core.clock.instant(wake_at);
                // Late or closed are the same here: what is overdue has failed.
                if tokio::time::timeout_at(until, mailbox.recv_into(&mut responses)).await.is_err()
                {
                    range.on_time(self.core.clock.now());
                }
            }
            responses.drain(..).for_each(|response| range.on_response(response));
        }
    }

    /// Reads the record and keeps it unless a newer one is known.
    async fn refresh(&self) -> Result<Arc<LedgerMetadata>, RecordError> {
        let (metadata, version) = self.core.record(self.ledger).await?;
        let mut record = self.record.lock();
        if version > record.1 {
            *record = (Arc::new(metadata), version);
            if let (LedgerState::Closed(end), LacSource::Bookies(_)) =
                (record.0.state(), &self.source)
            {
                self.lac.set(end.last_entry);
            }
        }
        Ok(record.0.clone())
    }
}

impl fmt::Debug for LedgerReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerReader")
            .field("ledger", &self.ledger)
            .field("last_add_confirmed", &self.lac.get())
            .finish_non_exhaustive()
    }
}

/// What is confirmed, given the record and what the bookies answered: never less than the record proves, and exactly
/// the last entry if the ledger is closed.
fn last_add_confirmed(metadata: &LedgerMetadata, stored_lac: Option<EntryId>) -> Option<EntryId> {
    match metadata.state() {
        LedgerState::Closed(end) => end.last_entry,
        LedgerState::Open | LedgerState::InRecovery => stored_lac.max(metadata.lac_floor()),
    }
}

/// Asks all bookies of the last ensemble and waits for coverage. The answer is what they have stored.
async fn read_lac(
    core: &Core,
    ledger: LedgerId,
    metadata: &LedgerMetadata,
) -> Result<Option<EntryId>, LacUnknown> {
    let sizes = metadata.sizes();
    let (_, ensemble) = metadata.last_ensemble();
    let mailbox = Arc::new(Mailbox::new());
    let sink: Arc<dyn CompletionSink> = mailbox.clone();
    for (slot, bookie) in ensemble.iter().enumerate() {
        let body = RequestBody::ReadLac { fence: None };
        let mut batch = vec![Request { id: RequestId(slot as u64), ledger, body }];
        core.transport.submit(bookie, &mut batch, &sink);
    }
    let deadline = core.clock.instant(core.clock.now() + core.config.request_timeout);
    let (mut answers, mut stored, mut failures) = (LacAnswers::default(), None, Vec::new());
    let mut responses = Vec::new();
    loop {
        match answers.coverage(sizes) {
            Coverage::Reached(proof) => return Ok(covered_lac(proof, stored)),
            Coverage::Impossible => return Err(LacUnknown { ledger, answers: Answers(failures) }),
            Coverage::Possible => {}
        }
        if tokio::time::timeout_at(deadline, mailbox.recv_into(&mut responses)).await.is_err() {
            let missing =
                sizes.slots().filter(|slot| !answers.is_settled(*slot)).collect::<Vec<_>>();
            for slot in missing {
                answers.record_failure(slot);
                failures.push((ensemble[slot.index()].clone(), BookieError::Timeout.into()));
            }
        }
        for response in responses.drain(..) {
            let Some(slot) = sizes.slots().find(|slot| slot.index() as u64 == response.id.0) else {
                continue;
            };
            if ensemble[slot.index()] != response.bookie || answers.is_settled(slot) {
                continue;
            }
            let failure = match response.result {
                Ok(ResponseBody::LastAddConfirmed { lac }) => {
                    stored = stored.max(lac);
                    None
                }
                Ok(_) => Some(ReplicaError::Unexpected),
                Err(error) => (error.evidence() == Evidence::Unknown).then_some(error.into()),
            };
            match failure {
                None => answers.record(slot),
                Some(failure) => {
                    answers.record_failure(slot);
                    failures.push((response.bookie, failure));
                }
            }
        }
    }
}

/// The highest answer is the stored LAC only once the answers cover every ack quorum.
const fn covered_lac(_: LacQuorum, highest_answer: Option<EntryId>) -> Option<EntryId> {
    highest_answer
}

/// A read of consecutive entries: which replica each of them is waiting for. Pure.
struct Range {
    ledger: LedgerId,
    first: EntryId,
    metadata: Arc<LedgerMetadata>,
    reads: Vec<Read>,
    /// How many reads wait for a response.
    waiting: usize,
    /// The reads to send next.
    unsent: Vec<usize>,
}

/// The read of one entry.
struct Read {
    state: ReadState,
    /// Replicas of the write set that have been asked, in this pass over it.
    asked: usize,
    /// All that failed, in both passes.
    answers: Vec<(BookieId, ReplicaError)>,
}

enum ReadState {
    Unsent,
    Waiting { bookie: BookieId, deadline: Time },
    Found(Bytes),
    Failed,
}

impl Range {
    fn new(ledger: LedgerId, first: EntryId, last: EntryId, metadata: Arc<LedgerMetadata>) -> Self {
        let count = (last.get() - first.get() + 1) as usize;
        let reads = (0..count)
            .map(|_| Read { state: ReadState::Unsent, asked: 0, answers: Vec::new() })
            .collect();
        Self { ledger, first, metadata, reads, waiting: 0, unsent: (0..count).collect() }
    }

    /// Sends every unsent read to its next replica, one batch per bookie.
    fn submit(
        &mut self,
        deadline: Time,
        transport: &dyn BookieTransport,
        sink: &Arc<dyn CompletionSink>,
    ) {
        let mut batches = BTreeMap::<BookieId, Vec<Request>>::new();
        for index in std::mem::take(&mut self.unsent) {
            let entry = self.entry(index);
            let slot = self.metadata.sizes().write_set(entry).nth(self.reads[index].asked);
            let slot = slot.expect("a read whose replicas have all been asked is not sent again");
            let bookie = self.metadata.ensemble_of(entry)[slot.index()].clone();
            let read = &mut self.reads[index];
            read.asked += 1;
            let body = RequestBody::Read { entry, fence: None };
            let request = Request { id: read.request_id(index), ledger: self.ledger, body };
            read.state = ReadState::Waiting { bookie: bookie.clone(), deadline };
            self.waiting += 1;
            batches.entry(bookie).or_default().push(request);
        }
        for (bookie, mut batch) in batches {
            transport.submit(&bookie, &mut batch, sink);
        }
    }

    fn on_response(&mut self, response: Response) {
        let index = (response.id.0 >> ASKED_BITS) as usize;
        let entry = self.entry(index);
        let Some(read) = self.reads.get(index) else {
            return;
        };
        // A replica that was given up may still answer; the read belongs to the next one by then.
        let ReadState::Waiting { bookie, .. } = &read.state else {
            return;
        };
        if *bookie != response.bookie || read.request_id(index) != response.id {
            return;
        }
        match verified(self.ledger, entry, response.result) {
            Ok(found) => {
                self.waiting -= 1;
                self.reads[index].state = ReadState::Found(found.into_payload());
            }
            Err(error) => self.fail(index, error),
        }
    }

    fn on_time(&mut self, now: Time) {
        for index in 0..self.reads.len() {
            if matches!(self.reads[index].state, ReadState::Waiting { deadline, .. } if deadline <= now)
            {
                self.fail(index, BookieError::Timeout.into());
            }
        }
    }

    /// The replica that is waited for has failed.
    fn fail(&mut self, index: usize, error: ReplicaError) {
        let replicas = self.metadata.sizes().write();
        let read = &mut self.reads[index];
        let next = if read.asked < replicas { ReadState::Unsent } else { ReadState::Failed };
        if let ReadState::Waiting { bookie, .. } = std::mem::replace(&mut read.state, next) {
            read.answers.push((bookie, error));
            self.waiting -= 1;
        }
        if let ReadState::Unsent = read.state {
            self.unsent.push(index);
        }
    }

    /// The oldest deadline; none when nothing is waited for.
    fn wake_at(&self) -> Option<Time> {
        if self.waiting == 0 {
            return None;
        }
        let deadline = |read: &Read| match read.state {
            ReadState::Waiting { deadline, .. } => Some(deadline),
            ReadState::Unsent | ReadState::Found(_) | ReadState::Failed => None,
        };
        self.reads.iter().filter_map(deadline).min()
    }

    fn has_failed(&self) -> bool {
        self.reads.iter().any(|read| matches!(read.state, ReadState::Failed))
    }

    /// Lets failed reads go over their write set again where the new record names other bookies.
    fn retry_moved(&mut self, metadata: Arc<LedgerMetadata>) {
        let stale = std::mem::replace(&mut self.metadata, metadata);
        for index in 0..self.reads.len() {
            let entry = self.entry(index);
            let moved = stale.ensemble_of(entry) != self.metadata.ensemble_of(entry);
            let read = &mut self.reads[index];
            if moved && matches!(read.state, ReadState::Failed) {
                (read.state, read.asked) = (ReadState::Unsent, 0);
                self.unsent.push(index);
            }
        }
    }

    fn into_entries(self) -> Result<Vec<LedgerEntry>, ReadError> {
        let (ledger, first) = (self.ledger, self.first);
        let mut entries = Vec::with_capacity(self.reads.len());
        for (read, id) in self.reads.into_iter().zip(first.get()..) {
            let ReadState::Found(payload) = read.state else {
                let (entry, answers) = (EntryId(id), Answers(read.answers));
                // One doubtful answer is enough: the entry may exist there.
                let absent = |(_, error): &(BookieId, ReplicaError)| matches!(error, ReplicaError::Bookie(error) if error.evidence() == Evidence::Absent);
                return Err(if answers.0.iter().all(absent) {
                    ReadError::NoSuchEntry { ledger, entry, answers }
                } else {
                    ReadError::Unreadable { ledger, entry, answers }
                });
            };
            entries.push(LedgerEntry { id: EntryId(id), payload });
        }
        Ok(entries)
    }

    const fn entry(&self, index: usize) -> EntryId {
        EntryId(self.first.get() + index as u64)
    }
}

impl Read {
    /// Names the read and the attempt, so that an answer to an earlier one is known.
    const fn request_id(&self, index: usize) -> RequestId {
        RequestId((index as u64) << ASKED_BITS | self.asked as u64)
    }
}

/// Bits of a request id that hold how many replicas have been asked, at most 64.
const ASKED_BITS: u32 = 7;
