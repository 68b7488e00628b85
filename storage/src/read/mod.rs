//! Reading a ledger: entries with failover from replica to replica, the LAC by coverage, and waiting for more.
//!
//! A reader keeps the newest record it has seen, by version, and two LACs: what the bookies have stored, and what is
//! confirmed, which is never less than the record proves. Once the record says closed, what is confirmed is the last
//! entry, exactly, whatever bookies answered or still answer. Before a negative answer is believed, be it that an
//! entry is beyond what is confirmed or that nobody has it, the record is read again.

mod entries;
mod error;
mod lac;
mod record;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use self::entries::{Patience, Range};
use self::lac::read_lac;
use crate::id::{EntryId, LedgerId};
use crate::lac::SharedLac;
use crate::mailbox::Mailbox;
use crate::metadata::{LedgerEnd, LedgerMetadata, LedgerState, Version};
use crate::transport::{CompletionSink, Request, RequestBody, RequestId, Response, ResponseBody};

pub use error::{LacError, LacUnknown, ReadError};
pub use record::RecordError;
pub(crate) use record::{Core, READ_AGAIN_AFTER};

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
    /// What the bookies answered last.
    stored: Mutex<Option<EntryId>>,
}

/// What a reader that waits at the end of its ledger is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Everything up to this entry is confirmed, and it is beyond what was known.
    Confirmed(EntryId),
    /// The ledger is closed; nothing will come after this end, which may be known already.
    Closed(LedgerEnd),
}

/// Who says what is confirmed.
enum LacSource {
    /// The ledger's writer in this process, which knows exactly, for as long as it confirms entries. After it has
    /// ended a recovery decides what else is part of the ledger, which the record and the bookies tell.
    Writer,
    /// The record and the bookies.
    Bookies,
}

impl LedgerReader {
    /// A reader that follows the writer of the ledger to its end, and goes on alone after that.
    pub(crate) fn of_writer(
        core: Arc<Core>,
        ledger: LedgerId,
        record: (Arc<LedgerMetadata>, Version),
        lac: Arc<SharedLac>,
    ) -> Self {
        let (record, stored) = (Mutex::new(record), Mutex::default());
        Self { core, ledger, record, lac, source: LacSource::Writer, stored }
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
        let (record, stored) = (Mutex::new((Arc::new(metadata), version)), Mutex::new(stored));
        Ok(Self { core, ledger, record, lac, source: LacSource::Bookies, stored })
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
        *self.stored.lock()
    }

    /// Whether the ledger's writer says what is confirmed, so that nobody else is asked.
    fn follows_writer(&self) -> bool {
        matches!(self.source, LacSource::Writer) && !self.lac.has_writer_ended()
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
        if !self.follows_writer() {
            let metadata = self.refresh().await?;
            if let LedgerState::Open | LedgerState::InRecovery = metadata.state() {
                let answered = read_lac(&self.core, self.ledger, &metadata).await?;
                *self.stored.lock() = answered;
                self.learn(&self.record.lock().0, answered);
            }
        }
        Ok(self.lac.get())
    }

    /// Waits until more than `beyond` is confirmed, or the ledger is closed.
    ///
    /// The bookies of the last ensemble are asked to answer when their LAC moves; the writer's LAC reaches them with
    /// its next entry, when it tells it by itself, or when the ledger is closed. Every
    /// [`tail_check_interval`](crate::ClientConfig::tail_check_interval) the record is read for an end or other
    /// bookies, and each bookie is asked again: that is all the traffic of an idle ledger, however the bookies answer.
    /// A reader of the ledger's writer in this process asks no bookie and is told at once, until that writer ends.
    ///
    /// Waits for as long as it takes: the caller sets a limit by dropping the future. Cancel-safe; what was learned
    /// until then stays.
    ///
    /// # Errors
    /// [`RecordError`]; the ledger was deleted, or its record cannot be read at present.
    pub async fn wait_last_add_confirmed(
        &self,
        beyond: Option<EntryId>,
    ) -> Result<Tail, RecordError> {
        let mailbox = Arc::new(Mailbox::new());
        loop {
            let metadata = self.metadata();
            if let LedgerState::Closed(end) = metadata.state() {
                return Ok(Tail::Closed(end));
            }
            if let Some(lac) = self.lac.get().filter(|lac| Some(*lac) > beyond) {
                return Ok(Tail::Confirmed(lac));
            }
            let follows_writer = self.follows_writer();
            if !follows_writer {
                self.ask_for_more(&metadata, beyond, &mailbox);
            }
            let interval = self.core.config.tail_check_interval;
            tokio::select! {
                // In this order, so that a simulation is the same each time.
                biased;
                _ = self.lac.beyond(beyond) => {}
                () = self.lac.writer_end(), if follows_writer => {
                    self.refresh().await?;
                }
                () = self.learn_all(&mailbox) => {}
                () = tokio::time::sleep(interval) => {
                    self.refresh().await?;
                }
            }
        }
    }

