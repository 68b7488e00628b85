//! The entries of a writer that are under way: who has been sent what, who has it, and how far that confirms them.
//!
//! ```text
//!  entries   0 ........ retired │ confirmed, sends outstanding │ pushed, not confirmed │ next
//!                             first                LAC ─┘                          LAP ┘
//! ```
//!
//! Of an entry and a slot of its write set there are three states: outstanding, acknowledged and given up. A slot has
//! one member at a time and an epoch that grows when the member changes or is sent everything again; an answer counts
//! only under the epoch it was asked in. So "sent to somebody else than the present member" cannot be confused with
//! "sent", and needs no memory per entry.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::entry::{Entry, MasterKey};
use crate::id::{BookieId, EntryId, Instance, LedgerId};
use crate::metadata::{LedgerEnd, LedgerMetadata};
use crate::quorum::{AckSet, Coverage, QuorumSizes, Slot, SlotSet};
use crate::shortfall::Shortfall;
use crate::time::Time;
use crate::transport::{AddKind, Request, RequestBody, RequestId, Response};

use super::{Failure, Limits};

/// How long what an overloaded bookie refused is held back. Long enough to let its queue drain, and short beside the
/// request timeout, within which it must have taken the entry.
const HELD_BACK_FOR: Duration = Duration::from_millis(20);

/// The entries under way and the members that hold them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Adds {
    ledger: LedgerId,
    sizes: QuorumSizes,
    key: MasterKey,
    members: Vec<Member>,
    /// From the oldest entry with outstanding sends or without confirmation to LAP, without gaps.
    pending: VecDeque<Add>,
    /// The id of the first pending entry.
    first: EntryId,
    /// LAC and the length at it.
    confirmed: LedgerEnd,
    /// Payload bytes up to LAP.
    length: u64,
    /// When to look for members that have not answered in time; none while nothing is outstanding. Never too late.
    overdue_at: Option<Time>,
    /// Adds to be submitted, per slot.
    outbox: Vec<Vec<Request>>,
    entries_below_write_quorum: u64,
    shortfalls: Vec<Shortfall>,
}

/// Who holds a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) bookie: BookieId,
    /// The life in which the record names it.
    instance: Option<Instance>,
    epoch: u16,
    health: Health,
    /// Nothing of this epoch is overdue before this.
    answer_by: Time,
    /// Bytes of confirmed entries that are kept for this member alone.
    behind_bytes: u64,
    held: Option<HeldBack>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Health {
    /// It is sent every entry of its slot.
    Serving,
    /// It is sent nothing, and counts for nothing.
    Lost(Failure),
}

/// Entries that wait until an overloaded bookie is asked again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct HeldBack {
    until: Time,
    entries: Vec<EntryId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Add {
    entry: Entry,
    acks: AckSet,
    answer_by: Time,
    confirm_by: Time,
}

/// An answer that counts: from the present member of the slot, to what it was sent in its present epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    index: usize,
    pub(super) slot: Slot,
}

impl Adds {
    pub(super) fn new(ledger: LedgerId, record: &LedgerMetadata) -> Self {
        let sizes = record.sizes();
        let (_, ensemble) = record.last_ensemble();
        let member = |bookie: &BookieId| Member::new(bookie, record, 0, Time::ZERO);
        Self {
            ledger,
            sizes,
            key: MasterKey::of(record.password()),
            members: ensemble.iter().map(member).collect(),
            pending: VecDeque::new(),
            first: EntryId::FIRST,
            confirmed: LedgerEnd::default(),
            length: 0,
            overdue_at: None,
            outbox: sizes.slots().map(|_| Vec::new()).collect(),
            entries_below_write_quorum: 0,
            shortfalls: Vec::new(),
        }
    }

