//! Runs a replicator: one task that owns its machine, its session and its clock.
//!
//! Everything that happens is put into one mailbox; a turn takes what is there, hands it to the
//! machine and carries the outputs out. An idle replicator is one parked task and no timer.

mod commands;
mod link;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use georepl_cursor::{
    Entry, ManagedCursor, MarkDeleteError, MarkDeleteRefused, Offset, PersistError, Position,
    ReadError, ReadId, ReadLimits, ReadOutcome, ReadRefused, ReadSink, ReadStart, Rewound,
};
use georepl_storage::{Advice, Clock, Mailbox, MetadataError, Time};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use crate::change::{Change, Command, CommandRefused};
use crate::config::{ConfigError, ReplicatorConfig};
use crate::filter::{Verdict, decide};
use crate::machine::{Accounting, Held, Input, Machine, State, Stop};
use crate::message::{Frame, FrameError, Splicer};
use crate::port::{CursorPort, run};
use crate::producer::{EventSink, Prepared, RemoteProducer, RemoteSession, SessionEvent};
use crate::session::SessionId;
use crate::stats::{Meters, ReplicatorStats};
use crate::why::{StopReason, Why};
use crate::window::{Content, Delivered};
use link::Link;

/// Why a replicator could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NewReplicatorError {
    /// A name or a bound is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cursor could not be taken over.
    #[error("the cursor could not be taken over: {0}")]
    Ownership(#[from] MetadataError),
    /// That entries are about to be sent could not be stored with the cursor.
    #[error(transparent)]
    Persist(#[from] PersistError),
}

impl NewReplicatorError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Config(error) => error.advice(),
            Self::Ownership(error) => error.advice(),
            Self::Persist(error) => error.advice(),
        }
    }
}

/// The replicator ended for good before the topic was drained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the replicator ended for good: {reason}")]
pub struct Ended {
    /// Why.
    pub reason: StopReason,
}

impl Ended {
    /// What to do about it: open the cursor again if need be, and make a new replicator.
    pub const fn advice(&self) -> Advice {
        match self.reason {
            StopReason::LaterIncarnation(_) => Advice::GiveUp,
            _ => Advice::Reopen,
        }
    }
}

/// What a shutdown left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Entries that are not acknowledged; the next start continues with them.
    pub backlog: u64,
}

/// A replicator and its task. Clones are handles to the same one; when the last is dropped the
/// task ends, and what was sent and not acknowledged is settled by the next start.
#[derive(Clone)]
pub struct Replicator {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.events.close();
    }
}

struct Shared {
    config: ReplicatorConfig,
    cursor: Arc<ManagedCursor>,
    /// The version with which this replicator has taken the cursor.
    taken: Mutex<u64>,
    clock: Clock,
    machine: Mutex<Machine<Prepared>>,
    meters: Mutex<Meters>,
    /// Bounded by the window, the reads in flight and one opening; commands are the caller's.
    events: Mailbox<Event>,
    state: watch::Sender<State>,
    /// A turn has ended, so that what was acknowledged in it can be seen.
    turned: Notify,
}

enum Event {
    Input(Input<Prepared>),
    Read { id: ReadId, outcome: ReadOutcome<Entry> },
    Opened { id: SessionId, held: Held, session: Box<dyn RemoteSession> },
    Stored(Result<(), MarkDeleteError>),
    Fetched(Result<Entry, ReadError>),
    Command { command: Command, reply: oneshot::Sender<Result<u64, CommandRefused>> },
    Shutdown { until: Time, stopped: oneshot::Sender<()> },
}

impl Replicator {
    /// A stopped replicator of `cursor` to `remote`, with a task on the current runtime. Takes the
    /// cursor over: sessions of its earlier owners are refused from the first opening on. A
    /// replicator of the same cursor that still runs ends then; shut it down first.
    ///
    /// If the future is dropped, the cursor may have been taken over and nothing else has
    /// happened: call it again. Must be called within a runtime.
    ///
    /// # Errors
    /// [`NewReplicatorError`].
    pub async fn new(
        config: ReplicatorConfig,
        cursor: Arc<ManagedCursor>,
        remote: Arc<dyn RemoteProducer>,
    ) -> Result<Self, NewReplicatorError> {
        config.validate()?;
        let taken = cursor.take_ownership().await?;
        if cursor.progress().incarnation == 0 {
            cursor.store_progress(|progress| progress.incarnation = 1).await?;
        }
        let progress = cursor.progress();
        let owner = progress.sessions_after + taken;
        let machine = Machine::new(config.limits.clone(), config.poison, owner, &progress);
        let shared = Arc::new(Shared {
            meters: Mutex::new(meters(&config)),
            clock: Clock::new(),
            machine: Mutex::new(machine),
            events: Mailbox::new(),
            state: watch::Sender::new(State::Stopped),
            turned: Notify::new(),
            taken: Mutex::new(taken),
            config,
            cursor,
        });
        tokio::spawn(Task::new(Arc::clone(&shared), remote).run());
        Ok(Self { handle: Arc::new(Handle { shared }) })
    }

