//! Where a cursor begins, and where it goes on.

use georepl_storage::LedgerId;

use super::keeping::{at, record};
use super::topic::{TOPIC, config, trimmed_to};
use super::*;
use crate::managed_ledger::Retention;
use crate::position::Place;
use crate::records::Snapshot;

/// Stores a state as another program would have.
async fn put(region: &Region, record: &CursorRecord) {
    let key = format!("{TOPIC}/c");
    let stored = region.store.get(&key).await.unwrap();
    let expected = stored.map_or(Expected::Absent, |stored| Expected::Version(stored.version));
    region.store.put(&key, record.encode(), expected).await.unwrap();
}

fn state(mark_delete: Place, acked: Vec<(Place, Place)>) -> CursorRecord {
    let state = Snapshot { mark_delete: Some(mark_delete), acked, ..Snapshot::default() };
    CursorRecord { state, ..CursorRecord::default() }
}

/// Every entry that is delivered from the first unacknowledged one on.
async fn rest(cursor: &ManagedCursor) -> Vec<Position> {
    let mut rest = Vec::new();
    cursor.rewind();
    loop {
        let read = cursor.read_entries(LIMITS).await.unwrap();
        if read.is_empty() {
            return rest;
        }
        rest.extend(read.into_iter().map(|entry| entry.position));
    }
}

#[tokio::test]
async fn place_where_a_cursor_begins_is_durable_from_the_beginning() {
    for (start, unacknowledged) in
        [(StartAt::Earliest, 0..5), (StartAt::Latest, 3..5), (StartAt::Position(at("0:1")), 1..5)]
    {
        let region = Region::new();
        let topic = region.topic().await;
        let mut positions = append(&topic, 3).await;
        drop(ManagedCursor::open(&topic, "c", start).await.unwrap());
        positions.extend(append(&topic, 2).await);
        drop(topic);
        let topic = region.topic().await;
        // It exists, so that where a new one would begin does not matter.
        let cursor = ManagedCursor::open(&topic, "c", StartAt::Latest).await.unwrap();
        assert_eq!(rest(&cursor).await, positions[unacknowledged], "{start:?}");
    }
}

#[tokio::test]
async fn entries_on_their_way_while_a_cursor_begins_are_counted_once() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 2).await;
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::HoldResponses);
    }
    let permit = topic.reserve(100).await.unwrap();
    let batch = topic.append_batch(permit, crate::testing::payloads(3));
    let latest = ManagedCursor::open(&topic, "latest", StartAt::Latest).await.unwrap();
    let earliest = ManagedCursor::open(&topic, "earliest", StartAt::Earliest).await.unwrap();
    assert_eq!((latest.backlog(), earliest.backlog()), (0, 2));
    for bookie in &region.bookies {
        region.faults.heal(bookie);
        region.faults.release(bookie, ReleaseOrder::Oldest);
    }
    let positions = batch.await.unwrap();
    assert_eq!((latest.backlog(), earliest.backlog()), (3, 5));
    assert_eq!(rest(&latest).await, positions);
}

#[tokio::test]
async fn acknowledgement_behind_the_end_of_the_topic_is_clamped_and_named() {
    // In a ledger that the topic does not have, there is nothing; in one that it has, there was something.
    for (mark_delete, lost) in [("77:-1", false), ("77:3", true), ("0:99", true)] {
        let region = Region::new();
        let topic = region.topic().await;
        append(&topic, 3).await;
        let (ledger, entry) = mark_delete.split_once(':').unwrap();
        let entries = (entry.parse::<i64>().unwrap() + 1) as u64;
        let ledger = LedgerId(ledger.parse().unwrap());
        put(&region, &state(Place { ledger, entries }, Vec::new())).await;
        let cursor = cursor(&topic).await;
        assert_eq!((cursor.mark_delete_offset(), cursor.backlog()), (Offset::new(3), 0));
        let notes = cursor.recovery_notes().join("\n");
        assert_eq!(notes.contains(&format!("acknowledged {mark_delete}")), lost, "{notes}");
        let next = append(&topic, 1).await;
        assert_eq!(rest(&cursor).await, next, "{mark_delete}");
    }
}

