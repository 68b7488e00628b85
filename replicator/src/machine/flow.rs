//! What a running replicator knows: its session, its rewind, its window and its reads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use georepl_cursor::{Generation, Kept, Offset, Position, ReadId, ReadLimits, ReadStart};
use georepl_storage::Time;

use super::accounting::Accounting;
use super::until;
use crate::limits::Limits;
use crate::session::{Outgoing, Receipt, SessionId};
use crate::why::{Reason, RewindReason, RewindReasons, Wake};
use crate::window::{Delivered, Settled, Window};

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
    /// No entry will follow.
    Ended,
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
        self.asking == Asking::Ended
            && self.rewinding.is_none()
            && self.window.is_empty()
            && self.reads.is_empty()
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
        let mut failed = None;
        for receipt in receipts {
            match receipt {
                Receipt::Published(position) => self.settle(position, Settled::Published),
                Receipt::Duplicate(position) => self.settle(position, Settled::Duplicate),
                Receipt::Gap(_) => failed = failed.or(Some(RewindReason::Gap)),
                Receipt::Refused(position, refusal) => {
                    // Behind a failure the remote refuses only in its wake.
                    if failed.is_none() {
                        self.refuse(now, position, refusal.message, limits);
                        failed = Some(RewindReason::Refused);
                    }
                }
            }
        }
        self.await_receipts(now, limits);
        match failed {
            Some(RewindReason::Refused) => self.reopen(now),
            Some(_) => self.retry_open(now, "the remote reported a gap".into(), limits),
            None => {}
        }
        failed
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

/// Sending.
impl<E> Flow<E> {
    pub(super) fn may_send(&self) -> Option<SessionId> {
        let free = self.rewinding.is_none() && self.stop_at.is_none();
        self.open_session().filter(|_| free)
    }

    /// The entries that can be sent now, up to the first that blocks what follows.
    pub(super) fn next_batch(
        &mut self,
        now: Time,
        limits: &Limits,
        accounting: &mut Accounting,
    ) -> Vec<Outgoing<E>> {
        let mut batch = Vec::new();
        while let Some(position) = self.window.next_ready() {
            if self.holds_back(position, now) {
                break;
            }
            let entry = self.window.send_next();
            let previous = self.previous.replace(position);
            accounting.sent(position);
            batch.push(Outgoing { previous, position, entry });
        }
        if !batch.is_empty() {
            self.await_receipts(now, limits);
        }
        batch
    }

    /// Sends the released entry, as the first of its incarnation, unless it was refused just now.
    pub(super) fn next_released(
        &mut self,
        now: Time,
        limits: &Limits,
        accounting: &mut Accounting,
    ) -> Option<Outgoing<E>> {
        let Releasing::Ready(position, _) = self.releasing else { return None };
        if self.holds_back(position, now) {
            return None;
        }
        let releasing = std::mem::replace(&mut self.releasing, Releasing::Sent(position));
        let Releasing::Ready(_, entry) = releasing else { unreachable!("it was just seen") };
        accounting.sends += 1;
        self.await_receipts(now, limits);
        Some(Outgoing { previous: None, position, entry })
    }

    /// Nothing is in doubt, and everything that the remote holds was read and acknowledged.
    pub(super) fn has_caught_up(&self) -> bool {
        self.may_send().is_some()
            && self.first_unanswered().is_none()
            && (self.is_at_the_end() || self.window.has_unsent())
    }

    /// The entry was acknowledged, as far as can be told from what was read.
    pub(super) fn is_past(&self, position: Position) -> bool {
        self.window.first().map_or_else(|| self.is_at_the_end(), |first| first > position)
    }

    /// Every entry was read and acknowledged.
    fn is_at_the_end(&self) -> bool {
        let waits = matches!(self.asking, Asking::Waiting | Asking::Ended);
        self.window.is_empty() && waits && self.reads_in_storage() == 0
    }

    /// What the remote is known to hold.
    pub(super) fn known(&self) -> Option<Position> {
        self.known
    }

    /// The entry that was refused last, and how often in a row.
    pub(super) fn refused(&self) -> Option<(Position, u32)> {
        self.refused.as_ref().map(|refused| (refused.position, refused.retry.failures))
    }

    /// The entry that holds up all others because it is not readable.
    pub(super) fn unreadable(&self) -> Option<Position> {
        let alone = self.may_send().is_some() && self.first_unanswered().is_none();
        self.window.first_unreadable().filter(|_| alone).map(|(position, _)| position)
    }

    /// Entries behind the refused one need no holding back: sends are in order.
    fn holds_back(&self, position: Position, now: Time) -> bool {
        self.refused.as_ref().is_some_and(|r| r.position == position && now < r.retry.at)
    }
}

/// Reading.
impl<E> Flow<E> {
    pub(super) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Reads that were not waiting when they were started. One that waited and was woken is not
    /// among them: storage's own timeouts bound it, and a machine is not told of every wake-up.
    fn reads_in_storage(&self) -> usize {
        self.reads.len() - usize::from(self.asking == Asking::Waiting)
    }