    /// Sends new entries to their write sets, with the LAC of this moment in their headers.
    pub(super) fn append(
        &mut self,
        now: Time,
        first: EntryId,
        payloads: &mut Vec<Bytes>,
        limits: &Limits,
    ) {
        let mut id = self.next();
        assert_eq!(first, id, "invariant 1: the ids promised are those given");
        self.pending.reserve(payloads.len());
        for requests in &mut self.outbox {
            requests.reserve(payloads.len());
        }
        let answer_by = now + limits.request_timeout;
        let confirm_by = now + limits.add_quorum_timeout;
        for payload in payloads.drain(..) {
            self.length += payload.len() as u64;
            let lac = self.confirmed.last_entry;
            let entry = Entry::seal(self.ledger, id, lac, self.length, payload);
            let mut add = Add { entry, acks: AckSet::default(), answer_by, confirm_by };
            for slot in self.sizes.write_set(id) {
                match self.members[slot.index()].health {
                    Health::Serving => self.send(&add.entry, slot),
                    Health::Lost(_) => add.acks.record_failure(slot),
                }
            }
            self.pending.push_back(add);
            id = id.next();
        }
        if !self.pending.is_empty() {
            self.overdue_at.get_or_insert(answer_by);
        }
    }

    /// Which entry and slot a response is about, if it counts.
    pub(super) fn answered(&self, response: &Response) -> Option<Answered> {
        let AddId { entry_low, epoch, slot } = AddId::of(response.id);
        let member = self.members.get(slot.index())?;
        let index = entry_low.wrapping_sub(self.first.get()) & ENTRY_MASK;
        let index = usize::try_from(index).ok()?;
        let add = self.pending.get(index)?;
        let counts = member.epoch == epoch
            && member.bookie == response.bookie
            && member.health == Health::Serving
            && self.sizes.stores(slot, add.entry.entry());
        counts.then_some(Answered { index, slot })
    }

    /// Whether another life of the member answers than the one the record names.
    pub(super) fn is_other_instance(&self, slot: Slot, instance: Option<Instance>) -> bool {
        let named = self.members[slot.index()].instance;
        named.zip(instance).is_some_and(|(named, answering)| named != answering)
    }

    pub(super) fn acknowledge(&mut self, Answered { index, slot }: Answered) {
        let is_confirmed = index < self.confirmed_pending();
        let add = &mut self.pending[index];
        if is_confirmed && !add.acks.is_settled(slot) {
            self.members[slot.index()].behind_bytes -= add.entry.size_bytes() as u64;
        }
        add.acks.record(slot);
    }

    /// Keeps an entry that an overloaded bookie refused, and those after it, until it has had a moment.
    pub(super) fn hold_back(&mut self, now: Time, Answered { index, slot }: Answered) {
        let add = &self.pending[index];
        if !add.acks.is_settled(slot) {
            let empty = || HeldBack { until: now + HELD_BACK_FOR, entries: Vec::new() };
            let held = self.members[slot.index()].held.get_or_insert_with(empty);
            held.entries.push(add.entry.entry());
        }
    }

    /// Gives up on a slot's member; what it has not acknowledged it never will.
    pub(super) fn lose(&mut self, slot: Slot, failure: Failure) {
        self.members[slot.index()].health = Health::Lost(failure);
        if failure == Failure::OtherInstance {
            self.forget_acks(slot);
        }
        self.give_up(slot);
    }

    /// The copies went with the life of the bookie that acknowledged them.
    fn forget_acks(&mut self, slot: Slot) {
        let confirmed = self.confirmed_pending();
        for add in self.pending.iter_mut().skip(confirmed) {
            add.acks.forget(slot);
        }
    }

    fn give_up(&mut self, slot: Slot) {
        let confirmed = self.confirmed_pending();
        let member = &mut self.members[slot.index()];
        (member.behind_bytes, member.held) = (0, None);
        self.outbox[slot.index()].clear();
        let bookie = &self.members[slot.index()].bookie;
        for (index, add) in self.pending.iter_mut().enumerate() {
            let id = add.entry.entry();
            if !self.sizes.stores(slot, id) || add.acks.is_settled(slot) {
                continue;
            }
            add.acks.record_failure(slot);
            if index < confirmed {
                Shortfall::note(&mut self.shortfalls, bookie, id, id);
            }
        }
    }

