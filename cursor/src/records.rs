//! The stored records of topics and cursors, in Apache Pulsar's format.
//!
//! A topic's record lists its ledgers: an open one without entries, size and with timestamp 0, a
//! closed one with all three. A cursor's record holds the mark-delete position; entry -1 means
//! "before the first entry of that ledger".
//!
//! Only what is used is decoded. Records that use a feature which would change their meaning,
//! and which is not understood here, are refused by name instead of being misread; this includes
//! the wrapper of compressed records, which starts with the bytes 47 78.

use bytes::Bytes;
use georepl_storage::{EntryId, LedgerId};
use prost::Message;

use crate::position::Position;

/// The record of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicRecord {
    /// Its ledgers, oldest first.
    pub ledgers: Vec<ListedLedger>,
}

/// One ledger in the record of its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedLedger {
    /// The ledger.
    pub ledger: LedgerId,
    /// How it ended; none while it is open.
    pub end: Option<ListedEnd>,
}

/// How a listed ledger ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEnd {
    /// Entries in it that belong to the topic.
    pub entries: u64,
    /// Bytes of payload in them.
    pub bytes: u64,
    /// When it was closed, in milliseconds since 1970-01-01 UTC.
    pub closed_at_ms: u64,
}

/// The record of a cursor whose state is in the record itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorRecord {
    /// Where everything up to here is acknowledged; none when nothing is.
    pub mark_delete: Option<Position>,
}

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

impl TopicRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Bytes {
        let ledgers = self.ledgers.iter().map(|listed| StoredLedger {
            ledger: stored(listed.ledger.get()),
            entries: listed.end.map(|end| stored(end.entries)),
            size: listed.end.map(|end| stored(end.bytes)),
            timestamp: Some(listed.end.map_or(0, |end| stored(end.closed_at_ms))),
            ..StoredLedger::default()
        });
        StoredTopic { ledgers: ledgers.collect(), ..StoredTopic::default() }.encode_to_vec().into()
    }

    /// Reads a record. No bytes at all are the record of a topic without ledgers.
    ///
    /// # Errors
    /// When it is damaged, or uses what is not supported.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record: StoredTopic = unwrap(bytes)?;
        refuse(record.terminated.is_some(), "termination")?;
        refuse(!record.properties.is_empty(), "topic properties")?;
        let ledgers = record.ledgers.into_iter().map(StoredLedger::listed);
        Ok(Self { ledgers: ledgers.collect::<Result<_, _>>()? })
    }
}

impl StoredLedger {
    fn listed(self) -> Result<ListedLedger, RecordError> {
        refuse(self.offload.is_some(), "offloaded ledgers")?;
        refuse(!self.properties.is_empty(), "ledger properties")?;
        let closed_at_ms = in_range("timestamp", self.timestamp.unwrap_or(0))?;
        let end = match closed_at_ms {
            0 => None,
            closed_at_ms => Some(ListedEnd {
                entries: in_range("entries", self.entries.unwrap_or(0))?,
                bytes: in_range("size", self.size.unwrap_or(0))?,
                closed_at_ms,
            }),
        };
        Ok(ListedLedger { ledger: LedgerId(in_range("ledgerId", self.ledger)?), end })
    }
}

