//! The record of a topic: its ledgers, an open one without entries, size and with timestamp 0, a
//! closed one with all three.

use std::collections::BTreeMap;

use bytes::Bytes;
use georepl_storage::LedgerId;
use prost::Message;

use super::{
    NestedPosition, Present, RecordError, StringProperty, in_range, refuse, stored, unwrap,
};
use crate::position::Place;

/// The record of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicRecord {
    /// Its ledgers, oldest first.
    pub ledgers: Vec<ListedLedger>,
    /// Where it ends for ever; none while it may grow.
    pub terminated: Option<Place>,
    /// What is noted with it.
    pub properties: BTreeMap<String, String>,
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
        let record = StoredTopic {
            ledgers: ledgers.collect(),
            terminated: self.terminated.map(NestedPosition::of),
            properties: StringProperty::list(&self.properties),
        };
        record.encode_to_vec().into()
    }

    /// Reads a record. No bytes at all are the record of a topic without ledgers.
    ///
    /// # Errors
    /// When it is damaged, or uses what is not supported.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record: StoredTopic = unwrap(bytes)?;
        let ledgers = record.ledgers.into_iter().map(StoredLedger::listed);
        Ok(Self {
            ledgers: ledgers.collect::<Result<_, _>>()?,
            terminated: record.terminated.map(NestedPosition::place).transpose()?,
            properties: record.properties.into_iter().map(|p| (p.name, p.value)).collect(),
        })
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

#[derive(Clone, PartialEq, Message)]
struct StoredTopic {
    #[prost(message, repeated, tag = "1")]
    ledgers: Vec<StoredLedger>,
    #[prost(message, optional, tag = "2")]
    terminated: Option<NestedPosition>,
    #[prost(message, repeated, tag = "3")]
    properties: Vec<StringProperty>,
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
            ..TopicRecord::default()
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
        let ended = TopicRecord {
            terminated: Some(Place { ledger: LedgerId(3), entries: 10 }),
            properties: BTreeMap::from([("owner".into(), "billing".into())]),
            ..topic()
        };
        assert_eq!(TopicRecord::decode(&ended.encode()), Ok(ended));
        assert_eq!(TopicRecord::decode(&[]), Ok(TopicRecord::default()));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let wrapped = [0x47, 0x78, 0, 0, 0, 2, 8, 1];
        assert_eq!(TopicRecord::decode(&wrapped), Err(RecordError::Compressed));
        let plain = StoredLedger::default;
        let unsupported = [
            (StoredLedger { offload: Some(Present {}), ..plain() }, "offloaded ledgers"),
            (StoredLedger { properties: vec![Present {}], ..plain() }, "ledger properties"),
        ];
        for (ledger, feature) in unsupported {
            let record = StoredTopic { ledgers: vec![ledger], ..StoredTopic::default() };
            let refused = TopicRecord::decode(&record.encode_to_vec()).unwrap_err();
            assert!(refused.to_string().contains(feature), "{refused}");
        }
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
        let end = (number(), number()).prop_map(|(ledger, entry)| NestedPosition { ledger, entry });
        (prop::collection::vec(ledger, 0..4), prop::option::of(end)).prop_map(
            |(ledgers, terminated)| StoredTopic { ledgers, terminated, ..StoredTopic::default() },
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
            at: prop::sample::Index,
            byte: u8,
        ) {
            let mut bytes = topic.encode_to_vec();
            never_panics(&bytes)?;
            if !bytes.is_empty() {
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
            prop_assert!(TopicRecord::decode(&bytes).is_err());
        }
    }
}
