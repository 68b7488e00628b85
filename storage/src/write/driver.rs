//! The one task of a ledger that is open for writing.
//!
//! Appends and responses meet in one inbox under one short lock. The task takes everything there is, feeds the
//! machine, submits one batch per bookie, reports once, and parks when there is nothing to do.

use std::mem;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::{CloseError, Config, Error, Input, Machine, Output, WriterStats};
use crate::exchange::RecordExchange;
use crate::id::{BookieId, EntryId, LedgerId};
use crate::lac::SharedLac;
use crate::marks;
use crate::metadata::{LedgerEnd, LedgerMetadata, RecordAnswer, RecordRequest, Version};
use crate::read::Core;
use crate::registry::{BookieRegistry, RegisteredBookie};
use crate::shortfall::Shortfall;
use crate::time::Time;
use crate::transport::{CompletionSink, Response};

/// Learns what becomes of the appends of a ledger.
///
/// Called by the ledger's one task, in order, each method at most once per turn of it. Calls must be short: they hold
/// up the ledger. After the writer is dropped or closed there are no more calls; the outcome of what a dropped writer
/// had pending is unknown.
pub trait AppendSink: Send + Sync {
    /// Every entry up to `through` is acknowledged: it will be in the ledger whoever crashes.
    fn confirmed(&self, ledger: LedgerId, through: EntryId);

    /// The ledger takes no more entries. What was appended after the last confirmed entry has an unknown outcome.
    /// Called at most once, and last. Also with [`Error::Stopped`] when the task is aborted, as by a runtime that shuts
    /// down, or panics, from wherever it is dropped.
    fn failed(&self, ledger: LedgerId, error: Error);
}

/// The handle's side of a ledger's task. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Writing {
    inbox: Arc<Inbox>,
    lac: Arc<SharedLac>,
    report: Arc<Mutex<Report>>,
    /// What became of the last close; none before the first.
    closed: watch::Receiver<Option<Result<LedgerEnd, CloseError>>>,
}

/// What the task tells of itself.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// The newest record that it knows.
    pub(crate) record: (Arc<LedgerMetadata>, Version),
    pub(crate) stats: WriterStats,
    pub(crate) shortfalls: Vec<Shortfall>,
}

#[derive(Debug)]
struct Inbox {
    state: Mutex<InboxState>,
    arrived: Notify,
}

#[derive(Debug)]
struct InboxState {
    appends: Vec<Bytes>,
    responses: Vec<Response>,
    /// The id of the next append, given out under the lock that queues it.
    next: EntryId,
    intake: Intake,
    wish: Wish,
}

/// Whether appends are taken.
#[derive(Clone, Debug)]
enum Intake {
    Open,
    Refused(Error),
}

/// What the owner wants of the task.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Nothing,
    /// The end of the ledger, in the record. Granted by taking it.
    Close,
    /// To be rid of it.
    Drop,
}

/// Starts the task of a new ledger.
pub(crate) fn start(
    config: Config,
    core: Arc<Core>,
    registry: &dyn BookieRegistry,
    sink: Arc<dyn AppendSink>,
) -> Writing {
    let state = InboxState {
        appends: Vec::new(),
        responses: Vec::new(),
        next: EntryId::FIRST,
        intake: Intake::Open,
        wish: Wish::Nothing,
    };
    let inbox = Arc::new(Inbox { state: Mutex::new(state), arrived: Notify::new() });
    let lac = Arc::new(SharedLac::default());
    let (closed_tx, closed) = watch::channel(None);
    let ledger = config.ledger;
    let machine = Machine::new(config);
    let report = Arc::new(Mutex::new(Report::of(&machine)));
    let driver = Driver {
        ledger,
        machine,
        core,
        bookies: Some(registry.bookies()),
        bookies_due: true,
        rng: Rng::new(),
        question: None,
        inbox: inbox.clone(),
        lac: lac.clone(),
        report: report.clone(),
        sink: Some(sink),
        marked: Vec::new(),
        closed: closed_tx,
    };
    tokio::spawn(driver.run());
    Writing { inbox, lac, report, closed }
}

