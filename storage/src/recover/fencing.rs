//! Fencing: after it nothing can be acknowledged that the reads of the recovery do not see.

use std::collections::BTreeMap;

use super::Error;
use super::request::{Question, Turn};
use crate::id::EntryId;
use crate::metadata::LedgerMetadata;
use crate::quorum::{Coverage, LacAnswers, LacQuorum, Slot, SlotSet};
use crate::replica::{Answers, ReplicaError};
use crate::time::Time;
use crate::transport::{BookieError, Evidence, RequestBody, Response, ResponseBody};

/// The fencing LAC reads to all members of the last ensemble.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fencing {
    answers: LacAnswers,
    failures: BTreeMap<Slot, ReplicaError>,
    /// The highest LAC that was answered.
    lac: Option<EntryId>,
    /// The members that have answered something after fencing.
    fenced: SlotSet,
    deadline: Time,
}

impl Fencing {
    pub(super) fn send(turn: &mut Turn<'_>, record: &LedgerMetadata) -> Self {
        let slots = record.sizes().slots();
        slots.for_each(|slot| fence(turn, record, slot));
        Self {
            answers: LacAnswers::default(),
            failures: BTreeMap::new(),
            lac: None,
            fenced: SlotSet::default(),
            deadline: turn.now + turn.request_timeout,
        }
    }

    /// Takes the answer of the member in `slot`, also long after coverage.
    ///
    /// # Errors
    /// [`Error::Unauthorized`].
    pub(super) fn on_response(
        &mut self,
        turn: &Turn<'_>,
        record: &LedgerMetadata,
        slot: Slot,
        response: Response,
    ) -> Result<(), Error> {
        if record.last_ensemble().1.get(slot.index()) != Some(&response.bookie) {
            return Ok(());
        }
        let recorded = record.instance_of(&response.bookie);
        let failure = match response.result {
            Err(BookieError::Unauthorized) => {
                return Err(Error::Unauthorized { ledger: turn.ledger, bookie: response.bookie });
            }
            _ if turn.is_other_instance(recorded, &response) => Some(ReplicaError::OtherInstance),
            Ok(ResponseBody::LastAddConfirmed { lac }) => {
                self.lac = self.lac.max(lac);
                None
            }
            Ok(_) => Some(ReplicaError::Unexpected),
            Err(error) => (error.evidence() == Evidence::Unknown).then_some(error.into()),
        };
        match failure {
            None => {
                self.answers.record(slot);
                self.fenced.insert(slot);
            }
            Some(failure) => self.record_failure(slot, failure),
        }
        Ok(())
    }

    pub(super) fn on_time(&mut self, record: &LedgerMetadata, now: Time) {
        if self.deadline <= now {
            for slot in record.sizes().slots() {
                self.record_failure(slot, BookieError::Timeout.into());
            }
        }
    }

    pub(super) fn coverage(&self, record: &LedgerMetadata) -> Coverage<LacQuorum> {
        self.answers.coverage(record.sizes())
    }

    /// Everything up to this entry is confirmed: what the bookies answered, or more if the record proves it.
    pub(super) fn last_add_confirmed(
        &self,
        _: LacQuorum,
        record: &LedgerMetadata,
    ) -> Option<EntryId> {
        self.lac.max(record.lac_floor())
    }

    /// Who did not answer usably, and why.
    pub(super) fn failures(&self, record: &LedgerMetadata) -> Answers {
        let (_, members) = record.last_ensemble();
        let named = |(slot, error): (&Slot, &ReplicaError)| (members[slot.index()].clone(), *error);
        Answers(self.failures.iter().map(named).collect())
    }

    /// The member has answered another fencing read.
    pub(super) fn insert_fenced(&mut self, slot: Slot) {
        self.fenced.insert(slot);
    }

    /// Fences once more whom no answer shows to be fenced. Nobody waits for the answers: the end is decided. But a
    /// bookie that forgets a fence that it never answered for must not leave the writer an ack quorum without one.
    pub(super) fn fence_the_others(&self, turn: &mut Turn<'_>, record: &LedgerMetadata) {
        let slots = record.sizes().slots().filter(|slot| !self.fenced.contains(*slot));
        slots.for_each(|slot| fence(turn, record, slot));
    }

    pub(super) const fn wake_at(&self) -> Time {
        self.deadline
    }

    pub(super) fn renumber(&mut self, now: Time) {
        self.deadline = Time::ZERO + self.deadline.saturating_since(now);
    }

    fn record_failure(&mut self, slot: Slot, failure: ReplicaError) {
        if !self.answers.is_settled(slot) {
            self.answers.record_failure(slot);
            self.failures.insert(slot, failure);
        }
    }
}

fn fence(turn: &mut Turn<'_>, record: &LedgerMetadata, slot: Slot) {
    let bookie = &record.last_ensemble().1[slot.index()];
    let body = RequestBody::ReadLac { fence: Some(turn.key) };
    turn.send(bookie, Question::Fence, slot, body);
}
