//! The replicator: reads, publishes, and acknowledges only what was published.
//!
//! ```text
//!             Start                        session open, cursor rewound
//!   Stopped ─────────► Starting ───────────────────────────────────────► Started
//!      ▲                  ▲  one procedure for the start and every failure  │
//!      │                  └── refused, gap, link lost, timeouts, moved ◄────┤ (still Started
//!      └────────────────────── Stop, Terminated and drained, cursor closed ─┘  to the world)
//! ```
//!
//! The procedure, [`Machine::begin_rewind`] to [`Machine::finish_rewind`]:
//!
//! 1. A reason enters `wait_for_cursor_rewinding`. While it has one, nothing is read or sent.
//! 2. The waiting read is cancelled. A read in storage is drained, for at most `read_timeout`.
//! 3. The old session is fenced: a newer one is opened. Its answer says what the remote holds of
//!    everything sent before, and nothing sent before can land any more.
//! 4. The cursor is rewound once: new generation, read position at the first unacknowledged entry.
//! 5. The reasons are cleared and reading goes on.
//!
//! Every failure ends its session, so within one session a position is sent at most once and an
//! answer can never be mistaken for the answer to another attempt.
//!
//! The cursor is not the replicator's own: an operator skips with it, another reader rewinds it or
//! reads from it, another replicator takes it over. A read that does not begin where the window
//! ends shows it, and is answered by the procedure too.
//!
//! An operator's commands, and what the poison policy passes over, change the cursor's record. While
//! a change is being stored there is no session, so nothing is sent before it is durable; then the
//! procedure starts anew from the changed record. A released entry is sent in an incarnation of its
//! own, after everything that the remote holds of the one before is acknowledged.
//!
//! The driver's obligations: pass each input once; then drain [`Machine::poll_output`] until
//! `None`, carrying each output out in order; answer [`Output::Read`], [`Output::CancelRead`] and
//! [`Output::Rewind`] with their input before polling again; call [`Machine::handle`] with
//! [`Input::Tick`] when [`Machine::wake_at`] has passed. [`crate::port::run`] does this.
//!
//! Invariants, asserted where they could break:
//!
//! 1. Only a settled prefix of the window is acknowledged.
//! 2. An entry is settled by this session's answer for exactly its position, by the watermark a
//!    session opened with, or by a recorded reason. By nothing else.
//! 3. Entries are sent in order, each once per session, each with the position sent before it.
//! 4. Only a read that begins at the window's tail enters the window: no gap, no overlap.
//! 5. read = published + duplicate + filtered + quarantined + discarded + rewound + open.
//! 6. A stopped machine wants nothing: no timer, no read, no session.

mod accounting;
mod changes;
mod events;
mod flow;
mod interface;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use georepl_cursor::{Generation, Position, Progress, ReadId, Rewound};
use georepl_storage::Time;

pub use accounting::Accounting;
use changes::Changing;
use flow::Flow;
pub use interface::{Held, Input, Output, State, Stop};

use crate::change::{Command, Poison};
use crate::limits::Limits;
use crate::session::{Incarnation, Revision, SessionId};
use crate::why::{Reason, RewindReason, StopReason, Wake, Why};
use crate::window::{Settled, Window};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Life<E> {
    Stopped(StopReason),
    /// The record is being changed, and no flow exists.
    Changing(Changing),
    Running(Box<Flow<E>>),
}

/// One replicator. `E` is what the driver publishes for an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine<E> {
    limits: Limits,
    poison: Poison,
    /// As it is stored with the cursor, or will be.
    progress: Progress,
    last_session: SessionId,
    life: Life<E>,
    /// What operators asked for while something else was being changed.
    commands: VecDeque<Command>,
    accounting: Accounting,
    /// The reason that [`Machine::why`] gives, and since when it does.
    reason_since: (&'static str, Time),
    outputs: VecDeque<Output<E>>,
}

impl<E> Machine<E> {
    /// A stopped replicator of the owner `owner` (the version its cursor's record got when it was
    /// taken), for a cursor with which `progress` is stored.
    pub fn new(limits: Limits, poison: Poison, owner: u64, progress: &Progress) -> Self {
        let incarnation = progress.incarnation.max(FIRST_INCARNATION);
        // What others have stored is no part of its state.
        let others = BTreeMap::new();
        Self {
            limits,
            poison,
            progress: Progress { incarnation, others, ..progress.clone() },
            last_session: SessionId { owner, counter: 0 },
            life: Life::Stopped(StopReason::NotStarted),
            commands: VecDeque::new(),
            accounting: Accounting::default(),
            reason_since: ("stopped", Time::ZERO),
            outputs: VecDeque::new(),
        }
    }