    pub(super) fn outstanding_reads(&self) -> impl Iterator<Item = ReadId> + '_ {
        self.reads.iter().map(|read| read.id)
    }

    /// The next read, if there is room for it. Nothing is read for a handful of free places:
    /// reads stay large while the window is full, and an empty window is filled at once.
    pub(super) fn next_read(&mut self, limits: &Limits) -> Option<ReadLimits> {
        let idle = self.asking == Asking::Nothing
            && self.rewinding.is_none()
            && self.stop_at.is_none()
            && self.open_session().is_some()
            && self.reads.len() < self.reads_max(limits)
            && self.read_retry.is_none();
        if !idle {
            return None;
        }
        let reserved: u64 = self.reads.iter().map(|read| u64::from(read.limits.entries)).sum();
        let used = self.window.len() as u64 + reserved;
        let free = u64::from(limits.window_entries).saturating_sub(used);
        let reserved_bytes: u64 = self.reads.iter().map(|read| read.limits.bytes).sum();
        let free_bytes = limits.window_bytes.saturating_sub(self.window.bytes() + reserved_bytes);
        let enough = u64::from(limits.window_entries).div_ceil(10).min(limits.read_entries.into());
        if free < enough || free_bytes == 0 {
            return None;
        }
        let entries_max = if self.read_failures > 0 { 1 } else { limits.read_entries };
        let entries = u32::try_from(free).unwrap_or(u32::MAX).min(entries_max);
        let read = ReadLimits { entries, bytes: free_bytes.min(limits.read_bytes) };
        self.asking = Asking::For(read);
        Some(read)
    }

    /// After a failure one entry is asked for, alone, until one comes: what storage cannot give
    /// in bulk it may give singly, and an overloaded one is not pressed.
    fn reads_max(&self, limits: &Limits) -> usize {
        if self.read_failures > 0 { 1 } else { limits.reads_in_flight as usize }
    }

    /// Whether the read begins where the window ends, as far as that can be told already.
    pub(super) fn read_started(&mut self, now: Time, start: ReadStart, timeout: Duration) -> bool {
        let Asking::For(limits) = self.asking else {
            panic!("a read is answered after it was asked for");
        };
        let (id, asking) = match start {
            ReadStart::Dispatched(id) => (id, Asking::Nothing),
            ReadStart::Waiting(id) => (id, Asking::Waiting),
        };
        self.asking = asking;
        let follows = self.has_reads() || id.from == self.window.tail();
        self.reads.push_back(Outstanding { id, limits });
        if asking == Asking::Nothing {
            self.read_due.get_or_insert(now + timeout);
        }
        follows
    }

    /// Whether the only read waits at a place that the window does not reach.
    pub(super) fn waits_elsewhere(&self) -> bool {
        let only = self.reads.len() == 1 && self.asking == Asking::Waiting;
        only && self.reads.iter().any(|read| read.id.from != self.window.tail())
    }

    /// Whether the read was outstanding; it no longer is.
    pub(super) fn read_ended(&mut self, now: Time, id: ReadId, timeout: Duration) -> bool {
        let Some(index) = self.reads.iter().position(|read| read.id == id) else {
            return false;
        };
        self.reads.remove(index);
        match self.asking {
            Asking::Waiting if index == self.reads.len() => self.asking = Asking::Nothing,
            // The read may have brought less than was there: the cursor is asked again.
            Asking::Ended => self.asking = Asking::Nothing,
            _ => {}
        }
        // While a rewind is awaited, the bound on draining takes the place of this one.
        let timed = self.reads_in_storage() > 0 && self.may_send().is_some();
        self.read_due = timed.then_some(now + timeout);
        true
    }

    /// Whether there was one.
    pub(super) fn forget_waiting_read(&mut self) -> bool {
        let waited = self.asking == Asking::Waiting;
        if waited {
            self.asking = Asking::Nothing;
            self.reads.pop_back();
        }
        waited
    }

    /// What the remote holds, and what was passed over, is not sent, readable or not.
    pub(super) fn delivered(
        &mut self,
        entries: Vec<Delivered<E>>,
        kept: &BTreeMap<Position, Kept>,
    ) {
        self.read_failures = 0;
        for entry in entries {
            let (held, passes) = (
                self.known >= Some(entry.position),
                matches!(entry.content, crate::window::Content::Pass(_)),
            );
            let settled = match kept.contains_key(&entry.position) {
                true => Some(Settled::Quarantined),
                false if held && !passes => Some(Settled::Duplicate),
                false => None,
            };
            self.window.push(entry, settled);
        }
    }

    pub(super) fn read_failed(&mut self, now: Time, message: Arc<str>, limits: &Limits) {
        if let Asking::For(_) = self.asking {
            self.asking = Asking::Nothing;
        }
        self.read_failures = self.read_failures.saturating_add(1);
        let failures = self.read_failures;
        let at = now + limits.read_backoff.delay(failures);
        self.read_retry = Some(Retry { at, failures, message });
    }

    /// No failed read is waited for.
    pub(super) fn may_fetch(&self) -> bool {
        self.read_retry.is_none()
    }

    /// A timer that has struck must go, or the driver would find it due for ever.
    pub(super) fn end_read_retry(&mut self, now: Time) {
        self.read_retry.take_if(|retry| retry.at <= now);
    }

    pub(super) fn log_ended(&mut self) {
        self.asking = Asking::Ended;
    }
}

