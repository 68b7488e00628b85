//! What follows from the answers and events of the cursor and of the remote, and from their absence.

use std::sync::Arc;

use georepl_cursor::{ReadId, ReadOutcome, ReadRefused, ReadStart};
use georepl_storage::Time;

use super::{Held, Life, Machine, Output};
use crate::session::{OpenError, Receipt, SessionId};
use crate::why::{Reason, RewindReason, StopReason};
use crate::window::Delivered;

/// Answers and events of the cursor.
impl<E> Machine<E> {
    pub(super) fn on_read_answered(&mut self, now: Time, answer: Result<ReadStart, ReadRefused>) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        match answer {
            Ok(start) => {
                if !flow.read_started(now, start, self.limits.read_timeout) {
                    self.cursor_moved(now);
                }
            }
            Err(ReadRefused::Closed) => self.stop(StopReason::CursorClosed),
            Err(ReadRefused::Terminated { end }) => flow.log_ended(end),
            Err(ReadRefused::AlreadyWaiting | ReadRefused::TooManyInFlight) => {
                // Someone else reads through this cursor. Not ours to break; tried again later.
                flow.read_failed(now, "another reader uses this cursor".into(), &self.limits);
            }
            Err(refused @ ReadRefused::NothingToRead) => {
                let message = format!("the cursor does not wait for entries: {refused}").into();
                flow.read_failed(now, message, &self.limits);
            }
        }
    }

    pub(super) fn on_read_completed(
        &mut self,
        now: Time,
        id: ReadId,
        outcome: ReadOutcome<Delivered<E>>,
    ) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        // Whose id is unknown was given up: by a rewind, a cancellation or a stop.
        if !flow.read_ended(now, id, self.limits.read_timeout) {
            return;
        }
        match outcome {
            // The rewind will read it again.
            ReadOutcome::Entries(_) | ReadOutcome::Failed(_) if flow.is_rewinding() => {}
            ReadOutcome::Entries(entries) if entries.is_empty() => {
                flow.read_failed(now, "storage answered without entries".into(), &self.limits);
            }
            ReadOutcome::Entries(_) if id.from != flow.window.tail() => self.cursor_moved(now),
            ReadOutcome::Entries(entries) => {
                self.accounting.read += entries.len() as u64;
                flow.delivered(entries, &self.progress);
            }
            ReadOutcome::Cancelled | ReadOutcome::Superseded => {}
            ReadOutcome::Failed(failed) => flow.read_failed(now, failed.message, &self.limits),
            ReadOutcome::Terminated => flow.log_ended(id.from),
            ReadOutcome::Closed => self.stop(StopReason::CursorClosed),
        }
        // What it waits behind was taken by another reader, or is about to be read again.
        if let Life::Running(flow) = &self.life
            && !flow.is_rewinding()
            && flow.waits_elsewhere()
        {
            self.outputs.push_back(Output::CancelRead);
        }
    }

    pub(super) fn on_cancel_answered(&mut self, now: Time, cancelled: bool) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        // Cancelled with no rewind under way, it waited behind entries that were never delivered
        // here. Not cancelled, it was taken back by a short read and its completion is on its way.
        if cancelled && flow.forget_waiting_read() && !flow.is_rewinding() {
            self.cursor_moved(now);
        }
    }

    /// Somebody else moved the cursor: what is in the window and what is read next do not meet.
    /// The delay of a failed session keeps two readers of one cursor from chasing each other.
    pub(super) fn cursor_moved(&mut self, now: Time) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        // Nothing more is read, and the session is needed to settle what was sent.
        if flow.stop_at.is_some() {
            return;
        }
        let session = flow.any_session();
        flow.retry_open(now, "somebody else moves this cursor".into(), &self.limits);
        self.outputs.extend(session.map(Output::Close));
        self.begin_rewind(now, RewindReason::CursorMoved);
    }
}