    /// Starts it. No effect when it runs, or when it ended for good (see [`Replicator::why`]).
    pub fn start(&self) {
        self.input(Input::Start);
    }

    /// Stops it at once. It may be started again.
    pub fn stop(&self) {
        self.input(Input::Stop(Stop::Now));
    }

    /// What the world sees.
    pub fn state(&self) -> State {
        *self.shared().state.borrow()
    }

    /// Follows the state.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.shared().state.subscribe()
    }

    /// Why nothing moves, or what it does just now.
    pub fn why(&self) -> Why {
        let shared = self.shared();
        let backlog = shared.cursor.backlog();
        shared.machine.lock().why(shared.clock.now(), backlog)
    }

    /// What became of the entries that were read.
    pub fn accounting(&self) -> Accounting {
        self.shared().machine.lock().accounting()
    }

    /// The figures of the reference's `topics stats`, by its names.
    pub fn stats(&self) -> ReplicatorStats {
        let shared = self.shared();
        let (accounting, connected) = {
            let machine = shared.machine.lock();
            (machine.accounting(), machine.connected())
        };
        let (now, backlog) = (shared.clock.now(), shared.cursor.backlog());
        shared.meters.lock().stats(now, &accounting, backlog, connected)
    }

    /// Waits until every entry that the topic holds at the call is acknowledged, which this
    /// replicator does once the remote durably has it; what is published later is not waited for.
    ///
    /// A replicator that is stopped or blocked may be started or unblocked, so it is waited for
    /// without an end: put a timeout around the call, and ask [`Replicator::why`] when it strikes.
    /// What somebody else acknowledges on the cursor is noticed at the replicator's next turn, and
    /// one that is blocked has none: use [`Replicator::skip`].
    /// Cancel-safe: a dropped call leaves nothing behind.
    ///
    /// # Errors
    /// [`Ended`], when it ended for good before that.
    pub async fn drained(&self) -> Result<(), Ended> {
        let shared = self.shared();
        let end = shared.cursor.ledger().end();
        loop {
            // Made before the cursor is asked: a turn that ends in between is not missed.
            let turned = shared.turned.notified();
            if shared.cursor.mark_delete_offset() >= end {
                return Ok(());
            }
            if let Some(reason) = shared.machine.lock().ended() {
                return Err(Ended { reason: reason.clone() });
            }
            turned.await;
        }
    }

    /// Stops reading and sending, waits until what was sent is answered, for at most `deadline`,
    /// and stops. What was asked for before it is done before it, so that it also undoes a start
    /// that has not happened yet. Cancel-safe: a dropped call stops all the same.
    pub async fn shutdown(&self, deadline: Duration) -> Leftover {
        let shared = self.shared();
        let (reply, stopped) = oneshot::channel();
        let until = shared.clock.now() + deadline;
        shared.events.push(Event::Shutdown { until, stopped: reply });
        // An error says that the task has ended, and then it is stopped too.
        let _ = stopped.await;
        Leftover { backlog: shared.cursor.backlog() }
    }

    fn input(&self, input: Input<Prepared>) {
        self.shared().events.push(Event::Input(input));
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl fmt::Debug for Replicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicator")
            .field("topic", &self.shared().config.topic)
            .field("remote", &self.shared().config.remote_cluster)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl ReadSink for Shared {
    fn read_completed(&self, id: ReadId, outcome: ReadOutcome<Entry>) {
        self.events.push(Event::Read { id, outcome });
    }
}

impl EventSink for Shared {
    fn session_event(&self, session: SessionId, event: SessionEvent) {
        self.events.push(Event::Input(match event {
            SessionEvent::Receipts(receipts) => Input::Receipts { session, receipts },
            SessionEvent::NotWritable(message) => Input::NotWritable { session, message },
            SessionEvent::Lost(message) => Input::Lost { session, message },
        }));
    }
}

fn meters(config: &ReplicatorConfig) -> Meters {
    Meters::new(&config.local_cluster, &config.remote_cluster, &config.topic)
}

struct Task {
    /// Part of the task from its making on, since a task may be dropped before its first turn.
    _obituary: Obituary,
    shared: Arc<Shared>,
    link: Link,
    splicer: Splicer,
    /// Shutdowns that wait for it to be stopped.
    shutdowns: Vec<oneshot::Sender<()>>,
    /// Of commands, in order.
    replies: VecDeque<oneshot::Sender<Result<u64, CommandRefused>>>,
    /// What was acknowledged before the change that is being stored.
    changed_from: Offset,
}

/// Whatever ends the task, also a panic in the remote's code or the end of the runtime: nobody is
/// left waiting for it, and it does not look as if it still ran.
struct Obituary(Arc<Shared>);

impl Drop for Obituary {
    fn drop(&mut self) {
        let Self(shared) = self;
        let message = if std::thread::panicking() {
            "its task panicked; the panic's message is on standard error"
        } else {
            "its runtime was shut down"
        };
        shared.machine.lock().fail(message.into());
        shared.events.close();
        let mut unread = Vec::new();
        shared.events.take_into(&mut unread);
        shared.publish(State::Stopped);
        shared.turned.notify_waiters();
    }
}

impl Task {
    fn new(shared: Arc<Shared>, remote: Arc<dyn RemoteProducer>) -> Self {
        let splicer = Splicer::new(&shared.config.local_cluster);
        let link = Link::new(Arc::clone(&shared), remote);
        let obituary = Obituary(Arc::clone(&shared));
        Self {
            _obituary: obituary,
            shared,
            link,
            splicer,
            shutdowns: Vec::new(),
            replies: VecDeque::new(),
            changed_from: Offset::ZERO,
        }
    }

    async fn run(mut self) {
        let mut events = Vec::new();
        loop {
            let wake = self.shared.wake();
            // Both waits are cancel-safe: what was not taken stays in the mailbox.
            tokio::select! {
                biased;
                taken = self.shared.events.recv_into(&mut events) => if taken.is_err() { break },
                () = sleep(self.shared.clock, wake), if wake.is_some() => {
                    events.push(Event::Input(Input::Tick));
                }
            }
            for event in events.drain(..) {
                self.take(event);
            }
            self.report();
            // While entries are at hand and the remote answers at once, nothing above ever waits.
            tokio::task::coop::consume_budget().await;
        }
        self.take(Event::Input(Input::Stop(Stop::Now)));
        self.report();
    }

    fn take(&mut self, event: Event) {
        let input = match event {
            Event::Input(input) => input,
            Event::Read { id, outcome } => {
                Input::ReadCompleted { id, outcome: self.prepare(outcome) }
            }
            Event::Opened { id, held, session } => {
                if !self.link.opened(id, session) {
                    return;
                }
                Input::Opened { session: id, held }
            }
            Event::Stored(stored) => self.stored(stored),
            Event::Fetched(fetched) => Input::Fetched(
                fetched.map(|entry| self.deliver(entry)).map_err(|error| error.to_string().into()),
            ),
            Event::Command { command, reply } => {
                self.replies.push_back(reply);
                Input::Command(command)
            }
            Event::Shutdown { until, stopped } => {
                self.shutdowns.push(stopped);
                Input::Stop(Stop::Settle(until))
            }
        };
        let (replies, changed_from) = (&mut self.replies, &mut self.changed_from);
        let mut cursor = Reader { shared: &self.shared, replies, changed_from };
        let state = {
            let mut machine = self.shared.machine.lock();
            run(&mut machine, self.shared.clock.now(), input, &mut cursor, &mut self.link);
            machine.state()
        };
        self.link.flush();
        self.shared.publish(state);
        if state == State::Stopped {
            // A receiver that is gone no longer wants to know.
            for stopped in self.shutdowns.drain(..) {
                let _ = stopped.send(());
            }
        }
    }

    fn prepare(&mut self, outcome: ReadOutcome<Entry>) -> ReadOutcome<Delivered<Prepared>> {
        match outcome {
            ReadOutcome::Entries(entries) => {
                ReadOutcome::Entries(entries.into_iter().map(|entry| self.deliver(entry)).collect())
            }
            ReadOutcome::Cancelled => ReadOutcome::Cancelled,
            ReadOutcome::Superseded => ReadOutcome::Superseded,
            ReadOutcome::Terminated => ReadOutcome::Terminated,
            ReadOutcome::Closed => ReadOutcome::Closed,
            ReadOutcome::Failed(failed) => ReadOutcome::Failed(failed),
        }
    }

    /// What cannot be understood is neither published nor passed over; it is named.
    fn deliver(&mut self, entry: Entry) -> Delivered<Prepared> {
        let Entry { position, payload, .. } = entry;
        let bytes = payload.len() as u64;
        let content = self
            .content(position, payload)
            .unwrap_or_else(|error| Content::Unreadable(error.to_string().into()));
        Delivered { position, bytes, content }
    }

    fn content(
        &mut self,
        position: Position,
        stored: bytes::Bytes,
    ) -> Result<Content<Prepared>, FrameError> {
        let frame = Frame::parse(stored)?;
        let facts = frame.facts()?;
        Ok(match decide(&facts, &self.shared.config.remote_cluster) {
            Verdict::Pass(reason) => Content::Pass(reason),
            Verdict::Send => Content::Send(Prepared::new(self.splicer.splice(&facts, position))),
        })
    }

    fn report(&self) {
        let shared = &self.shared;
        let accounting = shared.machine.lock().accounting();
        let backlog = shared.cursor.backlog();
        shared.meters.lock().turn(shared.clock.now(), &accounting, backlog);
        shared.turned.notify_waiters();
    }
}

impl Shared {
    /// When the machine is to be woken, and what that must not go beyond.
    fn wake(&self) -> Option<(Time, Option<Time>)> {
        let machine = self.machine.lock();
        machine.wake_at().map(|wake| (wake, machine.deadline()))
    }

    fn publish(&self, state: State) {
        self.state.send_if_modified(|known| {
            let changed = *known != state;
            if changed {
                let ReplicatorConfig { topic, remote_cluster, .. } = &self.config;
                tracing::info!(%topic, remote = %remote_cluster, ?state, "replicator");
            }
            *known = state;
            changed
        });
    }
}

/// Up to a tenth longer than asked, so that many replicators do not all come back at once; but
/// never beyond a deadline that somebody was promised.
async fn sleep(clock: Clock, wake: Option<(Time, Option<Time>)>) {
    if let Some((wake, deadline)) = wake {
        let wait = wake.saturating_since(clock.now());
        let late = wake + wait.mul_f64(fastrand::f64() / 10.0);
        clock.sleep_until(deadline.map_or(late, |deadline| late.min(deadline))).await;
    }
}

struct Reader<'a> {
    shared: &'a Arc<Shared>,
    replies: &'a mut VecDeque<oneshot::Sender<Result<u64, CommandRefused>>>,
    changed_from: &'a mut Offset,
}