/// Timers and reasons.
impl<E> Flow<E> {
    pub(super) fn open_due(&self) -> Option<Time> {
        match self.session {
            Session::Opening { until, .. } => Some(until),
            _ => None,
        }
    }

    pub(super) fn receipts_due(&self) -> Option<Time> {
        self.awaited.map(|awaited| awaited.until)
    }

    pub(super) fn read_due(&self) -> Option<Time> {
        self.read_due
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        let open_at = match self.session {
            Session::Closed { open_at, .. } if self.stop_at.is_none() => Some(open_at),
            _ => None,
        };
        let drain = self.rewinding.filter(|_| self.has_reads() && self.open_session().is_some());
        let times = [
            open_at,
            self.open_due(),
            self.receipts_due(),
            self.read_due,
            drain.map(|rewinding| rewinding.drain_until),
            self.read_retry.as_ref().map(|retry| retry.at),
            self.held_back().map(|refused| refused.retry.at),
            self.stop_at,
        ];
        times.into_iter().flatten().min()
    }

    /// The refusal, while its entry is the next to be sent.
    fn held_back(&self) -> Option<&RefusedHead> {
        let sending = self.may_send().is_some();
        let next = match self.releasing {
            Releasing::Ready(position, _) => Some(position),
            _ => self.window.first_ready(),
        };
        self.refused.as_ref().filter(|refused| sending && next == Some(refused.position))
    }

    pub(super) fn reason(&self) -> Reason {
        if let Session::Blocked(reason) = &self.session {
            return reason.clone();
        }
        if self.stop_at.is_some() {
            return Reason::Stopping;
        }
        match &self.session {
            Session::Closed { failures, last, .. } | Session::Opening { failures, last, .. } => {
                return Reason::Connecting { failures: *failures, last: last.clone() };
            }
            Session::Open { .. } | Session::Blocked(_) => {}
        }
        if let Some(rewinding) = self.rewinding {
            return Reason::Rewinding(rewinding.reasons);
        }
        if let Some(refused) = self.held_back() {
            let Retry { failures, message, .. } = &refused.retry;
            let position = refused.position;
            return Reason::Refused { position, times: *failures, message: message.clone() };
        }
        if let Releasing::Asked(position) = self.releasing {
            return Reason::Releasing { position };
        }
        if let Releasing::Sent(first) = self.releasing {
            return Reason::AwaitingReceipts { entries: 1, first };
        }
        if let Some((position, message)) = self.window.first_unreadable() {
            return Reason::Unreadable { position, message: message.clone() };
        }
        if let Some(retry) = &self.read_retry {
            return Reason::ReadFailed { message: retry.message.clone() };
        }
        if let Some(first) = self.window.first_unanswered() {
            return Reason::AwaitingReceipts { entries: self.window.unanswered(), first };
        }
        match self.asking {
            _ if self.reads_in_storage() > 0 => Reason::Reading,
            Asking::Waiting => Reason::WaitingForEntries,
            Asking::For(_) => Reason::Reading,
            // Behind the last entry it is drained, and stops.
            Asking::Nothing | Asking::Ended => Reason::Unexplained,
        }
    }

    pub(super) fn wake(&self, now: Time) -> Wake {
        let after = |at: Option<Time>| at.map_or(Duration::ZERO, |at| until(now, at));
        match self.reason() {
            Reason::RemoteBehind { .. } | Reason::RemoteAhead { .. } | Reason::Stopped(_) => {
                Wake::Operator
            }
            Reason::Unreadable { .. } if self.window.unanswered() == 0 => Wake::Operator,
            Reason::Unreadable { .. } => Wake::Remote(after(self.receipts_due())),
            Reason::Stopping => Wake::Timer(after(self.stop_at)),
            Reason::Connecting { .. } if self.open_due().is_some() => {
                Wake::Remote(after(self.open_due()))
            }
            // What the machine makes of others.
            Reason::QuarantineFull { .. } => Wake::Operator,
            Reason::Connecting { .. } | Reason::Refused { .. } | Reason::ReadFailed { .. } => {
                Wake::Timer(after(self.wake_at()))
            }
            Reason::Rewinding(_) => {
                Wake::Storage(after(self.rewinding.map(|rewinding| rewinding.drain_until)))
            }
            Reason::AwaitingReceipts { .. } => Wake::Remote(after(self.receipts_due())),
            Reason::Reading => Wake::Storage(after(self.read_due)),
            Reason::Storing { .. } | Reason::Releasing { .. } => Wake::Read,
            Reason::WaitingForEntries => Wake::Append,
            Reason::Unexplained => Wake::Nothing,
        }
    }
}
