//! Runs a replicator: one task that owns its machine, its session and its clock.
//!
//! Everything that happens is put into one mailbox; a turn takes what is there, hands it to the
//! machine and carries the outputs out. An idle replicator is one parked task and no timer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use georepl_cursor::{
    Entry, ManagedCursor, MarkDeleteRefused, Offset, Position, ReadError, ReadId, ReadLimits,
    ReadOutcome, ReadRefused, ReadSink, ReadStart, Rewound,
};
use georepl_storage::{Clock, Mailbox, MetadataError, Time};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::filter::{Verdict, decide};
use crate::limits::{Limits, LimitsError};
use crate::machine::{Accounting, Held, Input, Machine, State, Stop};
use crate::message::{Frame, FrameError, Splicer};
use crate::port::{CursorPort, RemotePort, run};
use crate::producer::{
    EventSink, OpenedSession, Opening, Prepared, RemoteProducer, RemoteSession, SessionEvent,
    SessionEvents,
};
use crate::session::{Incarnation, OpenError, Outgoing, SessionId, Source, Watermark};
use crate::stats::{Meters, ReplicatorStats};
use crate::why::Why;
use crate::window::{Content, Delivered};

/// Which topic goes where, and within which bounds.
#[derive(Clone, Debug)]
pub struct ReplicatorConfig {
    /// The cluster the topic belongs to: the origin that its entries carry.
    pub local_cluster: Arc<str>,
    /// The cluster it is replicated to, by which publishers select.
    pub remote_cluster: Arc<str>,
    /// The topic's full name.
    pub topic: Arc<str>,
    /// Bounds and timeouts.
    pub limits: Limits,
}

impl ReplicatorConfig {
    /// With the default limits.
    pub fn new(
        local_cluster: impl Into<Arc<str>>,
        remote_cluster: impl Into<Arc<str>>,
        topic: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            local_cluster: local_cluster.into(),
            remote_cluster: remote_cluster.into(),
            topic: topic.into(),
            limits: Limits::default(),
        }
    }
}

/// Why a replicator could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NewReplicatorError {
    /// A bound is out of range.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The cursor could not be taken over.
    #[error("the cursor could not be taken over: {0}")]
    Ownership(#[from] MetadataError),
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
}

impl Replicator {
    /// A stopped replicator of `cursor` to `remote`, with a task on the current runtime. Takes the
    /// cursor over: sessions of its earlier owners are refused from the first opening on.
    ///
    /// # Errors
    /// [`NewReplicatorError`].
    pub async fn new(
        config: ReplicatorConfig,
        cursor: Arc<ManagedCursor>,
        remote: Arc<dyn RemoteProducer>,
    ) -> Result<Self, NewReplicatorError> {
        config.limits.validate()?;
        let owner = cursor.take_ownership().await?;
        let machine = Machine::new(config.limits.clone(), owner, cursor.last_published());
        let shared = Arc::new(Shared {
            meters: Mutex::new(Meters::new(&config.topic, &config.remote_cluster)),
            clock: Clock::new(),
            machine: Mutex::new(machine),
            events: Mailbox::new(),
            state: watch::Sender::new(State::Stopped),
            turned: Notify::new(),
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
    /// What somebody else acknowledges on the cursor is noticed at the replicator's next turn.
    /// Cancel-safe: a dropped call leaves nothing behind.
    pub async fn drained(&self) {
        let shared = self.shared();
        let end = shared.cursor.ledger().end();
        loop {
            // Made before the cursor is asked: a turn that ends in between is not missed.
            let turned = shared.turned.notified();
            if shared.cursor.mark_delete_offset() >= end {
                return;
            }
            turned.await;
        }
    }

    /// Stops reading and sending, waits until what was sent is answered, for at most `deadline`,
    /// and stops. Cancel-safe: a dropped call stops all the same.
    pub async fn shutdown(&self, deadline: Duration) -> Leftover {
        let shared = self.shared();
        let mut state = self.watch();
        self.input(Input::Stop(Stop::Settle(shared.clock.now() + deadline)));
        let stopped = state.wait_for(|state| *state == State::Stopped).await;
        drop(stopped);
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
            SessionEvent::Lost(message) => Input::Lost { session, message },
        }));
    }
}

struct Task {
    shared: Arc<Shared>,
    link: Link,
    splicer: Splicer,
}

impl Task {
    fn new(shared: Arc<Shared>, remote: Arc<dyn RemoteProducer>) -> Self {
        let splicer = Splicer::new(&shared.config.local_cluster);
        let link = Link { shared: Arc::clone(&shared), remote, opening: None, session: None };
        Self { shared, link, splicer }
    }

