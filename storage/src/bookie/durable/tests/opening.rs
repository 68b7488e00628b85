//! Files that are not what they should be.

use std::collections::BTreeMap;

use tokio::sync::mpsc;

use super::*;
use crate::bookie::conformance::{ADDED, One, add, found, read};
use crate::check::CopyState;
use crate::client::{LedgerClient, LedgerOptions};
use crate::config::ClientConfig;
use crate::disk::OpenFileError;
use crate::entry::Password;
use crate::fault::Unsynced;
use crate::id::EntryId;
use crate::quorum::QuorumSizes;
use crate::transport::AddKind;
use crate::write::{self, AppendSink};

/// A stopped bookie with entries 0 to 9.
async fn written() -> One<Durable> {
    let mut one = One::new(Durable::new().await);
    for id in 0..10 {
        assert_eq!(one.ask(add(id, AddKind::Normal)).await, ADDED);
    }
    one.kind.stop();
    one
}

fn content(one: &One<Durable>) -> Vec<u8> {
    one.kind.disk.content(FILE).expect("the bookie has a file")
}

/// The places where bytes occur in a file.
fn places(file: &[u8], bytes: &[u8]) -> Vec<usize> {
    file.windows(bytes.len()).enumerate().filter(|(_, w)| *w == bytes).map(|(at, _)| at).collect()
}

#[tokio::test]
async fn a_file_of_another_format_is_refused_by_name() {
    let mut one = written().await;
    one.kind.disk.restart(Unsynced::Lost);
    let disk: Arc<dyn Disk> = Arc::new(one.kind.disk.clone());
    let spec = crate::disk::FileSpec {
        name: FILE.into(),
        owner: "bookie b1".into(),
        cache_bytes: 1 << 20,
    };
    let file = DatabaseFile::open(disk, spec).expect("the format is this one");
    file.change(|transaction| {
        transaction.open_table(crate::disk::META)?.insert("format", "2")?;
        Ok(((), crate::disk::Changed::Something))
    })
    .expect("the disk works");
    drop(file);
    let error = one.kind.try_start().await.expect_err("format 2 is not known");
    let other = OpenFileError::OtherFormat { file: FILE.into(), found: "2".into() };
    assert_eq!(error, OpenBookieError::File(other));
    assert!(error.to_string().contains("bookie-b1.redb has format 2"), "{error}");
}

#[tokio::test]
async fn a_file_of_another_bookie_is_refused_by_name() {
    let mut one = written().await;
    one.kind.disk.replace("bookie-b2.redb", content(&one));
    let disk = Arc::new(one.kind.disk.clone());
    let ids = ["b1", "b2"].map(BookieId::from);
    let config = DurableConfig::default();
    let (bookies, failed) = DurableBookies::open(disk, ids, &one.kind.store, &config).await;
    let other = OpenFileError::OtherOwner {
        file: "bookie-b2.redb".into(),
        found: "bookie b1".into(),
        expected: "bookie b2".into(),
    };
    assert_eq!(failed, [(BookieId::from("b2"), OpenBookieError::File(other))]);
    assert_eq!(bookies.registry().bookies().borrow().len(), 1, "b1 serves without it");
    one.kind.bookies = Some(bookies);
    assert_eq!(one.ask(read(9)).await, found(9));
}

#[tokio::test]
async fn a_file_of_an_earlier_life_or_of_another_store_is_refused() {
    let mut one = written().await;
    let earlier = content(&one);
    one.kind.disk.remove(FILE);
    one.kind.start().await;
    one.kind.stop();
    one.kind.disk.replace(FILE, earlier);
    let error = one.kind.try_start().await.expect_err("that life has ended");
    let OpenBookieError::OtherLife { found, recorded: Some(recorded), .. } = error else {
        panic!("{error}");
    };
    assert!(recorded > found);
    one.kind.stop();
    one.kind.store = MemoryMetadataStore::new();
    let error = one.kind.try_start().await.expect_err("the store knows no such life");
    assert!(matches!(error, OpenBookieError::OtherLife { recorded: None, .. }), "{error}");
}

#[tokio::test]
async fn a_file_cut_short_or_overwritten_is_refused_and_named() {
    let mut one = written().await;
    let whole = content(&one);
    let refused = |error: OpenBookieError| {
        assert!(matches!(error, OpenBookieError::File(OpenFileError::Damaged { .. })), "{error}");
        assert!(error.to_string().starts_with("bookie-b1.redb is damaged"), "{error}");
    };
    for length in [1, 100, 4096, 8192, whole.len() / 2, whole.len() - 1] {
        one.kind.disk.replace(FILE, whole[..length].to_vec());
        refused(one.kind.try_start().await.expect_err("a part of a file"));
        one.kind.stop();
    }
    let overwritten: [fn(&mut Vec<u8>); 3] =
        [|file| file.fill(b'x'), |file| file[..4096].fill(0), |file| file[4096..].fill(0xff)];
    for overwrite in overwritten {
        let mut file = whole.clone();
        overwrite(&mut file);
        one.kind.disk.replace(FILE, file);
        refused(one.kind.try_start().await.expect_err("another file"));
        one.kind.stop();
    }
    one.kind.disk.replace(FILE, whole);
    one.kind.start().await;
    assert_eq!(one.ask(read(9)).await, found(9));
}

