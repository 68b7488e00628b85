//! The ends of ledgers and topics, seen from their cursors.

use super::keeping::record;
use super::topic::TOPIC;
use super::*;
use crate::managed_ledger::CloseError;
use crate::records::TopicRecord;
use crate::testing::payloads;

#[tokio::test]
async fn last_entry_of_a_ledger_wakes_its_readers_before_the_next_ledger_is_there() {
    let region = Region::new();
    let topic = region.topic().await;
    let cursor = cursor(&topic).await;
    append(&topic, 3).await;
    assert_eq!(cursor.read_entries(LIMITS).await.unwrap().len(), 3);
    region.store.hold(TOPIC);
    let (read, appended) =
        tokio::join!(cursor.read_entries_or_wait(LIMITS), topic.append("x".into()));
    assert_eq!(read.unwrap()[0].position, appended.unwrap());
    region.store.holds().await;
    assert_eq!(topic.internal_stats().state, "ClosingLedger");
    region.store.release();
    append(&topic, 1).await;
    assert_eq!(cursor.read_entries(LIMITS).await.unwrap().len(), 1);
}

#[tokio::test]
async fn caught_up_cursor_waits_in_an_empty_ledger_and_acknowledges_the_end_again_and_again() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 4).await;
    let cursor = cursor(&topic).await;
    let beyond = Position::new(georepl_storage::LedgerId(77), georepl_storage::EntryId(0));
    for _ in 0..2 {
        cursor.mark_delete(positions[3]).await.unwrap();
        assert_eq!(cursor.mark_delete(beyond).await, Err(MarkDeleteError::NoSuchEntry(beyond)));
        cursor.acknowledge(topic.end(), None).unwrap();
        let refused = cursor.acknowledge(Offset::new(5), None).unwrap_err();
        assert!(matches!(refused, MarkDeleteRefused::BeyondEnd { .. }), "{refused}");
        assert_eq!((cursor.backlog(), cursor.mark_delete_position()), (0, Some(positions[3])));
        assert_eq!(cursor.read_entries(LIMITS).await, Ok(Vec::new()));
    }
    let (read, appended) =
        tokio::join!(cursor.read_entries_or_wait(LIMITS), topic.append("x".into()));
    let appended = appended.unwrap();
    assert!(appended.ledger > positions[3].ledger);
    assert_eq!(read.unwrap()[0].position, appended);
    cursor.mark_delete(appended).await.unwrap();
    assert_eq!(cursor.backlog(), 0);
}

#[tokio::test]
async fn seek_beyond_the_end_waits_there_however_often_it_reads() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 3).await;
    let cursor = cursor(&topic).await;
    let ledger = georepl_storage::LedgerId(positions[2].ledger.get() + 10);
    let beyond = Position::new(ledger, georepl_storage::EntryId(0));
    assert_eq!(cursor.seek(StartAt::Position(beyond)).read_position, Offset::new(3));
    for _ in 0..50 {
        assert_eq!(cursor.read_entries(LIMITS).await, Ok(Vec::new()));
        assert_eq!(cursor.read_position(), Offset::new(3));
    }
    let (read, appended) =
        tokio::join!(cursor.read_entries_or_wait(LIMITS), topic.append("x".into()));
    assert_eq!(read.unwrap()[0].position, appended.unwrap());
    assert_eq!(cursor.backlog(), 4, "nothing was acknowledged");
}

#[tokio::test]
async fn termination_decides_what_is_on_its_way_and_records_every_ledgers_end() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 5).await;
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::HoldResponses);
    }
    let permit = topic.reserve(100).await.unwrap();
    let mut batch = Box::pin(topic.append_batch(permit, payloads(2)));
    let mut terminating = Box::pin(topic.terminate());
    assert!(is_pending(&mut batch) && is_pending(&mut terminating));
    others_run().await;
    assert!(is_pending(&mut batch) && is_pending(&mut terminating));
    for bookie in &region.bookies {
        region.faults.heal(bookie);
        region.faults.release(bookie, ReleaseOrder::Oldest);
    }
    let (positions, last) = (batch.await.unwrap(), terminating.await.unwrap());
    assert_eq!(Some(positions[1]), last, "nothing is acknowledged behind the end");

    let stored = region.store.get(TOPIC).await.unwrap().unwrap();
    let stored = TopicRecord::decode(&stored.value).unwrap();
    let ends: Vec<_> = stored.ledgers.iter().map(|listed| listed.end.unwrap()).collect();
    // Each entry has 7 bytes.
    assert_eq!(ends.iter().map(|e| (e.entries, e.bytes)).collect::<Vec<_>>(), [(4, 28), (3, 21)]);
    assert!(ends.iter().all(|end| end.closed_at_ms > 1));
    drop(topic);
    assert_eq!(region.topic().await.last_confirmed(), last);
}

#[tokio::test(start_paused = true)]
async fn topic_that_cannot_record_its_end_stores_its_cursors_all_the_same() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 3).await;
    let cursor = cursor(&topic).await;
    cursor.acknowledge(Offset::new(2), None).unwrap();
    region.store.keep_silent(TOPIC, Silence::Late);
    let error = topic.close().await.unwrap_err();
    assert!(matches!(error, CloseError::Metadata(_)), "{error}");
    let record = record(&region).await;
    assert_eq!(record.cursor_ledger, None, "the cursor is closed");
    assert_eq!(record.state.mark_delete.unwrap().entries, 2);
    topic.close().await.unwrap();
    assert_eq!(super::cursor(&region.topic().await).await.backlog(), 1);
}

#[tokio::test]
async fn whoever_opens_a_cursor_that_is_being_closed_waits_and_finds_its_last_state() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 6).await;
    let cursor = cursor(&topic).await;
    cursor.mark_delete(positions[3]).await.unwrap();
    region.store.hold(&cursor.key);
    let mut closing = Box::pin(cursor.close());
    assert!(is_pending(&mut closing));
    region.store.holds().await;
    let mut opening = Box::pin(ManagedCursor::open(&topic, "c", StartAt::Earliest));
    assert!(is_pending(&mut opening));
    others_run().await;
    assert!(is_pending(&mut opening), "its state is being stored");
    region.store.release();
    let (closed, opened) = tokio::join!(closing, opening);
    let opened = opened.unwrap();
    assert_eq!((closed, opened.mark_delete_offset()), (Ok(()), Offset::new(4)));
    opened.mark_delete(positions[5]).await.unwrap();
    let again = ManagedCursor::open(&topic, "c", StartAt::Earliest).await.unwrap();
    assert!(Arc::ptr_eq(&opened, &again) && !Arc::ptr_eq(&opened, &cursor));
}