    /// Takes one input. Drain [`Machine::poll_output`] afterwards.
    pub fn handle(&mut self, now: Time, input: Input<E>) {
        match input {
            Input::Start => self.on_start(now),
            Input::Stop(Stop::Now) => self.stop(StopReason::Requested),
            Input::Stop(Stop::Settle(until)) => self.on_settle(until),
            Input::ReadAnswered(answer) => self.on_read_answered(now, answer),
            Input::ReadCompleted { id, outcome } => self.on_read_completed(now, id, outcome),
            Input::CancelAnswered(cancelled) => self.on_cancel_answered(now, cancelled),
            Input::Rewound(rewound) => self.finish_rewind(rewound),
            Input::CursorClosed => self.stop(StopReason::CursorClosed),
            Input::Opened { session, held } => self.on_opened(now, session, held),
            Input::OpenFailed { session, error } => self.on_open_failed(now, session, error),
            Input::SetBack { session, owner } => self.on_set_back(now, session, owner),
            Input::Receipts { session, receipts } => self.on_receipts(now, session, receipts),
            Input::NotWritable { session, message } => self.on_not_writable(session, message),
            Input::Lost { session, message } => self.on_lost(now, session, message),
            Input::Command(command) => self.commands.push_back(command),
            Input::Stored(stored) => self.on_stored(now, stored),
            Input::Fetched(fetched) => self.on_fetched(now, fetched),
            Input::Tick => {}
            Input::Failed(message) => self.stop(StopReason::Failed(message)),
        }
        self.advance(now);
        let reason = self.reason().name();
        if reason != self.reason_since.0 {
            self.reason_since = (reason, now);
        }
    }

    /// Ends it because whoever runs it cannot go on. Wants nothing done any more.
    pub fn fail(&mut self, message: Arc<str>) {
        let reason = StopReason::Failed(message);
        match &mut self.life {
            Life::Stopped(stopped) if stopped.may_restart() => *stopped = reason,
            Life::Stopped(_) | Life::Changing(_) | Life::Running(_) => self.stop(reason),
        }
        self.outputs.clear();
    }

    /// The next thing to do, until `None`.
    pub fn poll_output(&mut self) -> Option<Output<E>> {
        self.outputs.pop_front()
    }

    /// When to call [`Machine::handle`] with [`Input::Tick`], if nothing else happens before.
    pub fn wake_at(&self) -> Option<Time> {
        match &self.life {
            Life::Stopped(_) => None,
            Life::Changing(changing) => changing.wake_at(),
            Life::Running(flow) => flow.wake_at(),
        }
    }

    /// When a stop that settles is over at the latest. Unlike [`Machine::wake_at`], which a driver
    /// may overshoot a little, this was promised to somebody.
    pub fn deadline(&self) -> Option<Time> {
        match &self.life {
            Life::Stopped(_) | Life::Changing(_) => None,
            Life::Running(flow) => flow.stop_at,
        }
    }

    /// What the world sees.
    pub fn state(&self) -> State {
        match &self.life {
            Life::Stopped(_) => State::Stopped,
            Life::Changing(changing) => changing.state(),
            Life::Running(flow) if flow.is_starting() => State::Starting,
            Life::Running(_) => State::Started,
        }
    }

    /// Whether a session is open.
    pub fn connected(&self) -> bool {
        matches!(&self.life, Life::Running(flow) if flow.open_session().is_some())
    }

    /// Why nothing moves, given a backlog of so many entries.
    pub fn why(&self, now: Time, backlog: u64) -> Why {
        let (reason, wake) = match &self.life {
            Life::Stopped(_) => (self.reason(), Wake::Operator),
            Life::Changing(changing) => (self.reason(), changing.wake(now)),
            // A read that waits at the end of the topic was woken when there is more than was read.
            Life::Running(flow)
                if flow.reason() == Reason::WaitingForEntries
                    && backlog > flow.window.len() as u64 =>
            {
                (Reason::Reading, Wake::Read)
            }
            Life::Running(flow) => (self.reason(), flow.wake(now)),
        };
        Why { reason, since: now.saturating_since(self.reason_since.1), wake, backlog }
    }

