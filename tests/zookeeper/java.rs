//! What Java clients and this code tell each other through the records of ledgers.

use std::collections::BTreeMap;

use georepl_storage::{
    BookieId, DigestType, EntryId, Expected, FormatVersion, LedgerEnd, LedgerId, LedgerMetadata,
    LedgerState, MetadataStore, Password, QuorumSizes, Version, ZooKeeperMetadata, decode_metadata,
    encode_metadata, ledger_key,
};
use georepl_tests::rig::text;
use serde_json::Value;

use crate::roots::{connected, shared};

/// What the Java client answers, with more patience than it has of itself: the machine may be busy.
pub(crate) fn java(arguments: &[&str]) -> Value {
    let patience = ["--conf", "addEntryTimeoutSec=60", "--conf", "readEntryTimeoutSec=60"];
    shared().tool(&[arguments, &patience].concat())
}

/// A ledger of three entries of ten bytes, written by the Java client.
fn written(options: &[&str]) -> LedgerId {
    let common = ["write", "--ensemble", "1", "--entries", "3", "--size", "10"];
    let answer = java(&[&common[..], options].concat());
    LedgerId(answer["ledger"].as_u64().unwrap_or_else(|| panic!("{options:?}: {answer}")))
}

/// What the Java client reads in a ledger's record.
fn java_reads(ledger: LedgerId, options: &[&str]) -> Value {
    let ledger = ledger.to_string();
    java(&[&["metadata", "--ledger", &ledger], options].concat())
}

async fn record(store: &ZooKeeperMetadata, ledger: LedgerId) -> (LedgerMetadata, Version) {
    let found = store.get(&ledger_key(ledger)).await.expect("ZooKeeper is there");
    let found = found.expect("the ledger is there");
    (decode_metadata(&found.value).expect("a record of Java's"), found.version)
}

async fn change(store: &ZooKeeperMetadata, ledger: LedgerId, next: &LedgerMetadata, at: Version) {
    let put = store.put(&ledger_key(ledger), encode_metadata(next), Expected::Version(at)).await;
    put.expect("nobody else changes it");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_java_in_every_format_are_changed_here_and_understood_by_java() {
    let store = connected(&shared().uri()).await;
    for (number, format) in
        [("1", FormatVersion::V1), ("2", FormatVersion::V2), ("3", FormatVersion::V3)]
    {
        let ledger = written(&["--format-version", number, "--no-close"]);
        let (open, version) = record(&store, ledger).await;
        assert_eq!((open.state(), open.format()), (LedgerState::Open, format));
        change(&store, ledger, &open.in_recovery().expect("an open ledger"), version).await;
        let read = java_reads(ledger, &[]);
        assert_eq!(
            (text(&read["state"]).as_str(), &read["format"]),
            ("IN_RECOVERY", &number.parse::<i64>().expect("a number").into())
        );

        let (recovering, version) = record(&store, ledger).await;
        let end = LedgerEnd { last_entry: Some(EntryId(2)), length: 30 };
        let closed = recovering.recovered(end, &BTreeMap::new()).expect("in recovery");
        change(&store, ledger, &closed, version).await;
        let read = java_reads(ledger, &[]);
        let seen = ["state", "last_entry", "length", "format"].map(|field| read[field].to_string());
        assert_eq!(seen, ["\"CLOSED\"", "2", "30", number]);
        // And it reads what it wrote.
        let entries = java(&["read", "--ledger", &ledger.to_string(), "--verify-seed", "0"]);
        assert_eq!((entries["entries"].as_u64(), entries["wrong"].as_u64()), (Some(3), Some(0)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ledgers_of_java_are_read_as_they_are() {
    let store = connected(&shared().uri()).await;
    for (name, digest) in [
        ("crc32c", DigestType::Crc32c),
        ("crc32", DigestType::Crc32),
        ("mac", DigestType::Hmac),
        ("dummy", DigestType::Dummy),
    ] {
        let ledger = written(&["--digest", name, "--password", "secret", "--custom", "a=b"]);
        let (record, _) = record(&store, ledger).await;
        let end = LedgerEnd { last_entry: Some(EntryId(2)), length: 30 };
        assert_eq!(record.state(), LedgerState::Closed(end));
        assert_eq!((record.digest(), record.password()), (Some(digest), &"secret".into()));
        assert_eq!(record.custom()["a"], b"b");
        let names = store.children("ledgers").await.expect("ZooKeeper is there");
        assert!(names.contains(&ledger_key(ledger)["ledgers/".len()..].to_owned()), "{names:?}");
    }
    // Also where there are more than 31 bits in an id.
    let long = written(&["--ledger-id", "4294967296123"]);
    assert_eq!(record(&store, long).await.0.last_ensemble().1.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_made_here_is_understood_closed_and_deleted_by_java() {
    let store = connected(&shared().uri()).await;
    let bookie = BookieId::from(text(&shared().environment()["bookies"][0]["id"]));
    let sizes = QuorumSizes::new(1, 1, 1).expect("valid sizes");
    let custom = BTreeMap::from([("application".to_owned(), b"pulsar".to_vec())]);
    let password = Password::from("secret");
    let made = LedgerMetadata::created(sizes, password, vec![bookie.clone()], 77, custom);
    let made = made.expect("one member");
    let ledger = store.allocate_ledger_id().await.expect("ZooKeeper is there");
    store.put(&ledger_key(ledger), encode_metadata(&made), Expected::Absent).await.expect("absent");

    // Ids are given out by one counter.
    assert!(written(&[]) > ledger);
    let secret = ["--password", "secret"];
    let read = java_reads(ledger, &secret);
    let seen = ["state", "ensemble_size", "write_quorum", "ack_quorum", "digest", "format"];
    let seen = seen.map(|field| read[field].to_string());
    assert_eq!(seen, ["\"OPEN\"", "1", "1", "1", "\"CRC32C\"", "3"]);
    assert_eq!(text(&read["ensembles"]["0"][0]), bookie.as_str());

    let id = ledger.to_string();
    let opened = java(&["open-recovery", "--ledger", &id, "--password", "secret"]);
    assert_eq!(opened["lac"].as_i64(), Some(-1));
    let (closed, version) = record(&store, ledger).await;
    assert_eq!(closed.state(), LedgerState::Closed(LedgerEnd::default()));
    assert_eq!(closed.custom()["application"], b"pulsar");

    java(&["delete", "--ledger", &id]);
    assert_eq!(store.get(&ledger_key(ledger)).await, Ok(None));
    let gone = store.delete(&ledger_key(ledger), version).await;
    assert!(gone.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn java_finds_no_ledger_that_was_deleted_here() {
    let store = connected(&shared().uri()).await;
    let ledger = written(&[]);
    let (_, version) = record(&store, ledger).await;
    store.delete(&ledger_key(ledger), version).await.expect("its version");
    let id = ledger.to_string();
    let refused = std::panic::catch_unwind(|| java(&["metadata", "--ledger", &id]));
    let refused = refused.expect_err("it is gone");
    let said = refused.downcast_ref::<String>().expect("what the tool said");
    assert!(said.contains("No such ledger"), "{said}");
}
