//! The record of a ledger and the changes it may go through.
//!
//! ```text
//!   (absent) ── created ──► Open ──────────── closed ──────────► Closed(end)   final
//!                            │  ▲                                    ▲
//!                            │  └─ ensemble_changed                  │
//!                            └──── in_recovery ──► InRecovery ─ recovered
//! ```
//! Each transition is a pure function from a record to a record; the store's compare-and-set makes it happen once.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use bytes::Bytes;

use crate::entry::{DigestType, Password};
use crate::id::{BookieId, EntryId, Instance, Shown};
use crate::quorum::QuorumSizes;

/// Custom metadata under this prefix and a bookie's id holds the instance of that member.
const INSTANCE_KEY: &str = "georepl/instance/";
/// Custom metadata under this key says that the length in the record is not exact.
const LENGTH_KEY: &str = "georepl/length";
const LOWER_BOUND: &[u8] = b"lower bound";

/// What the metadata store knows of a ledger. Values of this type satisfy every validity rule of the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LedgerMetadata {
    format: FormatVersion,
    state: LedgerState,
    sizes: QuorumSizes,
    digest: Option<DigestType>,
    password: Password,
    ensembles: BTreeMap<EntryId, Vec<BookieId>>,
    ctime: Option<i64>,
    creation_token: u64,
    custom: BTreeMap<String, Vec<u8>>,
    /// The keys of `custom` as the stored record lists them.
    pub(super) custom_order: ListedOrder,
    /// Fields of the stored record that this version does not know, kept so that a rewrite loses nothing.
    pub(super) unknown_fields: Bytes,
}

/// The stored form of a record. A ledger keeps the one it was created with, because its creator may be a release that
/// knows no later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FormatVersion {
    /// Lines of numbers and bookies: without ack quorum, digest, password and custom metadata.
    V1,
    /// Protobuf as text, since BookKeeper 4.2: without a creation token.
    V2,
    /// Protobuf, since BookKeeper 4.9.
    #[default]
    V3,
}

/// An order in which something is listed. It changes nothing about what is said, so all orders are equal.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedOrder(pub(super) Vec<String>);

impl PartialEq for ListedOrder {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ListedOrder {}

impl Hash for ListedOrder {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Where a ledger stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LedgerState {
    /// One writer may append.
    Open,
    /// Somebody is finding out where it ends; the writer is fenced.
    InRecovery,
    /// It ends here, for ever.
    Closed(LedgerEnd),
}

/// Where a closed ledger ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LedgerEnd {
    /// The last entry; none if the ledger is empty.
    pub last_entry: Option<EntryId>,
    /// Payload bytes of all its entries.
    pub length: u64,
}

/// How well the length of a closed ledger is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LengthIs {
    /// It counts every payload byte.
    Exact,
    /// The last entry could not be read, so that the length in the record is lower than the true one. Nothing but
    /// statistics depends on it, and to leave the ledger open for it would be worse.
    LowerBound,
}

/// A record that breaks a rule, and which.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum InvalidMetadata {
    /// There is no ensemble for entry 0.
    #[error("the first ensemble must start at entry 0, this record has {first}")]
    FirstEnsemble {
        /// Where the first one starts, or "none".
        first: String,
    },
    /// An ensemble has another number of members than the ensemble size.
    #[error("the ensemble from entry {from} has {members} members, the ensemble size is {size}")]
    EnsembleSize {
        /// First entry of the ensemble.
        from: EntryId,
        /// How many members it has.
        members: usize,
        /// How many it must have.
        size: usize,
    },
    /// A fragment starts beyond the end of a closed ledger.
    #[error("an ensemble starts at entry {from}, but the closed ledger's last entry is {}", Shown(*last_entry))]
    EnsembleBeyondEnd {
        /// First entry of the ensemble.
        from: EntryId,
        /// Last entry of the ledger.
        last_entry: Option<EntryId>,
    },
    /// An empty ledger with bytes in it.
    #[error("a closed ledger without entries has length 0, not {length}")]
    LengthWithoutEntries {
        /// The length in the record.
        length: u64,
    },
}

