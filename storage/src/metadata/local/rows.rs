//! The rows of the file, and which of them are believed.
//!
//! The database does not look at its checksums when it reads. One flipped bit makes another key or value of a row, or
//! hides rows, and what follows from that is worse than no answer: a ledger that is not found, a cursor that has moved
//! on. So a row has a digest, and each key stands in a second table, in other pages. A row is found, or denied, only if
//! both tables say the same; else it is damaged.

use bytes::Bytes;
use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use crate::metadata::exchange::Version;
use crate::metadata::store::{MetadataError, Versioned};

// Keys are bytes: of text that is damaged the database makes a panic.
const VALUES: TableDefinition<'_, &[u8], (u64, u32, &[u8])> = TableDefinition::new("values");
const KEYS: TableDefinition<'_, &[u8], u64> = TableDefinition::new("keys");
const COUNTERS: TableDefinition<'_, &str, (u64, u32)> = TableDefinition::new("counters");

/// A number that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counter {
    /// The last version given to any key.
    Version,
    /// The next ledger id.
    Ledger,
}

/// Why an operation is not carried out.
#[derive(Debug)]
pub(super) enum Stop {
    /// It is refused; other operations of the turn are not concerned.
    Refused(MetadataError),
    /// What the file holds of this key, or below it, is not what was written. Others are not concerned.
    Damaged(String),
    /// The file failed, and with it the turn.
    Failed(redb::Error),
}

/// What the file holds, as of the operation that is being carried out.
pub(super) struct Rows<'t> {
    values: Table<'t, &'static [u8], (u64, u32, &'static [u8])>,
    keys: Table<'t, &'static [u8], u64>,
    counters: Table<'t, &'static str, (u64, u32)>,
}

/// Checks that the file has its tables, and what it has counted.
pub(super) fn check(transaction: &ReadTransaction) -> Result<(), redb::Error> {
    transaction.open_table(VALUES)?;
    transaction.open_table(KEYS)?;
    let counters = transaction.open_table(COUNTERS)?;
    for counter in [Counter::Version, Counter::Ledger] {
        counted(&counters, counter).map_err(|stop| match stop {
            Stop::Failed(error) => error,
            other => redb::Error::Corrupted(format!("its counters are not believed: {other:?}")),
        })?;
    }
    Ok(())
}

fn counted(
    counters: &impl ReadableTable<&'static str, (u64, u32)>,
    counter: Counter,
) -> Result<u64, Stop> {
    let stored = counters.get(counter.name())?.map(|stored| stored.value());
    match stored {
        Some((count, digest)) if digest == digest_of(counter.name(), count, &[]) => Ok(count),
        _ => Err(Stop::Damaged(format!("the counter {}", counter.name()))),
    }
}

impl<'t> Rows<'t> {
    /// Makes the tables of a new file.
    pub(super) fn begin(transaction: &'t WriteTransaction) -> Result<(), redb::Error> {
        let mut rows = Self::open(transaction)?;
        rows.set_count(Counter::Version, 0)?;
        rows.set_count(Counter::Ledger, 0)
    }

    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, redb::Error> {
        let (values, keys) = (transaction.open_table(VALUES)?, transaction.open_table(KEYS)?);
        Ok(Self { values, keys, counters: transaction.open_table(COUNTERS)? })
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<Versioned>, Stop> {
        let noted = self.keys.get(key.as_bytes())?.map(|stored| stored.value());
        let Some(found) = self.values.get(key.as_bytes())? else {
            return noted.map_or(Ok(None), |_| Err(Stop::Damaged(key.into())));
        };
        let (version, digest, value) = found.value();
        if digest != digest_of(key, version, value) || noted != Some(version) {
            return Err(Stop::Damaged(key.into()));
        }
        Ok(Some(Versioned { value: Bytes::copy_from_slice(value), version: Version(version) }))
    }

    /// The keys that begin so, sorted.
    pub(super) fn below(&self, prefix: &str) -> Result<Vec<String>, Stop> {
        let damaged = || Stop::Damaged(prefix.into());
        let mut found = Vec::new();
        for stored in self.values.range(prefix.as_bytes()..)? {
            let (key, row) = stored?;
            if !key.value().starts_with(prefix.as_bytes()) {
                break;
            }
            let key = str::from_utf8(key.value()).map_err(|_| damaged())?;
            let (version, digest, value) = row.value();
            if digest != digest_of(key, version, value) {
                return Err(Stop::Damaged(key.into()));
            }
            found.push((key.to_owned(), version));
        }
        let mut unnoted = found.iter();
        for stored in self.keys.range(prefix.as_bytes()..)? {
            let (key, version) = stored?;
            if !key.value().starts_with(prefix.as_bytes()) {
                break;
            }
            let (found, of) = unnoted.next().ok_or_else(damaged)?;
            if found.as_bytes() != key.value() || *of != version.value() {
                return Err(damaged());
            }
        }
        match unnoted.next() {
            Some((key, _)) => Err(Stop::Damaged(key.clone())),
            None => Ok(found.into_iter().map(|(key, _)| key).collect()),
        }
    }

    pub(super) fn insert(
        &mut self,
        key: &str,
        version: Version,
        value: &[u8],
    ) -> Result<(), redb::Error> {
        let digest = digest_of(key, version.0, value);
        self.values.insert(key.as_bytes(), (version.0, digest, value))?;
        self.keys.insert(key.as_bytes(), version.0)?;
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &str) -> Result<(), redb::Error> {
        self.values.remove(key.as_bytes())?;
        self.keys.remove(key.as_bytes())?;
        Ok(())
    }

    pub(super) fn count(&self, counter: Counter) -> Result<u64, Stop> {
        counted(&self.counters, counter)
    }

    pub(super) fn set_count(&mut self, counter: Counter, count: u64) -> Result<(), redb::Error> {
        let digest = digest_of(counter.name(), count, &[]);
        self.counters.insert(counter.name(), (count, digest))?;
        Ok(())
    }
}

impl Counter {
    const fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Ledger => "ledger",
        }
    }
}

/// CRC32C over the number and the length of the key (8 bytes each, big-endian), the key, and the value.
fn digest_of(key: &str, number: u64, value: &[u8]) -> u32 {
    let head = [number.to_be_bytes(), (key.len() as u64).to_be_bytes()];
    let head = crc32c::crc32c(head.as_flattened());
    crc32c::crc32c_append(crc32c::crc32c_append(head, key.as_bytes()), value)
}

impl From<MetadataError> for Stop {
    fn from(error: MetadataError) -> Self {
        Self::Refused(error)
    }
}

impl From<redb::StorageError> for Stop {
    fn from(error: redb::StorageError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<redb::Error> for Stop {
    fn from(error: redb::Error) -> Self {
        Self::Failed(error)
    }
}
