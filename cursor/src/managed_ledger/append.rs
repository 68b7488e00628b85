//! Appends between their callers and the ledgers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use georepl_storage::{EntryId, LedgerId};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::error::{AppendError, Refusal};
use crate::position::{Offset, Position};

/// The right to append so many bytes, taken from the topic's budget. It goes back when the batch
/// it was used for is decided, or when it is dropped.
#[derive(Debug)]
pub struct AppendPermit {
    pub(super) bytes: u64,
    pub(super) _held: OwnedSemaphorePermit,
}

impl AppendPermit {
    /// Bytes of payload it was reserved for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A batch on its way. Completes with the positions of its entries once all are acknowledged.
///
/// Dropping it does not undo the append.
#[derive(Debug)]
#[must_use = "an append may fail"]
pub struct AppendBatch {
    pub(super) first_offset: Offset,
    pub(super) topic: Arc<str>,
    pub(super) reply: oneshot::Receiver<Reply>,
}

pub(super) type Reply = Result<Vec<Position>, AppendError>;

impl AppendBatch {
    /// The offset that the first entry has if the batch succeeds; the others follow it.
    pub fn first_offset(&self) -> Offset {
        self.first_offset
    }
}

impl Future for AppendBatch {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        Pin::new(&mut self.reply).poll(cx).map(|reply| {
            // Every handle of the topic was dropped without closing it.
            let refusal = || Refusal::Closed { topic: self.topic.clone() };
            reply.unwrap_or_else(|_| Err(AppendError::OutcomeUnknown(refusal())))
        })
    }
}

/// Batches in the order of their calls: first those sent to the open ledger, then those that
/// wait for the next. Bounded by the byte budget, of which each batch holds its share.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Batches with entries that are not confirmed.
    batches: VecDeque<Batch>,
    /// Entries that were sent and are not confirmed. They are sent again if their ledger ends without them.
    sent: VecDeque<Bytes>,
    /// Entries that no ledger was given.
    unsent: VecDeque<Bytes>,
}

#[derive(Debug)]
struct Batch {
    entries: usize,
    /// Of the entries confirmed so far.
    positions: Vec<Position>,
    reply: oneshot::Sender<Reply>,
    _permit: AppendPermit,
}

/// Replies that are due. They are given after the topic's lock is released.
#[derive(Debug, Default)]
pub(super) struct Replies(Vec<(oneshot::Sender<Reply>, Reply)>);

impl Replies {
    pub(super) fn send(self) {
        for (reply, outcome) in self.0 {
            // Who dropped the future does not want to know.
            let _ = reply.send(outcome);
        }
    }
}

impl Queue {
    /// Entries that were accepted and are not confirmed.
    pub(super) fn len(&self) -> usize {
        self.sent.len() + self.unsent.len()
    }

    /// Accepts a batch of at least one entry.
    pub(super) fn push(
        &mut self,
        payloads: Vec<Bytes>,
        permit: AppendPermit,
        reply: oneshot::Sender<Reply>,
    ) {
        let (entries, positions) = (payloads.len(), Vec::with_capacity(payloads.len()));
        self.batches.push_back(Batch { entries, positions, reply, _permit: permit });
        self.unsent.extend(payloads);
    }

    /// Takes what fits into a ledger with room for so many entries and bytes; the entry that
    /// reaches the bytes is taken. Returns the payloads and their bytes.
    pub(super) fn take_unsent(&mut self, entries: u64, bytes: u64) -> (Vec<Bytes>, u64) {
        let (mut count, mut taken) = (0, 0);
        for payload in &self.unsent {
            if count as u64 == entries || taken >= bytes {
                break;
            }
            count += 1;
            taken += payload.len() as u64;
        }
        let payloads: Vec<_> = self.unsent.drain(..count).collect();
        self.sent.extend(payloads.iter().cloned());
        (payloads, taken)
    }

    /// Entries that were sent and are not confirmed.
    pub(super) fn sent(&self) -> usize {
        self.sent.len()
    }

    /// Lets what was sent and not confirmed wait for the next ledger, before all that waits already. The one it was
    /// sent to must have ended without it, or it would be in the topic twice.
    pub(super) fn take_back(&mut self) {
        self.sent.append(&mut self.unsent);
        std::mem::swap(&mut self.sent, &mut self.unsent);
    }

    /// The oldest `count` sent entries are confirmed, from `first` on. Returns their bytes.
    ///
    /// # Panics
    /// When fewer were sent.
    pub(super) fn confirm(
        &mut self,
        ledger: LedgerId,
        first: EntryId,
        count: usize,
        replies: &mut Replies,
    ) -> u64 {
        assert!(count <= self.sent.len(), "only what was sent is confirmed");
        let ids = first.get()..first.get() + count as u64;
        for entry in ids {
            let batch = self.batches.front_mut().expect("an entry belongs to a batch");
            batch.positions.push(Position::new(ledger, EntryId(entry)));
            if batch.positions.len() == batch.entries {
                let batch = self.batches.pop_front().expect("the front was just seen");
                replies.0.push((batch.reply, Ok(batch.positions)));
            }
        }
        self.sent.drain(..count).map(|payload| payload.len() as u64).sum()
    }

    /// Fails every batch, in order: the outcome is unknown for those with a sent entry.
    pub(super) fn fail_all(&mut self, refusal: &Refusal, replies: &mut Replies) {
        let mut sent = self.sent.len();
        for batch in self.batches.drain(..) {
            let error = if sent > 0 || !batch.positions.is_empty() {
                AppendError::OutcomeUnknown(refusal.clone())
            } else {
                AppendError::Refused(refusal.clone())
            };
            sent = sent.saturating_sub(batch.entries - batch.positions.len());
            replies.0.push((batch.reply, Err(error)));
        }
        self.sent.clear();
        self.unsent.clear();
    }
}