/// A change that the state of the record does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum InvalidTransition {
    /// The ledger is closed.
    #[error("the ledger is closed at entry {}; its end is final", Shown(.0.last_entry))]
    Closed(LedgerEnd),
    /// The ledger is being recovered.
    #[error("the ledger is in recovery; its writer is fenced")]
    InRecovery,
    /// A recovery may end only what is in recovery.
    #[error("the ledger is not in recovery; somebody has changed its record by other rules")]
    NotInRecovery,
    /// A new ensemble may not start before the last one: what lies before it is confirmed where it is.
    #[error("an ensemble cannot start at entry {key}, before the last one at {last_key}")]
    KeyBeforeLast {
        /// The start asked for.
        key: EntryId,
        /// The start of the last ensemble.
        last_key: EntryId,
    },
    /// The result would break a rule of the record.
    #[error(transparent)]
    Invalid(#[from] InvalidMetadata),
}

/// The parts of a record, for the codec.
pub(super) struct Parts {
    pub(super) format: FormatVersion,
    pub(super) state: LedgerState,
    pub(super) sizes: QuorumSizes,
    pub(super) digest: Option<DigestType>,
    pub(super) password: Password,
    pub(super) ensembles: BTreeMap<EntryId, Vec<BookieId>>,
    pub(super) ctime: Option<i64>,
    pub(super) creation_token: u64,
    pub(super) custom: BTreeMap<String, Vec<u8>>,
    pub(super) custom_order: ListedOrder,
    pub(super) unknown_fields: Bytes,
}

impl LedgerMetadata {
    /// The record of a new, open ledger. `creation_token`, below 2^63, tells its creator's record from all others.
    ///
    /// # Errors
    /// [`InvalidMetadata::EnsembleSize`] if `ensemble` does not have the members that `sizes` asks for.
    pub fn created(
        sizes: QuorumSizes,
        password: Password,
        ensemble: Vec<BookieId>,
        creation_token: u64,
        custom: BTreeMap<String, Vec<u8>>,
    ) -> Result<Self, InvalidMetadata> {
        Self::from_parts(Parts {
            format: FormatVersion::default(),
            state: LedgerState::Open,
            sizes,
            digest: Some(DigestType::Crc32c),
            password,
            ensembles: BTreeMap::from([(EntryId::FIRST, ensemble)]),
            ctime: None,
            creation_token,
            custom,
            custom_order: ListedOrder::default(),
            unknown_fields: Bytes::new(),
        })
    }

    pub(super) fn from_parts(parts: Parts) -> Result<Self, InvalidMetadata> {
        let Parts {
            format,
            state,
            sizes,
            digest,
            password,
            ensembles,
            ctime,
            creation_token,
            custom,
            custom_order,
            unknown_fields,
        } = parts;
        let metadata = Self {
            format,
            state,
            sizes,
            digest,
            password,
            ensembles,
            ctime,
            creation_token,
            custom,
            custom_order,
            unknown_fields,
        };
        metadata.validate()?;
        Ok(metadata)
    }

    /// Open, or in recovery, to closed at the given end.
    ///
    /// # Errors
    /// [`InvalidTransition::Closed`] if it is closed already, wherever that was, and
    /// [`InvalidTransition::Invalid`] if `last_entry` lies before what the ensembles prove to be confirmed.
    pub fn closed(
        &self,
        last_entry: Option<EntryId>,
        length: u64,
    ) -> Result<Self, InvalidTransition> {
        if let LedgerState::Closed(end) = self.state {
            return Err(InvalidTransition::Closed(end));
        }
        let end = LedgerEnd { last_entry, length };
        self.with(|next| next.state = LedgerState::Closed(end))
    }

    /// Open to in recovery. A record that is in recovery stays so.
    ///
    /// # Errors
    /// [`InvalidTransition::Closed`].
    pub fn in_recovery(&self) -> Result<Self, InvalidTransition> {
        match self.state {
            LedgerState::Closed(end) => Err(InvalidTransition::Closed(end)),
            LedgerState::Open | LedgerState::InRecovery => {
                self.with(|next| next.state = LedgerState::InRecovery)
            }
        }
    }

