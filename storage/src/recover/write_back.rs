//! Writing back what was found, so that every entry of the closed ledger has AQ copies where its record says.
//!
//! The found bytes are forwarded unchanged: a header with another LAC would let readers confirm what a competing
//! recovery cuts. Replacements of failed bookies are this recovery's own until the closing compare-and-set; what is
//! read is always read from the frozen ensemble, so that a new, empty member cannot make an entry look absent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Error;
use super::request::{Question, Turn};
use crate::bookie::rules::Mode;
use crate::entry::Entry;
use crate::id::{BookieId, EntryId, Instance};
use crate::metadata::{LedgerEnd, LedgerMetadata};
use crate::quorum::{QuorumSizes, Slot};
use crate::replica::{Answers, ReplicaError};
use crate::time::Time;
use crate::transport::{AddKind, BookieError, RequestBody, Response, ResponseBody};

/// The entries on their way back and the ensembles they go to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WriteBack {
    sizes: QuorumSizes,
    /// The members now.
    members: Vec<BookieId>,
    /// What the closing record needs instead of the frozen last ensemble, or behind it.
    changed: BTreeMap<EntryId, Vec<BookieId>>,
    /// The lives in which replacements became members.
    joined: BTreeMap<BookieId, Instance>,
    /// Bookies that failed an add. In this recovery they replace nobody.
    failed: BTreeSet<BookieId>,
    /// From the first entry without AQ copies to the last one found, without gaps.
    pending: VecDeque<Pending>,
    /// What was confirmed before anything was written back.
    behind: Option<EntryId>,
    /// The last entry that was written back and, with all before it, has AQ copies; and the length in its header.
    written: Option<LedgerEnd>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    entry: Entry,
    /// By place in the write set.
    copies: Vec<CopyState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CopyState {
    Sent { deadline: Time },
    Held,
    Lost(ReplicaError),
}

impl WriteBack {
    /// Into the frozen ensemble, behind the last confirmed entry.
    pub(super) fn new(record: &LedgerMetadata, confirmed: Option<EntryId>) -> Self {
        Self {
            sizes: record.sizes(),
            members: record.last_ensemble().1.to_vec(),
            changed: BTreeMap::new(),
            joined: BTreeMap::new(),
            failed: BTreeSet::new(),
            pending: VecDeque::new(),
            behind: confirmed,
            written: None,
        }
    }

    /// Writes back the next entry, as it was found.
    pub(super) fn write(&mut self, turn: &mut Turn<'_>, entry: Entry) {
        let next = EntryId::following(self.confirmed()).get() + self.pending.len() as u64;
        assert_eq!(entry.entry(), EntryId(next), "entries are written back in order");
        let send = |slot| CopyState::Sent { deadline: self.send(turn, slot, &entry) };
        let copies = self.sizes.write_set(entry.entry()).map(send).collect();
        self.pending.push_back(Pending { entry, copies });
    }

    /// Takes the answer to one write-back.
    pub(super) fn on_response(
        &mut self,
        turn: &mut Turn<'_>,
        record: &LedgerMetadata,
        (entry, slot): (EntryId, Slot),
        response: &Response,
    ) {
        // A bookie that was replaced meanwhile speaks for nobody.
        if self.members.get(slot.index()) != Some(&response.bookie) {
            return;
        }
        let joined = self.joined.get(&response.bookie).copied();
        let recorded = record.instance_of(&response.bookie).or(joined);
        let copy = match response.result {
            _ if turn.is_other_instance(recorded, response) => {
                CopyState::Lost(ReplicaError::OtherInstance)
            }
            Ok(ResponseBody::Added) => CopyState::Held,
            Ok(_) => CopyState::Lost(ReplicaError::Unexpected),
            // Also a fence: it does not concern a recovery, so this bookie refuses for reasons of its own.
            Err(error) => CopyState::Lost(error.into()),
        };
        let Some(sent) = self.copy_mut(entry, slot) else {
            return;
        };
        if let CopyState::Sent { .. } = sent {
            *sent = copy;
            if let CopyState::Lost(_) = copy {
                self.failed.insert(response.bookie.clone());
                self.replace(turn, record, slot);
            }
        }
    }

    /// Bookies that are overdue have failed.
    pub(super) fn on_time(&mut self, turn: &mut Turn<'_>, record: &LedgerMetadata) {
        let mut late = BTreeSet::new();
        for pending in &mut self.pending {
            for (slot, copy) in self.sizes.write_set(pending.entry.entry()).zip(&mut pending.copies)
            {
                if matches!(copy, CopyState::Sent { deadline } if *deadline <= turn.now) {
                    *copy = CopyState::Lost(BookieError::Timeout.into());
                    late.insert(slot);
                }
            }
        }
        for slot in late {
            self.failed.insert(self.members[slot.index()].clone());
            self.replace(turn, record, slot);
        }
    }

    /// Other bookies are registered now: replaces failed ones for which there was no replacement.
    pub(super) fn repair(&mut self, turn: &mut Turn<'_>, record: &LedgerMetadata) {
        let mut lost = BTreeSet::new();
        for pending in &self.pending {
            let copies = self.sizes.write_set(pending.entry.entry()).zip(&pending.copies);
            lost.extend(
                copies.filter(|(_, copy)| matches!(copy, CopyState::Lost(_))).map(|(s, _)| s),
            );
        }
        lost.into_iter().for_each(|slot| self.replace(turn, record, slot));
    }

