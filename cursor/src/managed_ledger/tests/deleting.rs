//! What may be deleted while the record of a topic changes.

use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::cursor::ManagedCursor;
use crate::position::StartAt;

/// Tasks of the topic delete what is noted, at any time.
#[tokio::test]
async fn a_deletion_that_fails_or_is_dropped_leaves_every_ledger_that_the_record_lists() {
    for is_dropped in [false, true] {
        let region = Region::new();
        let topic = region.topic().await;
        append(&topic, 6).await;
        if is_dropped {
            topic.close().await.unwrap();
            region.store.hold(&key());
            tokio::select! {
                deleted = topic.delete() => unreachable!("it is held: {deleted:?}"),
                () = region.store.holds() => {}
            }
        } else {
            // Nor can its end be recorded.
            region.store.refuse(Some(&key()));
            topic.delete().await.unwrap_err();
        }
        topic.0.start_deleting();
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        region.store.refuse(None);
        assert_eq!(contents(&region.topic().await).await, payloads(6), "dropped: {is_dropped}");
    }
}

/// One thread has found out what the cursor holds back, the cursor goes back, and another thread says so.
#[tokio::test]
async fn what_was_true_before_a_cursor_went_back_does_not_count_after() {
    let topic = Region::new().topic().await;
    let cursor = ManagedCursor::open(&topic, "c", StartAt::Earliest).await.unwrap();
    let known = Arc::downgrade(&topic.registered("c").unwrap());
    let true_now = Arc::new(Mutex::new(Offset::new(100)));
    let mut going_back = None;
    topic.holds_back("c", &known, || {
        let before = *true_now.lock();
        let (topic, known, true_now) = (topic.clone(), known.clone(), true_now.clone());
        let other = std::thread::spawn({
            let topic = topic.clone();
            move || {
                *true_now.lock() = Offset::new(10);
                topic.holds_back("c", &known, || *true_now.lock());
            }
        });
        // It comes first, unless it has to wait.
        while !other.is_finished() && topic.0.cursors.try_lock().is_some() {
            std::thread::yield_now();
        }
        going_back = Some(other);
        before
    });
    going_back.unwrap().join().unwrap();
    assert_eq!(topic.0.floor(), Offset::new(10));
    drop(cursor);
}

/// A region whose topics are closed is opened again at once, and needs what they used.
#[tokio::test(start_paused = true)]
async fn nothing_of_a_closed_topic_is_left_that_deletes_ledgers_and_the_next_owner_does() {
    let region = Region::new();
    let retention = Retention::NONE;
    let config = ManagedLedgerConfig { ledger_entries_max: 4, retention, ..Default::default() };
    let topic = region.topic_with(config).await;
    let cursor = ManagedCursor::open(&topic, "c", StartAt::Earliest).await.unwrap();
    let positions = append(&topic, 10).await;
    region.store.hang_on_deletes();
    // Of the topic, and of the cursor, whose state moves from a ledger to its record when it is closed.
    cursor.mark_delete(positions[9]).await.unwrap();
    while topic.start() < Offset::new(8) {
        tokio::task::yield_now().await;
    }
    let started = tokio::time::Instant::now();
    topic.close().await.unwrap();
    assert!(started.elapsed() <= Duration::from_secs(1), "{:?}", started.elapsed());
    let inner = Arc::downgrade(&topic.0);
    drop((topic, cursor));
    assert!(inner.upgrade().is_none(), "a task has it");
    let noted = stored_record(&region).await.properties["georepl.deleting"].clone();
    assert_eq!(noted, format!("{},{}", positions[0].ledger, positions[4].ledger));
}
