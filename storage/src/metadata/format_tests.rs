use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;
use crate::id::Instance;
use crate::metadata::LengthIs;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/bookkeeper/metadata")
}

fn recorded(name: &str) -> Vec<u8> {
    fs::read(folder().join(name).with_extension("bin")).expect("the recording is there")
}

/// The rows of the index of recordings, by the names of their columns.
fn index() -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(folder().join("index.tsv")).expect("the index is there");
    let mut rows = text.lines().map(|line| line.split('\t').map(str::to_owned));
    let names: Vec<_> = rows.next().expect("there is a head").collect();
    rows.map(|row| names.iter().cloned().zip(row).collect()).collect()
}

#[test]
fn recorded_records_are_read_and_written_again_unchanged() {
    for row in index() {
        let (name, bytes) = (&row["name"], recorded(&row["name"]));
        let metadata = decode(&bytes).expect(name);
        assert_eq!(encode(&metadata), bytes, "{name}");
    }
    assert_eq!(index().len(), 24);
}

#[test]
fn recorded_records_say_what_their_ledgers_are() {
    for row in index() {
        let said = |column: &str| Some(row[column].clone()).filter(|value| value != "-");
        let number = |column: &str| row[column].parse::<u64>().ok();
        let size = |column: &str| row[column].parse().expect("a number");
        let read = decode(&recorded(&row["name"])).expect("a recorded record");
        let end = LedgerEnd {
            last_entry: number("last_entry").map(EntryId),
            length: number("length").expect("a number"),
        };
        let state = match row["state"].as_str() {
            "OPEN" => LedgerState::Open,
            "IN_RECOVERY" => LedgerState::InRecovery,
            _ => LedgerState::Closed(end),
        };
        let format = match row["format"].as_str() {
            "1" => FormatVersion::V1,
            "2" => FormatVersion::V2,
            _ => FormatVersion::V3,
        };
        let sizes = QuorumSizes::new(size("ensemble"), size("write_quorum"), size("ack_quorum"));
        let custom: BTreeMap<_, _> = said("custom").map_or_else(BTreeMap::new, |custom| {
            let pairs = custom.split(',').filter_map(|pair| pair.split_once('='));
            pairs.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec())).collect()
        });
        let found = (read.state(), read.format(), read.sizes(), read.ensembles().len());
        let expected = (state, format, sizes.expect("valid sizes"), size("ensembles"));
        assert_eq!(found, expected, "{row:?}");
        assert_eq!(read.digest().map(DigestType::name), said("digest").as_deref(), "{row:?}");
        assert_eq!(*read.password(), said("password").as_deref().unwrap_or("").into(), "{row:?}");
        assert_eq!(read.ctime().map(i64::unsigned_abs), number("ctime"), "{row:?}");
        assert_eq!(*read.custom(), custom, "{row:?}");
    }
}

#[test]
fn a_changed_record_stays_in_its_format() {
    for (name, format) in [
        ("format-1-open", "1"),
        ("format-2-open", "2"),
        ("open", "3"),
        ("many-ensembles-open", "3"),
    ] {
        let open = decode(&recorded(name)).expect(name);
        let recovering = open.in_recovery().expect("an open ledger");
        let members = open.last_ensemble().1.to_vec();
        let last = open.last_ensemble().0.next();
        let changed = open.ensemble_changed(last, members).expect("an open ledger");
        let changed = changed
            .with_instances([("bookie-1".into(), Instance(7))])
            .with_length_is(LengthIs::LowerBound);
        let end = LedgerEnd { last_entry: Some(last), length: 30 };
        let closed = recovering.recovered(end, &BTreeMap::new()).expect("in recovery");
        for record in [recovering, changed, closed] {
            let bytes = encode(&record);
            let head = format!("BookieMetadataFormatVersion\t{format}\n");
            assert!(bytes.starts_with(head.as_bytes()), "{name}");
            assert_eq!(decode(&bytes).as_ref(), Ok(&record), "{name}");
        }
    }
}

#[test]
fn java_recoveries_in_each_format_look_like_ours() {
    for (ours, java) in [
        ("format-1-open", "format-1-in-recovery"),
        ("format-2-open", "format-2-in-recovery"),
        ("open", "in-recovery"),
    ] {
        let ours = decode(&recorded(ours)).expect(ours).in_recovery().expect("an open ledger");
        let java = decode(&recorded(java)).expect(java);
        // The same up to what differs between any two ledgers.
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(char::is_numeric, "");
        if ours.format() != FormatVersion::V3 {
            let (ours, java) = (text(&encode(&ours)), text(&encode(&java)));
            assert_eq!(ours.lines().count(), java.lines().count());
            assert_eq!(ours.lines().last(), java.lines().last());
        }
        assert_eq!(ours.state(), java.state());
    }
}