impl Writing {
    /// Queues a batch and gives the id of its first entry.
    pub(crate) fn append(
        &self,
        payloads: impl IntoIterator<Item = Bytes>,
    ) -> Result<EntryId, Error> {
        let mut state = self.inbox.state.lock();
        if let Intake::Refused(error) = &state.intake {
            return Err(error.clone());
        }
        let first = state.next;
        let (was_idle, queued) = (state.is_idle(), state.appends.len());
        state.appends.extend(payloads);
        state.next = EntryId(first.get() + (state.appends.len() - queued) as u64);
        let wake = was_idle && !state.is_idle();
        drop(state);
        if wake {
            self.inbox.arrived.notify_one();
        }
        Ok(first)
    }

    pub(crate) const fn lac(&self) -> &Arc<SharedLac> {
        &self.lac
    }

    pub(crate) fn report(&self) -> Report {
        self.report.lock().clone()
    }

    /// Refuses further appends, waits until the others are decided and the record has the end. May be called again and
    /// by several at once, who share one result; one that is not final is tried for again.
    pub(crate) async fn close(&self, ledger: LedgerId) -> Result<LedgerEnd, CloseError> {
        let mut closed = self.closed.clone();
        if let Some(result) = &*closed.borrow_and_update()
            && is_final(result)
        {
            return result.clone();
        }
        self.inbox.wish(Wish::Close, ledger);
        let stopped = Err(CloseError::Stopped { ledger });
        if closed.changed().await.is_err() {
            return stopped;
        }
        let result = closed.borrow_and_update().clone();
        result.unwrap_or(stopped)
    }
}

/// Whether asking again cannot lead to another result.
fn is_final(result: &Result<LedgerEnd, CloseError>) -> bool {
    !matches!(result, Err(CloseError::Unknown { .. } | CloseError::Fenced { .. }))
}

impl Report {
    fn of(machine: &Machine) -> Self {
        let (record, version) = machine.record();
        Self {
            record: (record.clone(), version),
            stats: machine.stats(),
            shortfalls: machine.shortfalls().to_vec(),
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut state = self.inbox.state.lock();
        state.wish = Wish::Drop;
        drop(state);
        self.inbox.arrived.notify_one();
    }
}

impl Inbox {
    fn wish(&self, wish: Wish, ledger: LedgerId) {
        let mut state = self.state.lock();
        if let Intake::Open = state.intake {
            state.intake = Intake::Refused(Error::Closed { ledger });
        }
        state.wish = wish;
        drop(state);
        self.arrived.notify_one();
    }