impl CursorRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Bytes {
        let position = self.mark_delete;
        let record = StoredCursor {
            cursor_ledger: STATE_IS_HERE,
            mark_delete_ledger: Some(position.map_or(-1, |p| stored(p.ledger.get()))),
            mark_delete_entry: Some(position.map_or(-1, |p| stored(p.entry.get()))),
            ..StoredCursor::default()
        };
        record.encode_to_vec().into()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is damaged, or uses what is not supported.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record: StoredCursor = unwrap(bytes)?;
        refuse(record.cursor_ledger != STATE_IS_HERE, "a cursor ledger")?;
        refuse(!record.ranges.is_empty(), "individual acknowledgements")?;
        refuse(!record.batch_indexes.is_empty(), "batch index acknowledgements")?;
        refuse(!record.properties.is_empty(), "mark-delete properties")?;
        refuse(!record.cursor_properties.is_empty(), "cursor properties")?;
        let (ledger, entry) =
            (record.mark_delete_ledger.unwrap_or(-1), record.mark_delete_entry.unwrap_or(-1));
        if (ledger, entry) == (-1, -1) {
            return Ok(Self { mark_delete: None });
        }
        refuse(entry == -1, "a mark-delete position before the first entry of a ledger")?;
        let ledger = LedgerId(in_range("markDeleteLedgerId", ledger)?);
        let entry = EntryId(in_range("markDeleteEntryId", entry)?);
        Ok(Self { mark_delete: Some(Position::new(ledger, entry)) })
    }
}