#[test]
fn text_is_read_however_it_is_laid_out() {
    let canonical = decode(&recorded("format-2")).expect("a recorded record");
    let text = "BookieMetadataFormatVersion\t2\n# by hand\nstate:CLOSED quorumSize:3,ensembleSize : 3; \
                length: 20 lastEntryId:1 segment: { firstEntryId: 0 ensembleMember: 'bookie-4' \
                ensembleMember: \"book\" 'ie-3' ensembleMember: \"bookie\\0552\" } digestType:CRC32C \
                password: \"\\x73ecret\" ackQuorumSize: 2 customMetadata < > ";
    let text = text.replace("< >", "{ value: \"b\" key: \"a\" }");
    assert_eq!(decode(text.as_bytes()), Ok(canonical.clone()));
    // Fields of a later release are kept, whatever they are.
    let later = "novelty { deep { list: [1, \"}\"] } }\nother: -5\nwords: \"a\" \"b\"\n";
    let bytes = [&recorded("format-2")[..], later.as_bytes()].concat();
    let read = decode(&bytes).expect("unknown fields are no error");
    assert_eq!(encode(&read), bytes);
    for cut in ["password", "segment {", "state: ", "customMetadata {", "novelty { deep {"] {
        let text = String::from_utf8(bytes.clone()).expect("text");
        let end = text.find(cut).expect("it is there") + cut.len();
        assert!(decode(&text.as_bytes()[..end]).is_err(), "{cut}");
    }
}

#[test]
fn strings_of_any_bytes_are_escaped_in_text_and_read_again() {
    let open = decode(&recorded("format-2-open")).expect("a recorded record");
    let every: Vec<u8> = (0..=255).collect();
    let mut parts = to_parts(FormatVersion::V2, to_record(&open), Bytes::new()).expect("a record");
    parts.password = Password::from(&every[..]);
    parts.custom.insert("a\"\\\n\u{e9}".into(), every);
    let metadata = LedgerMetadata::from_parts(parts).expect("a record");
    let bytes = encode(&metadata);
    assert!(bytes.is_ascii());
    assert_eq!(decode(&bytes), Ok(metadata));
}

#[test]
fn other_versions_are_refused_by_name() {
    let version = |text: &str| decode(format!("BookieMetadataFormatVersion\t{text}\n").as_bytes());
    assert_eq!(version("4"), Err(FormatError::UnsupportedVersion("4".into())));
    assert_eq!(version("1x"), Err(FormatError::UnsupportedVersion("1x".into())));
    assert_eq!(version("12345678901"), Err(FormatError::NotMetadata));
    assert_eq!(decode(b"something else"), Err(FormatError::NotMetadata));
}

#[test]
fn lines_that_are_no_record_are_refused() {
    let lines = |text: &str| decode(format!("BookieMetadataFormatVersion\t1\n{text}").as_bytes());
    assert!(lines("2\n2\n0\n0\ta\tb\n").is_ok());
    for bad in [
        "",
        "2\n2\n",
        "2\n2\n0\n",
        "2\n2\n0\n0\ta\n",
        "3\n2\n0\n0\ta\tb\n",
        "2\n2\n-1\n0\ta\tb\n",
        "2\n2\n0\n0\ta\tb\nnonsense\n",
        "2\n2\n0\n0\ta\tb\n0\ta\tb\n",
        "2\n2\n0\n0\ta\tb\n5\tCLOSED\n6\tCLOSED",
        "2\n2\n0\n0\ta\tb\n-7\tCLOSED",
    ] {
        assert!(lines(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_record_without_what_it_must_say_is_refused() {
    let metadata = decode(&recorded("open")).expect("a recorded record");
    for tag in [1, 2, 3, 5] {
        let mut message = Vec::<u8>::new();
        let record = to_record(&metadata).encode_to_vec();
        let mut rest = &record[..];
        while rest.has_remaining() {
            let start = rest;
            let (found, wire_type) = decode_key(&mut rest).expect("a record of ours");
            skip_field(wire_type, found, &mut rest, DecodeContext::default()).expect("as above");
            if found != tag {
                message.extend(&start[..start.len() - rest.len()]);
            }
        }
        let mut bytes = b"BookieMetadataFormatVersion\t3\n".to_vec();
        prost::encoding::encode_varint(message.len() as u64, &mut bytes);
        bytes.extend(message);
        let refused = decode(&bytes).expect_err("a field is missing");
        assert!(refused.to_string().contains(&format!("field {tag} ")), "{refused}");
    }
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
    fn arbitrary_texts_never_panic(version in 1..4_u8, body in prop::collection::vec(any::<u8>(), 0..60)) {
        let bytes = [format!("BookieMetadataFormatVersion\t{version}\n").as_bytes(), &body].concat();
        if let Ok(metadata) = decode(&bytes) {
            prop_assert_eq!(&decode(&encode(&metadata)).expect("a record of ours"), &metadata);
        }
    }

    #[test]
    fn arbitrary_damage_to_text_never_panics(
        name in prop::sample::select(vec!["format-1", "format-1-in-recovery", "format-2", "format-2-ctime"]),
        at: prop::sample::Index,
        put in "[\\PC\\n\\t{}:\"\\\\0-9]{0,4}",
        removed in 0..6_usize,
    ) {
        let mut bytes = recorded(name);
        let at = at.index(bytes.len());
        let end = bytes.len().min(at + removed);
        bytes.splice(at..end, put.into_bytes());
        if let Ok(metadata) = decode(&bytes) {
            prop_assert_eq!(&decode(&encode(&metadata)).expect("a record of ours"), &metadata);
        }
    }

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
    fn arbitrary_damage_to_a_record_never_panics(at in 0_usize..150, byte: u8, name in prop::sample::select(vec!["closed", "custom", "crc32", "in-recovery", "many-ensembles"])) {
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
        to_parts(FormatVersion::V3, record, Bytes::new())
            .is_ok_and(|parts| LedgerMetadata::from_parts(parts).is_ok())
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