    /// Why it ended for good, if it did: no start has an effect any more.
    pub fn ended(&self) -> Option<&StopReason> {
        match &self.life {
            Life::Stopped(reason) if !reason.may_restart() => Some(reason),
            Life::Stopped(_) | Life::Changing(_) | Life::Running(_) => None,
        }
    }

    /// What became of the entries that were read.
    pub fn accounting(&self) -> Accounting {
        let open = match &self.life {
            Life::Stopped(_) | Life::Changing(_) => 0,
            Life::Running(flow) => flow.window.len() as u64,
        };
        let mut accounting = self.accounting;
        accounting.open = open;
        debug_assert!(accounting.balances(), "5: every entry read is accounted for");
        accounting
    }

    /// The last position that the remote is known to hold and that is acknowledged.
    pub fn last_published(&self) -> Option<Position> {
        self.progress.last_published
    }

    /// What is stored with the cursor, or will be: the incarnation, and the entries that were passed
    /// over or given up, and what is to become of them.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The session that is open or being opened.
    pub fn session(&self) -> Option<SessionId> {
        match &self.life {
            Life::Stopped(_) | Life::Changing(_) => None,
            Life::Running(flow) => flow.any_session(),
        }
    }

    /// The entries that were read and are not acknowledged; none while it is stopped.
    pub fn window(&self) -> Option<&Window<E>> {
        match &self.life {
            Life::Stopped(_) | Life::Changing(_) => None,
            Life::Running(flow) => Some(&flow.window),
        }
    }

    /// Whether it waits for the cursor to be rewound, so that nothing is read or sent.
    pub fn awaits_rewind(&self) -> bool {
        matches!(&self.life, Life::Running(flow) if flow.is_rewinding())
    }

    /// The reads that were started and have not ended.
    pub fn outstanding_reads(&self) -> impl Iterator<Item = ReadId> + '_ {
        let flow = match &self.life {
            Life::Stopped(_) | Life::Changing(_) => None,
            Life::Running(flow) => Some(&**flow),
        };
        flow.into_iter().flat_map(Flow::outstanding_reads)
    }

    /// Renames sessions and generations, puts `now` at zero and forgets what only statistics
    /// remember, so that an exploration recognises situations that differ in nothing else.
    pub fn renumber(
        &mut self,
        now: Time,
        session: &dyn Fn(SessionId) -> SessionId,
        generation: &dyn Fn(Generation) -> Generation,
    ) {
        assert!(self.outputs.is_empty(), "outputs name the old ids");
        self.last_session = session(self.last_session);
        self.reason_since.1 = Time::ZERO;
        self.accounting = Accounting::default();
        match &mut self.life {
            Life::Stopped(_) => {}
            Life::Changing(changing) => changing.renumber(now),
            Life::Running(flow) => {
                self.accounting.read = flow.window.len() as u64;
                flow.renumber(now, session, generation);
            }
        }
    }

    fn reason(&self) -> Reason {
        match &self.life {
            Life::Stopped(reason) => Reason::Stopped(reason.clone()),
            Life::Changing(changing) => changing.reason(),
            Life::Running(flow) => self.unless_full(flow.reason()),
        }
    }

    fn on_start(&mut self, now: Time) {
        match &mut self.life {
            Life::Stopped(reason) if reason.may_restart() => {
                self.life = Life::Running(Box::new(Flow::starting(now)));
            }
            Life::Changing(changing) => changing.start(),
            Life::Stopped(_) | Life::Running(_) => {}
        }
    }

    fn on_settle(&mut self, until: Time) {
        match &mut self.life {
            Life::Stopped(_) => {}
            Life::Changing(changing) => changing.rest(),
            Life::Running(flow) => flow.settle_until(until),
        }
    }

    /// Ends whatever runs. The first reason stays.
    fn stop(&mut self, reason: StopReason) {
        match &mut self.life {
            Life::Stopped(_) => {}
            Life::Changing(changing) if reason == StopReason::Requested => changing.rest(),
            Life::Changing(_) | Life::Running(_) => {
                self.end_flow();
                self.refuse_change(&reason);
                self.life = Life::Stopped(reason);
            }
        }
    }

    /// What was sent may still land, until another session is opened.
    fn end_flow(&mut self) {
        let Life::Running(flow) = &self.life else {
            return;
        };
        if flow.has_reads() {
            self.outputs.push_back(Output::CancelRead);
        }
        self.outputs.extend(flow.any_session().map(Output::Close));
        self.accounting.rewound += flow.window.len() as u64;
    }

    fn next_session(&mut self) -> SessionId {
        self.last_session.counter += 1;
        self.last_session
    }
}

