//! Quorum arithmetic: where an entry lives, and what a set of answers proves.
//!
//! Everything here is a value over *slots*, the places of an ensemble. A cohort of n slots, any AQ of which may have
//! acknowledged something together, is *covered* when every AQ-subset of it contains a slot that answered; that is
//! so when fewer than AQ slots of it have not. Answers form sets, so duplicates and their order cannot matter.

use crate::id::EntryId;

/// The largest ensemble: the slots of one fit into a 64-bit mask.
pub const ENSEMBLE_SIZE_MAX: usize = 64;

/// Ensemble size E, write quorum WQ and ack quorum AQ of a ledger, with 64 ≥ E ≥ WQ ≥ AQ ≥ 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuorumSizes {
    ensemble: u8,
    write: u8,
    ack: u8,
}

/// Sizes that make no ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ensemble {ensemble}, write quorum {write}, ack quorum {ack}: need 64 >= ensemble >= write >= ack >= 1"
)]
pub struct InvalidQuorumSizes {
    /// The ensemble size asked for.
    pub ensemble: usize,
    /// The write quorum asked for.
    pub write: usize,
    /// The ack quorum asked for.
    pub ack: usize,
}

impl QuorumSizes {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`InvalidQuorumSizes`] unless 64 ≥ `ensemble` ≥ `write` ≥ `ack` ≥ 1.
    pub fn new(ensemble: usize, write: usize, ack: usize) -> Result<Self, InvalidQuorumSizes> {
        if !(ENSEMBLE_SIZE_MAX >= ensemble && ensemble >= write && write >= ack && ack >= 1) {
            return Err(InvalidQuorumSizes { ensemble, write, ack });
        }
        let small = |size| u8::try_from(size).expect("sizes were checked against 64");
        Ok(Self { ensemble: small(ensemble), write: small(write), ack: small(ack) })
    }

    /// E: how many bookies share the entries of a fragment.
    #[must_use]
    pub const fn ensemble(self) -> usize {
        self.ensemble as usize
    }

    /// WQ: how many bookies each entry is sent to.
    #[must_use]
    pub const fn write(self) -> usize {
        self.write as usize
    }

    /// AQ: how many of them must hold it before it is acknowledged.
    #[must_use]
    pub const fn ack(self) -> usize {
        self.ack as usize
    }

    /// WQ - AQ + 1: so many bookies of an entry's write set that never held it prove that no AQ of them did.
    #[must_use]
    pub const fn absence(self) -> usize {
        self.write() - self.ack() + 1
    }

    /// All slots of an ensemble, in order.
    pub fn slots(self) -> impl ExactSizeIterator<Item = Slot> + Clone {
        (0..self.ensemble).map(Slot)
    }

    /// The slots that hold `entry`: (entry + i) mod E for i below WQ, which is also the order to read them in.
    pub fn write_set(self, entry: EntryId) -> impl ExactSizeIterator<Item = Slot> + Clone {
        self.window(self.first(entry))
    }

    /// Whether `slot` is in the write set of `entry`.
    #[must_use]
    pub fn stores(self, slot: Slot, entry: EntryId) -> bool {
        // How far it comes behind the first, going round.
        slot.0 < self.ensemble
            && self.round(slot.0 + self.ensemble - self.first(entry)) < self.write
    }

    /// Whether a ledger can still be recovered without these slots: in every write set fewer than AQ of them are
    /// lost, so that what AQ bookies hold is held by one that is not.
    #[must_use]
    pub fn survives(self, lost: SlotSet) -> bool {
        let lost_of = |first| self.window(first).filter(|slot| lost.contains(*slot)).count();
        (0..self.ensemble).all(|first| lost_of(first) < self.ack())
    }

    fn window(self, first: u8) -> impl ExactSizeIterator<Item = Slot> + Clone {
        (0..self.write).map(move |i| Slot(self.round(first + i)))
    }

    /// Where the write set of an entry begins.
    const fn first(self, entry: EntryId) -> u8 {
        // The remainder is taken over 64 bits before anything is narrowed: ids may exceed 2^32.
        (entry.get() % self.ensemble as u64) as u8
    }

    /// `place`, which is less than twice round the ensemble. Asked several times per entry, so without a division.
    const fn round(self, place: u8) -> u8 {
        if place < self.ensemble { place } else { place - self.ensemble }
    }
}

/// A place in an ensemble, below E.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u8);

impl Slot {
    /// The first place of every ensemble.
    pub const FIRST: Self = Self(0);

    /// The slot at `index`.
    ///
    /// # Panics
    /// If `index` is not below [`ENSEMBLE_SIZE_MAX`].
    #[must_use]
    pub fn new(index: usize) -> Self {
        assert!(index < ENSEMBLE_SIZE_MAX, "slot {index} is beyond the largest ensemble");
        Self(index as u8)
    }

