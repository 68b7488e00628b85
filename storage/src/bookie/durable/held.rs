//! Which entries a bookie was given, kept apart from the entries.
//!
//! The database does not look at its checksums when it reads. One flipped bit in the head of a page hides entries that
//! the page holds, and nothing beside them tells. So what is not found is denied only if a second witness, in other
//! pages, knows nothing of it either; if the two differ the bookie says that it cannot tell.
//!
//! A row speaks of a group of entries with neighbouring ids. A ledger has the row of its first group from the beginning,
//! also without entries, so that the loss of its record shows as well. A row is 68 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 64 | one bit per entry of the group, the first in the lowest bit of the first byte: it was given |
//! | 4 | CRC32C over ledger id, number of the group (8 bytes each, big-endian) and the bytes above |

use std::collections::BTreeMap;
use std::collections::btree_map;

use redb::{ReadableTable, Table, TableDefinition};

use super::serving::Stop;
use crate::id::{EntryId, LedgerId};
use crate::transport::BookieError;

/// By ledger id and number of the group.
pub(super) const HELD: TableDefinition<'_, Place, &Row> = TableDefinition::new("held");

type Place = (u64, u64);
pub(super) type Row = [u8; ROW_BYTES];

/// How many entries a row speaks of. More: fewer rows. Less: fewer bytes to write for a single entry.
pub(super) const GROUP_ENTRIES: u64 = 512;

const BITS_BYTES: usize = GROUP_ENTRIES as usize / 8;
const ROW_BYTES: usize = BITS_BYTES + 4;

/// Which entries of a group were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group([u8; BITS_BYTES]);

impl Group {
    const EMPTY: Self = Self([0; BITS_BYTES]);

    fn insert(&mut self, entry: EntryId) {
        let bit = entry.get() % GROUP_ENTRIES;
        self.0[(bit / 8) as usize] |= 1 << (bit % 8);
    }

    fn contains(&self, entry: EntryId) -> bool {
        let bit = entry.get() % GROUP_ENTRIES;
        self.0[(bit / 8) as usize] & 1 << (bit % 8) != 0
    }

    fn last(&self) -> Option<u64> {
        let byte = self.0.iter().rposition(|byte| *byte != 0)?;
        Some(byte as u64 * 8 + u64::from(self.0[byte].ilog2()))
    }

    fn encode(&self, place: Place) -> Row {
        let mut row = [0; ROW_BYTES];
        row[..BITS_BYTES].copy_from_slice(&self.0);
        row[BITS_BYTES..].copy_from_slice(&self.digest(place).to_be_bytes());
        row
    }

    /// The group of a place; a row that is damaged, or stands elsewhere than it was put, is not believed.
    fn decode(place: Place, row: &Row) -> Result<Self, BookieError> {
        let (bits, digest) = row.split_first_chunk().expect("a row begins with its bits");
        let group = Self(*bits);
        if group.digest(place).to_be_bytes() == digest { Ok(group) } else { Err(BookieError::Io) }
    }

    fn digest(&self, (ledger, number): Place) -> u32 {
        let place = [ledger.to_be_bytes(), number.to_be_bytes()];
        crc32c::crc32c_append(crc32c::crc32c(place.as_flattened()), &self.0)
    }
}

/// Whether a bookie was given an entry.
pub(super) fn was_given(
    table: &impl ReadableTable<Place, &'static Row>,
    ledger: LedgerId,
    entry: EntryId,
) -> Result<bool, Stop> {
    let group = stored(table, (ledger.get(), entry.get() / GROUP_ENTRIES))?;
    Ok(group.is_some_and(|group| group.contains(entry)))
}

/// The last entry of a ledger that a bookie was given.
pub(super) fn last_given(
    table: &impl ReadableTable<Place, &'static Row>,
    ledger: LedgerId,
) -> Result<Option<EntryId>, Stop> {
    let Some((place, row)) = table.range(groups(ledger))?.next_back().transpose()? else {
        return Ok(None);
    };
    let last = Group::decode(place.value(), row.value())?.last();
    Ok(last.map(|bit| EntryId(place.value().1 * GROUP_ENTRIES + bit)))
}

