use georepl_storage::fault::{Fault, ReleaseOrder};

use super::*;
use crate::testing::{Region, append};

const LIMITS: ReadLimits = ReadLimits { entries: 100, bytes: 1 << 20 };

async fn cursor(topic: &ManagedLedger) -> Arc<ManagedCursor> {
    ManagedCursor::open(topic, "c", StartAt::Earliest).await.unwrap()
}

fn offsets(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.offset.get()).collect()
}

#[tokio::test]
async fn waiting_reader_wakes_on_append() {
    let topic = Region::new().topic().await;
    let cursor = cursor(&topic).await;
    assert_eq!(cursor.read_entries(LIMITS).await, Ok(Vec::new()));
    let (read, appended) =
        tokio::join!(cursor.read_entries_or_wait(LIMITS), topic.append("x".into()));
    assert_eq!(read.unwrap()[0].position, appended.unwrap());
}

#[tokio::test]
async fn read_after_rewind_starts_at_first_unacknowledged() {
    let topic = Region::new().topic().await;
    let positions = append(&topic, 6).await;
    let cursor = cursor(&topic).await;
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [0, 1, 2, 3, 4, 5]);
    cursor.mark_delete(positions[2]).unwrap();
    assert_eq!(cursor.rewind().read_position, Offset::new(3));
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [3, 4, 5]);
    assert_eq!((cursor.backlog(), cursor.mark_delete_position()), (3, Some(positions[2])));
}

#[tokio::test]
async fn dropped_read_future_loses_nothing() {
    let region = Region::new();
    let topic = region.topic().await;
    let cursor = cursor(&topic).await;
    // While it waits.
    tokio::select! {
        biased;
        _ = cursor.read_entries_or_wait(LIMITS) => unreachable!("there is nothing to read"),
        () = std::future::ready(()) => {}
    }
    assert!(!cursor.cancel_pending_read(), "the wait went with its future");
    append(&topic, 3).await;
    // While it is in storage.
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::HoldResponses);
    }
    tokio::select! {
        biased;
        _ = cursor.read_entries_or_wait(LIMITS) => unreachable!("the answers are held"),
        () = std::future::ready(()) => {}
    }
    for bookie in &region.bookies {
        region.faults.heal(bookie);
        region.faults.release(bookie, ReleaseOrder::Oldest);
    }
    assert_eq!(offsets(&cursor.read_entries_or_wait(LIMITS).await.unwrap()), [0, 1, 2]);
}

/// Cancels again from within each completion.
struct Cancelling {
    cursor: Weak<ManagedCursor>,
    seen: Mutex<Vec<ReadOutcome<Entry>>>,
}

impl ReadSink for Cancelling {
    fn read_completed(&self, _: ReadId, outcome: ReadOutcome<Entry>) {
        self.seen.lock().push(outcome);
        assert!(!self.cursor.upgrade().unwrap().cancel_pending_read());
    }
}

#[tokio::test]
async fn cancel_inside_a_completion_does_not_block() {
    let topic = Region::new().topic().await;
    let cursor = cursor(&topic).await;
    let sink = Arc::new(Cancelling { cursor: cursor.this.clone(), seen: Mutex::default() });
    cursor.submit_read(LIMITS, sink.clone()).unwrap();
    assert!(cursor.cancel_pending_read());
    cursor.submit_read(LIMITS, sink.clone()).unwrap();
    cursor.close();
    assert_eq!(*sink.seen.lock(), [ReadOutcome::Cancelled, ReadOutcome::Closed]);
}

#[tokio::test]
async fn one_object_per_name_and_ownership_moves_the_version() {
    let topic = Region::new().topic().await;
    let first = cursor(&topic).await;
    assert!(Arc::ptr_eq(&first, &cursor(&topic).await));
    let version = first.take_ownership().await.unwrap();
    assert!(first.take_ownership().await.unwrap() > version);
    first.close();
    let second = cursor(&topic).await;
    assert!(!Arc::ptr_eq(&first, &second));
    let conflict = first.take_ownership().await.unwrap_err();
    assert!(matches!(conflict, MetadataError::VersionConflict { .. }));
}

#[tokio::test]
async fn closing_the_topic_ends_a_waiting_read() {
    let topic = Region::new().topic().await;
    let cursor = cursor(&topic).await;
    let (read, closed) = tokio::join!(cursor.read_entries_or_wait(LIMITS), topic.close());
    assert_eq!((read, closed), (Err(ReadEntriesError::Closed), Ok(())));
}

#[tokio::test]
async fn latest_starts_behind_the_last_entry_and_stats_have_pulsars_names() {
    let topic = Region::new().topic().await;
    append(&topic, 2).await;
    let cursor = ManagedCursor::open(&topic, "c", StartAt::Latest).await.unwrap();
    assert_eq!((cursor.backlog(), cursor.read_position()), (0, Offset::new(2)));
    let stats = serde_json::to_value(topic.internal_stats()).unwrap();
    assert_eq!(stats["numberOfEntries"], 2);
    assert_eq!(stats["lastConfirmedEntry"], "0:1");
    assert_eq!(stats["cursors"]["c"]["markDeletePosition"], "0:1");
    assert_eq!(stats["cursors"]["c"]["readPosition"], "0:2");
}