    /// In recovery to closed: where the ledger ends, and the ensembles that hold what its recovery wrote back. One of
    /// them may replace the last ensemble; those before it stay as they are, for others may have moved what they hold.
    ///
    /// # Errors
    /// Any [`InvalidTransition`] but [`InRecovery`](InvalidTransition::InRecovery).
    pub fn recovered(
        &self,
        end: LedgerEnd,
        ensembles: &BTreeMap<EntryId, Vec<BookieId>>,
    ) -> Result<Self, InvalidTransition> {
        match self.state {
            LedgerState::Closed(end) => return Err(InvalidTransition::Closed(end)),
            LedgerState::Open => return Err(InvalidTransition::NotInRecovery),
            LedgerState::InRecovery => {}
        }
        let (last_key, _) = self.last_ensemble();
        if let Some((&key, _)) = ensembles.first_key_value()
            && key < last_key
        {
            return Err(InvalidTransition::KeyBeforeLast { key, last_key });
        }
        self.with(|next| {
            next.state = LedgerState::Closed(end);
            next.ensembles.extend(ensembles.clone());
        })
    }

    /// Lets `members` hold the entries from `key` on; the members of an ensemble that starts there are replaced.
    /// `key` must be LAC + 1 of the ledger's one writer, or readers will believe in entries that are not confirmed.
    ///
    /// # Errors
    /// Any [`InvalidTransition`]: the ledger must be open and `key` not before the last ensemble's.
    pub fn ensemble_changed(
        &self,
        key: EntryId,
        members: Vec<BookieId>,
    ) -> Result<Self, InvalidTransition> {
        match self.state {
            LedgerState::Closed(end) => return Err(InvalidTransition::Closed(end)),
            LedgerState::InRecovery => return Err(InvalidTransition::InRecovery),
            LedgerState::Open => {}
        }
        let (last_key, _) = self.last_ensemble();
        if key < last_key {
            return Err(InvalidTransition::KeyBeforeLast { key, last_key });
        }
        self.with(|next| {
            next.ensembles.insert(key, members);
        })
    }

    /// Remembers which life of each bookie is a member, in the same compare-and-set that names it. A bookie keeps the
    /// first one that was recorded: with another it never becomes a member of this ledger again. A record in the first
    /// format has no room for it and stays as it is.
    #[must_use]
    pub fn with_instances(
        mut self,
        instances: impl IntoIterator<Item = (BookieId, Instance)>,
    ) -> Self {
        if self.format == FormatVersion::V1 {
            return self;
        }
        for (bookie, instance) in instances {
            let key = format!("{INSTANCE_KEY}{bookie}");
            self.custom.entry(key).or_insert_with(|| instance.to_string().into_bytes());
        }
        self
    }

    /// The life in which a bookie became a member; none if that is not recorded, as in Java's ledgers.
    #[must_use]
    pub fn instance_of(&self, bookie: &BookieId) -> Option<Instance> {
        let recorded = self.custom.get(&format!("{INSTANCE_KEY}{bookie}"))?;
        std::str::from_utf8(recorded).ok()?.parse().ok().map(Instance)
    }

    /// Remembers how well its length is known, in the compare-and-set that closes it. A record in the first format has
    /// no room for it and stays as it is.
    #[must_use]
    pub fn with_length_is(mut self, length: LengthIs) -> Self {
        if self.format == FormatVersion::V1 {
            return self;
        }
        match length {
            LengthIs::Exact => self.custom.remove(LENGTH_KEY),
            LengthIs::LowerBound => self.custom.insert(LENGTH_KEY.into(), LOWER_BOUND.into()),
        };
        self
    }

    /// How well the length of a closed ledger is known. Of a length that a Java client recorded, nobody can tell; it
    /// counts as exact.
    #[must_use]
    pub fn length_is(&self) -> LengthIs {
        match self.custom.get(LENGTH_KEY) {
            Some(said) if said == LOWER_BOUND => LengthIs::LowerBound,
            _ => LengthIs::Exact,
        }
    }

    /// The form it was stored in and will be stored in.
    #[must_use]
    pub const fn format(&self) -> FormatVersion {
        self.format
    }

    /// Where the ledger stands.
    #[must_use]
    pub const fn state(&self) -> LedgerState {
        self.state
    }

    /// Ensemble size and quorums.
    #[must_use]
    pub const fn sizes(&self) -> QuorumSizes {
        self.sizes
    }

    /// The digest its entries carry; none if the record does not say, as in the first format.
    #[must_use]
    pub const fn digest(&self) -> Option<DigestType> {
        self.digest
    }

