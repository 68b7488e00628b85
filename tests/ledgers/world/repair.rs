//! AutoRecovery: what a lost member of a closed fragment should hold is copied to a bookie that then takes its place.
//!
//! Which fragments may be repaired, the shipped functions say. Each copy is a step, and so is the write to the record,
//! which may come at any time after the last copy: one that came too late and met another record is tried again with
//! that, so it is as if it had not been made. To close an open ledger whose grace period is over is to start a
//! recovery, which an exploration with recoveries does at any time.

use std::collections::BTreeMap;

use georepl_storage::{
    AddKind, BookieId, EntryId, FragmentEnd, Instance, LedgerMetadata, LedgerState, MasterKey,
    Request, RequestBody, RequestId, Slot, fragments, is_closed,
};

use super::bookie::{Presence, id, number};
use super::{LEDGER, World};

/// The repair of one place in one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repair {
    /// The fragment: its first entry, and the last one that is to be copied.
    first: EntryId,
    last: Option<EntryId>,
    /// Whose place it is.
    slot: Slot,
    lost: usize,
    /// Who is to have it, in the life that it has.
    replacement: usize,
    instance: Instance,
}

/// A repair that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Underway {
    repair: Repair,
    /// The entry to copy; none when all are.
    pub next: Option<EntryId>,
}

impl World {
    /// What could be repaired now. There is one worker.
    pub(super) fn repairs(&self) -> Vec<Repair> {
        let mut repairs = Vec::new();
        if self.left.repairs == 0 || self.repair.is_some() {
            return repairs;
        }
        let (record, lac) = (self.record(), self.read_lac());
        let (last_key, _) = record.last_ensemble();
        for fragment in fragments(record) {
            if !is_closed(record.state(), fragment.first, last_key, lac) {
                continue;
            }
            let last = match fragment.end {
                FragmentEnd::Through(last) => Some(last),
                FragmentEnd::Empty => None,
                // None that is closed, if that is told rightly. As far as the worker knows, it goes to the LAC.
                FragmentEnd::Unknown => lac,
            };
            let members: Vec<_> = fragment.members.iter().map(number).collect();
            for slot in record.sizes().slots() {
                let lost = members[slot.index()];
                if !self.is_lost(lost) {
                    continue;
                }
                let fit = |bookie: &usize| !members.contains(bookie) && !self.is_lost(*bookie);
                repairs.extend((0..self.bookies.len()).filter(fit).map(|replacement| {
                    let instance = self.bookies[replacement].instance;
                    Repair { first: fragment.first, last, slot, lost, replacement, instance }
                }));
            }
        }
        repairs
    }

    /// The most that a reader could learn of the LAC. It is what would mislead a worker soonest.
    fn read_lac(&self) -> Option<EntryId> {
        let (_, members) = self.record().last_ensemble();
        let there = members.iter().map(number).filter(|bookie| !self.is_lost(*bookie));
        let stored = there.filter_map(|bookie| self.bookies[bookie].stored_lac()).max();
        stored.max(self.record().lac_floor())
    }

    /// Whether a bookie is not there, or not in the life that the ledger knows.
    fn is_lost(&self, bookie: usize) -> bool {
        let at = &self.bookies[bookie];
        let recorded = self.record().instance_of(&at.id);
        at.presence != Presence::Up || recorded.is_some_and(|recorded| recorded != at.instance)
    }

    pub(super) fn begin_repair(&mut self, repair: Repair) {
        self.spend(|left| &mut left.repairs);
        self.copy_from(repair, repair.first);
    }

    /// The next to copy is the first from this entry on that the place should hold.
    fn copy_from(&mut self, repair: Repair, entry: EntryId) {
        let sizes = self.record().sizes();
        let last = repair.last.map_or(0, |last| last.get() + 1);
        let mut entries = (entry.get()..last).map(EntryId);
        let next = entries.find(|entry| sizes.stores(repair.slot, *entry));
        self.repair = Some(Underway { repair, next });
    }

    /// A copy that cannot be made ends the repair: a later one begins it anew.
    pub(super) fn copy_entry(&mut self) {
        let Underway { repair, next } = self.repair.take().expect("enabled when it was begun");
        let entry = next.expect("enabled when there is one to copy");
        let Some(holder) = self.holders(entry).find(|bookie| !self.is_lost(*bookie)) else {
            return;
        };
        let bookie = &self.bookies[holder];
        let copy = bookie.entries().find(|copy| copy.entry() == entry).expect("it holds it");
        let key = MasterKey::of(self.record().password());
        let body = RequestBody::Add { entry: copy.clone(), key, kind: AddKind::Recovery };
        let request = Request { id: RequestId(0), ledger: LEDGER, body };
        let answer = self.carry_out_request(repair.replacement, request.into()).message;
        if answer.result.is_ok() && answer.instance == Some(repair.instance) {
            self.copy_from(repair, entry.next());
        }
    }

    /// By compare-and-set, if the place is still that of the lost one.
    pub(super) fn move_fragment(&mut self) {
        let Underway { repair, .. } = self.repair.take().expect("enabled when it was begun");
        let Repair { first, slot, .. } = repair;
        let (lost, replacement) = (id(repair.lost), id(repair.replacement));
        let mut ensembles = self.record().ensembles().clone();
        let Some(members) = ensembles.get_mut(&first) else { return };
        if members[slot.index()] != lost || members.contains(&replacement) {
            return;
        }
        members[slot.index()] = replacement.clone();
        let named = [(replacement, repair.instance)];
        let moved = with_ensembles(self.record(), ensembles).with_instances(named);
        let checked = self.check_move(&moved);
        self.store(moved.into());
        self.moves += 1;
        checked.unwrap_or_else(|broken| self.breaks(broken));
    }
}

/// The same record with other members.
fn with_ensembles(
    record: &LedgerMetadata,
    mut ensembles: BTreeMap<EntryId, Vec<BookieId>>,
) -> LedgerMetadata {
    let (_, first) = ensembles.pop_first().expect("there is at least one ensemble");
    let (sizes, password) = (record.sizes(), record.password().clone());
    let (token, custom) = (record.creation_token(), record.custom().clone());
    let next = LedgerMetadata::created(sizes, password, first, token, custom);
    let mut next = next.expect("of the right size");
    for (key, members) in ensembles {
        next = next.ensemble_changed(key, members).expect("in the order of keys");
    }
    match record.state() {
        LedgerState::Open => Ok(next),
        LedgerState::InRecovery => next.in_recovery(),
        LedgerState::Closed(end) => next.closed(end.last_entry, end.length),
    }
    .expect("a state that the record was in")
}