    /// Sends everything that is pending to a member again, which may have lost what it was sent: answers from before
    /// count no more. What it had acknowledged of confirmed entries is durable and stays.
    pub(super) fn restart(&mut self, now: Time, slot: Slot, limits: &Limits) {
        let answer_by = now + limits.request_timeout;
        let member = &mut self.members[slot.index()];
        member.epoch = member.epoch.saturating_add(1);
        (member.health, member.answer_by, member.held) = (Health::Serving, answer_by, None);
        self.resend(slot, answer_by);
    }

    /// Lets the members of the record's last ensemble hold what is not confirmed. All pending entries are switched
    /// before anything is confirmed again: an answer of a member that was replaced is an answer of nobody.
    pub(super) fn switch(
        &mut self,
        now: Time,
        record: &LedgerMetadata,
        limits: &Limits,
    ) -> SlotSet {
        let (_, ensemble) = record.last_ensemble();
        let answer_by = now + limits.request_timeout;
        let mut switched = SlotSet::default();
        for slot in self.sizes.slots() {
            let bookie = &ensemble[slot.index()];
            let member = &self.members[slot.index()];
            if member.bookie != *bookie {
                let epoch = member.epoch.saturating_add(1);
                self.give_up(slot);
                self.members[slot.index()] = Member::new(bookie, record, epoch, answer_by);
                self.resend(slot, answer_by);
                switched.insert(slot);
            }
        }
        switched
    }

    /// Moves LAC over what has its quorum, and retires what nothing is outstanding for.
    pub(super) fn confirm(&mut self) -> Progress {
        let before = self.confirmed.last_entry;
        while let Some(add) = self.pending.get(self.confirmed_pending())
            && let Coverage::Reached(_) = add.acks.coverage(self.sizes)
        {
            let id = add.entry.entry();
            let next = EntryId::following(self.confirmed.last_entry);
            assert_eq!(id, next, "invariant 2: LAC moves entry by entry");
            self.confirmed = LedgerEnd { last_entry: Some(id), length: add.entry.length() };
            if add.acks.acks() < self.sizes.write() {
                for slot in self.sizes.write_set(id) {
                    let member = &mut self.members[slot.index()];
                    if add.acks.failed().contains(slot) {
                        Shortfall::note(&mut self.shortfalls, &member.bookie, id, id);
                    } else if !add.acks.is_settled(slot) {
                        member.behind_bytes += add.entry.size_bytes() as u64;
                    }
                }
            }
        }
        while Some(self.first) <= self.confirmed.last_entry
            && let Some(oldest) = self.pending.front()
            && oldest.acks.settled() == self.sizes.write()
        {
            self.entries_below_write_quorum += u64::from(oldest.acks.acks() < self.sizes.write());
            self.pending.pop_front();
            self.first = self.first.next();
        }
        if self.pending.is_empty() {
            self.overdue_at = None;
        }
        if before == self.confirmed.last_entry { Progress::None } else { Progress::Made }
    }

    /// Sends again what was held back for long enough.
    pub(super) fn release_held(&mut self, now: Time) {
        for slot in self.sizes.slots() {
            let due = |held: &mut HeldBack| held.until <= now;
            let Some(mut held) = self.members[slot.index()].held.take_if(due) else { continue };
            // A bookie gets entries in order, so that they lie so on its disk.
            held.entries.sort_unstable();
            held.entries.dedup();
            for id in held.entries {
                let index = id.get().checked_sub(self.first.get());
                let index = index.and_then(|index| usize::try_from(index).ok());
                let Some(add) = index.and_then(|index| self.pending.get(index)) else { continue };
                if !add.acks.is_settled(slot) {
                    let entry = add.entry.clone();
                    self.send(&entry, slot);
                }
            }
        }
    }

