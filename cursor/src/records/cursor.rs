//! The record of a cursor, and the snapshots of its state that lie in a ledger of its own.
//!
//! The record names the ledger whose last entry is the newest snapshot, or holds the state itself. Beside a ledger the
//! state in the record is an older one, from when that ledger was begun.

use std::collections::BTreeMap;

use bytes::Bytes;
use georepl_storage::LedgerId;
use prost::Message;

use super::{
    NestedPosition, Present, RecordError, StringProperty, in_range, refuse, stored, unwrap,
};
use crate::position::Place;

/// The state of a cursor as it is stored: as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Everything up to here is acknowledged; none when nothing ever was, in no ledger.
    pub mark_delete: Option<Place>,
    /// What else is acknowledged: from each first place to each second one.
    pub acked: Vec<(Place, Place)>,
    /// What whoever acknowledges has stored with it.
    pub properties: BTreeMap<String, i64>,
}

/// The record of a cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CursorRecord {
    /// The ledger that has newer snapshots than `state`; none when there is no newer one.
    pub cursor_ledger: Option<LedgerId>,
    /// The state when the record was written.
    pub state: Snapshot,
    /// Properties of the cursor that do not change with what is acknowledged.
    pub properties: BTreeMap<String, String>,
}

impl CursorRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Bytes {
        let state = StoredPosition::from(&self.state);
        let record = StoredCursor {
            cursor_ledger: self.cursor_ledger.map_or(STATE_IS_HERE, |ledger| stored(ledger.get())),
            mark_delete_ledger: Some(state.ledger),
            mark_delete_entry: Some(state.entry),
            ranges: state.ranges,
            properties: state.properties,
            batch_indexes: Vec::new(),
            checkpoint: None,
            cursor_properties: StringProperty::list(&self.properties),
        };
        record.encode_to_vec().into()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is damaged, or uses what is not supported.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record: StoredCursor = unwrap(bytes)?;
        refuse(record.checkpoint.is_some(), "checkpoints of snapshots")?;
        let cursor_ledger = match record.cursor_ledger {
            STATE_IS_HERE => None,
            ledger => Some(LedgerId(in_range("cursorsLedgerId", ledger)?)),
        };
        let state = StoredPosition {
            ledger: record.mark_delete_ledger.unwrap_or(-1),
            entry: record.mark_delete_entry.unwrap_or(-1),
            ranges: record.ranges,
            properties: record.properties,
            batch_indexes: record.batch_indexes,
            ..StoredPosition::default()
        };
        let properties = record.cursor_properties.into_iter().map(|p| (p.name, p.value)).collect();
        Ok(Self { cursor_ledger, state: state.snapshot()?, properties })
    }
}

impl Snapshot {
    /// The bytes of an entry of the cursor's ledger.
    pub fn encode(&self) -> Bytes {
        StoredPosition::from(self).encode_to_vec().into()
    }

    /// Reads an entry of the cursor's ledger.
    ///
    /// # Errors
    /// When it is damaged, or uses what is not supported.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let entry = StoredPosition::decode(bytes);
        entry.map_err(|error| RecordError::Damaged(error.to_string()))?.snapshot()
    }
}

impl From<&Snapshot> for StoredPosition {
    fn from(snapshot: &Snapshot) -> Self {
        let mark_delete = snapshot.mark_delete.map_or(NOWHERE, NestedPosition::of);
        let ranges = snapshot.acked.iter().map(|&(from, to)| MessageRange {
            lower: NestedPosition::of(from),
            upper: NestedPosition::of(to),
        });
        let properties = snapshot.properties.iter();
        Self {
            ledger: mark_delete.ledger,
            entry: mark_delete.entry,
            ranges: ranges.collect(),
            properties: properties
                .map(|(name, &value)| LongProperty { name: name.clone(), value })
                .collect(),
            ..Self::default()
        }
    }
}

impl StoredPosition {
    fn snapshot(self) -> Result<Snapshot, RecordError> {
        refuse(!self.batch_indexes.is_empty(), "batch index acknowledgements")?;
        refuse(self.chunk.is_some(), "snapshots in several parts")?;
        // Entries that only refer to others have it; read as a snapshot they would invent acknowledgements.
        let kind = self.properties.iter().any(|property| property.name == "entry-type");
        refuse(kind, "snapshots that refer to others")?;
        let mark_delete = NestedPosition { ledger: self.ledger, entry: self.entry };
        let acked = if self.ranges.is_empty() {
            let words = self.words.into_iter().map(LongListMap::ranges);
            words.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()
        } else {
            let ranges = self.ranges.into_iter();
            ranges
                .map(|range| Ok((range.lower.place()?, range.upper.place()?)))
                .collect::<Result<_, RecordError>>()?
        };
        Ok(Snapshot {
            mark_delete: (mark_delete != NOWHERE).then(|| mark_delete.place()).transpose()?,
            acked,
            properties: self.properties.into_iter().map(|p| (p.name, p.value)).collect(),
        })
    }
}

