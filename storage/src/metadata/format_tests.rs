use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;
use crate::id::Instance;

fn recorded(name: &str) -> Vec<u8> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/bookkeeper/metadata");
    fs::read(folder.join(name).with_extension("bin")).expect("the recording is there")
}

const READABLE: [&str; 8] = [
    "closed",
    "closed-empty",
    "open",
    "closed-password",
    "custom",
    "striped",
    "in-recovery",
    "many-ensembles",
];

#[test]
fn recorded_records_are_read_and_written_again_unchanged() {
    for name in READABLE.into_iter().chain(["ctime"]) {
        let bytes = recorded(name);
        let metadata = decode(&bytes).expect(name);
        let written = encode(&metadata);
        assert_eq!(decode(&written).as_ref(), Ok(&metadata), "{name}");
        // Java keeps custom metadata in a hash map; ours is sorted, so only the order of those fields may differ.
        assert_eq!(written.len(), bytes.len(), "{name}");
        if name != "custom" {
            assert_eq!(written, bytes, "{name}");
        }
    }
}

#[test]
fn recorded_records_say_what_their_ledgers_are() {
    let read = |name| decode(&recorded(name)).expect(name);
    let end = LedgerEnd { last_entry: Some(EntryId(4)), length: 50 };
    assert_eq!(read("closed").state(), LedgerState::Closed(end));
    assert_eq!(read("closed-empty").state(), LedgerState::Closed(LedgerEnd::default()));
    assert_eq!(read("open").state(), LedgerState::Open);
    assert_eq!(read("in-recovery").state(), LedgerState::InRecovery);
    assert_eq!(read("closed-password").password(), &Password::from("secret"));
    assert_eq!(read("custom").custom()["application"], b"pulsar");
    assert_eq!(read("striped").sizes(), QuorumSizes::new(4, 2, 2).expect("valid sizes"));
    assert!(read("ctime").ctime().is_some());
    assert!(read("many-ensembles").ensembles().len() > 2);
}

#[test]
fn other_versions_and_digests_are_refused_by_name() {
    let error = |name| decode(&recorded(name)).expect_err(name);
    assert_eq!(error("format-1"), FormatError::UnsupportedVersion("1".into()));
    assert_eq!(error("format-2"), FormatError::UnsupportedVersion("2".into()));
    assert_eq!(error("crc32"), FormatError::UnsupportedDigest("CRC32"));
    assert_eq!(decode(b"something else"), Err(FormatError::NotMetadata));
    assert_eq!(
        decode(b"BookieMetadataFormatVersion\t12345678901\n"),
        Err(FormatError::NotMetadata)
    );
}

#[test]
fn fields_of_later_versions_survive_a_rewrite() {
    let metadata = decode(&recorded("open")).expect("a recorded record");
    let mut message = BytesMut::new();
    to_record(&metadata).encode(&mut message).expect("a BytesMut grows as needed");
    prost::encoding::string::encode(99, &"from the future".to_owned(), &mut message);
    let mut bytes = b"BookieMetadataFormatVersion\t3\n".to_vec();
    prost::encoding::encode_varint(message.len() as u64, &mut bytes);
    bytes.extend_from_slice(&message);

    let read = decode(&bytes).expect("unknown fields are no error");
    assert_eq!(encode(&read), bytes);
    let closed = read.closed(Some(EntryId(2)), 30).expect("an open ledger");
    let rewritten = encode(&closed);
    assert!(rewritten.windows(15).any(|window| window == b"from the future"));
    assert_eq!(decode(&rewritten), Ok(closed));
}

#[test]
fn every_cut_of_a_record_is_an_error() {
    let bytes = recorded("many-ensembles");
    for end in 0..bytes.len() {
        assert!(decode(&bytes[..end]).is_err(), "cut at {end}");
    }
}