    /// Confirms, in order, what has AQ copies.
    ///
    /// # Errors
    /// [`Error::WriteBack`] for an entry that can no longer get them.
    pub(super) fn settle(&mut self, turn: &Turn<'_>) -> Result<(), Error> {
        while let Some(oldest) = self.pending.front()
            && self.bookies(oldest, |copy| copy == CopyState::Held) >= self.sizes.ack()
        {
            let (last_entry, length) = (Some(oldest.entry.entry()), oldest.entry.length());
            self.written = Some(LedgerEnd { last_entry, length });
            self.pending.pop_front();
        }
        let hopeless = |pending: &&Pending| {
            let possible = |copy| !matches!(copy, CopyState::Lost(_));
            self.bookies(pending, possible) < self.sizes.ack()
        };
        match self.pending.iter().find(hopeless) {
            None => Ok(()),
            Some(pending) => {
                let entry = pending.entry.entry();
                Err(Error::WriteBack { ledger: turn.ledger, entry, answers: self.losses(pending) })
            }
        }
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The last entry that has AQ copies, with all before it.
    pub(super) fn confirmed(&self) -> Option<EntryId> {
        self.written.map_or(self.behind, |end| end.last_entry)
    }

    /// How many entries have been written back.
    pub(super) fn entries(&self) -> u64 {
        let behind = EntryId::following(self.behind);
        EntryId::following(self.confirmed()).get() - behind.get()
    }

    /// The last entry that was written back, and its length.
    pub(super) const fn written(&self) -> Option<LedgerEnd> {
        self.written
    }

    /// The ensembles that the closing record must name, and the lives of their new members.
    pub(super) fn into_ensembles(
        self,
    ) -> (BTreeMap<EntryId, Vec<BookieId>>, BTreeMap<BookieId, Instance>) {
        (self.changed, self.joined)
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        let deadlines = self.pending.iter().flat_map(|pending| &pending.copies);
        deadlines.filter_map(|copy| copy.deadline()).min()
    }

    pub(super) fn renumber(&mut self, now: Time) {
        for copy in self.pending.iter_mut().flat_map(|pending| &mut pending.copies) {
            if let CopyState::Sent { deadline } = copy {
                *deadline = Time::ZERO + deadline.saturating_since(now);
            }
        }
    }

    /// Puts the first suitable bookie in the place of a failed one. Without one the slot is done without.
    ///
    /// All pending entries are switched in this one step, before any of them is confirmed: a copy on the replaced
    /// bookie no longer counts, also of entries that had their AQ copies and only waited for an earlier one.
    fn replace(&mut self, turn: &mut Turn<'_>, record: &LedgerMetadata, slot: Slot) {
        let suitable = turn.registry.iter().find(|bookie| {
            bookie.mode == Mode::Writable
                && !self.members.contains(&bookie.id)
                && !self.failed.contains(&bookie.id)
                && record.instance_of(&bookie.id).is_none_or(|first| first == bookie.instance)
        });
        let Some(replacement) = suitable.cloned() else {
            return;
        };
        self.members[slot.index()] = replacement.id.clone();
        self.changed.insert(EntryId::following(self.confirmed()), self.members.clone());
        self.joined.insert(replacement.id, replacement.instance);
        for index in 0..self.pending.len() {
            let entry = self.pending[index].entry.clone();
            let place = self.sizes.write_set(entry.entry()).position(|member| member == slot);
            if let Some(place) = place {
                let deadline = self.send(turn, slot, &entry);
                self.pending[index].copies[place] = CopyState::Sent { deadline };
            }
        }
    }

    fn send(&self, turn: &mut Turn<'_>, slot: Slot, entry: &Entry) -> Time {
        let (bookie, question) = (&self.members[slot.index()], Question::WriteBack(entry.entry()));
        let body =
            RequestBody::Add { entry: entry.clone(), key: turn.key, kind: AddKind::Recovery };
        turn.send(bookie, question, slot, body)
    }

    fn copy_mut(&mut self, entry: EntryId, slot: Slot) -> Option<&mut CopyState> {
        let first = EntryId::following(self.confirmed()).get();
        let index = usize::try_from(entry.get().checked_sub(first)?).ok()?;
        let place = self.sizes.write_set(entry).position(|member| member == slot)?;
        self.pending.get_mut(index)?.copies.get_mut(place)
    }

    /// How many distinct bookies of an entry's write set have such a copy.
    fn bookies(&self, pending: &Pending, such: impl Fn(CopyState) -> bool) -> usize {
        let copies = self.sizes.write_set(pending.entry.entry()).zip(&pending.copies);
        let bookies = copies.filter(|(_, copy)| such(**copy));
        bookies.map(|(slot, _)| &self.members[slot.index()]).collect::<BTreeSet<_>>().len()
    }

    fn losses(&self, pending: &Pending) -> Answers {
        let copies = self.sizes.write_set(pending.entry.entry()).zip(&pending.copies);
        let lost = copies.filter_map(|(slot, copy)| match copy {
            CopyState::Lost(error) => Some((self.members[slot.index()].clone(), *error)),
            CopyState::Sent { .. } | CopyState::Held => None,
        });
        Answers(lost.collect())
    }
}

impl CopyState {
    const fn deadline(self) -> Option<Time> {
        match self {
            Self::Sent { deadline } => Some(deadline),
            Self::Held | Self::Lost(_) => None,
        }
    }
}
