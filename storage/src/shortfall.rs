//! Entries that lack a copy, and the stored list of them.
//!
//! The list is text, one range a line behind a line that names the format:
//!
//! ```text
//! georepl-shortfalls 1
//! FIRST LAST BOOKIE
//! ```

#[cfg(feature = "io")]
use bytes::Bytes;

use crate::id::{BookieId, EntryId};

/// How many bookies the list of one ledger names. A list as long as that says that the whole ledger must be checked.
/// At a hundred bytes each it fits well into what a metadata store takes as one value.
pub(crate) const SHORTFALLS_MAX: usize = 1_000;

#[cfg(feature = "io")]
const HEADER: &str = "georepl-shortfalls 1";

/// Entries of which a bookie named in the record may have no copy, though each has its ack quorum elsewhere.
///
/// A check of samples does not find them, so whoever repairs the ledger must check all of these. A shortfall is what the
/// writer knows: the bookie refused the entry, did not answer in time, was too far behind, or lost the life in which it
/// had it. What was on its way to a bookie that served when the writer ended is none; should it not have arrived, a check
/// of all copies finds that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shortfall {
    /// The bookie.
    pub bookie: BookieId,
    /// The first entry that it may lack.
    pub first: EntryId,
    /// The last one. Some in between it may hold.
    pub last: EntryId,
}

impl Shortfall {
    /// Adds entries to the range of their bookie. There are never more ranges than bookies in the record, and never
    /// more than [`SHORTFALLS_MAX`].
    pub(crate) fn note(
        shortfalls: &mut Vec<Self>,
        bookie: &BookieId,
        first: EntryId,
        last: EntryId,
    ) {
        let is_full = shortfalls.len() == SHORTFALLS_MAX;
        match shortfalls.iter_mut().find(|found| found.bookie == *bookie) {
            Some(found) => {
                (found.first, found.last) = (found.first.min(first), found.last.max(last));
            }
            None if is_full => {}
            None => shortfalls.push(Self { bookie: bookie.clone(), first, last }),
        }
    }

    /// The list as it is stored.
    #[cfg(feature = "io")]
    pub(crate) fn encode(shortfalls: &[Self]) -> Bytes {
        let mut text = format!("{HEADER}\n");
        for Self { bookie, first, last } in shortfalls {
            text.push_str(&format!("{first} {last} {bookie}\n"));
        }
        text.into()
    }

    /// The list from its stored form; none if it is damaged or of an unknown kind.
    #[cfg(feature = "io")]
    pub(crate) fn decode(stored: &[u8]) -> Option<Vec<Self>> {
        // The last line too has its end, or it may have been cut.
        let mut lines = std::str::from_utf8(stored).ok()?.strip_suffix('\n')?.split('\n');
        if lines.next() != Some(HEADER) {
            return None;
        }
        let mut shortfalls = Vec::new();
        for line in lines {
            let mut words = line.splitn(3, ' ');
            let mut id = || words.next()?.parse().ok().map(EntryId);
            let (first, last) = (id()?, id()?);
            let bookie = words.next().filter(|bookie| !bookie.is_empty())?.into();
            if first > last || shortfalls.len() == SHORTFALLS_MAX {
                return None;
            }
            shortfalls.push(Self { bookie, first, last });
        }
        Some(shortfalls)
    }
}

#[cfg(all(test, feature = "io"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shortfall(bookie: &str, first: u64, last: u64) -> Shortfall {
        Shortfall { bookie: bookie.into(), first: EntryId(first), last: EntryId(last) }
    }

    #[test]
    fn a_stored_list_is_read_back_and_a_damaged_one_is_not() {
        let list = [shortfall("b1:3181", 0, 0), shortfall("10.0.0.2:3181", 7, u64::MAX)];
        let stored = Shortfall::encode(&list);
        assert_eq!(
            &stored[..],
            b"georepl-shortfalls 1\n0 0 b1:3181\n7 18446744073709551615 10.0.0.2:3181\n"
        );
        assert_eq!(Shortfall::decode(&stored), Some(list.to_vec()));
        assert_eq!(Shortfall::decode(b"georepl-shortfalls 1\n"), Some(vec![]));
        for damaged in [
            &b""[..],
            b"georepl-shortfalls 2\n",
            b"georepl-shortfalls 1\n9 8 b1\n",
            b"georepl-shortfalls 1\n1 2\n",
            &stored[..30],
        ] {
            assert_eq!(Shortfall::decode(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn each_bookie_has_one_range_and_there_are_no_more_than_the_limit() {
        let mut list = Vec::new();
        for (bookie, first, last) in [("b1", 5, 5), ("b2", 1, 1), ("b1", 3, 4), ("b1", 9, 9)] {
            Shortfall::note(&mut list, &bookie.into(), EntryId(first), EntryId(last));
        }
        assert_eq!(list, [shortfall("b1", 3, 9), shortfall("b2", 1, 1)]);
        for number in 0..2 * SHORTFALLS_MAX {
            Shortfall::note(&mut list, &format!("c{number}").into(), EntryId(0), EntryId(0));
        }
        assert_eq!(list.len(), SHORTFALLS_MAX);
        assert_eq!(Shortfall::decode(&Shortfall::encode(&list)), Some(list));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_or_none(
            random: Vec<u8>,
            alike in "georepl-shortfalls [12]\n([0-9]{0,3} [0-9]{1,3}[ \r\n]?[a-z ]{0,3}\n){0,4}",
        ) {
            for stored in [&random[..], alike.as_bytes()] {
                let Some(list) = Shortfall::decode(stored) else { continue };
                prop_assert_eq!(Shortfall::decode(&Shortfall::encode(&list)), Some(list));
            }
        }
    }
}