proptest! {
    #[test]
    fn arbitrary_messages_never_panic(message in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut bytes = b"BookieMetadataFormatVersion\t3\n".to_vec();
        prost::encoding::encode_varint(message.len() as u64, &mut bytes);
        bytes.extend(message);
        if let Ok(metadata) = decode(&bytes) {
            prop_assert_eq!(decode(&encode(&metadata)), Ok(metadata));
        }
    }

    #[test]
    fn arbitrary_damage_to_a_record_never_panics(at in 0_usize..150, byte: u8, name in prop::sample::select(&READABLE[..])) {
        let mut bytes = recorded(name);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(metadata) = decode(&bytes) {
            prop_assert_eq!(decode(&encode(&metadata)), Ok(metadata));
        }
    }

    #[test]
    fn arbitrary_texts_of_any_version_are_refused_and_never_panic(
        version in "[0-9]{0,12}|.{0,4}",
        text in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "(quorumSize|ensembleSize|length|lastEntryId|state|segment)?[:\\t ]{0,2}.{0,9}\n".prop_map(String::into_bytes),
        ],
    ) {
        let bytes = [b"BookieMetadataFormatVersion\t", version.as_bytes(), b"\n", &text].concat();
        if let Err(FormatError::UnsupportedVersion(named)) = decode(&bytes) {
            prop_assert!(version != "3" && !named.contains(char::is_control));
        }
        for cut in 0..bytes.len() {
            let _neither_is_a_cut_one_a_panic = decode(&bytes[..cut]);
        }
        let _nor_what_has_no_header = decode(&text);
    }

    #[test]
    fn an_arbitrary_length_beyond_the_bytes_is_an_error_and_allocates_nothing(
        claimed in 60_u64..,
        message in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut bytes = b"BookieMetadataFormatVersion\t3\n".to_vec();
        prost::encoding::encode_varint(claimed, &mut bytes);
        bytes.extend(message);
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn arbitrary_numbers_in_a_record_are_read_or_refused(record in any_record()) {
        let message = record.encode_to_vec();
        let mut bytes = b"BookieMetadataFormatVersion\t3\n".to_vec();
        prost::encoding::encode_varint(message.len() as u64, &mut bytes);
        bytes.extend(message);
        if let Ok(metadata) = decode(&bytes) {
            prop_assert_eq!(&decode(&encode(&metadata)).expect("a record of ours"), &metadata);
            // What is asked of a record that was taken must have an answer.
            for entry in [0, 1, u64::MAX] {
                prop_assert_eq!(metadata.ensemble_of(EntryId(entry)).len(), metadata.sizes().ensemble());
            }
            let members = metadata.ensembles().values().flatten();
            let _each_is_none_or_a_number: Vec<_> = members.map(|member| metadata.instance_of(member)).collect();
        }
    }

    #[test]
    fn an_instance_is_what_was_recorded_or_none(recorded in prop::collection::vec(any::<u8>(), 0..24), instance: u64) {
        let member = BookieId::from("b1");
        let custom = BTreeMap::from([("georepl/instance/b1".to_owned(), recorded.clone())]);
        let sizes = QuorumSizes::new(1, 1, 1).expect("valid sizes");
        let foreign =
            LedgerMetadata::created(sizes, Password::default(), vec![member.clone()], 1, custom).expect("one member");
        let read = foreign.instance_of(&member);
        let number = std::str::from_utf8(&recorded).ok().and_then(|text| text.parse::<u64>().ok());
        prop_assert_eq!(read, number.map(Instance));
        // The first one stays, whatever it is.
        let again = foreign.with_instances([(member.clone(), Instance(instance))]);
        prop_assert_eq!(again.instance_of(&member), read);

        let ours = LedgerMetadata::created(sizes, Password::default(), vec![member.clone()], 1, BTreeMap::new());
        let ours = ours.expect("one member").with_instances([(member.clone(), Instance(instance))]);
        let stored = decode(&encode(&ours)).expect("a record of ours");
        prop_assert_eq!(stored.instance_of(&member), Some(Instance(instance)));
    }
}

#[test]
fn any_record_is_taken_often_enough_to_test_what_is_taken() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let taken = |_: &usize| {
        let record = any_record().new_tree(&mut runner).expect("a record").current();
        to_parts(record, Bytes::new()).is_ok_and(|parts| LedgerMetadata::from_parts(parts).is_ok())
    };
    assert!((0..256).filter(taken).count() > 10);
}

/// Records whose fields are right often enough to get past the check before them, and often all of them.
fn any_record() -> impl Strategy<Value = Record> {
    let size = || prop_oneof![8 => 1..4_i32, 1 => any::<i32>()];
    let number = || prop_oneof![8 => -1..20_i64, 1 => any::<i64>()];
    let member = prop_oneof![Just("b1".to_owned()), ".{0,6}"];
    let segment = (prop::collection::vec(member, 0..5), number())
        .prop_map(|(members, first_entry)| Segment { members, first_entry });
    let custom = (prop_oneof![Just("georepl/instance/b1".to_owned()), ".{0,9}"], any::<Vec<u8>>())
        .prop_map(|(key, value)| Custom { key: Some(key), value: Some(value) });
    let rest = (prop::option::of(number()), 0..5_i32, prop::option::weighted(0.9, 2..5_i32));
    let segments = prop::collection::vec(segment, 0..4);
    let any = (
        (size(), size(), prop::option::of(size())),
        number(),
        rest,
        segments,
        prop::collection::vec(custom, 0..3),
        prop::option::of(number()),
    )
        .prop_map(|(sizes, length, rest, segments, custom, token)| {
            let (write_quorum, ensemble_size, ack_quorum) = sizes;
            let (last_entry, state, digest) = rest;
            Record {
                write_quorum,
                ensemble_size,
                length,
                last_entry,
                state,
                segments,
                digest,
                password: Some(Vec::new()),
                ack_quorum,
                ctime: token,
                custom,
                creation_token: token,
            }
        });
    prop_oneof![any.clone(), any.prop_map(fitting)]
}

/// The record with sizes, members and digest that go together.
fn fitting(mut record: Record) -> Record {
    (record.ensemble_size, record.write_quorum, record.ack_quorum) = (3, 2, Some(2));
    record.digest = Some(Digest::Crc32c as i32);
    for (segment, first_entry) in record.segments.iter_mut().zip(0..) {
        segment.members.resize(3, "b1".into());
        segment.first_entry = first_entry;
    }
    record
}
