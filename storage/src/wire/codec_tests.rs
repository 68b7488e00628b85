use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Buf, Bytes};
use proptest::prelude::*;

use super::*;
use crate::entry::{Entry, MasterKey, Password};
use crate::id::{EntryId, LedgerId};
use crate::transport::{AddKind, BookieError};

/// A frame that was recorded between a Java client and a bookie, with what is in it.
struct Recorded {
    file: String,
    protocol: Protocol,
    content: String,
    bytes: Bytes,
}

fn recorded() -> Vec<Recorded> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/bookkeeper/frames");
    let index = fs::read_to_string(folder.join("index.tsv")).expect("the index is there");
    let frames: Vec<_> = index
        .lines()
        .skip(1)
        .map(|line| {
            let [file, protocol, content] =
                line.split('\t').collect::<Vec<_>>().try_into().expect("three columns");
            let protocol = if protocol == "v2" { Protocol::V2 } else { Protocol::V3 };
            let bytes = fs::read(folder.join(file)).expect("the file is there").into();
            Recorded { file: file.into(), protocol, content: content.into(), bytes }
        })
        .collect();
    assert!(frames.len() > 250, "all of them: {}", frames.len());
    frames
}

fn content(bytes: &Bytes) -> Bytes {
    let mut incoming = Incoming::default();
    incoming.buffer().extend_from_slice(bytes);
    let frame = incoming.next_frame().expect("a good frame").expect("a whole frame");
    assert!(incoming.buffer().is_empty());
    frame
}

fn encoded(encode: impl FnOnce(&mut Outgoing)) -> Bytes {
    let mut out = Outgoing::default();
    encode(&mut out);
    out.copy_to_bytes(out.remaining())
}

