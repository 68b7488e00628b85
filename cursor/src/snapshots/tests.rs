use georepl_storage::fault::StoreFault;

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

async fn run_others() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}
