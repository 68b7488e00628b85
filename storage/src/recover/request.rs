//! What a recovery asks bookies, and how the answers find their way back.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::entry::MasterKey;
use crate::id::{BookieId, EntryId, Instance, LedgerId};
use crate::quorum::Slot;
use crate::registry::RegisteredBookie;
use crate::time::Time;
use crate::transport::{Request, RequestBody, RequestId, Response};

/// What one request of a recovery is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Question {
    /// The fencing LAC read.
    Fence,
    /// The fencing read of an entry that may exist.
    Exists(EntryId),
    /// The write-back of an entry.
    WriteBack(EntryId),
    /// The read of the last confirmed entry, for the length in its header.
    Length(EntryId),
}

/// Requests to be submitted, per bookie.
pub(super) type Outbox = BTreeMap<BookieId, Vec<Request>>;

/// What every step of one call of the machine works with.
pub(super) struct Turn<'a> {
    pub(super) now: Time,
    pub(super) ledger: LedgerId,
    pub(super) key: MasterKey,
    pub(super) request_timeout: Duration,
    pub(super) registry: &'a [RegisteredBookie],
    pub(super) outbox: &'a mut Outbox,
}

impl Turn<'_> {
    /// Sends a request to the bookie in a slot, and returns when its answer is overdue.
    pub(super) fn send(
        &mut self,
        bookie: &BookieId,
        question: Question,
        slot: Slot,
        body: RequestBody,
    ) -> Time {
        let request = Request { id: request_id(question, slot), ledger: self.ledger, body };
        self.outbox.entry(bookie.clone()).or_default().push(request);
        self.now + self.request_timeout
    }

    /// Whether a bookie answers in another life than the one in which it became a member, if both are known. What it
    /// does not have then says nothing: it may have been wiped, and its fence may have gone with the entries.
    pub(super) fn is_other_instance(
        &self,
        recorded: Option<Instance>,
        response: &Response,
    ) -> bool {
        let registered = || self.registry.iter().find(|bookie| bookie.id == response.bookie);
        let answering = response.instance.or_else(|| registered().map(|bookie| bookie.instance));
        recorded.is_some_and(|recorded| answering.is_some_and(|answering| answering != recorded))
    }
}

/// Bits of a request id that hold the slot; the kind of question and the entry stand above them.
const SLOT_BITS: u32 = 6;
const KIND_BITS: u32 = 2;

pub(super) fn request_id(question: Question, slot: Slot) -> RequestId {
    let (kind, entry) = match question {
        Question::Fence => (0, EntryId::FIRST),
        Question::Exists(entry) => (1, entry),
        Question::WriteBack(entry) => (2, entry),
        Question::Length(entry) => (3, entry),
    };
    RequestId((entry.get() << KIND_BITS | kind) << SLOT_BITS | slot.index() as u64)
}

/// The question and the slot that a request id stands for.
pub(super) fn question_and_slot(id: RequestId) -> (Question, Slot) {
    let slot = Slot::new((id.0 & ((1 << SLOT_BITS) - 1)) as usize);
    let entry = EntryId(id.0 >> (SLOT_BITS + KIND_BITS));
    let question = match id.0 >> SLOT_BITS & ((1 << KIND_BITS) - 1) {
        0 => Question::Fence,
        1 => Question::Exists(entry),
        2 => Question::WriteBack(entry),
        _ => Question::Length(entry),
    };
    (question, slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_id_gives_back_its_question_and_slot() {
        for entry in [0, 1, 77, (1 << 56) - 1].map(EntryId) {
            for question in
                [Question::Exists(entry), Question::WriteBack(entry), Question::Length(entry)]
            {
                for slot in [0, 1, 63].map(Slot::new) {
                    assert_eq!(question_and_slot(request_id(question, slot)), (question, slot));
                }
            }
        }
        let fence = request_id(Question::Fence, Slot::new(5));
        assert_eq!(question_and_slot(fence), (Question::Fence, Slot::new(5)));
    }
}
