//! Copies of one side that are older than the other, and openings that are cut short.

use super::*;
use crate::bookie::conformance::{ADDED, One, add, found, key, read};
use crate::entry::Entry;
use crate::fault::{FaultStore, StoreFault, Unsynced};
use crate::id::EntryId;
use crate::metadata::LocalMetadataStore;
use crate::transport::AddKind;

const STORE_FILE: &str = "metadata.redb";

#[tokio::test]
async fn an_older_copy_of_a_file_is_refused_until_the_newest_is_put_back() {
    let mut one = One::new(Durable::new().await);
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
    one.kind.stop();
    let older = one.kind.disk.content(FILE).expect("the bookie has a file");
    one.kind.start().await;
    assert_eq!(one.ask(add(1, AddKind::Normal)).await, ADDED);
    one.kind.stop();
    let newest = one.kind.disk.content(FILE).expect("the bookie has a file");
    one.kind.disk.replace(FILE, older);
    let error = one.kind.try_start().await.expect_err("entry 1 is not in it");
    assert_eq!(error, OpenBookieError::OlderFile { bookie: b1() });
    assert!(error.to_string().contains("bookie b1 is an older copy"), "{error}");
    one.kind.stop();
    one.kind.disk.replace(FILE, newest);
    one.kind.start().await;
    assert_eq!(one.ask(read(1)).await, found(1));
}

/// Opens b1 and the store on one disk, and adds an entry to a new ledger.
async fn live_once(disk: &CrashDisk) -> Result<(), OpenBookieError> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let store = LocalMetadataStore::open(shared.clone()).await.expect("the file is usable");
    let config = DurableConfig::default();
    let (bookies, failed) = DurableBookies::open(shared, [b1()], &store, &config).await;
    if let Some((_, error)) = failed.into_iter().next() {
        return Err(error);
    }
    let ledger = store.allocate_ledger_id().await.expect("the disk works");
    let entry = Entry::seal(ledger, EntryId(0), None, 0, "payload".into());
    let mut one = One::new(Live(bookies));
    let add = RequestBody::Add { entry, key: key(""), kind: AddKind::Normal };
    assert_eq!(one.ask_of(ledger, add).await, ADDED);
    Ok(())
}

/// Bookies that are only asked.
struct Live(DurableBookies);

impl Kind for Live {
    fn transport(&self) -> &dyn BookieTransport {
        &self.0
    }

    async fn restart(&mut self) {}
    async fn wipe(&mut self) {}
    async fn keep_only(&mut self, _: LedgerId) {}
}

#[tokio::test]
async fn an_older_copy_of_the_store_is_refused_and_copies_of_both_are_not() {
    let disk = CrashDisk::new();
    assert_eq!(live_once(&disk).await, Ok(()));
    let copy = |name| disk.content(name).expect("the file is there");
    let (store, bookie) = (copy(STORE_FILE), copy(FILE));
    assert_eq!(live_once(&disk).await, Ok(()));
    disk.replace(STORE_FILE, store.clone());
    let older = OpenBookieError::OlderStore { bookie: b1() };
    assert_eq!(live_once(&disk).await, Err(older.clone()));
    assert!(older.to_string().starts_with("the metadata store is older"), "{older}");
    disk.replace(STORE_FILE, store);
    disk.replace(FILE, bookie);
    assert_eq!(live_once(&disk).await, Ok(()));
}

#[tokio::test]
async fn a_store_that_would_give_out_the_id_of_a_held_ledger_is_refused() {
    let disk = CrashDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let store = LocalMetadataStore::open(shared.clone()).await.expect("an empty disk");
    let config = DurableConfig::default();
    let open = || DurableBookies::open(shared.clone(), [b1()], &store, &config);
    let (bookies, failed) = open().await;
    assert_eq!(failed, []);
    // A copy that is made while the bookie runs: its opening is noted in it.
    let copy = disk.content(STORE_FILE).expect("the file is there");
    let ledger = store.allocate_ledger_id().await.expect("the disk works");
    let entry = Entry::seal(ledger, EntryId(0), None, 0, "payload".into());
    let mut one = One::new(Live(bookies));
    let add = RequestBody::Add { entry, key: key(""), kind: AddKind::Normal };
    assert_eq!(one.ask_of(ledger, add).await, ADDED);
    drop((one, store));
    disk.replace(STORE_FILE, copy);
    assert_eq!(live_once(&disk).await, Err(OpenBookieError::OlderStore { bookie: b1() }));
}

#[tokio::test]
async fn an_opening_that_the_store_did_not_answer_for_is_repeated() {
    for fault in [StoreFault::LoseReply, StoreFault::LandLate] {
        let disk = CrashDisk::new();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let store = FaultStore::new(Arc::new(MemoryMetadataStore::new()));
        let config = DurableConfig::default();
        for _ in 0..3 {
            store.inject(fault, 1);
            let (bookies, failed) =
                DurableBookies::open(shared.clone(), [b1()], &store, &config).await;
            drop(bookies);
            assert!(matches!(&failed[..], [(_, OpenBookieError::Metadata(_))]), "{failed:?}");
        }
        let (bookies, failed) = DurableBookies::open(shared, [b1()], &store, &config).await;
        assert_eq!(failed, [], "{fault:?}");
        assert_eq!(bookies.registry().bookies().borrow().len(), 1);
        // What lands now was decided long ago.
        while store.late() > 0 {
            assert!(store.land().await.is_some_and(|landed| landed.is_err()));
        }
    }
}

#[tokio::test]
async fn an_opening_that_power_cuts_short_is_no_older_copy_of_anything() {
    // Both files are on one disk, so that each step of an opening is cut.
    for unsynced in [Unsynced::Lost, Unsynced::Torn(1), Unsynced::Torn(2)] {
        let mut cut = 0;
        loop {
            cut += 1;
            let disk = CrashDisk::new();
            assert_eq!(live_once(&disk).await, Ok(()));
            let cut_at = disk.syncs() + cut;
            disk.cut_at(cut_at);
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            if let Ok(store) = LocalMetadataStore::open(shared.clone()).await {
                let config = DurableConfig::default();
                drop(DurableBookies::open(shared, [b1()], &store, &config).await);
            }
            let over = disk.syncs() < cut_at;
            disk.restart(unsynced);
            assert_eq!(live_once(&disk).await, Ok(()), "power lost at sync {cut}, {unsynced:?}");
            if over {
                break;
            }
        }
    }
}
