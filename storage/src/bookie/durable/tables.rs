//! What a bookie's file holds.
//!
//! | table | key | value |
//! |---|---|---|
//! | `entries` | ledger id, entry id | the entry's bytes as they came, with their digest |
//! | `ledgers` | ledger id | the record below |
//! | `held` | ledger id, number of a group of entries | which entries of the group were given, see there |
//! | `meta` | name | text: `format`, `owner`, and once the bookie has a life `instance`, `opening` and `confirmed` |
//! | `probe` | none | nothing, or bytes that are written to see whether there is space for them |
//!
//! A record is 41 bytes; integers are big-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 8 | ledger id |
//! | 20 | key |
//! | 1 | 0 open, 1 fenced |
//! | 8 | explicit LAC, -1 if there is none |
//! | 4 | CRC32C over the bytes above |
//!
//! The database does not look at its checksums when it reads. So that a flipped bit in a key hides nothing, records and
//! entries say themselves which they are, and whatever is not found is denied only if what stands on both sides of its
//! place stands where it belongs. So that one in the head of a page does not either, it must be unknown to `held` too.

use std::cmp::Ordering;

use bytes::Bytes;
use redb::{
    ReadOnlyTable, ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction,
};

use super::held::{self, Given, HELD, Row};
use super::serving::Stop;
use crate::bookie::rules::{self, Fence, LedgerRecord, Mode, RecordChange};
use crate::disk::Changed;
use crate::entry::{Entry, MasterKey};
use crate::id::{EntryId, LedgerId};
use crate::transport::{AddKind, BookieError, RequestBody, ResponseBody};

const ENTRIES: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("entries");
const LEDGERS: TableDefinition<'_, u64, &[u8; RECORD_BYTES]> = TableDefinition::new("ledgers");

const PROBE: TableDefinition<'_, (), &[u8]> = TableDefinition::new("probe");

/// How much space must be found before it is believed that there is some.
const PROBE_BYTES: usize = 1 << 19;

const CONTENT_BYTES: usize = 37;
const RECORD_BYTES: usize = CONTENT_BYTES + 4;

/// What is stored, as far as one transaction sees it.
pub(super) struct Stored<L, E, H> {
    ledgers: L,
    entries: E,
    held: H,
}

/// What is committed.
pub(super) type Snapshot = Stored<
    ReadOnlyTable<u64, &'static [u8; RECORD_BYTES]>,
    ReadOnlyTable<(u64, u64), &'static [u8]>,
    ReadOnlyTable<(u64, u64), &'static Row>,
>;

/// What is stored and about to be.
type Draft<'t> = Stored<
    Table<'t, u64, &'static [u8; RECORD_BYTES]>,
    Table<'t, (u64, u64), &'static [u8]>,
    Table<'t, (u64, u64), &'static Row>,
>;

/// Changes that become durable together.
pub(super) struct Turn<'t> {
    stored: Draft<'t>,
    mode: Mode,
    /// What is not in `held` yet.
    given: Given,
    /// The entry that is being stored, in one piece. Kept for its capacity.
    bytes: Vec<u8>,
    changed: Changed,
}

/// Makes the tables of a new file.
pub(super) fn create(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(ENTRIES)?;
    transaction.open_table(LEDGERS)?;
    transaction.open_table(HELD)?;
    Ok(())
}

/// Checks that a file has its tables.
pub(super) fn check(transaction: &ReadTransaction) -> Result<(), redb::Error> {
    Snapshot::open(transaction).map(drop)
}

/// Takes up space, to see whether there is some.
pub(super) fn take_space(transaction: &WriteTransaction) -> Result<((), Changed), redb::Error> {
    transaction.open_table(PROBE)?.insert((), vec![1; PROBE_BYTES].as_slice())?;
    Ok(((), Changed::Something))
}

/// Gives back the space that was taken up.
pub(super) fn free_space(transaction: &WriteTransaction) -> Result<((), Changed), redb::Error> {
    transaction.delete_table(PROBE)?;
    Ok(((), Changed::Something))
}

