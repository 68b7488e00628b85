//! What is sent next, and what holds it back.

use georepl_cursor::Position;
use georepl_storage::Time;

use super::{Asking, Flow, Releasing};
use crate::limits::Limits;
use crate::machine::accounting::Accounting;
use crate::session::{Outgoing, SessionId};

impl<E> Flow<E> {
    pub(in crate::machine) fn may_send(&self) -> Option<SessionId> {
        let free = self.rewinding.is_none() && self.stop_at.is_none();
        self.open_session().filter(|_| free)
    }

    /// The entries that can be sent now, up to the first that blocks what follows.
    pub(in crate::machine) fn next_batch(
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
            if batch.is_empty() {
                batch.reserve(self.window.len() - self.window.unanswered());
            }
            batch.push(Outgoing { previous, position, entry });
        }
        if !batch.is_empty() {
            self.await_receipts(now, limits);
        }
        batch
    }

    /// Sends the released entry, as the first of its incarnation, unless it was refused just now.
    pub(in crate::machine) fn next_released(
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
    pub(in crate::machine) fn has_caught_up(&self) -> bool {
        self.may_send().is_some()
            && self.first_unanswered().is_none()
            && (self.is_at_the_end() || self.window.has_unsent())
    }

    /// The entry was acknowledged, as far as can be told from what was read.
    pub(in crate::machine) fn is_past(&self, position: Position) -> bool {
        self.window.first().map_or_else(|| self.is_at_the_end(), |first| first > position)
    }

    /// Every entry was read and acknowledged.
    fn is_at_the_end(&self) -> bool {
        let waits = matches!(self.asking, Asking::Waiting | Asking::Ended(_));
        self.window.is_empty() && waits && self.reads_in_storage() == 0
    }

    /// What the remote is known to hold.
    pub(in crate::machine) fn known(&self) -> Option<Position> {
        self.known
    }

    /// The entry that was refused last, and how often in a row.
    pub(in crate::machine) fn refused(&self) -> Option<(Position, u32)> {
        self.refused.as_ref().map(|refused| (refused.position, refused.retry.failures))
    }

    /// The entry that holds up all others because it is not readable.
    pub(in crate::machine) fn unreadable(&self) -> Option<Position> {
        let alone = self.may_send().is_some() && self.first_unanswered().is_none();
        self.window.first_unreadable().filter(|_| alone).map(|(position, _)| position)
    }

    /// Entries behind the refused one need no holding back: sends are in order.
    fn holds_back(&self, position: Position, now: Time) -> bool {
        self.refused.as_ref().is_some_and(|r| r.position == position && now < r.retry.at)
    }
}