    /// The slots whose members have let an answer become overdue.
    pub(super) fn overdue(&mut self, now: Time) -> SlotSet {
        let mut overdue = SlotSet::default();
        if self.overdue_at.is_none_or(|at| at > now) {
            return overdue;
        }
        let mut next: Option<Time> = None;
        for add in &self.pending {
            let outstanding = self.sizes.write_set(add.entry.entry());
            for slot in outstanding.filter(|slot| !add.acks.is_settled(*slot)) {
                let at = add.answer_by.max(self.members[slot.index()].answer_by);
                if at <= now {
                    overdue.insert(slot);
                } else {
                    next = Some(next.map_or(at, |next| next.min(at)));
                }
            }
        }
        self.overdue_at = next;
        overdue
    }

    /// Why a member that is overdue is: it refused for want of time, or said nothing.
    pub(super) fn is_held_back(&self, slot: Slot) -> bool {
        self.members[slot.index()].held.is_some()
    }

    /// Forgets everything that is under way. A confirmed entry that a member has yet to answer for is on its way to it
    /// and no shortfall: with the third answers of the last entries nearly every ledger ends so.
    pub(super) fn abandon(&mut self) {
        for add in self.pending.iter().take(self.confirmed_pending()) {
            self.entries_below_write_quorum += u64::from(!add.acks.failed().is_empty());
        }
        self.pending.clear();
        self.outbox.iter_mut().for_each(Vec::clear);
        self.members.iter_mut().for_each(|member| member.held = None);
        self.overdue_at = None;
    }

    pub(super) fn poll_submit(&mut self) -> Option<(BookieId, Vec<Request>)> {
        let slot = self.outbox.iter().position(|requests| !requests.is_empty())?;
        let requests = std::mem::take(&mut self.outbox[slot]);
        Some((self.members[slot].bookie.clone(), requests))
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        let held = self.members.iter().filter_map(|m| m.held.as_ref().map(|held| held.until));
        let quorum = self.oldest_unconfirmed().map(|(_, confirm_by)| confirm_by);
        held.chain(self.overdue_at).chain(quorum).min()
    }

    /// The oldest entry without its ack quorum, and by when it must have it.
    pub(super) fn oldest_unconfirmed(&self) -> Option<(EntryId, Time)> {
        let add = self.pending.get(self.confirmed_pending())?;
        Some((add.entry.entry(), add.confirm_by))
    }

    pub(super) const fn confirmed(&self) -> LedgerEnd {
        self.confirmed
    }

    pub(super) const fn key(&self) -> MasterKey {
        self.key
    }

