//! The entries between mark-delete and read position, each with what became of it.
//!
//! ```text
//!   mark-delete                      next                      read position
//!       │ Published Sent Published Sent │ Ready Passed Ready Ready │
//!       └──────────── settled or sent ──┴──── to be looked at ─────┘
//! ```
//!
//! Only a settled prefix leaves, so what is acknowledged has no holes. How many entries are open,
//! unanswered or of what size is asked of the window and counted nowhere else.

use std::collections::VecDeque;
use std::sync::Arc;

use georepl_cursor::{Offset, Position};

use crate::filter::PassReason;

/// What is to be done with an entry that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content<E> {
    /// Publish it.
    Send(E),
    /// It is not for the remote.
    Pass(PassReason),
    /// It cannot be understood, so it can neither be published nor passed over.
    Unreadable(Arc<str>),
}

/// An entry that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delivered<E> {
    /// Where it is.
    pub position: Position,
    /// Its stored size.
    pub bytes: u64,
    /// What is to be done with it.
    pub content: Content<E>,
}

/// How an entry left the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settled {
    /// The remote stored it and said so.
    Published,
    /// The remote had passed it before.
    Duplicate,
    /// It is not for the remote.
    Passed(PassReason),
    /// It was passed over, and is kept for an operator.
    Quarantined,
    /// It was passed over, and an operator gave it up.
    Discarded,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Status<E> {
    Ready(E),
    Unreadable(Arc<str>),
    Sent,
    Settled(Settled),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slot<E> {
    position: Position,
    bytes: u64,
    status: Status<E>,
}

/// A ring of entries in topic order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window<E> {
    head: Offset,
    slots: VecDeque<Slot<E>>,
    /// Slots before it are sent or settled.
    next: usize,
    bytes: u64,
    unanswered: usize,
}

/// Places for entries that an empty window keeps. With more it begins anew, so that a replicator does not hold for ever
/// what a backlog once needed.
const KEPT_SLOTS: usize = 16;

impl<E> Window<E> {
    /// An empty window that begins at `head`.
    pub fn new(head: Offset) -> Self {
        Self { head, slots: VecDeque::new(), next: 0, bytes: 0, unanswered: 0 }
    }

    /// Adds the entry that follows; one that is settled already is not sent.
    pub fn push(&mut self, entry: Delivered<E>, settled: Option<Settled>) {
        let Delivered { position, bytes, content } = entry;
        if let Some(last) = self.slots.back() {
            assert!(last.position < position, "entries are delivered in order");
        }
        let status = match (content, settled) {
            (_, Some(how)) => Status::Settled(how),
            (Content::Send(entry), None) => Status::Ready(entry),
            (Content::Pass(reason), None) => Status::Settled(Settled::Passed(reason)),
            (Content::Unreadable(message), None) => Status::Unreadable(message),
        };
        self.bytes += bytes;
        self.slots.push_back(Slot { position, bytes, status });
    }

    /// The first entry that is neither sent nor settled, if it can be sent.
    pub fn next_ready(&mut self) -> Option<Position> {
        while let Some(slot) = self.slots.get(self.next)
            && matches!(slot.status, Status::Settled(_))
        {
            self.next += 1;
        }
        let slot = self.slots.get(self.next)?;
        matches!(slot.status, Status::Ready(_)).then_some(slot.position)
    }

    /// Takes what [`Window::next_ready`] named, to be sent.
    pub fn send_next(&mut self) -> E {
        let slot = &mut self.slots[self.next];
        let Status::Ready(entry) = std::mem::replace(&mut slot.status, Status::Sent) else {
            panic!("only a ready entry is sent");
        };
        self.next += 1;
        self.unanswered += 1;
        entry
    }

    /// The remote answered for a sent entry. False when nothing was unanswered at `position`.
    pub fn settle(&mut self, position: Position, how: Settled) -> bool {
        let Some(index) = self.find(position) else {
            return false;
        };
        let slot = &mut self.slots[index];
        let open = matches!(slot.status, Status::Sent);
        if open {
            slot.status = Status::Settled(how);
            self.unanswered -= 1;
        }
        open
    }