#[tokio::test]
async fn a_file_that_is_open_is_refused() {
    let one = One::new(Durable::new().await);
    let disk = Arc::new(one.kind.disk.clone());
    let config = DurableConfig::default();
    let (_, failed) = DurableBookies::open(disk, [b1()], &one.kind.store, &config).await;
    let in_use = OpenFileError::InUse { file: FILE.into() };
    assert_eq!(failed, [(b1(), OpenBookieError::File(in_use))]);
}

#[tokio::test]
async fn a_directory_is_a_disk_and_its_files_are_locked() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let disk: Arc<dyn Disk> = Arc::new(crate::disk::DirectoryDisk::new(directory.path()));
    let (store, config) = (MemoryMetadataStore::new(), DurableConfig::default());
    let open = || DurableBookies::open(disk.clone(), [b1()], &store, &config);
    let (bookies, failed) = open().await;
    assert_eq!(failed, []);
    let (_, failed) = open().await;
    let in_use = OpenFileError::InUse { file: directory.path().join(FILE) };
    assert_eq!(failed, [(b1(), OpenBookieError::File(in_use))]);
    let life = bookies.instance(&b1());
    drop(bookies);
    let (bookies, failed) = open().await;
    assert_eq!((bookies.instance(&b1()), failed), (life, vec![]));
}

#[tokio::test]
async fn an_id_that_is_no_file_name_is_refused() {
    let (disk, store) = (Arc::new(CrashDisk::new()), MemoryMetadataStore::new());
    let id = BookieId::from("../b1");
    let config = DurableConfig::default();
    let (_, failed) = DurableBookies::open(disk, [id.clone()], &store, &config).await;
    assert_eq!(failed, [(id, OpenBookieError::InvalidId("../b1".into()))]);
}

struct Sink(mpsc::UnboundedSender<EntryId>);

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        // A test that is over no longer listens.
        let _ = self.0.send(through);
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        panic!("all bookies are well: {error}");
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_stored_entry_is_found_named_and_served_from_another_replica() {
    let (disk, store) = (CrashDisk::new(), Arc::new(MemoryMetadataStore::new()));
    let ids = ["b1", "b2", "b3"].map(BookieId::from);
    let config = DurableConfig::default();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let open = || DurableBookies::open(shared.clone(), ids.clone(), &*store, &config);
    let client = |bookies: DurableBookies| {
        let registry = bookies.registry();
        let config = ClientConfig::default();
        LedgerClient::new(Arc::new(bookies), store.clone(), registry, config)
    };
    let (bookies, failed) = open().await;
    assert_eq!(failed, []);
    let (first, password) = (client(bookies), Password::from("secret"));
    let (sink, mut confirmed) = mpsc::unbounded_channel();
    let options = LedgerOptions {
        sizes: QuorumSizes::new(3, 3, 3).expect("valid sizes"),
        password: password.clone(),
        custom: BTreeMap::new(),
    };
    let writer = first.create(options, Arc::new(Sink(sink))).await.expect("three bookies");
    let payloads = ["zero", "the one with a flipped bit", "two"];
    writer.append(payloads.map(bytes::Bytes::from).to_vec()).expect("an open ledger");
    while confirmed.recv().await.expect("the writer goes on") < EntryId(2) {}
    let ledger = writer.id();
    writer.close().await.expect("all bookies are well");
    drop((first, writer));
    while disk.is_open(FILE) {
        tokio::task::yield_now().await;
    }
    let mut file = disk.content(FILE).expect("b1 has a file");
    for at in places(&file, payloads[1].as_bytes()) {
        file[at] ^= 1;
    }
    disk.replace(FILE, file);
    let (bookies, failed) = open().await;
    assert_eq!(failed, [], "a file that was closed well is not read through");
    let second = client(bookies);
    let reader = second.open(ledger, &password).await.expect("a closed ledger");
    let read = reader.read(EntryId(0), EntryId(2)).await.expect("the other copies are good");
    let read: Vec<_> = read.iter().map(|entry| entry.payload.clone()).collect();
    assert_eq!(read, payloads);
    let report = second.check(ledger, |_| {}).await.expect("the bookies answer");
    let damaged = report.fragments[0].copies.iter().filter(|run| run.state == CopyState::Corrupt);
    let damaged: Vec<_> = damaged.map(|run| (run.bookie.clone(), run.first, run.last)).collect();
    assert_eq!(damaged, [(b1(), EntryId(1), EntryId(1))]);
}

#[tokio::test]
async fn a_flipped_bit_found_while_a_file_is_repaired_is_refused_and_not_undone() {
    let mut one = One::new(Durable::new().await);
    for id in 0..10 {
        assert_eq!(one.ask(add(id, AddKind::Normal)).await, ADDED);
    }
    one.kind.disk.cut_at(one.kind.disk.syncs() + 1);
    one.kind.stop();
    one.kind.disk.restart(Unsynced::Lost);
    let mut file = content(&one);
    for at in places(&file, b"payload") {
        file[at] ^= 1;
    }
    one.kind.disk.replace(FILE, file);
    let error = one.kind.try_start().await.expect_err("no commit is whole");
    assert!(matches!(error, OpenBookieError::File(OpenFileError::Damaged { .. })), "{error}");
}
