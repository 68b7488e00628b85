//! Deleting ledgers while cursors begin, acknowledge and move, and while the store fails.

use std::time::Duration;

use super::topic::{TOPIC, config, exists, trimmed_to};
use super::*;
use crate::managed_ledger::{ChangeError, Refusal, Retention};
use crate::records::TopicRecord;

/// A topic of 13 entries, of which the first ten, in three ledgers, may be deleted as soon as somebody asks for it.
async fn ten_of_thirteen_to_go(region: &Region) -> (ManagedLedger, Vec<Position>) {
    let topic = region.topic_with(config(Retention::FOREVER)).await;
    let mut positions = append(&topic, 10).await;
    topic.close().await.unwrap();
    let topic = region.topic_with(config(Retention::NONE)).await;
    positions.extend(append(&topic, 3).await);
    (topic, positions)
}

/// A cursor that needs none of them, and that does not let them go by being opened.
async fn cursor_behind_them(topic: &ManagedLedger) -> Arc<ManagedCursor> {
    topic.set_retention(Retention::FOREVER).await.unwrap();
    let cursor = ManagedCursor::open(topic, "c", StartAt::Latest).await.unwrap();
    topic.set_retention(Retention::NONE).await.unwrap();
    cursor
}

async fn all(topic: &ManagedLedger) -> Vec<Position> {
    let entries = topic.read(topic.start(), topic.end(), 1 << 20).await.unwrap();
    entries.into_iter().map(|entry| entry.position).collect()
}

#[tokio::test]
async fn cursor_that_begins_while_ledgers_are_deleted_begins_behind_them() {
    let region = Region::new();
    let (topic, positions) = ten_of_thirteen_to_go(&region).await;
    region.store.hold(TOPIC);
    let mut trimming = Box::pin(topic.trim());
    assert!(is_pending(&mut trimming));
    region.store.holds().await;
    let mut opening = Box::pin(ManagedCursor::open(&topic, "c", StartAt::Earliest));
    assert!(is_pending(&mut opening));
    let reader = ManagedCursor::reader(&topic, StartAt::Earliest).unwrap();
    region.store.release();
    assert_eq!(trimming.await, Ok(3));
    for cursor in [opening.await.unwrap(), reader] {
        assert_eq!(cursor.backlog(), 3);
        let read = cursor.read_entries(LIMITS).await.unwrap();
        assert_eq!(read.iter().map(|e| e.position).collect::<Vec<_>>(), positions[10..]);
    }
}

#[tokio::test]
async fn nothing_is_deleted_under_a_cursor_that_begins() {
    let region = Region::new();
    let (topic, positions) = ten_of_thirteen_to_go(&region).await;
    region.store.hold(&topic.cursor_key("c").unwrap());
    let mut opening = Box::pin(ManagedCursor::open(&topic, "c", StartAt::Earliest));
    assert!(is_pending(&mut opening));
    let mut trimming = Box::pin(topic.trim());
    assert!(is_pending(&mut trimming));
    others_run().await;
    region.store.release();
    let cursor = opening.await.unwrap();
    assert_eq!(trimming.await, Ok(0));
    assert_eq!(cursor.backlog(), 13);
    let read = cursor.read_entries(LIMITS).await.unwrap();
    assert_eq!(read.iter().map(|e| e.position).collect::<Vec<_>>(), positions);
}

#[tokio::test]
async fn nothing_is_deleted_before_its_acknowledgement_is_durable() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::NONE)).await;
    let cursor = cursor(&topic).await;
    let positions = append(&topic, 10).await;
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::HoldResponses);
    }
    let mut acknowledging = Box::pin(cursor.mark_delete(positions[8]));
    assert!(is_pending(&mut acknowledging));
    others_run().await;
    assert_eq!((cursor.backlog(), topic.trim().await), (1, Ok(0)));
    for bookie in &region.bookies {
        region.faults.heal(bookie);
        region.faults.release(bookie, ReleaseOrder::Oldest);
    }
    acknowledging.await.unwrap();
    trimmed_to(&topic, 8).await;
    assert_eq!(cursor.backlog(), 1);
}

#[tokio::test]
async fn ledgers_that_are_full_and_acknowledged_go_without_another_append() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::NONE)).await;
    let cursor = cursor(&topic).await;
    let positions = append(&topic, 8).await;
    cursor.mark_delete(positions[7]).await.unwrap();
    trimmed_to(&topic, 8).await;
    assert_eq!(topic.internal_stats().total_size, 0);
    for ledger in [positions[0].ledger, positions[4].ledger] {
        while exists(&region, ledger.get()).await {
            tokio::task::yield_now().await;
        }
    }
    let next = append(&topic, 1).await;
    assert_eq!(cursor.read_entries(LIMITS).await.unwrap()[0].position, next[0]);
}

/// The clock was wrong when the second ledger was closed.
#[tokio::test]
async fn ledgers_go_from_the_oldest_on_whatever_the_clock_said_when_they_were_closed() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::FOREVER)).await;
    let positions = append(&topic, 12).await;
    topic.close().await.unwrap();
    let stored = region.store.get(TOPIC).await.unwrap().unwrap();
    let mut record = TopicRecord::decode(&stored.value).unwrap();
    for (listed, closed_at_ms) in record.ledgers.iter_mut().zip([1, 4_102_444_800_000, 1]) {
        listed.end.as_mut().unwrap().closed_at_ms = closed_at_ms;
    }
    let expected = Expected::Version(stored.version);
    region.store.put(TOPIC, record.encode(), expected).await.unwrap();
    let an_hour = Retention { time: Some(Duration::from_secs(3600)), bytes: None };
    let topic = region.topic_with(config(an_hour)).await;
    assert_eq!(topic.trim().await, Ok(1));
    assert_eq!(all(&topic).await, positions[4..]);
}

