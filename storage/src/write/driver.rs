//! The one task of a ledger that is open for writing.
//!
//! Appends and responses meet in one inbox under one short lock. The task takes everything there is, feeds the
//! machine, submits one batch per bookie, reports once, and parks when there is nothing to do.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::{Config, Error, Input, Machine, Output};
use crate::id::{EntryId, LedgerId};
use crate::lac::SharedLac;
use crate::metadata::LedgerEnd;
use crate::time::Clock;
use crate::transport::{BookieTransport, CompletionSink, Response};

/// Learns what becomes of the appends of a ledger.
///
/// Called by the ledger's one task, in order, each method at most once per turn of it. Calls must be short: they hold
/// up the ledger. After the writer is dropped, or its runtime is shut down, there are no more calls, and the outcome
/// of what was pending is unknown.
pub trait AppendSink: Send + Sync {
    /// Every entry up to `through` is acknowledged: it will be in the ledger whoever crashes.
    fn confirmed(&self, ledger: LedgerId, through: EntryId);

    /// The ledger takes no more entries. What was appended after the last confirmed entry has an unknown outcome.
    /// Called at most once, and last.
    fn failed(&self, ledger: LedgerId, error: Error);
}

/// How a ledger's task ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// Where the ledger may be closed: the final LAC and the length at it.
    pub(crate) confirmed: LedgerEnd,
    /// Why it failed; none if it was closed in order.
    pub(crate) error: Option<Error>,
}

/// The handle's side of a ledger's task. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Writing {
    inbox: Arc<Inbox>,
    lac: Arc<SharedLac>,
    ended: watch::Receiver<Option<Ended>>,
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
    phase: Phase,
}

/// What the owner wants of the task.
#[derive(Clone, Debug)]
enum Phase {
    Open,
    Closing,
    Dropped,
    Ended(Error),
}

/// Starts the task of a new ledger.
pub(crate) fn start(
    config: Config,
    clock: Clock,
    transport: Arc<dyn BookieTransport>,
    sink: Arc<dyn AppendSink>,
) -> Writing {
    let state = InboxState {
        appends: Vec::new(),
        responses: Vec::new(),
        next: EntryId::FIRST,
        phase: Phase::Open,
    };
    let inbox = Arc::new(Inbox { state: Mutex::new(state), arrived: Notify::new() });
    let lac = Arc::new(SharedLac::default());
    let (ended_tx, ended) = watch::channel(None);
    let driver = Driver {
        ledger: config.ledger,
        machine: Machine::new(config),
        clock,
        transport,
        responses_to: inbox.clone(),
        lac: lac.clone(),
        sink,
        ending: Ending { inbox: inbox.clone(), ended: ended_tx },
    };
    tokio::spawn(driver.run());
    Writing { inbox, lac, ended }
}

