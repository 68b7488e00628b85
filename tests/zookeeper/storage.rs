//! Ledgers and topics on real bookies, with their records in a real ZooKeeper.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use georepl_cursor::{ManagedCursor, ManagedLedger, ManagedLedgerConfig, ReadLimits, StartAt};
use georepl_storage::{
    AppendSink, BookKeeperConfig, ClientConfig, EntryId, LedgerId, LedgerOptions, Password,
    QuorumSizes, Storage, write,
};
use tokio::sync::mpsc;

use crate::java::java;
use crate::roots::shared;

async fn storage() -> Storage {
    Storage::bookkeeper(BookKeeperConfig::new(shared().uri())).await.expect("it is there")
}

fn sizes() -> QuorumSizes {
    QuorumSizes::new(1, 1, 1).expect("valid sizes")
}

/// Tells how far appends are confirmed, and how they failed.
struct Sink(mpsc::UnboundedSender<Result<EntryId, write::Error>>);

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        // A test that is over no longer listens.
        let _ = self.0.send(Ok(through));
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        let _ = self.0.send(Err(error));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_recovers_a_ledger_that_is_written_here_and_its_writer_is_fenced() {
    let client = storage().await.client(ClientConfig::default());
    let (sink, mut told) = mpsc::unbounded_channel();
    let password = Password::from("secret");
    let options =
        LedgerOptions { sizes: sizes(), password: password.clone(), custom: BTreeMap::new() };
    let writer = client.create(options, Arc::new(Sink(sink))).await.expect("a bookie is there");
    let ledger = writer.id();
    writer.append(vec![Bytes::from_static(b"0123456789"); 20]).expect("it is open");
    while told.recv().await.expect("open").expect("nothing fails") < EntryId(19) {}

    let id = ledger.to_string();
    let opened = java(&["open-recovery", "--ledger", &id, "--password", "secret"]);
    assert_eq!((opened["lac"].as_i64(), opened["length"].as_i64()), (Some(19), Some(200)));
    writer.append(vec![Bytes::from_static(b"late")]).expect("it does not know yet");
    let failed = told.recv().await.expect("open").expect_err("it is fenced");
    assert!(matches!(failed, write::Error::Fenced { .. }), "{failed}");

    let reader = client.open(ledger, &password).await.expect("Java has closed it");
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(19)));
    let read = reader.read(EntryId::FIRST, EntryId(19)).await.expect("they are confirmed");
    assert!(read.iter().all(|entry| entry.payload == "0123456789"));
    client.delete(ledger).await.expect("ZooKeeper is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_and_its_cursor_are_found_again_where_pulsar_keeps_them() {
    let name = "persistent://acme/eu/orders";
    let config = ManagedLedgerConfig { sizes: sizes(), ..ManagedLedgerConfig::default() };
    let open = |storage: Storage| {
        let (client, store) = (storage.client(ClientConfig::default()), storage.store().clone());
        ManagedLedger::open(name, client, store, config.clone())
    };
    let topic = open(storage().await).await.expect("a new topic");
    let cursor =
        ManagedCursor::open(&topic, "audit", StartAt::Earliest).await.expect("a new cursor");
    for entry in 0..10 {
        topic.append(format!("order {entry}").into()).await.expect("the cluster is there");
    }
    let limits = ReadLimits { entries: 4, bytes: 1 << 20 };
    let read = cursor.read_entries(limits).await.expect("they are there");
    cursor.mark_delete(read[3].position).await.expect("they are the first four");
    cursor.close().await.expect("the cluster is there");
    topic.close().await.expect("the cluster is there");

    let client = shared().client().await;
    let path = "/managed-ledgers/acme/eu/persistent/orders";
    assert_eq!(client.list_children(path).await.expect("the topic"), ["audit"]);
    let topic = open(storage().await).await.expect("the topic is there");
    let cursor = ManagedCursor::open(&topic, "audit", StartAt::Earliest).await.expect("as it was");
    assert_eq!(cursor.backlog(), 6);
    let read = cursor.read_entries(limits).await.expect("they are there");
    assert_eq!(read[0].payload, "order 4");
    let names = georepl_cursor::topics(&**storage().await.store()).await;
    assert_eq!(names.expect("ZooKeeper is there"), [name]);
}