impl CursorPort for Reader<'_> {
    fn read_or_wait(&mut self, limits: ReadLimits) -> Result<ReadStart, ReadRefused> {
        let sink: Arc<dyn ReadSink> = self.shared.clone();
        self.shared.cursor.submit_read(limits, sink)
    }

    fn cancel_pending_read(&mut self) -> bool {
        self.shared.cursor.cancel_pending_read()
    }

    fn rewind(&mut self) -> Rewound {
        self.shared.cursor.rewind()
    }

    fn acknowledge(
        &mut self,
        through: Offset,
        last_published: Option<Position>,
    ) -> Result<(), MarkDeleteRefused> {
        self.shared.cursor.acknowledge(through, last_published)
    }

    fn change(&mut self, change: Change) {
        *self.changed_from = self.shared.cursor.mark_delete_offset();
        commands::change(self.shared, change);
    }

    fn persist(&mut self) {
        commands::persist(self.shared);
    }

    fn fetch(&mut self, position: Position) {
        commands::fetch(self.shared, position);
    }

    fn answered(&mut self, answer: Result<u64, CommandRefused>) {
        let reply = self.replies.pop_front().expect("each command is answered once");
        // Whoever asked may be gone.
        let _ = reply.send(answer);
    }
}

#[cfg(test)]
mod tests;
