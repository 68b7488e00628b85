//! The stored records of topics and cursors, in Apache Pulsar's format.
//!
//! Only what is used is decoded. Records that use a feature which would change their meaning,
//! and which is not understood here, are refused by name instead of being misread; this includes
//! the wrapper of compressed records, which starts with the bytes 47 78.

mod cursor;
mod topic;

use std::collections::BTreeMap;

use georepl_storage::LedgerId;
use prost::Message;

pub use cursor::{CursorRecord, Snapshot};
pub use topic::{ListedEnd, ListedLedger, TopicRecord};

use crate::position::Place;

/// Why a stored record was not understood. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It is wrapped, as Pulsar wraps compressed records.
    #[error(
        "the record is compressed (it starts with 47 78), which is not supported: \
         turn compression of managed ledger records off in the broker that wrote it"
    )]
    Compressed,
    /// It is no protobuf message of the expected kind.
    #[error("the record is damaged: {0}")]
    Damaged(String),
    /// It uses something that would change its meaning and is not supported.
    #[error("the record uses {feature}, which is not supported yet; nothing was changed")]
    Unsupported {
        /// What it uses.
        feature: &'static str,
    },
    /// A number is outside of its range.
    #[error("the record says {field} = {value}, which is out of range")]
    OutOfRange {
        /// Which number.
        field: &'static str,
        /// What it is.
        value: i64,
    },
}

#[derive(Clone, Copy, PartialEq, Message)]
struct NestedPosition {
    #[prost(int64, required, tag = "1")]
    ledger: i64,
    #[prost(int64, required, tag = "2")]
    entry: i64,
}

impl NestedPosition {
    fn of(place: Place) -> Self {
        Self { ledger: stored(place.ledger.get()), entry: stored(place.entries) - 1 }
    }

    fn place(self) -> Result<Place, RecordError> {
        let ledger = LedgerId(in_range("ledgerId", self.ledger)?);
        let next = self.entry.checked_add(1);
        let entries = in_range("entryId", next.unwrap_or(-1))?;
        Ok(Place { ledger, entries })
    }
}

#[derive(Clone, PartialEq, Message)]
struct StringProperty {
    #[prost(string, required, tag = "1")]
    name: String,
    #[prost(string, required, tag = "2")]
    value: String,
}

impl StringProperty {
    fn list(properties: &BTreeMap<String, String>) -> Vec<Self> {
        let property =
            |(name, value): (&String, &String)| Self { name: name.clone(), value: value.clone() };
        properties.iter().map(property).collect()
    }
}

/// A message whose presence is all that matters.
#[derive(Clone, PartialEq, Message)]
struct Present {}

fn unwrap<M: Message + Default>(bytes: &[u8]) -> Result<M, RecordError> {
    if bytes.starts_with(&COMPRESSED) {
        return Err(RecordError::Compressed);
    }
    M::decode(bytes).map_err(|error| RecordError::Damaged(error.to_string()))
}

fn refuse(used: bool, feature: &'static str) -> Result<(), RecordError> {
    if used { Err(RecordError::Unsupported { feature }) } else { Ok(()) }
}

fn in_range(field: &'static str, value: i64) -> Result<u64, RecordError> {
    u64::try_from(value).map_err(|_| RecordError::OutOfRange { field, value })
}

fn stored(number: u64) -> i64 {
    i64::try_from(number).expect("ids, counts and sizes stay below 2^63")
}

const COMPRESSED: [u8; 2] = [0x47, 0x78];