    /// Its password, which the record holds in clear; empty if the record does not say, and then it says no digest either.
    #[must_use]
    pub const fn password(&self) -> &Password {
        &self.password
    }

    /// First entry to members, for every fragment.
    #[must_use]
    pub const fn ensembles(&self) -> &BTreeMap<EntryId, Vec<BookieId>> {
        &self.ensembles
    }

    /// Milliseconds since 1970 at creation, if the creator stored them.
    #[must_use]
    pub const fn ctime(&self) -> Option<i64> {
        self.ctime
    }

    /// The creator's token; 0 if a Java client has rewritten the record.
    #[must_use]
    pub const fn creation_token(&self) -> u64 {
        self.creation_token
    }

    /// What the application stored with the ledger.
    #[must_use]
    pub const fn custom(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.custom
    }

    /// The members of the ensemble that holds `entry`.
    #[must_use]
    pub fn ensemble_of(&self, entry: EntryId) -> &[BookieId] {
        let (_, members) = self
            .ensembles
            .range(..=entry)
            .next_back()
            .expect("the first ensemble starts at entry 0");
        members
    }

    /// The last ensemble and the entry it starts at.
    #[must_use]
    pub fn last_ensemble(&self) -> (EntryId, &[BookieId]) {
        let (key, members) =
            self.ensembles.last_key_value().expect("there is at least one ensemble");
        (*key, members)
    }

    /// What the record alone proves to be confirmed: everything before the last ensemble, because an ensemble is only
    /// ever made to start at LAC + 1. Every reader of a ledger that is not closed raises its LAC to this floor.
    #[must_use]
    pub fn lac_floor(&self) -> Option<EntryId> {
        self.last_ensemble().0.checked_prev()
    }