/// Whether a bookie ever had a ledger.
pub(super) fn knows(
    table: &impl ReadableTable<Place, &'static Row>,
    ledger: LedgerId,
) -> Result<bool, Stop> {
    Ok(table.range(groups(ledger))?.next().transpose()?.is_some())
}

/// Forgets up to `rows_max` rows of a ledger. Returns how many.
pub(super) fn forget(
    table: &mut Table<'_, Place, &'static Row>,
    ledger: LedgerId,
    rows_max: usize,
) -> Result<usize, redb::StorageError> {
    let mut forgotten = 0;
    for row in table.extract_from_if(groups(ledger), |_, _| true)?.take(rows_max) {
        row?;
        forgotten += 1;
    }
    Ok(forgotten)
}

fn groups(ledger: LedgerId) -> std::ops::RangeInclusive<Place> {
    (ledger.get(), 0)..=(ledger.get(), u64::MAX)
}

fn stored(
    table: &impl ReadableTable<Place, &'static Row>,
    place: Place,
) -> Result<Option<Group>, Stop> {
    let row = table.get(place)?;
    Ok(row.map(|row| Group::decode(place, row.value())).transpose()?)
}

/// What a turn adds. Written once at its end, however many entries of a group it stores.
#[derive(Debug, Default)]
pub(super) struct Given(BTreeMap<Place, Group>);

impl Given {
    /// Notes that a ledger is known.
    pub(super) fn note_ledger(
        &mut self,
        table: &impl ReadableTable<Place, &'static Row>,
        ledger: LedgerId,
    ) -> Result<(), Stop> {
        self.group(table, (ledger.get(), 0)).map(drop)
    }

    /// Notes that an entry is given.
    pub(super) fn note(
        &mut self,
        table: &impl ReadableTable<Place, &'static Row>,
        ledger: LedgerId,
        entry: EntryId,
    ) -> Result<(), Stop> {
        self.group(table, (ledger.get(), entry.get() / GROUP_ENTRIES))?.insert(entry);
        Ok(())
    }

    /// Writes what was noted.
    pub(super) fn write(
        &mut self,
        table: &mut Table<'_, Place, &'static Row>,
    ) -> Result<(), redb::StorageError> {
        while let Some((place, group)) = self.0.pop_first() {
            table.insert(place, &group.encode(place))?;
        }
        Ok(())
    }

    fn group(
        &mut self,
        table: &impl ReadableTable<Place, &'static Row>,
        place: Place,
    ) -> Result<&mut Group, Stop> {
        Ok(match self.0.entry(place) {
            btree_map::Entry::Occupied(noted) => noted.into_mut(),
            btree_map::Entry::Vacant(vacant) => {
                vacant.insert(stored(table, place)?.unwrap_or(Group::EMPTY))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_bytes_of_the_table_and_a_flipped_bit_in_it_is_noticed() {
        let place = (259, 2);
        let mut group = Group::EMPTY;
        assert_eq!(group.last(), None);
        for (entry, last) in [(1_024, 0), (1_034, 10), (1_535, 511), (1_025, 511)] {
            assert!(!group.contains(EntryId(entry)));
            group.insert(EntryId(entry));
            assert!(group.contains(EntryId(entry)));
            assert_eq!(group.last(), Some(last));
        }
        let row = group.encode(place);
        let mut content = [0; 16 + BITS_BYTES];
        (content[6], content[7], content[15]) = (1, 3, 2);
        (content[16], content[17], content[79]) = (3, 4, 128);
        assert_eq!(row[..BITS_BYTES], content[16..]);
        assert_eq!(row[BITS_BYTES..], crc32c::crc32c(&content).to_be_bytes());
        assert_eq!(Group::decode(place, &row), Ok(group));
        for elsewhere in [(259, 3), (258, 2)] {
            assert_eq!(Group::decode(elsewhere, &row), Err(BookieError::Io));
        }
        for bit in 0..ROW_BYTES * 8 {
            let mut flipped = row;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Group::decode(place, &flipped), Err(BookieError::Io), "bit {bit}");
        }
    }
}