    /// Asks all bookies of the last ensemble to answer once their LAC is beyond `beyond`.
    fn ask_for_more(
        &self,
        metadata: &LedgerMetadata,
        beyond: Option<EntryId>,
        mailbox: &Arc<Mailbox<Response>>,
    ) {
        let sink: Arc<dyn CompletionSink> = mailbox.clone();
        for bookie in metadata.last_ensemble().1 {
            // Whichever question an answer belongs to: everything up to a LAC that a bookie knows is confirmed.
            let (id, body) = (RequestId(0), RequestBody::WaitLac { beyond });
            let mut batch = vec![Request { id, ledger: self.ledger, body }];
            self.core.transport.submit(bookie, &mut batch, &sink);
        }
    }

    /// Learns from whatever LACs arrive, and ends only with the mailbox, which does not end.
    async fn learn_all(&self, mailbox: &Mailbox<Response>) {
        let mut responses = Vec::new();
        while mailbox.recv_into(&mut responses).await.is_ok() {
            for response in responses.drain(..) {
                if let Ok(ResponseBody::LastAddConfirmed { lac }) = response.result {
                    self.learn(&self.record.lock().0, lac);
                }
            }
        }
    }

    /// Reads the entries from `first` to `last`, both included, in order. Each copy is verified; a replica that
    /// fails or lies is passed over for the next one of its write set, and one that does not answer within
    /// [`speculative_read_delay`](crate::ClientConfig::speculative_read_delay) gets competition.
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
        if Some(last) > self.lac.get() && !self.follows_writer() {
            self.refresh().await?;
        }
        let last_add_confirmed = self.lac.get();
        if Some(last) > last_add_confirmed {
            return Err(ReadError::BeyondLac { ledger, last, last_add_confirmed });
        }
        let patience = Patience {
            speculative_delay: self.core.config.speculative_read_delay,
            request_timeout: self.core.config.request_timeout,
        };
        let mut range = Range::new(ledger, first, last, self.metadata(), patience);
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
            for (bookie, mut batch) in range.requests(self.core.clock.now()) {
                self.core.transport.submit(&bookie, &mut batch, &sink);
            }
            mailbox.take_into(&mut responses);
            if responses.is_empty() {
                let Some(wake_at) = range.wake_at() else {
                    return;
                };
                let until = self.core.clock.instant(wake_at);
                // Late or closed are the same here: what is overdue is acted upon.
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
        let (metadata, version) = self.core.known_record(self.ledger).await?;
        let mut record = self.record.lock();
        if version > record.1 {
            *record = (Arc::new(metadata), version);
        }
        // Also of a record that is known: its writer may have gone since, and with it who said what is confirmed.
        self.learn(&record.0, None);
        Ok(record.0.clone())
    }

    /// Takes in what bookies answered. Called under the lock of the newest record, so that no answer to an earlier
    /// question raises what is confirmed above the end of a ledger that was closed meanwhile.
    fn learn(&self, record: &LedgerMetadata, stored: Option<EntryId>) {
        if self.follows_writer() {
            return;
        }
        let confirmed = last_add_confirmed(record, stored);
        match record.state() {
            LedgerState::Closed(_) => self.lac.end_at(confirmed),
            LedgerState::Open | LedgerState::InRecovery => self.lac.raise(confirmed),
        }
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