    /// The record after somebody has moved a fragment to other bookies, as AutoRecovery does.
    #[cfg(test)]
    pub(crate) fn with_ensemble(&self, key: EntryId, members: Vec<BookieId>) -> Self {
        let moved = self.with(|next| {
            next.ensembles.insert(key, members);
        });
        moved.expect("a valid record")
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Result<Self, InvalidTransition> {
        let mut next = self.clone();
        change(&mut next);
        next.validate()?;
        Ok(next)
    }

    fn validate(&self) -> Result<(), InvalidMetadata> {
        let first = self.ensembles.keys().next();
        if first != Some(&EntryId::FIRST) {
            let first = first.map_or_else(|| "none".into(), ToString::to_string);
            return Err(InvalidMetadata::FirstEnsemble { first });
        }
        let size = self.sizes.ensemble();
        for (&from, members) in &self.ensembles {
            // A member may stand there twice: old records exist with that, and readers count a bookie per slot.
            if members.len() != size {
                return Err(InvalidMetadata::EnsembleSize { from, members: members.len(), size });
            }
        }
        if let LedgerState::Closed(LedgerEnd { last_entry, length }) = self.state {
            // An empty fragment right behind the last entry is what an ensemble change before a close leaves.
            let (from, _) = self.last_ensemble();
            if from > EntryId::following(last_entry) {
                return Err(InvalidMetadata::EnsembleBeyondEnd { from, last_entry });
            }
            if last_entry.is_none() && length != 0 {
                return Err(InvalidMetadata::LengthWithoutEntries { length });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(names: &str) -> Vec<BookieId> {
        names.split(' ').map(BookieId::from).collect()
    }

    fn open() -> LedgerMetadata {
        let sizes = QuorumSizes::new(3, 3, 2).expect("valid sizes");
        LedgerMetadata::created(sizes, Password::default(), members("b1 b2 b3"), 7, BTreeMap::new())
            .expect("valid")
    }

    #[test]
    fn entries_belong_to_the_greatest_key_not_above_them() {
        let metadata =
            open().ensemble_changed(EntryId(15), members("b1 b2 b4")).expect("an open ledger");
        assert_eq!(metadata.ensemble_of(EntryId(14)), members("b1 b2 b3"));
        assert_eq!(metadata.ensemble_of(EntryId(15)), members("b1 b2 b4"));
        assert_eq!(metadata.ensemble_of(EntryId(u64::MAX)), members("b1 b2 b4"));
        assert_eq!(metadata.lac_floor(), Some(EntryId(14)));
        assert_eq!(open().lac_floor(), None);
    }

    #[test]
    fn a_change_at_the_last_key_replaces_the_ensemble_and_one_before_it_is_refused() {
        let changed =
            open().ensemble_changed(EntryId(5), members("b1 b2 b4")).expect("an open ledger");
        let again =
            changed.ensemble_changed(EntryId(5), members("b1 b2 b5")).expect("the same key");
        assert_eq!(again.ensembles().len(), 2);
        assert_eq!(again.ensemble_of(EntryId(5)), members("b1 b2 b5"));
        assert_eq!(
            again.ensemble_changed(EntryId(4), members("b1 b2 b3")),
            Err(InvalidTransition::KeyBeforeLast { key: EntryId(4), last_key: EntryId(5) })
        );
    }

    #[test]
    fn closed_is_final_and_recovery_ends_the_writers_changes() {
        let closed = open().closed(Some(EntryId(4)), 50).expect("an open ledger");
        let end = LedgerEnd { last_entry: Some(EntryId(4)), length: 50 };
        assert_eq!(closed.state(), LedgerState::Closed(end));
        assert_eq!(closed.closed(Some(EntryId(4)), 50), Err(InvalidTransition::Closed(end)));
        assert_eq!(closed.in_recovery(), Err(InvalidTransition::Closed(end)));
        let recovering = open().in_recovery().expect("an open ledger");
        assert_eq!(recovering.in_recovery().as_ref(), Ok(&recovering));
        assert_eq!(
            recovering.ensemble_changed(EntryId(1), members("b1 b2 b4")),
            Err(InvalidTransition::InRecovery)
        );
        assert!(recovering.closed(None, 0).is_ok());
    }

    #[test]
    fn a_recovery_replaces_the_last_ensemble_and_adds_behind_it_and_leaves_the_others_alone() {
        let end = LedgerEnd { last_entry: Some(EntryId(9)), length: 90 };
        let changed =
            open().ensemble_changed(EntryId(5), members("b1 b2 b4")).expect("an open ledger");
        let private = |keys: [(u64, &str); 2]| {
            keys.map(|(key, names)| (EntryId(key), members(names))).into_iter().collect()
        };
        let written = private([(5, "b1 b2 b5"), (7, "b1 b6 b5")]);
        assert_eq!(changed.recovered(end, &written), Err(InvalidTransition::NotInRecovery));
        let recovering = changed.in_recovery().expect("an open ledger");
        let closed = recovering.recovered(end, &written).expect("a ledger in recovery");
        assert_eq!(closed.state(), LedgerState::Closed(end));
        assert_eq!(closed.ensembles().keys().map(|key| key.get()).collect::<Vec<_>>(), [0, 5, 7]);
        assert_eq!(closed.ensemble_of(EntryId(4)), members("b1 b2 b3"));
        assert_eq!(closed.ensemble_of(EntryId(6)), members("b1 b2 b5"));
        assert_eq!(closed.ensemble_of(EntryId(9)), members("b1 b6 b5"));
        assert_eq!(closed.recovered(end, &written), Err(InvalidTransition::Closed(end)));
        let before = private([(4, "b1 b2 b5"), (7, "b1 b6 b5")]);
        let refused = InvalidTransition::KeyBeforeLast { key: EntryId(4), last_key: EntryId(5) };
        assert_eq!(recovering.recovered(end, &before), Err(refused));
    }

    #[test]
    fn an_end_below_what_is_confirmed_is_refused_but_an_empty_last_fragment_is_fine() {
        let changed =
            open().ensemble_changed(EntryId(5), members("b1 b2 b4")).expect("an open ledger");
        assert!(changed.closed(Some(EntryId(4)), 1).is_ok());
        let beyond =
            InvalidMetadata::EnsembleBeyondEnd { from: EntryId(5), last_entry: Some(EntryId(3)) };
        assert_eq!(changed.closed(Some(EntryId(3)), 1), Err(beyond.into()));
        let bytes = InvalidMetadata::LengthWithoutEntries { length: 9 };
        assert_eq!(open().closed(None, 9), Err(bytes.into()));
    }

    #[test]
    fn an_ensemble_of_another_size_is_refused() {
        let short = InvalidMetadata::EnsembleSize { from: EntryId(5), members: 2, size: 3 };
        assert_eq!(open().ensemble_changed(EntryId(5), members("b1 b2")), Err(short.into()));
    }
}