/// The rewind procedure.
impl<E> Machine<E> {
    /// Steps 1 and 2. A procedure that runs already absorbs the reason.
    fn begin_rewind(&mut self, now: Time, reason: RewindReason) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        let first = flow.await_rewind(reason, now + self.limits.read_timeout);
        if first && flow.has_reads() {
            self.outputs.push_back(Output::CancelRead);
        }
    }

    /// Steps 4 and 5.
    fn finish_rewind(&mut self, rewound: Rewound) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        self.accounting.rewinds += 1;
        self.accounting.rewound += flow.window.len() as u64;
        flow.rewound(rewound.read_position);
    }

    /// Does whatever can be done now.
    fn advance(&mut self, now: Time) {
        self.take_commands();
        self.store_again(now);
        self.expire(now);
        self.connect(now);
        self.acknowledge();
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        if flow.stop_at.is_some_and(|until| flow.settled_or_stuck() || until <= now) {
            return self.stop(StopReason::Requested);
        }
        if flow.ended_elsewhere() {
            self.cursor_moved(now);
        }
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        let releases = self.progress.kept.values().any(|kept| kept.is_released());
        if flow.is_drained() && !releases {
            return self.stop(StopReason::Drained);
        }
        if flow.may_rewind(now) {
            self.outputs.push_back(Output::Rewind);
            return;
        }
        self.send(now);
        self.read();
        self.pass_over_unreadable();
    }

    /// Step 3.
    fn connect(&mut self, now: Time) {
        let Life::Running(flow) = &self.life else {
            return;
        };
        if flow.stop_at.is_none() && flow.may_open(now) {
            let session = self.next_session();
            let until = now + self.limits.open_timeout;
            if let Life::Running(flow) = &mut self.life {
                flow.opening(session, until);
            }
            self.accounting.sessions += 1;
            self.outputs.push_back(Output::Open {
                session,
                incarnation: Incarnation(self.progress.incarnation),
                revision: Revision(self.progress.revision),
            });
        }
    }

    fn send(&mut self, now: Time) {
        if let Some(position) = self.sending() {
            return self.send_released(now, position);
        }
        if let Some(position) = self.released_now() {
            return self.begin_release(position);
        }
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        let Some(session) = flow.may_send() else {
            return;
        };
        let batch = flow.next_batch(now, &self.limits, &mut self.accounting);
        if !batch.is_empty() {
            self.outputs.push_back(Output::Send { session, batch });
        }
    }

    /// Acknowledges the settled prefix: the only place where entries leave the window forwards.
    fn acknowledge(&mut self) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        let before = flow.window.head();
        let published_before = self.progress.last_published;
        while let Some((position, bytes, how)) = flow.window.pop_settled() {
            self.accounting.settled(how, bytes);
            if matches!(how, Settled::Published | Settled::Duplicate) {
                self.progress.last_published = self.progress.last_published.max(Some(position));
            }
        }
        let through = flow.window.head();
        if through > before {
            let moved = self.progress.last_published != published_before;
            let last_published = self.progress.last_published.filter(|_| moved);
            self.outputs.push_back(Output::Acknowledge { through, last_published });
        }
        // Everything before the window is acknowledged, and is not read again.
        if let Some(first) = flow.window.first() {
            self.progress.forget_discarded(|at| at < first);
        }
    }

    fn read(&mut self) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        if let Some(limits) = flow.next_read(&self.limits) {
            self.outputs.push_back(Output::Read(limits));
        }
    }
}

/// Incarnation 0 is a record in which none has begun.
const FIRST_INCARNATION: u64 = 1;

/// How long until `at`.
fn until(now: Time, at: Time) -> Duration {
    at.saturating_since(now)
}

#[cfg(test)]
mod tests;