impl<L, E, H> Stored<L, E, H>
where
    L: ReadableTable<u64, &'static [u8; RECORD_BYTES]>,
    E: ReadableTable<(u64, u64), &'static [u8]>,
    H: ReadableTable<(u64, u64), &'static Row>,
{
    /// The record of a ledger. With it a fence would be forgotten, so "none" is said only if it can be believed.
    fn record(&self, ledger: LedgerId) -> Result<Option<LedgerRecord>, Stop> {
        let id = ledger.get();
        if let Some(stored) = self.ledgers.get(id)? {
            return Ok(Some(decode(ledger, stored.value())?));
        }
        let before = self.ledgers.range(..id)?.next_back().transpose()?;
        let after = self.ledgers.range(id..)?.next().transpose()?;
        for (found, side) in [(before, Ordering::Less), (after, Ordering::Greater)] {
            if let Some((key, stored)) = found {
                decode(LedgerId(key.value()), stored.value())?;
                if key.value().cmp(&id) != side {
                    return Err(BookieError::Io.into());
                }
            }
        }
        match self.next_place((id, 0))? {
            // Entries without a record.
            Some((next, _)) if next == id => Err(BookieError::Io.into()),
            _ if held::knows(&self.held, ledger)? => Err(BookieError::Io.into()),
            _ => Ok(None),
        }
    }

    /// The place of the first entry that is not before this one. What stands on both sides of a place must be where it
    /// belongs, or an entry may be there that is not found.
    fn next_place(&self, place: (u64, u64)) -> Result<Option<(u64, u64)>, Stop> {
        let before = self.entries.range(..place)?.next_back().transpose()?;
        let after = self.entries.range(place..)?.next().transpose()?;
        let next = after.as_ref().map(|(key, _)| key.value());
        for (found, side) in [(before, Ordering::Less), (after, Ordering::Greater)] {
            if let Some((key, stored)) = found {
                entry_at(key.value(), stored.value())?;
                let found_at = key.value().cmp(&place);
                if found_at != side && found_at != Ordering::Equal {
                    return Err(BookieError::Io.into());
                }
            }
        }
        Ok(next)
    }

    /// The LAC that waits for it wait for, none while there is none.
    pub(super) fn awaited_lac(&self, ledger: LedgerId) -> Result<Option<EntryId>, Stop> {
        let highest = self.highest(ledger)?;
        Ok(rules::awaited_lac(self.record(ledger)?.as_ref(), highest.as_ref(), None))
    }

    fn read(&self, ledger: LedgerId, id: EntryId) -> Result<ResponseBody, Stop> {
        let record = self.record(ledger)?;
        let place = (ledger.get(), id.get());
        let stored = self.entries.get(place)?;
        let entry = stored.map(|stored| entry_at(place, stored.value())).transpose()?;
        if entry.is_none()
            && (self.next_place(place)? == Some(place) || held::was_given(&self.held, ledger, id)?)
        {
            return Err(BookieError::Io.into());
        }
        Ok(ResponseBody::Entry(rules::read(record.as_ref(), entry.as_ref())?))
    }

    fn last_add_confirmed(&self, ledger: LedgerId) -> Result<ResponseBody, Stop> {
        let highest = self.highest(ledger)?;
        let lac = rules::last_add_confirmed(self.record(ledger)?.as_ref(), highest.as_ref())?;
        Ok(ResponseBody::LastAddConfirmed { lac })
    }

    /// The last entry of a ledger. It is checked, since what it says of the LAC is believed.
    fn highest(&self, ledger: LedgerId) -> Result<Option<Entry>, Stop> {
        let ledger_id = ledger.get();
        let mut range = self.entries.range((ledger_id, 0)..=(ledger_id, u64::MAX))?;
        let highest = range.next_back().transpose()?;
        let found = highest.as_ref().map(|(key, _)| EntryId(key.value().1));
        if found != held::last_given(&self.held, ledger)? {
            return Err(BookieError::Io.into());
        }
        let Some((key, stored)) = highest else {
            return Ok(None);
        };
        let entry = entry_at(key.value(), stored.value())?;
        entry.verify(ledger, EntryId(key.value().1)).map_err(|_| BookieError::Io)?;
        Ok(Some(entry))
    }
}

impl Snapshot {
    pub(super) fn open(transaction: &ReadTransaction) -> Result<Self, redb::Error> {
        let (ledgers, entries) =
            (transaction.open_table(LEDGERS)?, transaction.open_table(ENTRIES)?);
        Ok(Self { ledgers, entries, held: transaction.open_table(HELD)? })
    }

