use georepl_storage::BookieError;
use georepl_storage::fault::{Fault, StoreFault};

use super::*;
use crate::position::Place;
use crate::testing::Region;

async fn load(topic: &ManagedLedger) -> (Snapshots, Option<Found>) {
    Snapshots::load(topic, "c".into(), topic.cursor_key("c").unwrap()).await.unwrap()
}

fn acknowledged(entries: u64) -> Snapshot {
    let mark_delete = Some(Place { ledger: LedgerId(0), entries });
    Snapshot { mark_delete, ..Snapshot::default() }
}

#[tokio::test]
async fn full_ledger_is_followed_by_another_and_deleted() {
    let region = Region::new();
    let topic = region.topic().await;
    let (mut snapshots, found) = load(&topic).await;
    assert!(found.is_none());
    snapshots.write(acknowledged(1)).await.unwrap();
    let full = snapshots.record.cursor_ledger.unwrap();
    let log = snapshots.log.as_ref().unwrap();
    let many = vec![acknowledged(2).encode(); SNAPSHOTS_PER_LEDGER_MAX as usize - 2];
    log.writer.append(many).unwrap();
    log.append(acknowledged(3).encode()).await.unwrap();
    assert_eq!(log.entries(), SNAPSHOTS_PER_LEDGER_MAX);

    snapshots.write(acknowledged(4)).await.unwrap();
    let next = snapshots.record.cursor_ledger.unwrap();
    assert_ne!(next, full);
    snapshots.write(acknowledged(5)).await.unwrap();
    assert_eq!(snapshots.record.cursor_ledger, Some(next), "it has room");
    while region.client.open(full, &Default::default()).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let (_, found) = load(&topic).await;
    assert_eq!(found.unwrap().state, acknowledged(5));
}

#[tokio::test(start_paused = true)]
async fn ledger_whose_creation_is_not_answered_costs_its_timeout_and_no_acknowledgement() {
    let region = Region::new();
    let topic = region.topic().await;
    let (mut snapshots, _) = load(&topic).await;
    let began = tokio::time::Instant::now();
    region.ledger_store.inject(StoreFault::Hold, 1);
    snapshots.write(acknowledged(1)).await.unwrap();
    assert_eq!(snapshots.record.cursor_ledger, None, "the record has it");
    assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
    snapshots.write(acknowledged(2)).await.unwrap();
    assert!(snapshots.record.cursor_ledger.is_some());
    let (_, found) = load(&topic).await;
    assert_eq!(found.unwrap().state, acknowledged(2));
}

#[tokio::test]
async fn ledgers_that_could_not_be_deleted_are_deleted_by_the_next_owner() {
    let region = Region::new();
    let topic = region.topic().await;
    let (mut snapshots, _) = load(&topic).await;
    snapshots.write(acknowledged(1)).await.unwrap();
    let first = snapshots.record.cursor_ledger.unwrap();
    region.store.refuse_deletes(true);
    snapshots.fold(acknowledged(2)).await.unwrap();
    snapshots.write(acknowledged(3)).await.unwrap();
    let second = snapshots.record.cursor_ledger.unwrap();
    snapshots.fold(acknowledged(4)).await.unwrap();
    run_others().await;
    assert_eq!(*snapshots.left.lock(), [first, second].into());
    drop(snapshots);

    region.store.refuse_deletes(false);
    let (mut snapshots, found) = load(&topic).await;
    assert_eq!(found.unwrap().state, acknowledged(4));
    snapshots.fold(acknowledged(5)).await.unwrap();
    run_others().await;
    for left in [first, second] {
        assert!(region.client.open(left, &Default::default()).await.is_err(), "{left} is gone");
    }
    snapshots.touch().await.unwrap();
    assert_eq!(snapshots.record.properties.keys().collect::<Vec<_>>(), [OWNER]);
}

/// The store lags: what it showed was true before the ledger was created.
#[tokio::test(start_paused = true)]
async fn a_ledger_that_the_store_does_not_show_once_still_has_the_newest_state() {
    let region = Region::new();
    let topic = region.topic().await;
    let (mut snapshots, _) = load(&topic).await;
    for entries in 1..=3 {
        snapshots.write(acknowledged(entries)).await.unwrap();
    }
    region.ledger_store.inject(StoreFault::StaleRead, 1);
    let (_, found) = load(&topic).await;
    let Found { state, notes } = found.unwrap();
    assert_eq!((state, notes), (acknowledged(3), Vec::new()));
}

/// The state is too large for the record, and each attempt to store it begins a ledger.
#[tokio::test(start_paused = true)]
async fn ledgers_in_which_nothing_could_be_stored_are_deleted_at_once() {
    let region = Region::new();
    let topic = region.topic().await;
    let (mut snapshots, _) = load(&topic).await;
    for bookie in &region.bookies[1..] {
        region.faults.inject(bookie, Fault::Answer(BookieError::Io));
    }
    let at = |entries| Place { ledger: LedgerId(0), entries };
    let range = |n| (at(2 * n + 2), at(2 * n + 3));
    let acked = (0..=RECORD_RANGES_MAX as u64).map(range).collect();
    let large = Snapshot { acked, ..acknowledged(1) };
    for attempt in 1..=5 {
        let error = snapshots.write(large.clone()).await.unwrap_err();
        assert_eq!(error.advice(), Advice::Retry, "{error}");
        run_others().await;
        assert!(snapshots.left.lock().is_empty(), "after attempt {attempt}");
        let ledger = LedgerId(attempt);
        assert!(region.client.open(ledger, &Default::default()).await.is_err(), "{ledger}");
    }
    region.bookies.iter().for_each(|bookie| region.faults.heal(bookie));
    snapshots.write(large.clone()).await.unwrap();
    let ledger = snapshots.record.cursor_ledger;
    assert_eq!(ledger, Some(LedgerId(6)), "the others had these ids");
}

async fn run_others() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}