impl LongListMap {
    /// The runs of set bits; bit j of word i is entry 64 i + j.
    fn ranges(self) -> Result<Vec<(Place, Place)>, RecordError> {
        refuse(self.bitmap.is_some(), "acknowledgements as a compressed bitmap")?;
        let ledger = LedgerId(in_range("key", self.ledger)?);
        let place = |entries| Place { ledger, entries };
        let (mut ranges, mut open) = (Vec::new(), None);
        for (entry, acked) in (0..).zip(self.words.iter().flat_map(|word| bits(*word))) {
            match (acked, open) {
                (true, None) => open = Some(entry),
                (false, Some(from)) => {
                    ranges.push((place(from), place(entry)));
                    open = None;
                }
                (true, Some(_)) | (false, None) => {}
            }
        }
        let end = 64 * self.words.len() as u64;
        ranges.extend(open.map(|from| (place(from), place(end))));
        Ok(ranges)
    }
}

fn bits(word: i64) -> impl Iterator<Item = bool> {
    (0..64).map(move |bit| word >> bit & 1 == 1)
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
    ranges: Vec<MessageRange>,
    #[prost(message, repeated, tag = "5")]
    properties: Vec<LongProperty>,
    #[prost(message, repeated, tag = "7")]
    batch_indexes: Vec<Present>,
    #[prost(message, repeated, tag = "8")]
    cursor_properties: Vec<StringProperty>,
    /// A place where a newer kind of snapshot begins.
    #[prost(message, optional, tag = "9")]
    checkpoint: Option<Present>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredPosition {
    #[prost(int64, required, tag = "1")]
    ledger: i64,
    #[prost(int64, required, tag = "2")]
    entry: i64,
    #[prost(message, repeated, tag = "3")]
    ranges: Vec<MessageRange>,
    #[prost(message, repeated, tag = "4")]
    properties: Vec<LongProperty>,
    #[prost(message, repeated, tag = "5")]
    batch_indexes: Vec<Present>,
    #[prost(message, repeated, tag = "6")]
    words: Vec<LongListMap>,
    #[prost(message, optional, tag = "7")]
    chunk: Option<Present>,
}

/// From behind `lower` up to and including `upper`.
#[derive(Clone, Copy, PartialEq, Message)]
struct MessageRange {
    #[prost(message, required, tag = "1")]
    lower: NestedPosition,
    #[prost(message, required, tag = "2")]
    upper: NestedPosition,
}

#[derive(Clone, PartialEq, Message)]
struct LongProperty {
    #[prost(string, required, tag = "1")]
    name: String,
    #[prost(int64, required, tag = "2")]
    value: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LongListMap {
    #[prost(int64, required, tag = "1")]
    ledger: i64,
    #[prost(int64, repeated, packed = "false", tag = "2")]
    words: Vec<i64>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    bitmap: Option<Bytes>,
}

const STATE_IS_HERE: i64 = -1;
const NOWHERE: NestedPosition = NestedPosition { ledger: -1, entry: -1 };

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(ledger: u64, entries: u64) -> Place {
        Place { ledger: LedgerId(ledger), entries }
    }

    fn snapshot() -> Snapshot {
        Snapshot {
            mark_delete: Some(place(3, 18)),
            acked: vec![(place(3, 20), place(3, 22)), (place(4, 0), place(4, 1))],
            properties: BTreeMap::from([("georepl.incarnation".into(), 2)]),
        }
    }

    #[test]
    fn snapshots_and_records_round_trip() {
        let empty = Snapshot::default();
        let before_first = Snapshot { mark_delete: Some(place(3, 0)), ..Snapshot::default() };
        for state in [empty, before_first, snapshot()] {
            assert_eq!(Snapshot::decode(&state.encode()), Ok(state.clone()));
            for cursor_ledger in [None, Some(LedgerId(9))] {
                let properties = BTreeMap::from([("owner".into(), "billing".into())]);
                let record = CursorRecord { cursor_ledger, state: state.clone(), properties };
                assert_eq!(CursorRecord::decode(&record.encode()), Ok(record));
            }
        }
    }

    #[test]
    fn records_have_pulsars_bytes() {
        // ledgerId 3, entryId -1, individualDeletedMessages { lower { 3, 0 }, upper { 3, 1 } }
        let state = Snapshot {
            mark_delete: Some(place(3, 0)),
            acked: vec![(place(3, 1), place(3, 2))],
            ..Snapshot::default()
        };
        let minus_one = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        let range = [26, 12, 10, 4, 8, 3, 16, 0, 18, 4, 8, 3, 16, 1];
        let bytes = [&[8, 3, 16][..], &minus_one, &range].concat();
        assert_eq!(state.encode(), bytes);
    }

    #[test]
    fn snapshot_is_as_large_as_its_holes_and_not_as_its_backlog() {
        let acked =
            vec![(place(3, 1), place(3, 30_000_000)), (place(4, 7), place(4, u64::MAX >> 1))];
        let state = Snapshot { mark_delete: Some(place(3, 0)), acked, ..Snapshot::default() };
        let bytes = state.encode();
        assert!(bytes.len() < 100, "{} bytes", bytes.len());
        assert_eq!(Snapshot::decode(&bytes), Ok(state));
    }

    #[test]
    fn bit_words_are_read_as_ranges() {
        let words = |words: Vec<i64>| StoredPosition {
            ledger: 3,
            entry: 4,
            words: vec![LongListMap { ledger: 3, words, bitmap: None }],
            ..StoredPosition::default()
        };
        let acked =
            |stored: StoredPosition| Snapshot::decode(&stored.encode_to_vec()).unwrap().acked;
        assert_eq!(
            acked(words(vec![576, 0])),
            [(place(3, 6), place(3, 7)), (place(3, 9), place(3, 10))]
        );
        assert_eq!(acked(words(vec![i64::MIN, 1])), [(place(3, 63), place(3, 65))]);
        assert_eq!(acked(words(vec![-1])), [(place(3, 0), place(3, 64))]);
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let wrapped = [0x47, 0x78, 0, 0, 0, 2, 8, 1];
        assert_eq!(CursorRecord::decode(&wrapped), Err(RecordError::Compressed));
        let bitmap = LongListMap { ledger: 3, words: Vec::new(), bitmap: Some(Bytes::new()) };
        let kind = LongProperty { name: "entry-type".into(), value: 2 };
        let plain = StoredPosition::default;
        let unsupported = [
            (StoredPosition { batch_indexes: vec![Present {}], ..plain() }, "batch index"),
            (StoredPosition { chunk: Some(Present {}), ..plain() }, "several parts"),
            (StoredPosition { words: vec![bitmap], ..plain() }, "compressed bitmap"),
            (StoredPosition { properties: vec![kind], ..plain() }, "refer to others"),
        ];
        for (stored, feature) in unsupported {
            let refused = Snapshot::decode(&stored.encode_to_vec()).unwrap_err();
            assert!(refused.to_string().contains(feature), "{refused}");
        }
        let negative = StoredPosition { ledger: -3, entry: 0, ..plain() };
        let refused = Snapshot::decode(&negative.encode_to_vec());
        assert_eq!(refused, Err(RecordError::OutOfRange { field: "ledgerId", value: -3 }));
    }

    /// Whatever the bytes are, they are refused, or a state that is written and read as the same.
    fn never_panics(bytes: &[u8]) -> Result<(), TestCaseError> {
        if let Ok(record) = CursorRecord::decode(bytes) {
            prop_assert_eq!(CursorRecord::decode(&record.encode()), Ok(record));
        }
        if let Ok(state) = Snapshot::decode(bytes) {
            prop_assert_eq!(Snapshot::decode(&state.encode()), Ok(state));
        }
        Ok(())
    }

    fn any_position() -> impl Strategy<Value = NestedPosition> {
        let number = || prop_oneof![8 => -1..20_i64, 1 => any::<i64>()];
        (number(), number()).prop_map(|(ledger, entry)| NestedPosition { ledger, entry })
    }

    fn any_stored() -> impl Strategy<Value = StoredPosition> {
        let range = (any_position(), any_position());
        let range = range.prop_map(|(lower, upper)| MessageRange { lower, upper });
        let words = (any_position(), prop::collection::vec(any::<i64>(), 0..3)).prop_map(
            |(NestedPosition { ledger, .. }, words)| LongListMap { ledger, words, bitmap: None },
        );
        let parts = (
            any_position(),
            prop::collection::vec(range, 0..3),
            prop::collection::vec(words, 0..3),
        );
        parts.prop_map(|(NestedPosition { ledger, entry }, ranges, words)| StoredPosition {
            ledger,
            entry,
            ranges,
            words,
            ..StoredPosition::default()
        })
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            never_panics(&bytes)?;
        }

        #[test]
        fn arbitrary_numbers_and_damage_never_panic(
            stored in any_stored(),
            cursor_ledger in prop_oneof![8 => Just(STATE_IS_HERE), 1 => any::<i64>()],
            at: prop::sample::Index,
            byte: u8,
        ) {
            let record = StoredCursor {
                cursor_ledger,
                mark_delete_ledger: Some(stored.ledger),
                mark_delete_entry: Some(stored.entry),
                ranges: stored.ranges.clone(),
                ..StoredCursor::default()
            };
            for mut bytes in [stored.encode_to_vec(), record.encode_to_vec()] {
                never_panics(&bytes)?;
                let at = at.index(bytes.len());
                bytes[at] = byte;
                never_panics(&bytes)?;
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
            prop_assert!(CursorRecord::decode(&bytes).is_err());
            prop_assert!(Snapshot::decode(&bytes).is_err());
        }
    }
}