#[test]
fn every_recorded_frame_has_the_content_in_the_index_and_is_encoded_byte_for_byte() {
    for Recorded { file, protocol, content: described, bytes } in recorded() {
        let (found, again) = if file.ends_with("request.bin") {
            let frame = protocol.decode_request(content(&bytes)).expect(&file);
            (request(&frame), encoded(|out| protocol.encode_request(&frame, out)))
        } else {
            let frame = protocol.decode_response(content(&bytes)).expect(&file);
            (response(&frame), encoded(|out| protocol.encode_response(&frame, out)))
        };
        assert_eq!(found, described, "{file}");
        let mut expected = bytes.to_vec();
        if (protocol, expected[4]) == (Protocol::V2, 1) {
            expected[4] = 2; // A packet of version 1 is read, and none is written.
        }
        assert!(again == expected, "{file}: {again:02x?}\n{expected:02x?}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

fn fence(key: Option<&MasterKey>) -> String {
    or_dash(key.map(|key| hex(key.as_bytes())))
}

fn request(frame: &RequestFrame) -> String {
    let priority = if frame.priority == Priority::High { "high" } else { "normal" };
    let head = format!("transaction={} priority={priority}", frame.transaction);
    match &frame.request {
        Request::Add { entry, key, kind, durability } => {
            let kind = if *kind == AddKind::Recovery { "recovery" } else { "normal" };
            let sync = if *durability == Durability::Synced { "synced" } else { "deferred" };
            let (ledger, id, bytes) = (entry.ledger(), entry.entry(), entry.size_bytes());
            let key = hex(key.as_bytes());
            format!(
                "add {head} ledger={ledger} entry={id} key={key} kind={kind} sync={sync} bytes={bytes}"
            )
        }
        Request::Read { ledger, entry, fence: key } => {
            format!("read {head} ledger={ledger} entry={entry} fence={}", fence(key.as_ref()))
        }
        Request::ReadLast { ledger, fence: key } => {
            format!("read-last {head} ledger={ledger} fence={}", fence(key.as_ref()))
        }
        Request::BatchRead { ledger, first, entries_max, bytes_max, fence: key } => {
            let fence = fence(key.as_ref());
            format!(
                "batch-read {head} ledger={ledger} entry={first} entries={entries_max} bytes={bytes_max} fence={fence}"
            )
        }
        Request::ReadLac { ledger } => format!("read-lac {head} ledger={ledger}"),
        Request::WriteLac { ledger, lac, key, body } => {
            let (key, body) = (hex(key.as_bytes()), hex(body));
            format!("write-lac {head} ledger={ledger} lac={lac} key={key} body={body}")
        }
        Request::WaitLac { ledger, beyond, within } => {
            let (beyond, within) = (or_dash(beyond.as_ref()), within.as_millis());
            format!("wait-lac {head} ledger={ledger} beyond={beyond} within={within}")
        }
        Request::Force { ledger } => format!("force {head} ledger={ledger}"),
        Request::BookieInfo => format!("bookie-info {head}"),
        Request::ListEntries { ledger } => format!("list-entries {head} ledger={ledger}"),
        Request::Auth(message) => {
            format!("auth {head} plugin={} bytes={}", message.plugin, message.payload.len())
        }
        Request::StartTls => format!("start-tls {head}"),
        Request::Other { operation } => format!("other-{operation} {head}"),
    }
}

fn response(frame: &ResponseFrame) -> String {
    let name = match frame.operation {
        Operation::Add => "add",
        Operation::Read => "read",
        Operation::BatchRead => "batch-read",
        Operation::ReadLac => "read-lac",
        Operation::WriteLac => "write-lac",
        Operation::Force => "force",
        Operation::BookieInfo => "bookie-info",
        Operation::ListEntries => "list-entries",
        Operation::Auth => "auth",
        Operation::StartTls => "start-tls",
        Operation::Other(_) => "other",
    };
    let status = frame.status.map_or_else(|error| format!("{error:?}"), |()| "ok".into());
    let head = format!("{name} transaction={} status={status}", frame.transaction);
    let len = |bytes: &Option<Bytes>| or_dash(bytes.as_ref().map(Bytes::len));
    match &frame.body {
        ResponseBody::None => format!("{head} body=none"),
        ResponseBody::Add { ledger, entry } => format!("{head} ledger={ledger} entry={entry}"),
        ResponseBody::Read { ledger, entry, bytes, lac, .. } => {
            let (entry, bytes, lac) = (or_dash(entry.as_ref()), len(bytes), or_dash(lac.as_ref()));
            format!("{head} ledger={ledger} entry={entry} bytes={bytes} lac={lac}")
        }
        ResponseBody::BatchRead { ledger, first, entries } => {
            let sizes: Vec<_> = entries.iter().map(|entry| entry.len().to_string()).collect();
            let sizes = if sizes.is_empty() { "-".into() } else { sizes.join(",") };
            format!("{head} ledger={ledger} entry={first} bytes={sizes}")
        }
        ResponseBody::ReadLac { ledger, explicit, last } => {
            format!("{head} ledger={ledger} explicit={} bytes={}", len(explicit), len(last))
        }
        ResponseBody::WriteLac { ledger } | ResponseBody::Force { ledger } => {
            format!("{head} ledger={ledger}")
        }
        ResponseBody::BookieInfo { total_bytes, free_bytes } => {
            let (total, free) = (or_dash(total_bytes.as_ref()), or_dash(free_bytes.as_ref()));
            format!("{head} total={total} free={free}")
        }
        ResponseBody::ListEntries { ledger, availability } => {
            format!("{head} ledger={ledger} bytes={}", len(availability))
        }
        ResponseBody::Auth(message) => {
            format!("{head} plugin={} bytes={}", message.plugin, message.payload.len())
        }
        ResponseBody::StartTls => head,
    }
}

#[test]
fn fields_that_are_not_known_are_passed_over() {
    // A request context (field 200), as clients send it since 4.9, and a field of no release.
    for Recorded { file, protocol, bytes, .. } in recorded() {
        if protocol == Protocol::V3 {
            let mut longer = content(&bytes).to_vec();
            longer.extend_from_slice(b"\xc2\x0c\x06\x0a\x01k\x12\x01v\xf0\x3f\x2a");
            let longer = Bytes::from(longer);
            if file.ends_with("request.bin") {
                let frame = v3::decode_request(content(&bytes)).expect(&file);
                assert_eq!(v3::decode_request(longer), Ok(frame), "{file}");
            } else {
                let frame = v3::decode_response(content(&bytes)).expect(&file);
                assert_eq!(v3::decode_response(longer), Ok(frame), "{file}");
            }
        }
    }
}

#[test]
fn an_answer_counts_as_success_only_if_both_of_its_statuses_say_so() {
    let header = b"\x0a\x06\x08\x03\x10\x02\x18\x01";
    let add = |outer: &[u8], inner: &[u8]| {
        let own = [inner, b"\x10\x00\x18\x00"].concat();
        let body = [b"\xaa\x06", &[own.len() as u8][..], &own].concat();
        v3::decode_response([&header[..], outer, &body].concat().into())
    };
    let (ok, refused) = (b"\x08\x00", b"\x08\xf8\x03"); // 0 and 504
    let status = |frame: Result<ResponseFrame, DecodeError>| frame.map(|frame| frame.status);
    assert_eq!(status(add(b"\x10\x00", ok)), Ok(Ok(())));
    assert_eq!(status(add(b"\x10\x00", refused)), Ok(Err(BookieError::Fenced)));
    assert_eq!(status(add(b"\x10\xf6\x03", ok)), Ok(Err(BookieError::Unauthorized)));
    assert_eq!(add(b"", ok), Err(DecodeError::Missing("status")));
    assert_eq!(add(b"\x10\x00", b""), Err(DecodeError::Missing("status of the operation")));
}

#[test]
fn a_packet_of_an_unknown_version_or_operation_is_named() {
    let packet = |head: [u8; 4]| Bytes::from([&head[..], &[0; 40]].concat());
    let version = v2::decode_response(packet([0, 1, 0, 0]));
    assert_eq!(version, Err(DecodeError::UnsupportedVersion(0)));
    let operation = v2::decode_response(packet([2, 9, 0, 0]));
    assert_eq!(operation, Err(DecodeError::UnknownOperation(9)));
    let short = DecodeError::TooShort { what: "answer", needed: 20, bytes: 19 };
    let answer = [&[2, 1, 0, 0][..], &[0; 19]].concat();
    assert_eq!(v2::decode_response(answer.into()), Err(short));
}

#[test]
fn an_add_that_names_another_entry_than_it_carries_is_refused() {
    let add = recorded().into_iter().find(|frame| frame.file == "v3/add/000-request.bin");
    let mut bytes = content(&add.expect("it is recorded").bytes).to_vec();
    bytes[14] = 1; // The entry id beside the body.
    assert_eq!(v3::decode_request(bytes.into()), Err(DecodeError::OtherEntry));
}

fn ledger_ids() -> impl Strategy<Value = LedgerId> {
    (0..=i64::MAX as u64).prop_map(LedgerId)
}

fn entry_ids() -> impl Strategy<Value = EntryId> {
    (0..=i64::MAX as u64).prop_map(EntryId)
}

fn keys() -> impl Strategy<Value = MasterKey> {
    any::<[u8; 20]>().prop_map(MasterKey::from)
}

fn requests() -> impl Strategy<Value = Request> {
    let entries = (ledger_ids(), entry_ids(), proptest::option::of(entry_ids()), 0..20_000_usize)
        .prop_map(|(ledger, id, lac, bytes)| {
            Entry::seal(ledger, id, lac, 9, Bytes::from(vec![0x5a; bytes]))
        });
    let key = || proptest::option::of(keys());
    let add = (entries, keys(), any::<bool>(), any::<bool>()).prop_map(
        |(entry, key, recovery, deferred)| Request::Add {
            entry,
            key,
            kind: if recovery { AddKind::Recovery } else { AddKind::Normal },
            durability: if deferred { Durability::Deferred } else { Durability::Synced },
        },
    );
    let batch = (ledger_ids(), entry_ids(), 0..1000_u32, 0..1_u64 << 40, key()).prop_map(
        |(ledger, first, entries_max, bytes_max, fence)| Request::BatchRead {
            ledger,
            first,
            entries_max,
            bytes_max,
            fence,
        },
    );
    prop_oneof![
        add,
        batch,
        (ledger_ids(), entry_ids(), key()).prop_map(|(ledger, entry, fence)| Request::Read {
            ledger,
            entry,
            fence
        }),
        (ledger_ids(), key()).prop_map(|(ledger, fence)| Request::ReadLast { ledger, fence }),
        (ledger_ids(), proptest::option::of(entry_ids()), 0..1_u64 << 40).prop_map(
            |(ledger, beyond, millis)| {
                Request::WaitLac { ledger, beyond, within: Duration::from_millis(millis) }
            }
        ),
        (ledger_ids(), entry_ids(), keys(), proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(ledger, lac, key, body)| {
                Request::WriteLac { ledger, lac, key, body: body.into() }
            }),
        ledger_ids().prop_map(|ledger| Request::ReadLac { ledger }),
        ledger_ids().prop_map(|ledger| Request::Force { ledger }),
        ledger_ids().prop_map(|ledger| Request::ListEntries { ledger }),
    ]
}

proptest! {
    #[test]
    fn requests_come_out_as_they_went_in(
        transaction: u64,
        high: bool,
        request in requests(),
    ) {
        let priority = if high { Priority::High } else { Priority::Normal };
        let said_in_v3 = !matches!(request, Request::BatchRead { .. });
        let frame = RequestFrame { transaction, priority, request };
        if said_in_v3 {
            let bytes = encoded(|out| v3::encode_request(&frame, out));
            prop_assert_eq!(v3::decode_request(content(&bytes)), Ok(frame.clone()));
        }
        if v2::can_say(&frame.request) {
            let bytes = encoded(|out| v2::encode_request(&frame, out));
            // There is a place for the number in a batch read only.
            let transaction = if said_in_v3 { 0 } else { transaction };
            let expected = RequestFrame { transaction, ..frame };
            prop_assert_eq!(v2::decode_request(content(&bytes)), Ok(expected));
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_decoded_and_never_more(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        // No answer is a success unless it says so: what decodes is only counted.
        for protocol in [Protocol::V2, Protocol::V3] {
            let _ = protocol.decode_request(Bytes::from(bytes.clone()));
            let _ = protocol.decode_response(Bytes::from(bytes.clone()));
        }
        let mut incoming = Incoming::default();
        incoming.buffer().extend_from_slice(&bytes);
        while let Ok(Some(frame)) = incoming.next_frame() {
            prop_assert!(frame.len() <= bytes.len());
        }
    }

    #[test]
    fn arbitrary_damage_of_a_recorded_frame_is_survived(
        which: proptest::sample::Index,
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        cut: proptest::sample::Index,
    ) {
        thread_local! {
            static RECORDED: Vec<Recorded> = recorded();
        }
        let (protocol, mut bytes) = RECORDED.with(|recorded| {
            let one = &recorded[which.index(recorded.len())];
            (one.protocol, content(&one.bytes).to_vec())
        });
        // Short ones: the large one would only be slow.
        bytes.truncate(500);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] ^= byte;
        }
        bytes.truncate(1 + cut.index(bytes.len()));
        let _ = protocol.decode_request(Bytes::from(bytes.clone()));
        if let Ok(frame) = protocol.decode_response(bytes.into()) {
            // Whatever could be decoded can be encoded.
            prop_assert!(!encoded(|out| protocol.encode_response(&frame, out)).is_empty());
        }
    }
}

#[test]
fn what_is_secret_is_not_shown() {
    let key = MasterKey::of(&Password::from("secret"));
    let message = AuthMessage { plugin: "p".into(), payload: Bytes::from_static(b"secret") };
    let fencing = Request::ReadLast { ledger: LedgerId(1), fence: Some(key) };
    let shown = format!("{fencing:?} {:?}", Request::Auth(message));
    assert!(!shown.contains("secret") && !shown.contains("115"), "{shown}");
    assert!(shown.contains("MasterKey(..)"), "{shown}");
}