    /// Answers a request that needs no change.
    pub(super) fn serve(&self, ledger: LedgerId, body: &RequestBody) -> Result<ResponseBody, Stop> {
        match body {
            RequestBody::Read { entry, fence: None } => self.read(ledger, *entry),
            RequestBody::ReadLac { fence: None } => self.last_add_confirmed(ledger),
            _ => Err(BookieError::BadRequest.into()),
        }
    }

    /// The ledgers of which something is stored.
    pub(super) fn ledgers(&self) -> Result<Vec<LedgerId>, redb::Error> {
        self.ledgers.iter()?.map(|stored| Ok(LedgerId(stored?.0.value()))).collect()
    }

    /// The highest of them.
    pub(super) fn last_ledger(&self) -> Result<Option<LedgerId>, redb::Error> {
        Ok(self.ledgers.last()?.map(|(ledger, _)| LedgerId(ledger.value())))
    }
}

impl<'t> Turn<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction, mode: Mode) -> Result<Self, redb::Error> {
        let (ledgers, entries) =
            (transaction.open_table(LEDGERS)?, transaction.open_table(ENTRIES)?);
        let stored = Stored { ledgers, entries, held: transaction.open_table(HELD)? };
        let (given, bytes) = (Given::default(), Vec::new());
        Ok(Self { stored, mode, given, bytes, changed: Changed::Nothing })
    }

    /// Carries out a request. Its answer may leave once the turn is durable.
    pub(super) fn apply(
        &mut self,
        ledger: LedgerId,
        body: &RequestBody,
    ) -> Result<ResponseBody, Stop> {
        match body {
            RequestBody::Add { entry, key, kind } => self.add(ledger, entry, *key, *kind),
            RequestBody::Read { entry, fence } => {
                self.fence(ledger, *fence)?;
                self.stored.read(ledger, *entry)
            }
            RequestBody::ReadLac { fence } => {
                self.fence(ledger, *fence)?;
                self.stored.last_add_confirmed(ledger)
            }
            RequestBody::WriteLac { lac, key } => {
                let record = self.stored.record(ledger)?;
                let change = rules::write_lac(record.as_ref(), *lac, *key)?;
                self.change(ledger, record.as_ref(), change)?;
                Ok(ResponseBody::LacWritten)
            }
            RequestBody::WaitLac { .. } => Err(BookieError::BadRequest.into()),
        }
    }

    /// Ends the turn, and says whether anything was changed.
    pub(super) fn finish(mut self) -> Result<Changed, redb::Error> {
        self.given.write(&mut self.stored.held)?;
        Ok(self.changed)
    }

    /// Stores an entry. A second normal add of an id is the first one again; a recovery's copy takes its place.
    fn add(
        &mut self,
        ledger: LedgerId,
        entry: &Entry,
        key: MasterKey,
        kind: AddKind,
    ) -> Result<ResponseBody, Stop> {
        let record = self.stored.record(ledger)?;
        let change = rules::add(record.as_ref(), self.mode, key, kind)?;
        self.change(ledger, record.as_ref(), change)?;
        let place = (ledger.get(), entry.entry().get());
        if kind == AddKind::Recovery || self.stored.entries.get(place)?.is_none() {
            self.given.note(&self.stored.held, ledger, entry.entry())?;
            self.bytes.clear();
            entry.append_to(&mut self.bytes);
            self.stored.entries.insert(place, &self.bytes[..])?;
            self.changed = Changed::Something;
        }
        Ok(ResponseBody::Added)
    }

    fn fence(&mut self, ledger: LedgerId, key: Option<MasterKey>) -> Result<(), Stop> {
        // What comes next compares the tables.
        self.given.write(&mut self.stored.held)?;
        if let Some(key) = key {
            let record = self.stored.record(ledger)?;
            self.change(ledger, record.as_ref(), rules::fence(record.as_ref(), key)?)?;
        }
        Ok(())
    }

    fn change(
        &mut self,
        ledger: LedgerId,
        known: Option<&LedgerRecord>,
        change: RecordChange,
    ) -> Result<(), Stop> {
        if let RecordChange::Write(record) = change {
            if known.is_none() {
                self.given.note_ledger(&self.stored.held, ledger)?;
            }
            self.stored.ledgers.insert(ledger.get(), &encode(ledger, &record))?;
            self.changed = Changed::Something;
        }
        Ok(())
    }

    /// Deletes up to `rows_max` rows of a ledger, its entries first and its record last: a deletion that is cut short
    /// leaves the fence. Returns how many were deleted besides the record; fewer than allowed means that the ledger is
    /// gone.
    pub(super) fn delete(
        &mut self,
        ledger: LedgerId,
        rows_max: usize,
    ) -> Result<usize, redb::Error> {
        let id = ledger.get();
        let range = (id, 0)..=(id, u64::MAX);
        let mut deleted = 0;
        for entry in self.stored.entries.extract_from_if(range, |_, _| true)?.take(rows_max) {
            entry?;
            deleted += 1;
        }
        deleted += held::forget(&mut self.stored.held, ledger, rows_max - deleted)?;
        if deleted < rows_max {
            self.stored.ledgers.remove(id)?;
        }
        self.changed = Changed::Something;
        Ok(deleted)
    }
}