    /// Refuses further appends, and keeps the first reason but for the owner's close.
    fn refuse(&self, error: Error) {
        let mut state = self.state.lock();
        if let Intake::Open | Intake::Refused(Error::Closed { .. }) = state.intake {
            state.intake = Intake::Refused(error);
        }
    }
}

impl CompletionSink for Inbox {
    fn complete(&self, batch: &mut Vec<Response>) {
        let mut state = self.state.lock();
        let was_idle = state.is_idle();
        // Copied, so that both sides keep memory of the size that they need.
        state.responses.append(batch);
        let wake = was_idle && !state.is_idle();
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
    }
}

impl InboxState {
    const fn is_idle(&self) -> bool {
        self.appends.is_empty() && self.responses.is_empty()
    }
}

struct Driver {
    ledger: LedgerId,
    machine: Machine,
    core: Arc<Core>,
    /// None when the registry is gone and its list changes no more.
    bookies: Option<watch::Receiver<Arc<[RegisteredBookie]>>>,
    /// The machine has yet to be told what it lists.
    bookies_due: bool,
    rng: Rng,
    /// The machine's question about the record, if one is outstanding.
    question: Option<Question>,
    inbox: Arc<Inbox>,
    lac: Arc<SharedLac>,
    report: Arc<Mutex<Report>>,
    /// None once it was told of the end, or is not to be.
    sink: Option<Arc<dyn AppendSink>>,
    /// The shortfalls that the ledger is marked for.
    marked: Vec<Shortfall>,
    closed: watch::Sender<Option<Result<LedgerEnd, CloseError>>>,
}

type Question = Pin<Box<dyn Future<Output = (Option<Vec<Shortfall>>, RecordAnswer)> + Send>>;

/// What a turn said of the end.
#[derive(Default)]
struct Said {
    failed: Option<Error>,
    closed: Option<Result<LedgerEnd, CloseError>>,
}

impl Driver {
    async fn run(mut self) {
        let inbox: Arc<dyn CompletionSink> = self.inbox.clone();
        let (mut appends, mut responses) = (Vec::new(), Vec::new());
        let mut first = EntryId::FIRST;
        // One timer for the life of the task. It is armed for the first deadline and left alone while that moves
        // later; when it fires early it is armed again. A busy ledger touches it once per interval.
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let mut armed: Option<Time> = None;
        loop {
            self.feed_bookies();
            let wish = {
                let mut state = self.inbox.state.lock();
                mem::swap(&mut state.appends, &mut appends);
                mem::swap(&mut state.responses, &mut responses);
                match state.wish {
                    Wish::Drop => Wish::Drop,
                    Wish::Close | Wish::Nothing => mem::replace(&mut state.wish, Wish::Nothing),
                }
            };
            let idle = appends.is_empty() && responses.is_empty();
            let now = self.core.clock.now();
            // Responses first, so that the headers of what is sent now carry the newest LAC.
            self.machine.handle(now, Input::Responses(&mut responses));
            let appended = appends.len() as u64;
            self.machine.handle(now, Input::Append { first, payloads: &mut appends });
            first = EntryId(first.get() + appended);
            if self.machine.wake_at().is_some_and(|at| at <= now) {
                self.machine.handle(now, Input::Wake);
            }
            match wish {
                Wish::Nothing => {}
                Wish::Close => self.machine.handle(now, Input::Close),
                Wish::Drop => {
                    self.sink = None;
                    // What could not be noted before, and nobody else knows.
                    self.mark().await;
                    return;
                }
            }
            let said = self.drain(&inbox);
            if let ControlFlow::Break(()) = self.settle(said).await {
                return;
            }
            if !idle {
                // With bookies that answer at once the inbox may never be empty; others want to run as well.
                tokio::task::coop::consume_budget().await;
                continue;
            }
            if let Some(at) = self.machine.wake_at()
                && armed.is_none_or(|armed| at < armed)
            {
                timer.as_mut().reset(self.core.clock.instant(at));
                armed = Some(at);
            }
            // Everything awaited here is kept or asked for again if another branch is first.
            tokio::select! {
                // In this order, so that a simulation is the same each time; what is rare first.
                biased;
                (marked, answer) = answer_to(&mut self.question) => {
                    self.question = None;
                    self.marked = marked.unwrap_or_else(|| mem::take(&mut self.marked));
                    self.machine.handle(self.core.clock.now(), Input::Record(answer));
                }
                () = self.inbox.arrived.notified() => {}
                () = timer.as_mut(), if armed.is_some() => armed = None,
                () = change_of(&mut self.bookies) => self.bookies_due = true,
            }
        }
    }

    /// Tells the machine whom the registry lists, if that changed. The order is by lot, so that many ledgers that lose
    /// one bookie do not all move to the same other one.
    fn feed_bookies(&mut self) {
        // A registry that is gone still leaves its last list.
        if let Some(receiver) = &mut self.bookies
            && std::mem::take(&mut self.bookies_due)
        {
            let mut bookies = receiver.borrow_and_update().to_vec();
            // Sorted, so that the order depends on the generator alone.
            bookies.sort_unstable();
            self.rng.shuffle(&mut bookies);
            self.machine.handle(self.core.clock.now(), Input::Bookies(bookies.into()));
        }
    }