#[derive(Clone, PartialEq, Message)]
struct StoredTopic {
    #[prost(message, repeated, tag = "1")]
    ledgers: Vec<StoredLedger>,
    #[prost(message, optional, tag = "2")]
    terminated: Option<Present>,
    #[prost(message, repeated, tag = "3")]
    properties: Vec<Present>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredLedger {
    #[prost(int64, required, tag = "1")]
    ledger: i64,
    #[prost(int64, optional, tag = "2")]
    entries: Option<i64>,
    #[prost(int64, optional, tag = "3")]
    size: Option<i64>,
    #[prost(int64, optional, tag = "4")]
    timestamp: Option<i64>,
    #[prost(message, optional, tag = "5")]
    offload: Option<Present>,
    #[prost(message, repeated, tag = "6")]
    properties: Vec<Present>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredCursor {
    #[prost(int64, required, tag = "1")]
    cursor_ledger: i64,
    #[prost(int64, optional, tag = "2")]
    mark_delete_ledger: Option<i64>,
    #[prost(int64, optional, tag = "3")]
    mark_delete_entry: Option<i64>,
    #[prost(message, repeated, tag = "4")]
    ranges: Vec<Present>,
    #[prost(message, repeated, tag = "5")]
    properties: Vec<Present>,
    #[prost(message, repeated, tag = "7")]
    batch_indexes: Vec<Present>,
    #[prost(message, repeated, tag = "8")]
    cursor_properties: Vec<Present>,
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
const STATE_IS_HERE: i64 = -1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic() -> TopicRecord {
        let end = ListedEnd { entries: 10, bytes: 300, closed_at_ms: 1_690_701_430_137 };
        TopicRecord {
            ledgers: vec![
                ListedLedger { ledger: LedgerId(3), end: Some(end) },
                ListedLedger { ledger: LedgerId(4), end: None },
            ],
        }
    }

    #[test]
    fn topic_record_has_pulsars_bytes() {
        // ledgerInfo { ledgerId: 3, entries: 10, size: 300, timestamp: 1 }, { ledgerId: 4, timestamp: 0 }
        let bytes = [10, 9, 8, 3, 16, 10, 24, 172, 2, 32, 1, 10, 4, 8, 4, 32, 0];
        let mut expected = topic();
        expected.ledgers[0].end.as_mut().unwrap().closed_at_ms = 1;
        assert_eq!(TopicRecord::decode(&bytes), Ok(expected.clone()));
        assert_eq!(expected.encode().as_ref(), bytes);
    }

    #[test]
    fn records_round_trip_and_no_bytes_are_an_empty_topic() {
        assert_eq!(TopicRecord::decode(&topic().encode()), Ok(topic()));
        assert_eq!(TopicRecord::decode(&[]), Ok(TopicRecord::default()));
        for mark_delete in [None, Some(Position::new(LedgerId(3), EntryId(17)))] {
            let record = CursorRecord { mark_delete };
            assert_eq!(CursorRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let wrapped = [0x47, 0x78, 0, 0, 0, 2, 8, 1];
        assert_eq!(TopicRecord::decode(&wrapped), Err(RecordError::Compressed));
        assert_eq!(CursorRecord::decode(&wrapped), Err(RecordError::Compressed));

        let terminated = StoredTopic { terminated: Some(Present {}), ..StoredTopic::default() };
        let refused = TopicRecord::decode(&terminated.encode_to_vec()).unwrap_err();
        assert!(refused.to_string().contains("termination"));

        let ranges = vec![Present {}];
        let holes = StoredCursor { cursor_ledger: -1, ranges, ..StoredCursor::default() };
        let refused = CursorRecord::decode(&holes.encode_to_vec()).unwrap_err();
        assert!(refused.to_string().contains("individual acknowledgements"));

        let elsewhere = StoredCursor { cursor_ledger: 12, ..StoredCursor::default() };
        let refused = CursorRecord::decode(&elsewhere.encode_to_vec()).unwrap_err();
        assert!(refused.to_string().contains("cursor ledger"));
    }

    #[test]
    fn negative_numbers_are_out_of_range() {
        let ledger = StoredLedger { ledger: -3, ..StoredLedger::default() };
        let record = StoredTopic { ledgers: vec![ledger], ..StoredTopic::default() };
        let refused = TopicRecord::decode(&record.encode_to_vec());
        assert_eq!(refused, Err(RecordError::OutOfRange { field: "ledgerId", value: -3 }));
    }

    /// Whatever the bytes are, they are refused, or a record that is written and read as the same.
    fn never_panics(bytes: &[u8]) -> Result<(), TestCaseError> {
        if let Ok(record) = TopicRecord::decode(bytes) {
            prop_assert_eq!(TopicRecord::decode(&record.encode()), Ok(record));
        }
        if let Ok(record) = CursorRecord::decode(bytes) {
            prop_assert_eq!(CursorRecord::decode(&record.encode()), Ok(record));
        }
        Ok(())
    }

    /// Mostly a number that a record may have.
    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![8 => -1..20_i64, 1 => any::<i64>()]
    }

    fn any_topic() -> impl Strategy<Value = StoredTopic> {
        let optional = || prop::option::of(number());
        let ledger = (number(), optional(), optional(), optional());
        let ledger = ledger.prop_map(|(ledger, entries, size, timestamp)| StoredLedger {
            ledger,
            entries,
            size,
            timestamp,
            ..StoredLedger::default()
        });
        let ledgers = prop::collection::vec(ledger, 0..4);
        ledgers.prop_map(|ledgers| StoredTopic { ledgers, ..StoredTopic::default() })
    }

    fn any_cursor() -> impl Strategy<Value = StoredCursor> {
        let optional = || prop::option::of(number());
        (prop_oneof![8 => Just(STATE_IS_HERE), 1 => number()], optional(), optional()).prop_map(
            |(cursor_ledger, mark_delete_ledger, mark_delete_entry)| StoredCursor {
                cursor_ledger,
                mark_delete_ledger,
                mark_delete_entry,
                ..StoredCursor::default()
            },
        )
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            never_panics(&bytes)?;
        }

        #[test]
        fn arbitrary_numbers_and_damage_never_panic(
            topic in any_topic(),
            cursor in any_cursor(),
            at: prop::sample::Index,
            byte: u8,
        ) {
            for mut bytes in [topic.encode_to_vec(), cursor.encode_to_vec()] {
                never_panics(&bytes)?;
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                    never_panics(&bytes)?;
                }
            }
        }

        #[test]
        fn an_arbitrary_length_beyond_the_bytes_is_an_error_and_allocates_nothing(
            tag in 1_u32..9,
            claimed in 60_u64..,
            rest in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut bytes = Vec::new();
            let wire_type = prost::encoding::WireType::LengthDelimited;
            prost::encoding::encode_key(tag, wire_type, &mut bytes);
            prost::encoding::encode_varint(claimed, &mut bytes);
            bytes.extend(rest);
            prop_assert!(TopicRecord::decode(&bytes).is_err());
            prop_assert!(CursorRecord::decode(&bytes).is_err());
        }
    }
}