/// Answers and events of the remote.
impl<E> Machine<E> {
    pub(super) fn on_opened(&mut self, now: Time, session: SessionId, held: Held) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        if !flow.is_opening(session) {
            return;
        }
        match held.checked(&self.progress) {
            Ok(watermark) => flow.opened(session, watermark),
            Err(disagreement) => self.block(now, session, disagreement),
        }
    }

    /// Until somebody seeks, which begins an incarnation: in this one the two cannot agree any more.
    fn block(&mut self, now: Time, session: SessionId, reason: Reason) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        self.progress.newest_incarnation =
            self.progress.newest_incarnation.max(self.progress.incarnation + 1);
        self.accounting.rewound += flow.window.len() as u64;
        if flow.has_reads() {
            self.outputs.push_back(Output::CancelRead);
        }
        self.outputs.push_back(Output::Close(session));
        flow.block(now, reason);
    }

    pub(super) fn on_open_failed(&mut self, now: Time, session: SessionId, error: OpenError) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        if !flow.is_opening(session) {
            return;
        }
        match error {
            OpenError::Unreachable(message) => flow.retry_open(now, message, &self.limits),
            OpenError::LaterOwner { newest, .. } => self.stop(StopReason::LaterOwner(newest)),
            OpenError::LaterIncarnation { newest, .. } => {
                let known = &mut self.progress.newest_incarnation;
                *known = newest.0.max(*known);
                self.stop(StopReason::LaterIncarnation(newest));
            }
            OpenError::LaterRevision { watermark, .. } => {
                let last_published = self.progress.last_published;
                self.block(now, session, Reason::CursorBehind { watermark, last_published });
            }
        }
    }

    /// What the source lost by it, the next opening tells: by the watermark, or by being refused.
    pub(super) fn on_set_back(&mut self, now: Time, session: SessionId, owner: u64) {
        if owner > self.last_session.owner {
            self.last_session = SessionId { owner, counter: 0 };
        }
        if let Life::Running(flow) = &mut self.life
            && flow.is_opening(session)
        {
            let message = "the remote knew a later session: the source was put back from a copy";
            flow.retry_open(now, message.into(), &self.limits);
        }
    }

    pub(super) fn on_receipts(&mut self, now: Time, session: SessionId, receipts: Vec<Receipt>) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        // Answers of another session speak of another attempt.
        if flow.open_session() != Some(session) {
            return;
        }
        let failed = flow.take_receipts(now, receipts, &self.limits);
        if let Some(reason) = failed {
            match reason {
                RewindReason::Refused => self.accounting.refusals += 1,
                RewindReason::Gap => self.accounting.gaps += 1,
                _ => self.accounting.links_lost += 1,
            }
            self.outputs.push_back(Output::Close(session));
            self.begin_rewind(now, reason);
            if reason == RewindReason::Refused {
                self.pass_over_refused();
            }
        }
    }

    pub(super) fn on_not_writable(&mut self, session: SessionId, message: Arc<str>) {
        if let Life::Running(flow) = &mut self.life
            && flow.open_session() == Some(session)
        {
            flow.not_writable(message);
        }
    }

    pub(super) fn on_lost(&mut self, now: Time, session: SessionId, message: Arc<str>) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        if flow.any_session() == Some(session) {
            flow.retry_open(now, message, &self.limits);
            self.accounting.links_lost += 1;
            self.outputs.push_back(Output::Close(session));
            self.begin_rewind(now, RewindReason::LinkLost);
        }
    }
}

/// The passing of time.
impl<E> Machine<E> {
    /// What timed out.
    pub(super) fn expire(&mut self, now: Time) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        flow.end_read_retry(now);
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let session = flow.any_session();
        if due(flow.open_due()) {
            // A rewind is awaited already: there is no opening without one.
            let message = "the remote did not answer the opening in time".into();
            flow.retry_open(now, message, &self.limits);
            self.outputs.extend(session.map(Output::Close));
        } else if due(flow.receipts_due()) {
            flow.receipts_overdue(now, &self.limits);
            self.accounting.links_lost += 1;
            self.outputs.extend(session.map(Output::Close));
            self.begin_rewind(now, RewindReason::ReceiptTimeout);
        } else if due(flow.read_due()) {
            // The session is sound, but only an opening tells what the remote holds by now.
            flow.reopen(now);
            self.outputs.extend(session.map(Output::Close));
            self.begin_rewind(now, RewindReason::ReadTimeout);
        }
    }
}