    /// Does what was asked for, and gathers what was said of the end.
    fn drain(&mut self, inbox: &Arc<dyn CompletionSink>) -> Said {
        let mut said = Said::default();
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Submit { bookie, mut requests } => {
                    self.core.transport.submit(&bookie, &mut requests, inbox)
                }
                Output::Record(request) => {
                    let (core, ledger) = (self.core.clone(), self.ledger);
                    // Before the record names other bookies or an end, the ledger is marked for what those before lack:
                    // after it nobody would look.
                    let unmarked = match &request {
                        RecordRequest::Write { .. } => self.unmarked(),
                        RecordRequest::Read => None,
                    };
                    self.question = Some(Box::pin(async move {
                        let marked = match unmarked {
                            Some(shortfalls) => mark(&core, ledger, shortfalls).await,
                            None => None,
                        };
                        let answer = RecordExchange::new(core, ledger).ask(request).await;
                        (marked, answer)
                    }));
                }
                Output::Confirmed { through } => {
                    // Readers first: who hears of an entry may read it.
                    self.lac.raise(Some(through));
                    if let Some(sink) = &self.sink {
                        sink.confirmed(self.ledger, through);
                    }
                }
                Output::EnsembleChanged { key, members } => {
                    let members: Vec<_> = members.iter().map(BookieId::as_str).collect();
                    tracing::info!(ledger = %self.ledger, %key, ?members, "changed the ensemble");
                }
                Output::Failed(error) => {
                    tracing::warn!(ledger = %self.ledger, "takes no more entries: {error}");
                    // Appends are refused before anybody hears of the end.
                    self.inbox.refuse(error.clone());
                    said.failed = Some(error);
                }
                Output::Closed(result) => {
                    match &result {
                        Ok(end) => tracing::debug!(ledger = %self.ledger, ?end, "closed"),
                        Err(error) => tracing::warn!(ledger = %self.ledger, "not closed: {error}"),
                    }
                    said.closed = Some(result);
                }
            }
        }
        self.publish();
        said
    }

    /// Tells of the end in this order: first the readers and the sink, who must not wait for a store that hangs, then
    /// the mark, and then who waits for the close, and finds both done.
    async fn settle(&mut self, Said { failed, closed }: Said) -> ControlFlow<()> {
        let ends = closed.as_ref().is_some_and(is_final);
        if failed.is_some() || ends {
            self.lac.end_writer();
            if let Some(error) = failed
                && let Some(sink) = self.sink.take()
            {
                sink.failed(self.ledger, error);
            }
            self.mark().await;
        }
        if let Some(result) = closed {
            self.closed.send_replace(Some(result));
        }
        if ends {
            self.sink = None;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// The shortfalls, if the ledger is not marked for all of them.
    fn unmarked(&self) -> Option<Vec<Shortfall>> {
        let shortfalls = self.machine.shortfalls();
        (shortfalls != self.marked).then(|| shortfalls.to_vec())
    }

    /// Marks the ledger for what was confirmed and may lack a copy.
    async fn mark(&mut self) {
        if let Some(shortfalls) = self.unmarked()
            && let Some(marked) = mark(&self.core, self.ledger, shortfalls).await
        {
            self.marked = marked;
        }
    }

    /// Tells the handle how things are, if that changed.
    fn publish(&self) {
        let mut report = self.report.lock();
        let (_, version) = self.machine.record();
        if report.record.1 != version || report.stats != self.machine.stats() {
            *report = Report::of(&self.machine);
        }
    }
}

/// Marks a ledger, and returns what it is marked for; none if the store does not let it, which is tried again when the
/// record is next written and at the end. Takes no longer than one operation of the store may: a freeze waits for it.
async fn mark(core: &Core, ledger: LedgerId, shortfalls: Vec<Shortfall>) -> Option<Vec<Shortfall>> {
    match marks::add(core, ledger, &shortfalls).await {
        Ok(()) => Some(shortfalls),
        Err(error) => {
            tracing::warn!(%ledger, ?shortfalls, "not marked as under-replicated: {error}");
            None
        }
    }
}

/// Completes with the answer to the question; never, if there is none. Dropping it leaves the question under way.
async fn answer_to(question: &mut Option<Question>) -> (Option<Vec<Shortfall>>, RecordAnswer) {
    match question {
        Some(question) => question.await,
        None => std::future::pending().await,
    }
}

/// Completes when the registry's list has changed; never, once it changes no more. Cancel-safe.
async fn change_of(bookies: &mut Option<watch::Receiver<Arc<[RegisteredBookie]>>>) {
    if let Some(receiver) = bookies {
        if receiver.changed().await.is_ok() {
            return;
        }
        *bookies = None;
    }
    std::future::pending().await
}

/// Tells the handle, the readers and the sink that the task is gone, also when a runtime that shuts down or a panic
/// took it.
impl Drop for Driver {
    fn drop(&mut self) {
        let stopped = Error::Stopped { ledger: self.ledger };
        {
            let mut state = self.inbox.state.lock();
            if let Intake::Open = state.intake {
                state.intake = Intake::Refused(stopped.clone());
            }
            state.appends = Vec::new();
        }
        self.lac.end_writer();
        if let Some(sink) = self.sink.take() {
            // A sink that has just panicked may do so again, which here would end the process.
            let told = catch_unwind(AssertUnwindSafe(|| sink.failed(self.ledger, stopped)));
            drop(told);
        }
    }
}
