//! What a running replicator knows: its session, its rewind, its window and its reads.

mod reading;
mod reasons;
mod sending;

use std::collections::VecDeque;
use std::sync::Arc;

use georepl_cursor::{Generation, Offset, Position, ReadId, ReadLimits};
use georepl_storage::Time;

use super::until;
use crate::limits::Limits;
use crate::session::{Receipt, SessionId};
use crate::why::{Reason, RewindReason, RewindReasons};
use crate::window::{Settled, Window};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Session {
    Closed {
        open_at: Time,
        failures: u32,
        last: Option<Arc<str>>,
    },
    Opening {
        id: SessionId,
        until: Time,
        failures: u32,
        /// The failure that this attempt follows, which is still why there is no session.
        last: Option<Arc<str>>,
    },
    Open {
        id: SessionId,
        failures: u32,
    },
    /// The remote and the source disagree on what was published. An operator decides.
    Blocked(Reason),
}

/// `wait_for_cursor_rewinding`, while it has a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rewinding {
    reasons: RewindReasons,
    /// Reads that are in storage then no longer hold the rewind up.
    drain_until: Time,
}

/// The cursor's reads as this replicator started them, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Outstanding {
    id: ReadId,
    limits: ReadLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asking {
    /// Another read may be asked for.
    Nothing,
    /// A read was asked for and not yet answered.
    For(ReadLimits),
    /// The last read waits for an entry.
    Waiting,
    /// The topic ends here, and no entry will follow.
    Ended(Offset),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Retry {
    pub(super) at: Time,
    pub(super) failures: u32,
    pub(super) message: Arc<str>,
}

/// How far the released entry has come that is sent before anything else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Releasing<E> {
    Nothing,
    Asked(Position),
    Ready(Position, E),
    Sent(Position),
}

/// The first entry without a receipt, and until when the remote may leave it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Awaited {
    position: Position,
    until: Time,
}

/// What is wrong with the first entry that the remote does not take.
enum Failure {
    Gap,
    Refused(Position, Arc<str>),
}

/// The entry that the remote refused last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RefusedHead {
    position: Position,
    retry: Retry,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow<E> {
    session: Session,
    rewinding: Option<Rewinding>,
    pub(super) window: Window<E>,
    /// The highest position the remote is known to hold.
    known: Option<Position>,
    /// The position sent last since the rewind; `known` before the first.
    previous: Option<Position>,
    reads: VecDeque<Outstanding>,
    asking: Asking,
    read_due: Option<Time>,
    /// The last read failed; no other is asked for before its time.
    read_retry: Option<Retry>,
    /// Failed reads since the last that brought entries.
    read_failures: u32,
    refused: Option<RefusedHead>,
    pub(super) releasing: Releasing<E>,
    awaited: Option<Awaited>,
    /// Why the remote takes no more, by its own words, until it does or the link has failed.
    not_writable: Option<Arc<str>>,
    pub(super) stop_at: Option<Time>,
}

/// Coming and going.
impl<E> Flow<E> {
    pub(super) fn starting(now: Time) -> Self {
        let mut reasons = RewindReasons::default();
        reasons.insert(RewindReason::Start);
        Self {
            session: Session::Closed { open_at: now, failures: 0, last: None },
            rewinding: Some(Rewinding { reasons, drain_until: now }),
            window: Window::new(Offset::ZERO),
            known: None,
            previous: None,
            reads: VecDeque::new(),
            asking: Asking::Nothing,
            read_due: None,
            read_retry: None,
            read_failures: 0,
            refused: None,
            releasing: Releasing::Nothing,
            awaited: None,
            not_writable: None,
            stop_at: None,
        }
    }

    pub(super) fn is_starting(&self) -> bool {
        self.rewinding.is_some_and(|rewinding| rewinding.reasons.contains(RewindReason::Start))
    }

    /// Nothing is read or sent any more. What storage still does no longer matters.
    pub(super) fn settle_until(&mut self, until: Time) {
        // Of two who wait, each was promised its own time.
        self.stop_at = Some(self.stop_at.map_or(until, |earlier| earlier.min(until)));
        self.read_due = None;
        self.read_retry = None;
    }

    /// Nothing is unanswered, or no answer can come any more in this session.
    pub(super) fn settled_or_stuck(&self) -> bool {
        self.first_unanswered().is_none() || self.open_session().is_none() || self.is_rewinding()
    }

    pub(super) fn is_drained(&self) -> bool {
        self.rewinding.is_none()
            && self.window.is_empty()
            && self.reads.is_empty()
            && self.asking == Asking::Ended(self.window.tail())
    }

