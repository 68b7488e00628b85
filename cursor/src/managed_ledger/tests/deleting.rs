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