/// The record that lists the ledgers no more is written late, or never.
#[tokio::test(start_paused = true)]
async fn deletion_whose_record_is_not_answered_for_is_made_again_and_loses_no_ledger() {
    for lands in [false, true] {
        let region = Region::new();
        let (topic, positions) = ten_of_thirteen_to_go(&region).await;
        region.store.keep_silent(TOPIC, Silence::Late);
        let error = topic.trim().await.unwrap_err();
        assert_eq!(error.advice(), Advice::Retry, "{error}");
        if lands {
            region.store.make_late().await.unwrap();
        }
        assert_eq!(all(&topic).await, positions, "they are there, and are shown");
        assert_eq!(topic.trim().await, Ok(3));
        assert_eq!(all(&topic).await, positions[10..]);
        while exists(&region, positions[0].ledger.get()).await {
            tokio::task::yield_now().await;
        }
        drop(topic);
        assert_eq!(all(&region.topic().await).await, positions[10..]);
    }
}

/// As above, and then a cursor begins, or goes back, to what may still be deleted.
#[tokio::test(start_paused = true)]
async fn deletion_that_lands_late_takes_nothing_from_a_cursor_that_begins_or_goes_back_there() {
    for begins in [false, true] {
        let region = Region::new();
        let (topic, positions) = ten_of_thirteen_to_go(&region).await;
        let cursor = match begins {
            true => None,
            false => Some(cursor_behind_them(&topic).await),
        };
        region.store.keep_silent(TOPIC, Silence::Late);
        topic.trim().await.unwrap_err();
        let cursor = match cursor {
            None => super::cursor(&topic).await,
            Some(cursor) => {
                cursor.reset(StartAt::Earliest, |_| ()).await.unwrap();
                cursor
            }
        };
        assert_eq!(cursor.backlog(), 13);
        let landed = region.store.make_late().await;
        assert!(landed.is_err(), "the record was written since, so that nothing older lands");
        drop((topic, cursor));
        let topic = region.topic().await;
        let cursor = super::cursor(&topic).await;
        assert_eq!((cursor.backlog(), all(&topic).await), (13, positions), "begins: {begins}");
    }
}

#[tokio::test(start_paused = true)]
async fn reset_is_not_durable_while_a_deletion_of_what_it_goes_back_to_may_land() {
    let region = Region::new();
    let (topic, _) = ten_of_thirteen_to_go(&region).await;
    let cursor = cursor_behind_them(&topic).await;
    region.store.keep_silent(TOPIC, Silence::Late);
    topic.trim().await.unwrap_err();
    region.store.refuse(Some(TOPIC));
    let error = cursor.reset(StartAt::Earliest, |_| ()).await.unwrap_err();
    assert!(matches!(error, MarkDeleteError::NotStored(_)), "{error}");
    assert_eq!(error.advice(), Advice::Retry);
    assert_eq!(cursor.persisted_mark_delete_offset(), Offset::new(13));
    region.store.refuse(None);
    cursor.persist().await.unwrap();
    assert_eq!(cursor.persisted_mark_delete_offset(), Offset::ZERO);
    assert!(region.store.make_late().await.is_err());
    drop((topic, cursor));
    assert_eq!(super::cursor(&region.topic().await).await.backlog(), 13);
}

#[tokio::test]
async fn owner_that_was_replaced_deletes_nothing() {
    let region = Region::new();
    let old = region.topic_with(config(Retention::NONE)).await;
    let cursor = cursor(&old).await;
    let mut positions = append(&old, 10).await;
    let new = region.topic_with(config(Retention::FOREVER)).await;
    positions.extend(append(&new, 1).await);
    cursor.mark_delete(positions[9]).await.unwrap();
    while old.refusal().is_none() {
        tokio::task::yield_now().await;
    }
    assert!(matches!(old.refusal(), Some(Refusal::Fenced { .. })));
    assert!(matches!(old.trim().await, Err(ChangeError::Refused(Refusal::Fenced { .. }))));
    assert_eq!(old.delete().await.unwrap_err().advice(), Advice::Reopen);
    assert_eq!(all(&new).await, positions);
    drop(new);
    assert_eq!(all(&region.topic().await).await, positions);
}

/// A reader that has read on while the topic is told to forget.
#[tokio::test]
async fn what_is_deleted_under_a_reader_moves_it_no_further_than_it_is() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 10).await;
    let reader = ManagedCursor::reader(&topic, StartAt::Earliest).unwrap();
    reader.mark_delete(positions[5]).await.unwrap();
    reader.delete(&[positions[8]]).await.unwrap();
    let state = |reader: &ManagedCursor| (reader.mark_delete_offset(), reader.backlog());
    Registered::trimmed(reader.clone(), Offset::new(4));
    assert_eq!(state(&reader), (Offset::new(6), 3));
    Registered::trimmed(reader.clone(), Offset::new(8));
    assert_eq!(state(&reader), (Offset::new(9), 1));
}