#[tokio::test]
async fn acknowledgement_in_a_deleted_ledger_counts_from_the_first_entry_there_is() {
    for (appended, left) in [(8, 0), (10, 2)] {
        let region = Region::new();
        let topic = region.topic_with(config(Retention::NONE)).await;
        let cursor = cursor(&topic).await;
        let positions = append(&topic, appended).await;
        cursor.mark_delete(positions[7]).await.unwrap();
        trimmed_to(&topic, 8).await;
        cursor.close().await.unwrap();
        topic.close().await.unwrap();
        let acked = vec![(Place::before(positions[2]), Place::after(positions[5]))];
        put(&region, &state(Place::after(positions[0]), acked)).await;
        let topic = region.topic().await;
        let cursor = super::cursor(&topic).await;
        assert_eq!((cursor.backlog(), cursor.mark_delete_position()), (left, None));
        assert_eq!(rest(&cursor).await, positions[8..]);
    }
}

#[tokio::test]
async fn stored_range_that_spans_ledgers_acknowledges_each_of_its_entries() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 10).await;
    assert!(positions[8].ledger > positions[4].ledger && positions[4].ledger > positions[2].ledger);
    let acked = vec![(Place::after(positions[1]), Place::after(positions[8]))];
    put(&region, &state(Place::after(positions[0]), acked)).await;
    let cursor = cursor(&topic).await;
    assert_eq!(cursor.backlog(), 2);
    assert_eq!(rest(&cursor).await, [positions[1], positions[9]]);
}

#[tokio::test]
async fn properties_outlive_the_loss_of_the_ledger_with_the_snapshots() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 10).await;
    let mut written = state(Place::after(positions[0]), Vec::new());
    written.properties.insert("owner".into(), "billing".into());
    written.state.properties.insert("pulsar.dedup.a".into(), 41);
    written.state.properties.insert("georepl.incarnation".into(), 2);
    put(&region, &written).await;
    let cursor = cursor(&topic).await;
    cursor.mark_delete(positions[3]).await.unwrap();
    drop((topic, cursor));
    let ledger = record(&region).await.cursor_ledger.expect("it has moved");
    region.client.delete(ledger).await.unwrap();

    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    let progress = cursor.progress();
    assert_eq!((progress.incarnation, progress.others["pulsar.dedup.a"]), (2, 41));
    assert_eq!(record(&region).await.properties["owner"], "billing");
    assert_eq!(cursor.mark_delete_offset(), Offset::new(4));
}

#[tokio::test]
async fn every_owner_of_a_topic_lists_its_cursors_anew() {
    let region = Region::new();
    let first = region.topic().await;
    drop(ManagedCursor::open(&first, "a", StartAt::Earliest).await.unwrap());
    first.close().await.unwrap();
    let second = region.topic().await;
    ManagedCursor::remove(&second, "a").await.unwrap();
    drop(ManagedCursor::open(&second, "b", StartAt::Earliest).await.unwrap());
    second.close().await.unwrap();
    let third = region.topic().await;
    assert_eq!(third.cursors(), ["b"]);
    let opened = ManagedCursor::open(&third, "a", StartAt::Earliest).await.unwrap();
    opened.close().await.unwrap();
    assert_eq!(third.cursors(), ["a", "b"]);
}

#[tokio::test]
async fn cursors_that_are_gone_leave_nothing_behind() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 1).await;
    for n in 0..300 {
        let name = format!("c{n}");
        let cursor = ManagedCursor::open(&topic, &name, StartAt::Earliest).await.unwrap();
        cursor.clear_backlog().await.unwrap();
        ManagedCursor::remove(&topic, &name).await.unwrap();
        drop(ManagedCursor::reader(&topic, StartAt::Earliest).unwrap());
    }
    assert_eq!(topic.cursors(), Vec::<String>::new());
    assert!(topic.internal_stats().cursors.is_empty());
    assert_eq!(region.store.children(TOPIC).await.unwrap(), Vec::<String>::new());
    // The ledgers with their snapshots are deleted by tasks.
    while region.store.children("ledgers").await.unwrap().len() > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn waits_that_are_cancelled_leave_nothing_behind() {
    let region = Region::new();
    let topic = region.topic().await;
    let cursor = cursor(&topic).await;
    let sink = Arc::new(Cancelling { cursor: cursor.this.clone(), seen: Mutex::default() });
    for _ in 0..10_000 {
        cursor.submit_read(LIMITS, sink.clone()).unwrap();
        assert!(cursor.cancel_pending_read());
    }
    assert_eq!(sink.seen.lock().len(), 10_000, "each ended once");
    assert_eq!(Arc::strong_count(&sink), 1);
    assert_eq!(topic.internal_stats().waiting_cursors_count, 0);
    let (read, appended) =
        tokio::join!(cursor.read_entries_or_wait(LIMITS), topic.append("x".into()));
    assert_eq!(read.unwrap()[0].position, appended.unwrap());
}
