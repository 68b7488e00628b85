use super::*;
use crate::fault::{CrashDisk, DiskFault, Unsynced};

async fn opened(disk: &CrashDisk) -> LocalMetadataStore {
    LocalMetadataStore::open(Arc::new(disk.clone())).await.expect("the file is usable")
}

fn is_unknown<T>(answer: &Answer<T>) -> bool {
    matches!(answer, Err(MetadataError::Unavailable { .. }))
}

#[tokio::test]
async fn what_was_answered_is_there_after_it_was_opened_again() {
    let disk = CrashDisk::new();
    let store = opened(&disk).await;
    let first = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
    let ledger = store.allocate_ledger_id().await.expect("the disk works");
    drop(store);
    let store = opened(&disk).await;
    let found = Versioned { value: "1".into(), version: first };
    assert_eq!(store.get("a").await, Ok(Some(found)));
    assert!(store.allocate_ledger_id().await.expect("the disk works") > ledger);
    store.delete("a", first).await.expect("its version");
    let again = store.put("a", "2".into(), Expected::Absent).await.expect("absent");
    assert!(again > first, "versions go on where they were");
}

#[tokio::test]
async fn what_was_answered_survives_a_loss_of_power_at_every_sync() {
    for unsynced in [Unsynced::Lost, Unsynced::Torn(1), Unsynced::Torn(2)] {
        let mut cut = 0;
        loop {
            cut += 1;
            let disk = CrashDisk::new();
            disk.cut_at(cut);
            let (mut written, mut given) = (None, Vec::new());
            if let Ok(store) = LocalMetadataStore::open(Arc::new(disk.clone())).await {
                let mut expected = Expected::Absent;
                for value in ["1", "2", "3", "4"] {
                    given.extend(store.allocate_ledger_id().await);
                    if let Ok(version) = store.put("a", value.into(), expected).await {
                        written = Some((value, version));
                        expected = Expected::Version(version);
                    }
                }
            }
            let over = disk.syncs() < cut;
            disk.restart(unsynced);
            let store = opened(&disk).await;
            let found = store.get("a").await.expect("the disk works again");
            let found = found.map(|found| (found.value, found.version));
            if let Some((value, version)) = written {
                let (found, newest) = found.expect("it was answered");
                assert!(newest >= version, "power lost at sync {cut}");
                assert!(found >= value, "power lost at sync {cut}");
            }
            let next = store.allocate_ledger_id().await.expect("the disk works again");
            assert!(!given.contains(&next), "power lost at sync {cut}");
            if over {
                assert_eq!((written.map(|(value, _)| value), given.len()), (Some("4"), 4));
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_failed_write_is_an_unknown_outcome_and_the_next_change_is_made() {
    let disk = CrashDisk::new();
    let store = opened(&disk).await;
    let first = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
    disk.inject(DiskFault::Write);
    assert!(is_unknown(&store.put("a", "2".into(), Expected::Version(first)).await));
    let found = store.get("a").await.expect("the disk works again").expect("it is there");
    assert!(store.put("a", "3".into(), Expected::Version(found.version)).await.is_ok());
}

#[tokio::test]
async fn an_ephemeral_key_is_nowhere_on_the_disk_and_takes_no_version_twice() {
    let disk = CrashDisk::new();
    let store = opened(&disk).await;
    let first = store.create_ephemeral("a", "1".into()).await.expect("absent");
    disk.inject(DiskFault::Write);
    assert!(is_unknown(&store.put("a", "2".into(), Expected::Version(first)).await));
    let found = store.get("a").await.expect("the disk works again");
    assert_eq!(found, Some(Versioned { value: "1".into(), version: first }), "as before");
    // As after a kill, or a loss of power.
    std::mem::forget(store);
    disk.restart(Unsynced::Lost);
    let store = opened(&disk).await;
    assert_eq!(store.get("a").await, Ok(None));
    let second = store.put("a", "3".into(), Expected::Absent).await.expect("absent");
    assert!(second > first);
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_answered_until_it_is_opened_anew() {
    let disk = CrashDisk::new();
    let store = opened(&disk).await;
    store.put("a", "1".into(), Expected::Absent).await.expect("absent");
    disk.inject(DiskFault::Sync);
    assert!(is_unknown(&store.put("b", "1".into(), Expected::Absent).await));
    assert!(is_unknown(&store.get("a").await));
    drop(store);
    disk.restart(Unsynced::Lost);
    let store = opened(&disk).await;
    assert!(store.get("a").await.expect("the disk works again").is_some());
}

#[tokio::test]
async fn a_file_that_goes_while_it_is_open_is_not_begun_anew() {
    let misfortunes: [fn(&CrashDisk); 2] =
        [|disk| disk.remove(FILE_NAME), |disk| disk.truncate(FILE_NAME)];
    for misfortune in misfortunes {
        let disk = CrashDisk::new();
        let store = opened(&disk).await;
        store.put("a", "1".into(), Expected::Absent).await.expect("absent");
        misfortune(&disk);
        disk.inject(DiskFault::Write);
        assert!(is_unknown(&store.put("b", "1".into(), Expected::Absent).await));
        assert!(is_unknown(&store.get("a").await), "an empty store would deny it");
        assert!(is_unknown(&store.allocate_ledger_id().await));
    }
}

#[tokio::test]
async fn a_store_that_must_be_there_is_not_begun() {
    let disk = CrashDisk::new();
    for _ in 0..2 {
        let error = LocalMetadataStore::open_existing(Arc::new(disk.clone())).await;
        let error = error.expect_err("there is none");
        assert!(matches!(error, OpenFileError::Gone { .. }), "{error}");
    }
    drop(opened(&disk).await);
    LocalMetadataStore::open_existing(Arc::new(disk)).await.expect("now there is one");
}

#[tokio::test]
async fn a_damaged_file_is_to_be_restored_from_a_copy() {
    let disk = CrashDisk::new();
    drop(opened(&disk).await);
    disk.replace(FILE_NAME, vec![b'x'; 4096]);
    let error = LocalMetadataStore::open(Arc::new(disk)).await.expect_err("it is no database");
    assert!(error.to_string().contains("restore it from a copy"), "{error}");
}

/// An answer that cannot be dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("an answer that panics on purpose");
    }
}

#[tokio::test]
async fn a_store_whose_thread_has_died_is_unavailable() {
    let store = opened(&CrashDisk::new()).await;
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    {
        let answer = move |_: &mut Tables<'_>| {
            may_go_on.recv().expect("the test lets it go on");
            Ok(Bomb)
        };
        let mut asked = std::pin::pin!(store.ask("a", 0, answer));
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(asked.as_mut().poll(cx).is_pending()));
        assert!(polled.await, "it cannot have been answered");
    }
    // Nobody waits for the answer, so the thread drops it.
    go_on.send(()).expect("the thread waits for it");
    while !store.thread.as_ref().is_some_and(JoinHandle::is_finished) {
        tokio::task::yield_now().await;
    }
    assert!(is_unknown(&store.get("a").await));
    assert!(is_unknown(&store.put("a", "1".into(), Expected::Absent).await));
}

/// Where one bit of a file may flip so that the file holds something else of a key: in each of its copies, first in the
/// key and then behind it.
fn places(file: &[u8], key: &str) -> Vec<usize> {
    let copies = file.windows(key.len()).enumerate().filter(|(_, w)| *w == key.as_bytes());
    copies.flat_map(|(at, _)| at..(at + key.len() + 40).min(file.len())).collect()
}

#[tokio::test]
async fn a_bit_that_flips_makes_nothing_else_of_what_was_stored_and_hides_nothing() {
    let disk = CrashDisk::new();
    let store = opened(&disk).await;
    let (keys, value) = (["ledgers/L0000000002", "ledgers/L0000000012"], "what is stored");
    for key in keys {
        store.put(key, value.into(), Expected::Absent).await.expect("absent");
        store.allocate_ledger_id().await.expect("the disk works");
    }
    let children = store.children("ledgers").await;
    drop(store);
    let whole = disk.content(FILE_NAME).expect("it is there");
    let (mut believed, mut damaged) = (0, 0);
    let bits = keys.iter().flat_map(|key| places(&whole, key)).chain(places(&whole, "version"));
    for (n, at) in bits.enumerate() {
        let mut file = whole.clone();
        file[at] ^= 1 << (n % 8);
        disk.replace(FILE_NAME, file);
        let Ok(store) = LocalMetadataStore::open(Arc::new(disk.clone())).await else {
            damaged += 1;
            continue;
        };
        for key in keys {
            match store.get(key).await {
                Ok(found) => {
                    assert_eq!(found.expect("it was stored").value, value, "{key}, byte {at}");
                    believed += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains(FILE_NAME), "{error}");
                    assert!(store.children("ledgers").await.is_err(), "{key}, byte {at}");
                    damaged += 1;
                }
            }
        }
        let (found, next) = (store.children("ledgers").await, store.allocate_ledger_id().await);
        assert!(found.is_err() || found == children, "{found:?}, byte {at}");
        assert!(next.is_err() || next == Ok(LedgerId(2)), "{next:?}, byte {at}");
    }
    assert!(believed > 100 && damaged > 100, "{believed} {damaged}");
}