/// The entry that is stored at a place. Its digest is for the reader to check.
fn entry_at(place: (u64, u64), stored: &[u8]) -> Result<Entry, BookieError> {
    let entry = Entry::from_bytes(Bytes::copy_from_slice(stored)).map_err(|_| BookieError::Io)?;
    let belongs = (entry.ledger().get(), entry.entry().get());
    if belongs == place { Ok(entry) } else { Err(BookieError::Io) }
}

fn encode(ledger: LedgerId, record: &LedgerRecord) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    let lac = record.explicit_lac.map_or(-1, |lac| {
        i64::try_from(lac.get()).expect("entry ids stay below 2^63, see EntryId")
    });
    bytes[..8].copy_from_slice(&ledger.get().to_be_bytes());
    bytes[8..28].copy_from_slice(record.key.as_bytes());
    bytes[28] = match record.fence {
        Fence::Open => 0,
        Fence::Fenced => 1,
    };
    bytes[29..CONTENT_BYTES].copy_from_slice(&lac.to_be_bytes());
    let digest = crc32c::crc32c(&bytes[..CONTENT_BYTES]);
    bytes[CONTENT_BYTES..].copy_from_slice(&digest.to_be_bytes());
    bytes
}

/// A record that is damaged, or is another ledger's, is not believed: the fence may be among what was lost.
fn decode(ledger: LedgerId, bytes: &[u8; RECORD_BYTES]) -> Result<LedgerRecord, BookieError> {
    let (content, digest) = bytes.split_at(CONTENT_BYTES);
    if crc32c::crc32c(content).to_be_bytes() != digest || content[..8] != ledger.get().to_be_bytes()
    {
        return Err(BookieError::Io);
    }
    let field = "the fields of a record lie within it";
    let key = MasterKey::from(*content[8..].first_chunk().expect(field));
    let lac = i64::from_be_bytes(*content.last_chunk().expect(field));
    let fence = match content[28] {
        0 => Fence::Open,
        1 => Fence::Fenced,
        _ => return Err(BookieError::Io),
    };
    Ok(LedgerRecord { key, fence, explicit_lac: u64::try_from(lac).ok().map(EntryId) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Password;

    const LEDGER: LedgerId = LedgerId(259);

    #[test]
    fn a_record_reads_back_and_a_flipped_bit_in_it_is_noticed() {
        let key = MasterKey::of(&Password::from("secret"));
        for fence in [Fence::Open, Fence::Fenced] {
            for explicit_lac in [None, Some(EntryId(0)), Some(EntryId(i64::MAX.unsigned_abs()))] {
                let record = LedgerRecord { key, fence, explicit_lac };
                let bytes = encode(LEDGER, &record);
                assert_eq!(decode(LEDGER, &bytes), Ok(record));
                assert_eq!(decode(LedgerId(3), &bytes), Err(BookieError::Io));
                for bit in 0..RECORD_BYTES * 8 {
                    let mut flipped = bytes;
                    flipped[bit / 8] ^= 1 << (bit % 8);
                    let damaged = decode(LEDGER, &flipped);
                    assert_eq!(damaged, Err(BookieError::Io), "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_record_has_the_bytes_of_the_table() {
        let key = MasterKey::from([7; 20]);
        let record = LedgerRecord { key, fence: Fence::Fenced, explicit_lac: Some(EntryId(258)) };
        let mut bytes = [7; RECORD_BYTES];
        bytes[..8].copy_from_slice(&[0, 0, 0, 0, 0, 0, 1, 3]);
        bytes[28..37].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 1, 2]);
        let digest = crc32c::crc32c(&bytes[..37]).to_be_bytes();
        bytes[37..].copy_from_slice(&digest);
        assert_eq!(encode(LEDGER, &record), bytes);
    }
}
