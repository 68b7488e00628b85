//! What it waits for, until when, and how that is said.

use std::time::Duration;

use georepl_storage::Time;

use super::{Asking, Flow, RefusedHead, Releasing, Retry, Session};
use crate::machine::until;
use crate::why::{Reason, Wake};

impl<E> Flow<E> {
    pub(in crate::machine) fn open_due(&self) -> Option<Time> {
        match self.session {
            Session::Opening { until, .. } => Some(until),
            _ => None,
        }
    }

    pub(in crate::machine) fn receipts_due(&self) -> Option<Time> {
        self.awaited.map(|awaited| awaited.until)
    }

    pub(in crate::machine) fn read_due(&self) -> Option<Time> {
        self.read_due
    }

    pub(in crate::machine) fn wake_at(&self) -> Option<Time> {
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

    pub(in crate::machine) fn reason(&self) -> Reason {
        match (&self.not_writable, self.own_reason()) {
            // All these only lead up to the next attempt to have it taken.
            (
                Some(message),
                Reason::Connecting { .. }
                | Reason::Rewinding(_)
                | Reason::Reading
                | Reason::AwaitingReceipts { .. },
            ) => Reason::RemoteNotWritable { message: message.clone() },
            (_, reason) => reason,
        }
    }

    fn own_reason(&self) -> Reason {
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
            Asking::Nothing | Asking::Ended(_) => Reason::Unexplained,
        }
    }

    pub(in crate::machine) fn wake(&self, now: Time) -> Wake {
        let after = |at: Option<Time>| at.map_or(Duration::ZERO, |at| until(now, at));
        let awaited = self.open_due().or_else(|| self.receipts_due());
        match self.reason() {
            Reason::RemoteBehind { .. }
            | Reason::RemoteAhead { .. }
            | Reason::CursorBehind { .. }
            | Reason::Stopped(_) => Wake::Operator,
            Reason::Unreadable { .. } if self.window.unanswered() == 0 => Wake::Operator,
            Reason::Unreadable { .. } => Wake::Remote(after(self.receipts_due())),
            Reason::Stopping => Wake::Timer(after(self.stop_at)),
            Reason::RemoteNotWritable { .. } if awaited.is_some() => Wake::Remote(after(awaited)),
            Reason::RemoteNotWritable { .. } => {
                self.wake_at().map_or(Wake::Read, |at| Wake::Timer(until(now, at)))
            }
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
