use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use georepl_cursor::Position;
use georepl_storage::{EntryId, LedgerId};
use proptest::prelude::*;
use prost::Message;
use serde_json::{Map, Value, json};

use super::*;

/// Recorded entries with what Pulsar's own classes say of them.
struct Recorded {
    frame: Frame,
    facts: Value,
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pulsar")
}

fn index() -> Map<String, Value> {
    let text = std::fs::read(fixtures().join("index.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn recorded(case: &str) -> Vec<Recorded> {
    let entries = index()[case].as_array().unwrap().clone();
    let read = |facts: Value| {
        let bytes = std::fs::read(fixtures().join(facts["file"].as_str().unwrap())).unwrap();
        Recorded { frame: Frame::parse(bytes.into()).unwrap(), facts }
    };
    entries.into_iter().map(read).collect()
}

fn position(facts: &Value) -> Position {
    facts["position"].as_str().unwrap().parse().unwrap()
}

/// The metadata in the words of the index: what is not set is not there.
fn words(m: &MessageMetadata) -> Value {
    let hex = |bytes: &Bytes| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        json!(format!("hex:{digits}"))
    };
    let pairs = |properties: &[Property]| -> Option<Value> {
        let pair = |p: &Property| json!({"key": p.key, "value": p.value});
        (!properties.is_empty()).then(|| properties.iter().map(pair).collect())
    };
    let key = |k: &EncryptionKey| {
        let mut words = json!({"key": k.key, "value": hex(&k.value)});
        if let Some(notes) = pairs(&k.metadata) {
            words["metadatas"] = notes;
        }
        words
    };
    let keys = (!m.encryption_keys.is_empty()).then(|| m.encryption_keys.iter().map(key).collect());
    let fields = [
        ("producerName", Some(json!(m.producer_name))),
        ("sequenceId", Some(json!(m.sequence_id as i64))),
        ("publishTime", Some(json!(m.publish_time))),
        ("properties", pairs(&m.properties)),
        ("replicatedFrom", m.replicated_from.as_ref().map(|v| json!(v))),
        ("partitionKey", m.partition_key.as_ref().map(|v| json!(v))),
        ("replicateTos", (!m.replicate_to.is_empty()).then(|| json!(m.replicate_to))),
        ("uncompressedSize", m.uncompressed_size.map(|v| json!(v))),
        ("numMessagesInBatch", m.num_messages_in_batch.map(|v| json!(v))),
        ("eventTime", m.event_time.map(|v| json!(v))),
        ("encryptionKeys", keys),
        ("encryptionParam", m.encryption_param.as_ref().map(hex)),
        ("schemaVersion", m.schema_version.as_ref().map(hex)),
        ("partitionKeyB64Encoded", m.partition_key_b64_encoded.map(|v| json!(v))),
        ("orderingKey", m.ordering_key.as_ref().map(hex)),
        ("deliverAtTime", m.deliver_at_time.map(|v| json!(v))),
        ("markerType", m.marker_type.map(|v| json!(v))),
        ("txnidLeastBits", m.txnid_least_bits.map(|v| json!(v))),
        ("txnidMostBits", m.txnid_most_bits.map(|v| json!(v))),
        ("highestSequenceId", m.highest_sequence_id.map(|v| json!(v))),
        ("uuid", m.uuid.as_ref().map(|v| json!(v))),
        ("numChunksFromMsg", m.num_chunks_from_msg.map(|v| json!(v))),
        ("totalChunkMsgSize", m.total_chunk_msg_size.map(|v| json!(v))),
        ("chunkId", m.chunk_id.map(|v| json!(v))),
    ];
    let set = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(set.collect())
}

fn whole(spliced: &Spliced) -> Frame {
    Frame::parse([&spliced.head[..], &spliced.payload[..]].concat().into()).unwrap()
}

fn sample() -> MessageMetadata {
    MessageMetadata { producer_name: "p".into(), publish_time: 1_700, ..Default::default() }
}

fn frame_of(metadata_bytes: &[u8], payload: &[u8]) -> Frame {
    let mut frame = BytesMut::new();
    frame::begin_message(&mut frame, metadata_bytes.len());
    frame.extend_from_slice(metadata_bytes);
    frame::seal(&mut frame, crc32c::crc32c(payload), payload.len());
    frame.extend_from_slice(payload);
    Frame::parse(frame.freeze()).unwrap()
}

#[test]
fn recorded_entries_parse_to_what_pulsar_says_of_them() {
    let mut seen = 0;
    for case in index().keys() {
        for Recorded { frame, facts } in recorded(case) {
            let file = &facts["file"];
            assert_eq!(frame.verify(), Ok(()), "{file}");
            assert_eq!(json!(format!("{:08x}", frame.checksum().unwrap())), facts["checksum"]);
            assert_eq!(json!(frame.payload().len()), facts["payloadSize"], "{file}");

            let metadata = frame.metadata().unwrap();
            assert_eq!(words(&metadata), facts["metadata"], "{file}");
            let scanned = frame.facts().unwrap();
            assert_eq!(scanned.replicated_from(), metadata.replicated_from.as_deref());
            assert_eq!(scanned.is_in_transaction(), metadata.txnid_most_bits.is_some());
            let messages = metadata.num_messages_in_batch.unwrap_or(1);
            assert_eq!(i64::from(scanned.messages()), i64::from(messages));
            for cluster in ["east", "west", "__local__"] {
                let listed = metadata.replicate_to.iter().any(|to| to == cluster);
                let expected = listed || metadata.replicate_to.is_empty();
                assert_eq!(scanned.is_meant_for(cluster), expected, "{file} {cluster}");
            }

            let broker = frame.broker_entry_metadata().unwrap();
            let broker =
                broker.map(|b| json!({"brokerTimestamp": b.broker_timestamp, "index": b.index}));
            assert_eq!(broker.as_ref(), facts.get("brokerEntryMetadata"), "{file}");
            seen += 1;
        }
    }
    assert!(seen > 70, "only {seen} recorded entries were found");
}

#[test]
fn recorded_entries_are_encoded_to_the_same_bytes() {
    for case in ["plain", "batched", "keyed", "properties", "event-time", "encrypted", "lz4"] {
        for Recorded { frame, facts } in recorded(case) {
            let composed = compose(&frame.metadata().unwrap(), &frame.payload());
            assert_eq!(composed, frame.bytes(), "{}", facts["file"]);
        }
    }
    for case in ["broker-metadata-plain", "broker-metadata-batched"] {
        for Recorded { frame, facts } in recorded(case) {
            let composed = compose(&frame.metadata().unwrap(), &frame.payload());
            let broker = frame.broker_entry_metadata().unwrap().unwrap();
            let stamped = Unstamped::carve(&mut BytesMut::new(), &composed, b"").stamp(broker);
            assert_eq!(stamped, frame.bytes(), "{}", facts["file"]);
        }
    }
}

/// Nothing is excepted: order of properties, publish time, schema version and payload are the same.
#[test]
fn a_spliced_entry_is_what_pulsars_replicator_stored_at_its_remote() {
    let mut seen = 0;
    for case in index().keys().filter(|case| case.contains("-source-")) {
        let targets = recorded(&case.replace("-source-", "-target-"));
        let mut splicer = Splicer::new("west");
        for (source, target) in recorded(case).into_iter().zip(targets) {
            let facts = source.frame.facts().unwrap();
            let spliced = splicer.splice(&facts, position(&source.facts));
            let sent = whole(&spliced);
            assert_eq!(sent.verify(), Ok(()));
            assert_eq!(sent.metadata(), target.frame.metadata(), "{}", source.facts["file"]);
            assert_eq!(sent.payload(), target.frame.payload());
            seen += 1;
        }
    }
    assert_eq!(seen, 38);
}

#[test]
fn a_spliced_entry_knows_its_source_by_checksum_and_position() {
    let numbers = [0, 9, 10, 4_294_967_295, i64::MAX as u64];
    for (entry, at) in all_recorded().into_iter().zip(numbers.into_iter().cycle()) {
        let frame = Frame::parse(entry.clone()).unwrap();
        let facts = frame.facts().unwrap();
        if facts.replicated_from().is_some() {
            continue;
        }
        let source = Position::new(LedgerId(at), EntryId(at));
        let spliced = Splicer::new("west").splice(&facts, source);
        assert_eq!(spliced.stored_checksum, crc32c::crc32c(&entry));
        let named = whole(&spliced).metadata().unwrap().properties.pop().unwrap();
        assert_eq!((&*named.key, named.value), (SOURCE_POSITION_PROPERTY, source.to_string()));
    }
}

#[test]
fn the_payload_is_shared_and_the_brokers_metadata_stays_behind() {
    let entry = recorded("broker-metadata-plain").remove(0);
    let spliced =
        Splicer::new("west").splice(&entry.frame.facts().unwrap(), position(&entry.facts));
    assert_eq!(spliced.payload.as_ptr(), entry.frame.payload().as_ptr());
    assert_eq!(whole(&spliced).broker_entry_metadata(), Ok(None));
}

#[test]
fn transaction_ids_do_not_leave_the_cluster() {
    for Recorded { frame, facts } in recorded("transaction") {
        let spliced = Splicer::new("west").splice(&frame.facts().unwrap(), position(&facts));
        let mut expected = frame.metadata().unwrap();
        expected.txnid_least_bits = None;
        expected.txnid_most_bits = None;
        expected.replicated_from = Some("west".to_owned());
        expected.properties.push(Property {
            key: SOURCE_POSITION_PROPERTY.to_owned(),
            value: facts["position"].as_str().unwrap().to_owned(),
        });
        assert_eq!(whole(&spliced).metadata().unwrap(), expected, "{}", facts["file"]);
        assert_eq!(whole(&spliced).verify(), Ok(()));
    }
}

#[test]
fn a_flipped_bit_anywhere_behind_the_magic_is_noticed() {
    let original = compose(&sample(), b"payload");
    for bit in 2 * 8..original.len() * 8 {
        let mut bytes = original.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let result = Frame::parse(bytes.into()).and_then(|frame| frame.verify());
        assert!(result.is_err(), "bit {bit}");
    }
}

#[test]
fn every_cut_is_an_error_that_names_the_part_or_a_wrong_checksum() {
    let original = recorded("broker-metadata-plain").remove(0).frame.bytes().clone();
    for length in 0..original.len() {
        let result = Frame::parse(original.slice(..length)).and_then(|frame| frame.verify());
        assert!(result.is_err(), "{length} bytes");
    }
    let error = Frame::parse(original.slice(..5)).unwrap_err().to_string();
    assert_eq!(error, "the size of the broker entry metadata needs 4 bytes and 3 are left");
}

#[test]
fn a_frame_without_checksum_is_read_and_sent_with_one() {
    let with = compose(&sample(), b"payload");
    let without = Frame::parse(with.slice(6..)).unwrap();
    assert_eq!(without.checksum(), None);
    assert_eq!(without.verify(), Ok(()));
    assert_eq!(without.metadata().unwrap(), sample());
    let spliced = Splicer::new("west").splice(&without.facts().unwrap(), "1:2".parse().unwrap());
    assert!(whole(&spliced).checksum().is_some());
    assert_eq!(whole(&spliced).verify(), Ok(()));
}

#[test]
fn metadata_without_a_required_field_is_named() {
    let mut bytes = sample().encode_to_vec();
    bytes.drain(..3); // the producer's name
    let error = frame_of(&bytes, b"").facts().unwrap_err().to_string();
    assert_eq!(error, "the message metadata cannot be decoded: required field 1 is missing");
}

#[test]
#[should_panic(expected = "the filter passes entries from elsewhere")]
fn an_entry_from_elsewhere_is_never_spliced() {
    let metadata = MessageMetadata { replicated_from: Some("north".into()), ..sample() };
    let frame = Frame::parse(compose(&metadata, b"")).unwrap();
    Splicer::new("west").splice(&frame.facts().unwrap(), "1:2".parse().unwrap());
}

#[test]
fn heads_of_a_batch_share_one_buffer() {
    let frame = Frame::parse(compose(&sample(), b"payload")).unwrap();
    let facts = frame.facts().unwrap();
    let mut splicer = Splicer::new("west");
    let heads: Vec<Bytes> = (0..100)
        .map(|entry| splicer.splice(&facts, format!("1:{entry}").parse().unwrap()).head)
        .collect();
    for pair in heads.windows(2) {
        assert_eq!(pair[0].as_ptr() as usize + pair[0].len(), pair[1].as_ptr() as usize);
    }
}

#[test]
fn stamps_leave_the_frame_as_it_is() {
    let frame = compose(&sample(), b"payload");
    for value in [0, 1, 127, 128, u64::MAX] {
        let broker = BrokerEntryMetadata {
            broker_timestamp: Some(value),
            index: Some(value),
            origin: Some(Origin { incarnation: value, ledger: value, entry: value, checksum: 7 }),
        };
        let mut buffer = BytesMut::new();
        let stamped = Unstamped::carve(&mut buffer, &frame[..20], &frame[20..]).stamp(broker);
        let stamped = Frame::parse(stamped).unwrap();
        assert_eq!(stamped.broker_entry_metadata(), Ok(Some(broker)));
        assert_eq!(stamped.verify(), Ok(()));
        assert!(stamped.bytes().ends_with(&frame));
    }
}

fn any_metadata() -> impl Strategy<Value = MessageMetadata> {
    let property = (".*", ".*").prop_map(|(key, value)| Property { key, value });
    let lists = (prop::collection::vec(property, 0..4), prop::collection::vec(".*", 0..3));
    let txn = prop::option::of(any::<(u64, u64)>());
    (".*", any::<u64>(), any::<u64>(), lists, any::<Option<i32>>(), txn).prop_map(
        |(producer_name, sequence_id, publish_time, (properties, replicate_to), marker, txn)| {
            MessageMetadata {
                producer_name,
                sequence_id,
                publish_time,
                properties,
                replicate_to,
                marker_type: marker,
                txnid_least_bits: txn.map(|txn| txn.0),
                txnid_most_bits: txn.map(|txn| txn.1),
                ..Default::default()
            }
        },
    )
}

/// Asks a frame all there is to ask; any answer will do.
fn ask_everything(bytes: &[u8]) {
    let _ = verify(bytes);
    let Ok(frame) = Frame::parse(Bytes::copy_from_slice(bytes)) else { return };
    let _ = frame.verify();
    let _ = frame.metadata();
    let _ = frame.broker_entry_metadata();
    if let Ok(facts) = frame.facts()
        && facts.replicated_from().is_none()
    {
        facts.is_meant_for("east");
        Splicer::new("west").splice(&facts, "1:2".parse().unwrap());
    }
}

fn all_recorded() -> Vec<Bytes> {
    let cases: Vec<_> = index().keys().cloned().collect();
    cases.iter().flat_map(|case| recorded(case)).map(|one| one.frame.bytes().clone()).collect()
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        ask_everything(&bytes);
        ask_everything(frame_of(&bytes, b"").bytes());
        ask_everything(&[&[0x0e, 0x02, 0, 0, 0, 9], &bytes[..]].concat());
    }

    #[test]
    fn arbitrary_damage_to_a_recorded_frame_never_panics(
        frame in prop::sample::select(all_recorded()),
        at: prop::sample::Index,
        byte: u8,
        cut: prop::sample::Index,
    ) {
        let mut bytes = frame.to_vec();
        ask_everything(&bytes[..cut.index(bytes.len())]);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        ask_everything(&bytes);
    }

    #[test]
    fn an_arbitrary_length_beyond_the_bytes_is_an_error_and_allocates_nothing(
        // Without those that begin like a magic number.
        claimed in prop_oneof![60_u32..0x0e00_0000, 0x0f00_0000_u32..],
        rest in prop::collection::vec(any::<u8>(), 0..56),
    ) {
        let claimed = claimed.to_be_bytes();
        let stamped = [&[0x0e, 0x02][..], &claimed, &rest].concat();
        let sealed = [&[0x0e, 0x01, 0, 0, 0, 0][..], &claimed, &rest].concat();
        for bytes in [stamped, sealed, [&claimed[..], &rest].concat()] {
            prop_assert!(Frame::parse(bytes.into()).is_err());
        }
    }

    #[test]
    fn composed_metadata_comes_back(metadata in any_metadata(), payload: Vec<u8>) {
        let frame = Frame::parse(compose(&metadata, &payload)).unwrap();
        prop_assert_eq!(frame.verify(), Ok(()));
        prop_assert_eq!(frame.metadata().unwrap(), metadata);
        prop_assert_eq!(&frame.payload()[..], &payload[..]);
    }

    #[test]
    fn fields_unknown_to_this_build_survive_the_splice(
        metadata in any_metadata(),
        number in 100_u32..1_000_000,
        text: Vec<u8>,
        value: u64,
    ) {
        let mut bytes = metadata.encode_to_vec();
        prost::encoding::bytes::encode(number, &text, &mut bytes);
        prost::encoding::uint64::encode(number + 1, &value, &mut bytes);
        prost::encoding::fixed64::encode(number + 2, &value, &mut bytes);
        prost::encoding::fixed32::encode(number + 3, &(value as u32), &mut bytes);
        let unknown = bytes[metadata.encoded_len()..].to_vec();

        let frame = frame_of(&bytes, b"payload");
        let spliced = whole(&Splicer::new("west").splice(&frame.facts().unwrap(), "7:9".parse().unwrap()));
        prop_assert_eq!(spliced.verify(), Ok(()));
        let sent = spliced.metadata_bytes();
        prop_assert!(sent.windows(unknown.len()).any(|part| part == unknown));
        let sent = spliced.metadata().unwrap();
        prop_assert_eq!(sent.replicated_from.as_deref(), Some("west"));
        prop_assert_eq!(&sent.properties[..metadata.properties.len()], &metadata.properties[..]);
        prop_assert_eq!(&sent.properties.last().unwrap().value, "7:9");
        prop_assert_eq!(sent.txnid_most_bits, None);
    }
}