impl Writing {
    /// Queues a batch and gives the id of its first entry.
    pub(crate) fn append(
        &self,
        ledger: LedgerId,
        payloads: impl IntoIterator<Item = Bytes>,
    ) -> Result<EntryId, Error> {
        let mut state = self.inbox.state.lock();
        match &state.phase {
            Phase::Open => {}
            Phase::Closing | Phase::Dropped => return Err(Error::Closed { ledger }),
            Phase::Ended(error) => return Err(error.clone()),
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

    /// Refuses further appends and waits until the others are decided. May be called again and by several at once.
    pub(crate) async fn finish(&self, ledger: LedgerId) -> Ended {
        self.inbox.request(Phase::Closing);
        let mut ended = self.ended.clone();
        let stopped =
            Ended { confirmed: LedgerEnd::default(), error: Some(Error::Stopped { ledger }) };
        match ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(stopped),
            Err(_) => stopped,
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.inbox.request(Phase::Dropped);
    }
}

impl Inbox {
    fn request(&self, phase: Phase) {
        let mut state = self.state.lock();
        if let Phase::Open | Phase::Closing = state.phase {
            state.phase = phase;
        }
        drop(state);
        self.arrived.notify_one();
    }
}

impl CompletionSink for Inbox {
    fn complete(&self, batch: &mut Vec<Response>) {
        let mut state = self.state.lock();
        let was_idle = state.is_idle();
        if state.responses.is_empty() {
            mem::swap(&mut state.responses, batch);
        } else {
            state.responses.append(batch);
        }
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
    clock: Clock,
    transport: Arc<dyn BookieTransport>,
    responses_to: Arc<Inbox>,
    lac: Arc<SharedLac>,
    sink: Arc<dyn AppendSink>,
    ending: Ending,
}

/// Tells the handle that the task is gone, also when a runtime that shuts down or a panic took it.
struct Ending {
    inbox: Arc<Inbox>,
    ended: watch::Sender<Option<Ended>>,
}

enum Turn {
    Continue,
    End,
}

impl Driver {
    async fn run(mut self) {
        let inbox: Arc<dyn CompletionSink> = self.responses_to.clone();
        let (mut appends, mut responses) = (Vec::new(), Vec::new());
        let mut first = EntryId::FIRST;
        // One timer for the life of the task. It is armed for the oldest deadline and left alone while that moves
        // later; when it fires early it is armed again. A busy ledger touches it once per request timeout.
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let mut armed = None;
        loop {
            let phase = {
                let mut state = self.responses_to.state.lock();
                mem::swap(&mut state.appends, &mut appends);
                mem::swap(&mut state.responses, &mut responses);
                state.phase.clone()
            };
            let idle = appends.is_empty() && responses.is_empty();
            let now = self.clock.now();
            // Responses first, so that the headers of what is sent now carry the newest LAC.
            self.machine.handle(now, Input::Responses(&mut responses));
            let appended = appends.len() as u64;
            self.machine.handle(now, Input::Append { first, payloads: &mut appends });
            first = EntryId(first.get() + appended);
            if self.machine.wake_at().is_some_and(|at| at <= now) {
                self.machine.handle(now, Input::Wake);
            }
            match phase {
                Phase::Open => {}
                Phase::Closing => self.machine.handle(now, Input::Close),
                Phase::Dropped | Phase::Ended(_) => return,
            }
            if let Turn::End = self.drain(&inbox) {
                return;
            }
            if !idle {
                // With bookies that answer at once the inbox may never be empty; others want to run as well.
                tokio::task::coop::consume_budget().await;
                continue;
            }
            if armed.is_none()
                && let Some(at) = self.machine.wake_at()
            {
                timer.as_mut().reset(self.clock.instant(at));
                armed = Some(at);
            }
            tokio::select! {
                () = self.responses_to.arrived.notified() => {}
                () = timer.as_mut(), if armed.is_some() => armed = None,
            }
        }
    }

    fn drain(&mut self, inbox: &Arc<dyn CompletionSink>) -> Turn {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Submit { bookie, mut requests } => {
                    self.transport.submit(&bookie, &mut requests, inbox)
                }
                Output::Confirmed { through } => {
                    // Readers first: who hears of an entry may read it.
                    self.lac.set(Some(through));
                    self.sink.confirmed(self.ledger, through);
                }
                Output::Failed(error) => {
                    self.ending.end(
                        Ended { confirmed: self.machine.confirmed(), error: Some(error.clone()) },
                        &error,
                    );
                    self.sink.failed(self.ledger, error);
                    return Turn::End;
                }
                Output::Settled(confirmed) => {
                    self.ending.end(
                        Ended { confirmed, error: None },
                        &Error::Closed { ledger: self.ledger },
                    );
                    return Turn::End;
                }
            }
        }
        Turn::Continue
    }
}

impl Ending {
    fn end(&self, ended: Ended, later_appends: &Error) {
        // Appends are refused before anybody hears of the end.
        self.inbox.state.lock().phase = Phase::Ended(later_appends.clone());
        self.ended.send_replace(Some(ended));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let mut state = self.responses_to.state.lock();
        if let Phase::Open | Phase::Closing = state.phase {
            state.phase = Phase::Ended(Error::Stopped { ledger: self.ledger });
        }
        state.appends = Vec::new();
    }
}