    async fn run(mut self) {
        let mut events = Vec::new();
        loop {
            let wake = self.shared.machine.lock().wake_at();
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
                if self.link.opening.as_ref().is_none_or(|(opening, _)| *opening != id) {
                    return;
                }
                self.link.opening = None;
                self.link.session = Some((id, session));
                Input::Opened { session: id, held }
            }
        };
        let mut cursor = Reader { shared: &self.shared };
        let mut machine = self.shared.machine.lock();
        run(&mut machine, self.shared.clock.now(), input, &mut cursor, &mut self.link);
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
        let frame = Frame::parse(stored.clone())?;
        let facts = frame.facts()?;
        Ok(match decide(&facts, &self.shared.config.remote_cluster) {
            Verdict::Pass(reason) => Content::Pass(reason),
            Verdict::Send => {
                Content::Send(Prepared::new(self.splicer.splice(&facts, position), &stored))
            }
        })
    }

    fn report(&self) {
        let (state, accounting) = {
            let machine = self.shared.machine.lock();
            (machine.state(), machine.accounting())
        };
        let backlog = self.shared.cursor.backlog();
        self.shared.meters.lock().turn(self.shared.clock.now(), &accounting, backlog);
        self.shared.state.send_if_modified(|known| {
            let changed = *known != state;
            if changed {
                let ReplicatorConfig { topic, remote_cluster, .. } = &self.shared.config;
                tracing::info!(%topic, remote = %remote_cluster, ?state, "replicator");
            }
            *known = state;
            changed
        });
        self.shared.turned.notify_waiters();
    }
}

/// Up to a tenth longer than asked, so that many replicators do not all come back at once.
async fn sleep(clock: Clock, wake: Option<Time>) {
    if let Some(wake) = wake {
        let wait = wake.saturating_since(clock.now());
        clock.sleep_until(wake + wait.mul_f64(fastrand::f64() / 10.0)).await;
    }
}

struct Reader<'a> {
    shared: &'a Arc<Shared>,
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
}

/// The session that is open or being opened; at most one of each.
struct Link {
    shared: Arc<Shared>,
    remote: Arc<dyn RemoteProducer>,
    opening: Option<(SessionId, JoinHandle<()>)>,
    session: Option<(SessionId, Box<dyn RemoteSession>)>,
}

impl RemotePort<Prepared> for Link {
    fn open(&mut self, session: SessionId, incarnation: Incarnation) {
        self.abort_opening();
        let config = &self.shared.config;
        let source =
            Source { cluster: Arc::clone(&config.local_cluster), topic: Arc::clone(&config.topic) };
        let opening = Opening { source, session, incarnation };
        let (shared, remote) = (Arc::clone(&self.shared), Arc::clone(&self.remote));
        let task = tokio::spawn(async move {
            let sink: Arc<dyn EventSink> = shared.clone();
            let opened = remote.open(opening, SessionEvents::new(session, sink)).await;
            let answer = match opened {
                Ok(opened) => check(&shared.cursor, opened).await,
                Err(error) => Err(error),
            };
            shared.events.push(match answer {
                Ok((held, opened)) => Event::Opened { id: session, held, session: opened },
                Err(error) => Event::Input(Input::OpenFailed { session, error }),
            });
        });
        self.opening = Some((session, task));
    }

    fn send(&mut self, session: SessionId, batch: Vec<Outgoing<Prepared>>) {
        if let Some((open, remote)) = &mut self.session
            && *open == session
        {
            remote.submit(batch);
        }
    }

    fn close(&mut self, session: SessionId) {
        if self.opening.as_ref().is_some_and(|(opening, _)| *opening == session) {
            self.abort_opening();
        }
        if self.session.as_ref().is_some_and(|(open, _)| *open == session) {
            self.session = None;
        }
    }
}

impl Link {
    fn abort_opening(&mut self) {
        if let Some((_, task)) = self.opening.take() {
            task.abort();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.abort_opening();
    }
}

/// Compares what the remote holds with this source's own log. A source that lost data may have
/// used a position again for another entry; going on would leave the two logs apart for good.
async fn check(
    cursor: &ManagedCursor,
    opened: OpenedSession,
) -> Result<(Held, Box<dyn RemoteSession>), OpenError> {
    let OpenedSession { watermark, session } = opened;
    let held = match watermark {
        None => Held::Through(None),
        Some(Watermark { position, checksum }) => match cursor.ledger().read_at(position).await {
            Ok(own) if crc32c::crc32c(&own.payload) == checksum => Held::Through(Some(position)),
            Ok(_) | Err(ReadError::NoSuchEntry { .. }) => Held::Foreign(position),
            Err(error) => {
                let message = format!("the entry it names, {position}, was not read: {error}");
                return Err(OpenError::Unreachable(message.into()));
            }
        },
    };
    Ok((held, session))
}

#[cfg(test)]
mod tests;