    /// Another reader has brought the cursor to the end, and what lies before it is not here.
    pub(super) fn ended_elsewhere(&self) -> bool {
        let Asking::Ended(end) = self.asking else { return false };
        self.rewinding.is_none() && self.reads.is_empty() && end != self.window.tail()
    }

    pub(super) fn renumber(
        &mut self,
        now: Time,
        session: &dyn Fn(SessionId) -> SessionId,
        generation: &dyn Fn(Generation) -> Generation,
    ) {
        let shift = |at: &mut Time| *at = Time::ZERO + until(now, *at);
        let once = |failures: &mut u32| *failures = (*failures).min(1);
        match &mut self.session {
            Session::Closed { open_at, failures, .. } => {
                once(failures);
                shift(open_at);
            }
            Session::Opening { id, until, failures, .. } => {
                once(failures);
                *id = session(*id);
                shift(until);
            }
            Session::Open { id, failures } => {
                once(failures);
                *id = session(*id);
            }
            Session::Blocked(_) => {}
        }
        let retries = [self.read_retry.as_mut(), self.refused.as_mut().map(|r| &mut r.retry)];
        once(&mut self.read_failures);
        for retry in retries.into_iter().flatten() {
            once(&mut retry.failures);
            shift(&mut retry.at);
        }
        for read in &mut self.reads {
            read.id.generation = generation(read.id.generation);
        }
        self.rewinding.iter_mut().for_each(|rewinding| shift(&mut rewinding.drain_until));
        self.awaited.iter_mut().for_each(|awaited| shift(&mut awaited.until));
        let times = [&mut self.read_due, &mut self.stop_at];
        times.into_iter().flatten().for_each(shift);
    }
}

/// The session.
impl<E> Flow<E> {
    pub(super) fn open_session(&self) -> Option<SessionId> {
        match self.session {
            Session::Open { id, .. } => Some(id),
            _ => None,
        }
    }

    pub(super) fn any_session(&self) -> Option<SessionId> {
        match self.session {
            Session::Open { id, .. } | Session::Opening { id, .. } => Some(id),
            Session::Closed { .. } | Session::Blocked(_) => None,
        }
    }

    pub(super) fn is_opening(&self, session: SessionId) -> bool {
        matches!(self.session, Session::Opening { id, .. } if id == session)
    }

    pub(super) fn may_open(&self, now: Time) -> bool {
        matches!(self.session, Session::Closed { open_at, .. } if open_at <= now)
    }

    pub(super) fn opening(&mut self, id: SessionId, until: Time) {
        let failures = self.failures();
        let last = match &mut self.session {
            Session::Closed { last, .. } => last.take(),
            Session::Opening { .. } | Session::Open { .. } | Session::Blocked(_) => None,
        };
        self.session = Session::Opening { id, until, failures, last };
    }

    /// The remote answered: nothing of an older session can land any more, and it holds
    /// everything up to `watermark`. So every send of an older session is settled.
    pub(super) fn opened(&mut self, id: SessionId, watermark: Option<Position>) {
        self.session = Session::Open { id, failures: self.failures() };
        self.known = watermark;
        self.window.settle_through(watermark);
        self.releasing = Releasing::Nothing;
        self.awaited = None;
    }

    pub(super) fn block(&mut self, now: Time, reason: Reason) {
        *self = Self { session: Session::Blocked(reason), rewinding: None, ..Self::starting(now) };
    }

    /// The session is gone; the next is opened after a delay that grows with the failures.
    pub(super) fn retry_open(&mut self, now: Time, message: Arc<str>, limits: &Limits) {
        let failures = self.failures().saturating_add(1);
        let open_at = now + limits.open_backoff.delay(failures);
        self.session = Session::Closed { open_at, failures, last: Some(message) };
        self.awaited = None;
        self.not_writable = None;
    }

    pub(super) fn not_writable(&mut self, message: Arc<str>) {
        self.not_writable = Some(message);
    }

    /// The remote left an entry without a receipt. If it said why, that is still the reason; the
    /// session is given up all the same, since the link may have died meanwhile.
    pub(super) fn receipts_overdue(&mut self, now: Time, limits: &Limits) {
        let said = self.not_writable.take();
        let message = said.clone();
        let silent = || "the remote left an entry without a receipt".into();
        self.retry_open(now, message.unwrap_or_else(silent), limits);
        self.not_writable = said;
    }

    /// The session is given up although it is sound, and the next is opened at once.
    pub(super) fn reopen(&mut self, now: Time) {
        self.session = Session::Closed { open_at: now, failures: self.failures(), last: None };
        self.awaited = None;
    }