    /// The index into the ensemble's members.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotSet(u64);

impl SlotSet {
    /// Adds a slot; adding it again changes nothing.
    pub fn insert(&mut self, slot: Slot) {
        self.0 |= 1 << slot.0;
    }

    /// Takes a slot away; one that is not there stays so.
    pub fn remove(&mut self, slot: Slot) {
        self.0 &= !(1 << slot.0);
    }

    /// Whether the slot is in the set.
    #[must_use]
    pub const fn contains(self, slot: Slot) -> bool {
        self.0 & (1 << slot.0) != 0
    }

    /// How many slots there are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The slots, in order.
    pub fn iter(self) -> impl Iterator<Item = Slot> {
        (0..64).map(Slot).filter(move |slot| self.contains(*slot))
    }
}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Self::default();
        for slot in slots {
            set.insert(slot);
        }
        set
    }
}

/// What a set of answers amounts to. `Reached` carries a proof that only this module can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage<Proof> {
    /// Enough has answered.
    Reached(Proof),
    /// Not yet enough, but it may still become so.
    Possible,
    /// Whatever still answers, it will not be enough.
    Impossible,
}

/// Proof that AQ bookies of an entry's write set hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckQuorum(());

/// Proof that enough bookies of an ensemble answered a LAC read: whatever AQ bookies acknowledged, one of them
/// is among those that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LacQuorum(());

/// The answers to one entry's adds. The first outcome of a slot stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AckSet {
    acked: SlotSet,
    failed: SlotSet,
}

impl AckSet {
    /// The slot's bookie holds the entry.
    pub fn record(&mut self, slot: Slot) {
        if !self.failed.contains(slot) {
            self.acked.insert(slot);
        }
    }

    /// The slot's bookie refused the entry or did not answer in time.
    pub fn record_failure(&mut self, slot: Slot) {
        if !self.acked.contains(slot) {
            self.failed.insert(slot);
        }
    }

    /// The slot is asked anew: what its bookie, or the one before it, answered until now counts no more.
    pub fn forget(&mut self, slot: Slot) {
        self.acked.remove(slot);
        self.failed.remove(slot);
    }

    /// Whether the slot has had its outcome.
    #[must_use]
    pub const fn is_settled(self, slot: Slot) -> bool {
        self.acked.contains(slot) || self.failed.contains(slot)
    }

    /// How many slots have had their outcome.
    #[must_use]
    pub const fn settled(self) -> usize {
        self.acked.len() + self.failed.len()
    }

    /// How many slots hold the entry.
    #[must_use]
    pub const fn acks(self) -> usize {
        self.acked.len()
    }

    /// The slots that failed.
    #[must_use]
    pub const fn failed(self) -> SlotSet {
        self.failed
    }

    /// Whether the entry has, may get or cannot get AQ copies. Only slots of its write set may have been recorded.
    #[must_use]
    pub const fn coverage(self, sizes: QuorumSizes) -> Coverage<AckQuorum> {
        if self.acked.len() >= sizes.ack() {
            Coverage::Reached(AckQuorum(()))
        } else if self.failed.len() + sizes.ack() > sizes.write() {
            Coverage::Impossible
        } else {
            Coverage::Possible
        }
    }
}

/// The answers to a LAC read of a whole ensemble. The first outcome of a slot stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LacAnswers {
    answered: SlotSet,
    failed: SlotSet,
}

impl LacAnswers {
    /// The slot's bookie gave a usable answer: a LAC, or that it has no such ledger or entry.
    pub fn record(&mut self, slot: Slot) {
        if !self.failed.contains(slot) {
            self.answered.insert(slot);
        }
    }

    /// The slot's bookie gave an answer that says nothing, or none in time.
    pub fn record_failure(&mut self, slot: Slot) {
        if !self.answered.contains(slot) {
            self.failed.insert(slot);
        }
    }

    /// Whether the slot has had its outcome.
    #[must_use]
    pub const fn is_settled(self, slot: Slot) -> bool {
        self.answered.contains(slot) || self.failed.contains(slot)
    }

    /// Reached when in every write set fewer than AQ slots are unknown, impossible when in one of them AQ have failed.
    #[must_use]
    pub fn coverage(self, sizes: QuorumSizes) -> Coverage<LacQuorum> {
        let mut reached = true;
        // With E = WQ all windows are the same set; going over them costs nothing worth a special case.
        for first in 0..sizes.ensemble {
            let failed = sizes.window(first).filter(|slot| self.failed.contains(*slot)).count();
            if failed >= sizes.ack() {
                return Coverage::Impossible;
            }
            let unknown = sizes.window(first).filter(|slot| !self.answered.contains(*slot)).count();
            reached &= unknown < sizes.ack();
        }
        if reached { Coverage::Reached(LacQuorum(())) } else { Coverage::Possible }
    }
}

#[cfg(test)]
mod tests;