    pub(super) const fn sizes(&self) -> QuorumSizes {
        self.sizes
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (Slot, &Member)> {
        self.sizes.slots().zip(&self.members)
    }

    /// The slots without a member that serves.
    pub(super) fn lost(&self) -> SlotSet {
        self.members()
            .filter(|(_, member)| member.failure().is_some())
            .map(|(slot, _)| slot)
            .collect()
    }

    pub(super) fn failures(&self) -> Vec<(BookieId, Failure)> {
        let named = |(_, member): (_, &Member)| Some((member.bookie.clone(), member.failure()?));
        self.members().filter_map(named).collect()
    }

    /// The slots for whose members alone more bytes are kept than they may be behind.
    pub(super) fn behind(&self, bytes_max: u64) -> SlotSet {
        let behind = self.members().filter(|(_, member)| member.behind_bytes > bytes_max);
        behind.map(|(slot, _)| slot).collect()
    }

    /// Whether the epochs of a slot are used up, after which late answers could be mistaken.
    pub(super) fn is_exhausted(&self) -> bool {
        self.members.iter().any(|member| member.epoch >= EPOCH_MAX)
    }

    pub(super) const fn entries_below_write_quorum(&self) -> u64 {
        self.entries_below_write_quorum
    }

    pub(super) fn shortfalls(&self) -> &[Shortfall] {
        &self.shortfalls
    }

    pub(super) fn renumber(&mut self, now: Time) {
        let shift = |time: &mut Time| *time = Time::ZERO + time.saturating_since(now);
        self.overdue_at.iter_mut().for_each(shift);
        for member in &mut self.members {
            shift(&mut member.answer_by);
            member.held.iter_mut().for_each(|held| shift(&mut held.until));
        }
        for add in &mut self.pending {
            shift(&mut add.answer_by);
            shift(&mut add.confirm_by);
        }
    }

    /// Sends what is pending to the present member of a slot, whatever was sent before.
    fn resend(&mut self, slot: Slot, answer_by: Time) {
        self.outbox[slot.index()].clear();
        let confirmed = self.confirmed_pending();
        for index in 0..self.pending.len() {
            let add = &mut self.pending[index];
            if !self.sizes.stores(slot, add.entry.entry()) {
                continue;
            }
            if index >= confirmed {
                add.acks.forget(slot);
            }
            if !add.acks.is_settled(slot) {
                let entry = add.entry.clone();
                self.send(&entry, slot);
                self.overdue_at.get_or_insert(answer_by);
            }
        }
    }

    fn send(&mut self, entry: &Entry, slot: Slot) {
        let (id, member) = (entry.entry(), &mut self.members[slot.index()]);
        if let Some(held) = &mut member.held {
            return held.entries.push(id);
        }
        let body = RequestBody::Add { entry: entry.clone(), key: self.key, kind: AddKind::Normal };
        let id = AddId { entry_low: id.get(), epoch: member.epoch, slot }.request();
        self.outbox[slot.index()].push(Request { id, ledger: self.ledger, body });
    }

    /// How many of the pending entries, from the front, are confirmed.
    fn confirmed_pending(&self) -> usize {
        (EntryId::following(self.confirmed.last_entry).get() - self.first.get()) as usize
    }

    fn next(&self) -> EntryId {
        EntryId(self.first.get() + self.pending.len() as u64)
    }
}

/// Whether something moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Made,
    None,
}

impl Member {
    fn new(bookie: &BookieId, record: &LedgerMetadata, epoch: u16, answer_by: Time) -> Self {
        Self {
            instance: record.instance_of(bookie),
            bookie: bookie.clone(),
            epoch,
            health: Health::Serving,
            answer_by,
            behind_bytes: 0,
            held: None,
        }
    }

    /// Why it is lost; none if it serves.
    pub(super) const fn failure(&self) -> Option<Failure> {
        match self.health {
            Health::Serving => None,
            Health::Lost(failure) => Some(failure),
        }
    }
}

/// What the id of an add says: the entry above, then the slot's epoch, then the slot.
///
/// Of the entry there are only so many low bits; those of the pending entries tell them apart, which never are as
/// many as that.
struct AddId {
    entry_low: u64,
    epoch: u16,
    slot: Slot,
}

const SLOT_BITS: u32 = 6;
const EPOCH_BITS: u32 = 16;
const ENTRY_MASK: u64 = u64::MAX >> (SLOT_BITS + EPOCH_BITS);

/// The epochs that adds may have. The one above marks what is not an add.
const EPOCH_MAX: u16 = u16::MAX - 1;

/// The id of a LAC that was written by itself. Nothing depends on the answer.
pub(super) const LAC_ID: RequestId =
    AddId { entry_low: 0, epoch: u16::MAX, slot: Slot::FIRST }.request();

/// The id of a question to a bookie that failed, whether it is better.
pub(super) const PROBE_ID: RequestId =
    AddId { entry_low: 1, epoch: u16::MAX, slot: Slot::FIRST }.request();

impl AddId {
    const fn request(self) -> RequestId {
        let low = (self.epoch as u64) << SLOT_BITS | self.slot.index() as u64;
        RequestId((self.entry_low & ENTRY_MASK) << (SLOT_BITS + EPOCH_BITS) | low)
    }

    fn of(id: RequestId) -> Self {
        let slot = Slot::new((id.0 & ((1 << SLOT_BITS) - 1)) as usize);
        let epoch = (id.0 >> SLOT_BITS) as u16;
        Self { entry_low: id.0 >> (SLOT_BITS + EPOCH_BITS), epoch, slot }
    }
}