    /// The remote holds everything it was sent up to `through`, and nothing behind it: what it had
    /// confirmed there it has lost, so that it counts as unanswered again.
    pub fn settle_through(&mut self, through: Option<Position>) {
        for slot in &mut self.slots {
            let held = Some(slot.position) <= through;
            match slot.status {
                Status::Sent if held => {
                    slot.status = Status::Settled(Settled::Published);
                    self.unanswered -= 1;
                }
                Status::Settled(Settled::Published | Settled::Duplicate) if !held => {
                    slot.status = Status::Sent;
                    self.unanswered += 1;
                }
                _ => {}
            }
        }
    }

    /// Takes the first entry if it is settled.
    pub fn pop_settled(&mut self) -> Option<(Position, u64, Settled)> {
        let Status::Settled(how) = self.slots.front()?.status else {
            return None;
        };
        let slot = self.slots.pop_front().expect("the front was just seen");
        self.head = self.head.plus(1);
        self.next = self.next.saturating_sub(1);
        self.bytes -= slot.bytes;
        if self.slots.is_empty() && self.slots.capacity() > KEPT_SLOTS {
            self.slots = VecDeque::new();
        }
        Some((slot.position, slot.bytes, how))
    }

    /// The first entry.
    pub(crate) fn first(&self) -> Option<Position> {
        self.slots.front().map(|slot| slot.position)
    }

    /// The place of the first entry.
    pub fn head(&self) -> Offset {
        self.head
    }

    /// The place after the last entry.
    pub fn tail(&self) -> Offset {
        self.head.plus(self.slots.len() as u64)
    }

    /// Entries in the window.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Their stored bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Entries that were sent and have no answer yet.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Whether the entry at `position` was sent and has no answer yet.
    pub(crate) fn is_unanswered(&self, position: Position) -> bool {
        let found = self.find(position);
        found.is_some_and(|index| matches!(self.slots[index].status, Status::Sent))
    }

    /// The first unanswered entry, from which the remote's answer is awaited.
    pub fn first_unanswered(&self) -> Option<Position> {
        let sent = |slot: &&Slot<E>| matches!(slot.status, Status::Sent);
        self.slots.iter().find(sent).map(|slot| slot.position)
    }

    /// What [`Window::next_ready`] would name.
    pub fn first_ready(&self) -> Option<Position> {
        let slot = self.first_unsent()?;
        matches!(slot.status, Status::Ready(_)).then_some(slot.position)
    }

    /// The entry at which sending stops because it is not readable, if it has come to that.
    pub(crate) fn first_unreadable(&self) -> Option<(Position, &Arc<str>)> {
        match self.first_unsent()? {
            Slot { position, status: Status::Unreadable(message), .. } => {
                Some((*position, message))
            }
            _ => None,
        }
    }

    /// Whether an entry was read that is neither sent nor settled.
    pub(crate) fn has_unsent(&self) -> bool {
        self.first_unsent().is_some()
    }

    /// Where the entry is. As a rule the window lies in one ledger and has all its entries, so that the place is known.
    fn find(&self, position: Position) -> Option<usize> {
        let first = self.slots.front()?.position.entry;
        let likely = position.entry.get().wrapping_sub(first.get()) as usize;
        match self.slots.get(likely) {
            Some(slot) if slot.position == position => Some(likely),
            _ => self.slots.binary_search_by_key(&position, |slot| slot.position).ok(),
        }
    }

    fn first_unsent(&self) -> Option<&Slot<E>> {
        let settled = |slot: &&Slot<E>| matches!(slot.status, Status::Settled(_));
        self.slots.iter().skip(self.next).find(|slot| !settled(slot))
    }
}

#[cfg(test)]
mod tests {
    use georepl_storage::{EntryId, LedgerId};

    use super::*;

    #[test]
    fn empty_window_keeps_no_memory_of_a_long_one() {
        let mut window = Window::new(Offset::ZERO);
        let position = |n| Position::new(LedgerId(1), EntryId(n));
        for n in 0..100_000 {
            window.push(
                Delivered { position: position(n), bytes: 1, content: Content::Send(n) },
                None,
            );
            window.send_next();
        }
        for n in 0..100_000 {
            assert!(window.settle(position(n), Settled::Published));
            assert_eq!(window.pop_settled(), Some((position(n), 1, Settled::Published)));
        }
        assert!(window.slots.capacity() <= KEPT_SLOTS, "{}", window.slots.capacity());
        assert_eq!((window.head(), window.bytes()), (Offset::new(100_000), 0));
    }
}