    /// Settles what the receipts speak of. Returns the reason if the session must be given up.
    pub(super) fn take_receipts(
        &mut self,
        now: Time,
        receipts: Vec<Receipt>,
        limits: &Limits,
    ) -> Option<RewindReason> {
        self.not_writable = None;
        let mut failed: Option<Failure> = None;
        for receipt in receipts {
            let failure = match receipt {
                Receipt::Published(position) => {
                    self.settle(position, Settled::Published);
                    continue;
                }
                Receipt::Duplicate(position) => {
                    self.settle(position, Settled::Duplicate);
                    continue;
                }
                Receipt::Gap(_) => Failure::Gap,
                Receipt::Refused(position, refusal) => Failure::Refused(position, refusal.message),
            };
            // Behind a failure the remote fails others only in its wake.
            failed.get_or_insert(failure);
        }
        self.await_receipts(now, limits);
        match failed? {
            Failure::Gap => {
                self.retry_open(now, "the remote reported a gap".into(), limits);
                Some(RewindReason::Gap)
            }
            // The entry itself is held back, so the session need not be.
            Failure::Refused(position, message) if self.is_unanswered(position) => {
                self.refuse(now, position, message, limits);
                self.reopen(now);
                Some(RewindReason::Refused)
            }
            Failure::Refused(position, message) => {
                let message = format!(
                    "the remote refused {position}, for which no answer was awaited: {message}"
                );
                self.retry_open(now, message.into(), limits);
                Some(RewindReason::LinkLost)
            }
        }
    }

    fn is_unanswered(&self, position: Position) -> bool {
        matches!(self.releasing, Releasing::Sent(sent) if sent == position)
            || self.window.is_unanswered(position)
    }

    /// The time begins anew only when another entry is the first without a receipt: answers for
    /// later ones say nothing about it.
    fn await_receipts(&mut self, now: Time, limits: &Limits) {
        let first = self.first_unanswered();
        if self.awaited.map(|awaited| awaited.position) != first {
            let until = now + limits.receipt_timeout;
            self.awaited = first.map(|position| Awaited { position, until });
        }
    }

    /// A released entry was acknowledged long ago, and is not in the window.
    fn first_unanswered(&self) -> Option<Position> {
        match self.releasing {
            Releasing::Sent(position) => Some(position),
            _ => self.window.first_unanswered(),
        }
    }

    fn settle(&mut self, position: Position, how: Settled) {
        let released = matches!(self.releasing, Releasing::Sent(sent) if sent == position);
        if released {
            self.releasing = Releasing::Nothing;
        }
        if released || self.window.settle(position, how) {
            self.known = self.known.max(Some(position));
            if let Session::Open { failures, .. } = &mut self.session {
                *failures = 0;
            }
        }
    }

    fn refuse(&mut self, now: Time, position: Position, message: Arc<str>, limits: &Limits) {
        let before = self.refused.take().filter(|refused| refused.position == position);
        let failures = before.map_or(0, |refused| refused.retry.failures).saturating_add(1);
        let at = now + limits.refused_backoff.delay(failures);
        self.refused = Some(RefusedHead { position, retry: Retry { at, failures, message } });
    }

    fn failures(&self) -> u32 {
        match self.session {
            Session::Closed { failures, .. }
            | Session::Opening { failures, .. }
            | Session::Open { failures, .. } => failures,
            Session::Blocked(_) => 0,
        }
    }
}

/// The rewind.
impl<E> Flow<E> {
    pub(super) fn is_rewinding(&self) -> bool {
        self.rewinding.is_some()
    }

    #[cfg(test)]
    pub(super) fn rewinding_for(&self, reason: RewindReason) -> bool {
        self.rewinding.is_some_and(|rewinding| rewinding.reasons.contains(reason))
    }

    /// Adds a reason. True when it is the first, so that the procedure begins.
    pub(super) fn await_rewind(&mut self, reason: RewindReason, drain_until: Time) -> bool {
        let first = self.rewinding.is_none();
        let fresh = Rewinding { reasons: RewindReasons::default(), drain_until };
        self.rewinding.get_or_insert(fresh).reasons.insert(reason);
        self.read_retry = None;
        self.read_due = None;
        first
    }

    /// Reads are drained and the old session is fenced.
    pub(super) fn may_rewind(&self, now: Time) -> bool {
        self.rewinding.is_some_and(|r| self.reads.is_empty() || r.drain_until <= now)
            && self.open_session().is_some()
            && self.stop_at.is_none()
    }

    pub(super) fn rewound(&mut self, read_position: Offset) {
        self.rewinding = None;
        self.window = Window::new(read_position);
        self.previous = self.known;
        self.reads.clear();
        self.asking = Asking::Nothing;
    }
}
