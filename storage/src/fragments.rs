//! The fragments of a ledger: which bookies hold which entries, and which of them will never get another one.

use crate::id::{BookieId, EntryId};
use crate::metadata::{LedgerMetadata, LedgerState};

/// The entries that one ensemble holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment<'a> {
    /// The entry it starts at, which is its key in the record.
    pub first: EntryId,
    /// How far it goes.
    pub end: FragmentEnd,
    /// Its bookies, by slot.
    pub members: &'a [BookieId],
}

/// How far a fragment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FragmentEnd {
    /// Up to this entry.
    Through(EntryId),
    /// Nowhere: the ledger was closed before an entry of it was confirmed.
    Empty,
    /// As far as the ledger will go: it is the last one of a ledger that is not closed.
    Unknown,
}

/// The fragments of a ledger, in order, without gaps between them.
pub fn fragments(metadata: &LedgerMetadata) -> impl Iterator<Item = Fragment<'_>> {
    let ends = metadata.ensembles().keys().skip(1).map(|next| next.checked_prev());
    let last = match metadata.state() {
        LedgerState::Closed(end) => Some(end.last_entry),
        LedgerState::Open | LedgerState::InRecovery => None,
    };
    let ends = ends.map(Some).chain([last]);
    metadata.ensembles().iter().zip(ends).map(|((&first, members), last)| {
        let end = match last {
            Some(Some(last)) if last >= first => FragmentEnd::Through(last),
            Some(_) => FragmentEnd::Empty,
            None => FragmentEnd::Unknown,
        };
        Fragment { first, end, members }
    })
}

/// Whether the fragment that starts at `key` is closed: no entry of it is added or decided any more, so that what it
/// lacks may be copied without closing the ledger first.
///
/// It is if the ledger is, or if it is not the last fragment *by key* and everything before the last one is known to be
/// confirmed. Called closed, the last fragment of an open ledger loses entries: its writer may be acknowledging one
/// that the copying does not see. With the LAC of [`LedgerReader`](crate::LedgerReader), which is never below what the
/// record proves, the second half holds for every fragment that is not the last; a stored LAC may be below.
#[must_use]
pub fn is_closed(
    state: LedgerState,
    key: EntryId,
    last_key: EntryId,
    last_add_confirmed: Option<EntryId>,
) -> bool {
    match state {
        LedgerState::Closed(_) => true,
        LedgerState::Open | LedgerState::InRecovery => {
            key < last_key && EntryId::following(last_add_confirmed) >= last_key
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::entry::Password;
    use crate::metadata::LedgerEnd;
    use crate::quorum::QuorumSizes;

    fn members(names: &str) -> Vec<BookieId> {
        names.split(' ').map(BookieId::from).collect()
    }

    /// The record of the report: a change of the ensemble at entry 15, and nothing written since.
    fn reported() -> LedgerMetadata {
        let sizes = QuorumSizes::new(3, 3, 2).expect("valid sizes");
        let record = LedgerMetadata::created(
            sizes,
            Password::default(),
            members("bk1 bk2 bk3"),
            1,
            BTreeMap::new(),
        );
        let changed = record.expect("valid").ensemble_changed(EntryId(15), members("bk1 bk2 bk4"));
        changed.expect("an open ledger")
    }

    /// Seed 000: the bookies have 13 stored, 14 is confirmed because the next ensemble starts at 15.
    #[test]
    fn a_fragment_is_closed_by_the_state_of_its_ledger_or_by_what_follows_it() {
        let end = LedgerEnd { last_entry: Some(EntryId(14)), length: 150 };
        let states = [LedgerState::Open, LedgerState::InRecovery, LedgerState::Closed(end)];
        // State, fragment; closed by the stored LAC 13, by the floored LAC 14.
        let table = [
            (0, 0, false, true),
            (0, 15, false, false),
            (1, 0, false, true),
            (1, 15, false, false),
            (2, 0, true, true),
            (2, 15, true, true),
        ];
        let last_key = reported().last_ensemble().0;
        let stored = Some(EntryId(13));
        let floored = stored.max(reported().lac_floor());
        for (state, key, by_stored, by_floored) in table {
            let (state, key) = (states[state], EntryId(key));
            assert_eq!(is_closed(state, key, last_key, stored), by_stored, "{state:?} {key}");
            assert_eq!(is_closed(state, key, last_key, floored), by_floored, "{state:?} {key}");
        }
    }

    #[test]
    fn by_the_floored_lac_exactly_the_fragments_before_the_last_are_closed() {
        for keys in [vec![0], vec![0, 1], vec![0, 4, 9]] {
            let last_key = EntryId(*keys.last().expect("there is one"));
            for stored in [None, Some(0), Some(3), Some(8), Some(20)] {
                let lac = stored.map(EntryId).max(last_key.checked_prev());
                for key in keys.iter().copied().map(EntryId) {
                    let closed = is_closed(LedgerState::Open, key, last_key, lac);
                    assert_eq!(closed, key != last_key, "{keys:?} {stored:?}");
                }
            }
        }
    }

    #[test]
    fn fragments_follow_each_other_and_the_last_ends_with_the_ledger() {
        let ends = |record: &LedgerMetadata| {
            let ends: Vec<_> = fragments(record).map(|part| (part.first.get(), part.end)).collect();
            ends
        };
        let before = (0, FragmentEnd::Through(EntryId(14)));
        assert_eq!(ends(&reported()), [before, (15, FragmentEnd::Unknown)]);
        let closed = |last| reported().closed(Some(EntryId(last)), 150).expect("an open ledger");
        assert_eq!(ends(&closed(14)), [before, (15, FragmentEnd::Empty)]);
        assert_eq!(ends(&closed(15)), [before, (15, FragmentEnd::Through(EntryId(15)))]);
        let second = fragments(&reported()).nth(1).map(|part| part.members.to_vec());
        assert_eq!(second, Some(members("bk1 bk2 bk4")));
    }
}
