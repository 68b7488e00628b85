use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

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
    fn damaged_records_never_panic(at in 0_usize..150, byte: u8, name in prop::sample::select(&READABLE[..])) {
        let mut bytes = recorded(name);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(metadata) = decode(&bytes) {
            prop_assert_eq!(decode(&encode(&metadata)), Ok(metadata));
        }
    }
}
