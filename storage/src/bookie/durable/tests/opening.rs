//! Files that are not what they should be.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::mpsc;

use super::*;
use crate::bookie::conformance::{ADDED, LEDGER, One, add, entry, fence, found, key, lac, read};
use crate::check::CopyState;
use crate::client::{LedgerClient, LedgerOptions};
use crate::config::ClientConfig;
use crate::disk::{FileSpec, OpenFileError, Presence, Remedy};
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

/// The file of b1, on its own.
fn opened(disk: &CrashDisk) -> DatabaseFile {
    try_open(disk).expect("the file is usable")
}

fn spec() -> FileSpec {
    FileSpec {
        name: FILE.into(),
        owner: "bookie b1".into(),
        cache_bytes: 1 << 20,
        remedy: Remedy::Replicas,
        create: tables::create,
        check: tables::check,
    }
}

fn try_open(disk: &CrashDisk) -> Result<DatabaseFile, OpenFileError> {
    DatabaseFile::open(Arc::new(disk.clone()), spec(), Presence::MustExist)
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
    let file = opened(&one.kind.disk);
    file.set_meta([("format", "2".into())]).expect("the disk works");
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
    one.kind.wipe().await;
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
async fn a_file_that_is_gone_or_empty_is_refused_and_named_and_none_is_made() {
    let mut one = written().await;
    let gone = OpenBookieError::FileGone { bookie: b1(), file: FILE.into() };
    for lost in [None, Some(Vec::new())] {
        let whole = content(&one);
        match &lost {
            None => one.kind.disk.remove(FILE),
            Some(empty) => one.kind.disk.replace(FILE, empty.clone()),
        }
        // However often it is tried.
        for _ in 0..2 {
            let error = one.kind.try_start().await.expect_err("it has had a life");
            assert_eq!(error, gone);
            assert!(error.to_string().contains("bookie-b1.redb is gone or empty"), "{error}");
            one.kind.stop();
            assert_eq!(one.kind.disk.content(FILE), lost, "nothing is made");
        }
        one.kind.disk.replace(FILE, whole.clone());
        one.kind.start().await;
        assert_eq!(one.ask(read(9)).await, found(9), "put back, it is as it was");
        one.kind.stop();
    }
}

#[tokio::test]
async fn a_new_file_in_the_place_of_one_that_is_gone_is_refused() {
    let mut one = written().await;
    let whole = content(&one);
    one.kind.disk.remove(FILE);
    drop(DatabaseFile::open(Arc::new(one.kind.disk.clone()), spec(), Presence::MayBeNew));
    let error = one.kind.try_start().await.expect_err("it says no life");
    assert_eq!(error, OpenBookieError::FileGone { bookie: b1(), file: FILE.into() });
    one.kind.stop();
    one.kind.disk.replace(FILE, whole);
    one.kind.start().await;
    assert_eq!(one.ask(read(9)).await, found(9));
}

#[tokio::test]
async fn a_renewed_bookie_begins_another_life_whichever_opening_is_cut_short() {
    for cut in 1.. {
        let mut one = written().await;
        let whole = content(&one);
        one.kind.start().await;
        let earlier = one.kind.bookies().instance(&b1());
        one.kind.stop();
        one.kind.disk.remove(FILE);
        one.kind.renew().await.expect("its file is gone");
        let cut_at = one.kind.disk.syncs() + cut;
        one.kind.disk.cut_at(cut_at);
        let opened = one.kind.try_start().await;
        one.kind.stop();
        one.kind.disk.restart(Unsynced::Lost);
        one.kind.start().await;
        assert!(one.kind.bookies().instance(&b1()) > earlier, "cut at sync {cut}");
        assert_eq!(one.ask(read(9)).await, Err(BookieError::NoSuchLedger), "it is empty");
        one.kind.stop();
        one.kind.disk.replace(FILE, whole);
        let error = one.kind.try_start().await.expect_err("that life is over");
        assert!(matches!(error, OpenBookieError::OtherLife { .. }), "{error}");
        if opened.is_ok() {
            assert!(cut > 1, "the opening syncs");
            return;
        }
    }
}

#[tokio::test]
async fn a_bookie_whose_file_is_there_is_not_renewed() {
    let mut one = written().await;
    let there = RenewBookieError::FileThere { bookie: b1(), file: FILE.into() };
    assert_eq!(one.kind.renew().await, Err(there.clone()));
    let whole = content(&one);
    one.kind.disk.replace(FILE, whole[..100].to_vec());
    assert_eq!(one.kind.renew().await, Err(there), "it may be of use to somebody");
    one.kind.disk.replace(FILE, whole);
    one.kind.start().await;
    assert_eq!(one.ask(read(9)).await, found(9));
    let in_use = OpenFileError::InUse { file: FILE.into() };
    assert_eq!(one.kind.renew().await, Err(RenewBookieError::File(in_use)));
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
async fn a_flipped_bit_in_the_newest_entry_undoes_no_commit() {
    let mut one = One::new(Durable::new().await);
    for id in 0..10 {
        assert_eq!(one.ask(add(id, AddKind::Normal)).await, ADDED);
    }
    one.kind.disk.cut_at(one.kind.disk.syncs() + 1);
    one.kind.stop();
    one.kind.disk.restart(Unsynced::Lost);
    let mut file = content(&one);
    let newest = entry(LEDGER, 9, "payload").to_bytes();
    let [at] = places(&file, &newest)[..] else {
        panic!("the newest entry was stored once");
    };
    file[at + newest.len() - 1] ^= 1;
    one.kind.disk.replace(FILE, file);
    one.kind.start().await;
    let Ok(ResponseBody::Entry(damaged)) = one.ask(read(9)).await else {
        panic!("it is there, and whoever reads it sees that it is damaged");
    };
    assert!(damaged.verify(LEDGER, EntryId(9)).is_err());
    assert_eq!(one.ask(read(8)).await, found(8));
}

#[tokio::test]
async fn a_file_of_another_version_of_the_database_is_of_another_format() {
    let mut one = written().await;
    let mut file = content(&one);
    // Where each of the two commit slots has its version.
    for slot in [64, 192] {
        assert_eq!(file[slot], 3);
        file[slot] = 2;
    }
    one.kind.disk.replace(FILE, file);
    let error = one.kind.try_start().await.expect_err("an old version");
    let other = OpenFileError::OtherFormat { file: FILE.into(), found: "2 of redb".into() };
    assert_eq!(error, OpenBookieError::File(other));
}

/// Ledgers whose ids stand nowhere in a file but in their own rows. This one was fenced before it had an entry.
const EMPTY: LedgerId = LedgerId(0x1122_3344_5566_0099);
const BEFORE: LedgerId = LedgerId(0x1122_3344_5566_3399);
const FENCED: LedgerId = LedgerId(0x1122_3344_5566_7799);

/// What a file says, whatever the damage does to the database that reads it.
fn serve(file: &DatabaseFile, body: &RequestBody) -> Result<ResponseBody, BookieError> {
    let answer = file.read(|transaction| {
        Ok(match tables::Snapshot::open(transaction)?.serve(FENCED, body) {
            Err(Stop::Failed(_)) => Err(BookieError::Io),
            Err(Stop::Refused(error)) => Err(error),
            Ok(answer) => Ok(answer),
        })
    });
    answer.unwrap_or(Err(BookieError::Io))
}

/// Checks what a damaged file says of entries 0 to 9 of a fenced ledger, and of one that is empty.
fn check_damaged(disk: &CrashDisk, context: &str) {
    let Ok(file) = try_open(disk) else {
        return;
    };
    if file.meta("instance").is_none() {
        // The bookie would be refused: it has had a life.
        return;
    }
    for id in 0..10 {
        match serve(&file, &read(id)) {
            Ok(ResponseBody::Entry(entry)) => assert_eq!(entry.entry(), EntryId(id)),
            answer => assert_eq!(answer, Err(BookieError::Io), "entry {id}, {context}"),
        }
    }
    match serve(&file, &RequestBody::ReadLac { fence: None }) {
        Ok(answer) => assert_eq!(Ok(answer), lac(Some(8)), "{context}"),
        answer => assert_eq!(answer, Err(BookieError::Io), "the LAC, {context}"),
    }
    for (ledger, id) in [(FENCED, 10), (EMPTY, 0)] {
        let added = file.change(|transaction| {
            let mut turn = tables::Turn::open(transaction, Mode::Writable)?;
            let body = RequestBody::Add {
                entry: entry(ledger, id, "late"),
                key: key(""),
                kind: AddKind::Normal,
            };
            let added = turn.apply(ledger, &body).is_ok();
            Ok((added, crate::disk::Changed::Nothing))
        });
        assert!(added != Ok(true), "the fence of {ledger} was forgotten, {context}");
    }
}

/// A stopped bookie with three fenced ledgers, the first of them empty.
async fn fenced() -> One<Durable> {
    let mut one = One::new(Durable::new().await);
    for (ledger, count) in [(EMPTY, 0), (BEFORE, 10), (FENCED, 10)] {
        let in_ledger = |id| RequestBody::Add {
            entry: entry(ledger, id, "payload"),
            key: key(""),
            kind: AddKind::Normal,
        };
        let mut asks: Vec<_> = (0..count).map(in_ledger).collect();
        asks.push(fence());
        one.send(0, ledger, asks);
        one.answers(count as usize + 1).await;
    }
    one.kind.stop();
    one
}

/// The head of a page says what kind it is, and of how many things: with one less, the last of them is hidden.
#[tokio::test]
async fn a_flipped_bit_in_the_head_of_a_page_is_never_a_denial_and_forgets_no_fence() {
    const PAGE_BYTES: usize = 4096;
    let one = fenced().await;
    let whole = content(&one);
    // The pages of the bookie's tables, also such as no commit needs any more.
    let keys = [FENCED, EMPTY].map(|ledger| places(&whole, &ledger.get().to_le_bytes())).concat();
    let pages: BTreeSet<_> = keys.into_iter().map(|at| at - at % PAGE_BYTES).collect();
    assert!(pages.len() >= 3, "{pages:?}");
    for page in pages {
        for bit in (0..2).chain(16..32) {
            let mut file = whole.clone();
            file[page + bit / 8] ^= 1 << (bit % 8);
            one.kind.disk.replace(FILE, file);
            check_damaged(&one.kind.disk, &format!("bit {bit} of the page at {page}"));
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_key_is_never_a_denial_and_forgets_no_fence() {
    let one = fenced().await;
    let whole = content(&one);
    // The keys of the records, and of the entries with the entry's id behind it.
    let keys = places(&whole, &FENCED.get().to_le_bytes());
    assert!(keys.len() >= 11, "{keys:?}");
    for at in keys {
        for bit in 0..128 {
            let mut file = whole.clone();
            file[at + bit / 8] ^= 1 << (bit % 8);
            one.kind.disk.replace(FILE, file);
            check_damaged(&one.kind.disk, &format!("bit {bit} of the key at {at}"));
        }
    }
}
