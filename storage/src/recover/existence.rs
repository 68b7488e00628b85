//! Whether an entry exists, decided from the answers of its write set.
//!
//! There are three answers to the question, not two. One undamaged copy proves that the entry exists, whoever has it.
//! WQ - AQ + 1 distinct bookies that say, after their fence, that they never held it prove that it was never
//! acknowledged and never will be: every AQ of its write set contain one of them. All else is doubt, and doubt never
//! cuts a ledger.

use std::collections::BTreeSet;

use super::request::{Question, Turn};
use crate::entry::{Entry, MasterKey};
use crate::id::{BookieId, EntryId};
use crate::metadata::LedgerMetadata;
use crate::quorum::Slot;
use crate::replica::{Answers, ReplicaError, verified};
use crate::time::Time;
use crate::transport::{BookieError, Evidence, RequestBody, Response};

/// What is known of the existence of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Existence {
    /// This is it, as a bookie has it.
    Found(Entry),
    /// It was never acknowledged and never will be.
    Absent,
    /// Nobody is left to answer, and it may exist or not because of these.
    Doubtful(Answers),
    /// Somebody may still answer.
    Undecided,
}

/// The reads of one entry from all members of its write set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryRead {
    entry: EntryId,
    /// By place in the write set.
    replies: Vec<Reply>,
    found: Option<Entry>,
    deadline: Time,
}

/// What one member said. Later words count only if they say more, so that the order of answers cannot matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reply {
    Awaited,
    Unknown(ReplicaError),
    Absent,
    Present,
}

impl EntryRead {
    /// Asks the whole write set for an entry, by the ensemble that `record` names for it.
    pub(super) fn send(
        turn: &mut Turn<'_>,
        record: &LedgerMetadata,
        question: Question,
        entry: EntryId,
        fence: Option<MasterKey>,
    ) -> Self {
        let write_set = record.sizes().write_set(entry);
        let replies = vec![Reply::Awaited; write_set.len()];
        for slot in write_set {
            let bookie = &record.ensemble_of(entry)[slot.index()];
            turn.send(bookie, question, slot, RequestBody::Read { entry, fence });
        }
        Self { entry, replies, found: None, deadline: turn.now + turn.request_timeout }
    }

    pub(super) const fn entry(&self) -> EntryId {
        self.entry
    }

    /// Takes the answer of the member in `slot`, and returns whether it is one that the fence came before.
    pub(super) fn on_response(
        &mut self,
        turn: &Turn<'_>,
        record: &LedgerMetadata,
        slot: Slot,
        response: Response,
    ) -> Fenced {
        let member = record.ensemble_of(self.entry).get(slot.index());
        let place = record.sizes().write_set(self.entry).position(|member| member == slot);
        let (Some(place), true) = (place, member == Some(&response.bookie)) else {
            return Fenced::Unknown;
        };
        let recorded = record.instance_of(&response.bookie);
        let is_other = turn.is_other_instance(recorded, &response);
        let reply = match verified(turn.ledger, self.entry, response.result) {
            Ok(found) => {
                self.found.get_or_insert(found);
                Reply::Present
            }
            Err(_) if is_other => Reply::Unknown(ReplicaError::OtherInstance),
            Err(ReplicaError::Bookie(error)) if error.evidence() == Evidence::Absent => {
                Reply::Absent
            }
            Err(error) => Reply::Unknown(error),
        };
        let said = &mut self.replies[place];
        if reply.says() > said.says() {
            *said = reply;
        }
        match reply {
            Reply::Present | Reply::Absent if !is_other => Fenced::Yes,
            _ => Fenced::Unknown,
        }
    }

    /// Members that have not answered by their deadline are no longer waited for.
    pub(super) fn on_time(&mut self, now: Time) {
        if self.deadline <= now {
            for reply in &mut self.replies {
                if let Reply::Awaited = reply {
                    *reply = Reply::Unknown(BookieError::Timeout.into());
                }
            }
        }
    }

    /// What the answers amount to. A member that may still answer is waited for before absence is concluded.
    pub(super) fn existence(&self, record: &LedgerMetadata) -> Existence {
        if let Some(found) = &self.found {
            return Existence::Found(found.clone());
        }
        if self.replies.contains(&Reply::Awaited) {
            return Existence::Undecided;
        }
        let members = record.ensemble_of(self.entry);
        let write_set = record.sizes().write_set(self.entry).map(|slot| &members[slot.index()]);
        let said = write_set.zip(&self.replies);
        // A bookie that stands twice in an old record counts once.
        let absent: BTreeSet<&BookieId> = said
            .clone()
            .filter(|(_, reply)| **reply == Reply::Absent)
            .map(|(bookie, _)| bookie)
            .collect();
        if absent.len() >= record.sizes().absence() {
            return Existence::Absent;
        }
        let doubts = said.filter_map(|(bookie, reply)| match reply {
            Reply::Unknown(error) => Some((bookie.clone(), *error)),
            Reply::Awaited | Reply::Absent | Reply::Present => None,
        });
        Existence::Doubtful(Answers(doubts.collect()))
    }

    /// When somebody's answer is overdue; none if nobody is waited for.
    pub(super) fn wake_at(&self) -> Option<Time> {
        let waits = self.found.is_none() && self.replies.contains(&Reply::Awaited);
        waits.then_some(self.deadline)
    }

    pub(super) fn renumber(&mut self, now: Time) {
        self.deadline = Time::ZERO + self.deadline.saturating_since(now);
    }
}

/// Whether an answer shows that its bookie has fenced the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fenced {
    Yes,
    Unknown,
}

impl Reply {
    const fn says(self) -> u8 {
        match self {
            Self::Awaited => 0,
            Self::Unknown(_) => 1,
            Self::Absent => 2,
            Self::Present => 3,
        }
    }
}
