//! A mailbox: many producers, one owner who takes everything there is in one go.

use std::mem;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Items on their way to the one task or call that owns the mailbox.
///
/// It holds what its producers may have outstanding and has no limit of its own: a mailbox of responses is bounded by
/// the requests that were sent, one of appends by the byte budget of who appends. Producers never wait.
/// The owner is woken once per batch, and only if the mailbox was empty.
#[derive(Debug)]
pub struct Mailbox<T> {
    state: Mutex<State<T>>,
    arrived: Notify,
}

/// The mailbox was closed and everything in it has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mailbox is closed; nothing will arrive any more")]
pub struct MailboxClosed;

#[derive(Debug)]
struct State<T> {
    items: Vec<T>,
    door: Door,
}

#[derive(Debug)]
enum Door {
    Open,
    Closed,
}

impl<T> Mailbox<T> {
    /// An empty mailbox.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State { items: Vec::new(), door: Door::Open }),
            arrived: Notify::new(),
        }
    }

    /// Adds one item. After `close` it is dropped.
    pub fn push(&self, item: T) {
        self.extend([item]);
    }

    /// Adds a batch under one lock and with at most one wake-up. After `close` it is dropped.
    ///
    /// `items` is iterated under the mailbox's lock and must not use the mailbox.
    pub fn extend(&self, items: impl IntoIterator<Item = T>) {
        let mut state = self.state.lock();
        if let Door::Closed = state.door {
            return;
        }
        let was_empty = state.items.is_empty();
        state.items.extend(items);
        let wake = was_empty && !state.items.is_empty();
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
    }

    /// Moves everything there is behind what `out` holds. With an empty `out` the buffers are swapped, so that both
    /// sides keep their capacity and nothing is copied.
    pub fn take_into(&self, out: &mut Vec<T>) {
        let mut state = self.state.lock();
        if out.is_empty() {
            mem::swap(&mut state.items, out);
        } else {
            out.append(&mut state.items);
        }
    }

    /// Waits until there is something and takes all of it into `out`.
    ///
    /// Only the owner calls it, one call at a time. Cancel-safe: items are taken without waiting in between.
    ///
    /// # Errors
    /// [`MailboxClosed`] once the mailbox is closed and empty.
    pub async fn recv_into(&self, out: &mut Vec<T>) -> Result<(), MailboxClosed> {
        loop {
            self.take_into(out);
            if !out.is_empty() {
                return Ok(());
            }
            if let Door::Closed = self.state.lock().door {
                return Err(MailboxClosed);
            }
            // An item that arrived since `take_into` has left a permit, so this returns at once.
            self.arrived.notified().await;
        }
    }

    /// Waits until the mailbox is closed, whatever is inside.
    ///
    /// For the owner, while it is not receiving. Cancel-safe.
    pub async fn closed(&self) {
        while matches!(self.state.lock().door, Door::Open) {
            // Closing leaves a permit. One that an item has left may be used up here: whoever
            // receives looks for items before it waits.
            self.arrived.notified().await;
        }
    }

    /// Refuses what comes from now on. What is inside can still be taken.
    pub fn close(&self) {
        self.state.lock().door = Door::Closed;
        self.arrived.notify_one();
    }
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn a_waiting_owner_gets_the_whole_batch() {
        let mailbox = Arc::new(Mailbox::new());
        let owner = {
            let mailbox = mailbox.clone();
            tokio::spawn(async move {
                let mut items = Vec::new();
                mailbox.recv_into(&mut items).await.map(|()| items)
            })
        };
        tokio::task::yield_now().await;
        mailbox.extend([1, 2, 3]);
        assert_eq!(owner.await.expect("the owner does not panic"), Ok(vec![1, 2, 3]));
    }

    #[tokio::test]
    async fn a_closed_mailbox_gives_what_it_has_and_then_ends() {
        let mailbox = Mailbox::new();
        mailbox.push(1);
        mailbox.close();
        mailbox.push(2);
        let mut items = Vec::new();
        assert_eq!(mailbox.recv_into(&mut items).await, Ok(()));
        assert_eq!(items, [1]);
        items.clear();
        assert_eq!(mailbox.recv_into(&mut items).await, Err(MailboxClosed));
    }

    #[tokio::test]
    async fn the_end_is_seen_although_items_are_inside_and_these_are_not_lost() {
        let mailbox = Mailbox::new();
        mailbox.push(1);
        let mut closed = Box::pin(mailbox.closed());
        let mut context = Context::from_waker(Waker::noop());
        assert!(closed.as_mut().poll(&mut context).is_pending());
        mailbox.push(2);
        mailbox.close();
        closed.await;
        let mut items = Vec::new();
        assert_eq!(mailbox.recv_into(&mut items).await, Ok(()));
        assert_eq!(items, [1, 2]);
    }

    #[test]
    fn taking_swaps_buffers_and_keeps_what_was_not_used() {
        let mailbox = Mailbox::new();
        mailbox.extend([1, 2]);
        let mut items = Vec::with_capacity(100);
        mailbox.take_into(&mut items);
        assert_eq!(items, [1, 2]);
        mailbox.push(3);
        mailbox.take_into(&mut items);
        assert_eq!(items, [1, 2, 3]);
        assert!(mailbox.state.lock().items.capacity() >= 1, "the buffer is used again");
    }
}
