//! When an acknowledgement is durable, and what becomes of it when storage fails.

use std::time::Duration;

use super::keeping::{at, record};
use super::*;

async fn ten(region: &Region) -> (ManagedLedger, Vec<Position>, Arc<ManagedCursor>) {
    let topic = region.topic().await;
    let positions = append(&topic, 10).await;
    let cursor = cursor(&topic).await;
    (topic, positions, cursor)
}

fn hold(region: &Region) {
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::HoldResponses);
    }
}

fn release(region: &Region) {
    for bookie in &region.bookies {
        region.faults.heal(bookie);
        region.faults.release(bookie, ReleaseOrder::Oldest);
    }
}

/// Waits, for a minute at most, until everything before `through` is acknowledged durably, without asking for it.
async fn stored(cursor: &ManagedCursor, through: u64) {
    let mut stored = cursor.stored.subscribe();
    let moved = stored.wait_for(|stored| stored.mark_delete == Offset::new(through));
    tokio::time::timeout(Duration::from_secs(60), moved).await.expect("in time").unwrap();
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_before_a_crash_would_find_what_was_acknowledged() {
    let region = Region::new();
    let (topic, positions, cursor) = ten(&region).await;
    hold(&region);
    let mut three = Box::pin(cursor.mark_delete(positions[3]));
    let mut seven = Box::pin(cursor.mark_delete(positions[7]));
    let mut three_again = Box::pin(cursor.mark_delete(positions[7]));
    assert!(is_pending(&mut three) && is_pending(&mut seven) && is_pending(&mut three_again));
    others_run().await;
    assert!(is_pending(&mut three) && is_pending(&mut seven) && is_pending(&mut three_again));
    assert_eq!(cursor.mark_delete_offset(), Offset::new(8), "it counts at once");
    assert_eq!(cursor.persisted_mark_delete_offset(), Offset::ZERO);
    release(&region);
    assert_eq!((three.await, seven.await, three_again.await), (Ok(()), Ok(()), Ok(())));
    drop((topic, cursor));
    let topic = region.topic().await;
    assert_eq!(super::cursor(&topic).await.mark_delete_offset(), Offset::new(8));
}

#[tokio::test(start_paused = true)]
async fn failed_write_fails_all_who_wait_for_it_and_is_repeated_without_another_call() {
    let region = Region::new();
    let (topic, positions, cursor) = ten(&region).await;
    cursor.mark_delete(positions[0]).await.unwrap();
    let first_ledger = record(&region).await.cursor_ledger;
    for bookie in &region.bookies {
        region.memory.down(bookie);
    }
    region.store.refuse(Some(&cursor.key));
    let (three, seven) =
        tokio::join!(cursor.mark_delete(positions[3]), cursor.mark_delete(positions[7]));
    for outcome in [three, seven] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, MarkDeleteError::NotStored(_)), "{error}");
        assert_eq!(error.advice(), Advice::Retry);
    }
    assert_eq!(cursor.persisted_mark_delete_offset(), Offset::new(1));
    assert_eq!(record(&region).await.cursor_ledger, first_ledger, "the last good state stays");
    region.store.refuse(None);
    for bookie in &region.bookies {
        region.memory.up(bookie);
    }
    stored(&cursor, 8).await;
    let ledger = record(&region).await.cursor_ledger;
    cursor.mark_delete(positions[8]).await.unwrap();
    // The record has it, or the next ledger.
    assert!(ledger.is_none() || ledger != first_ledger, "{ledger:?}");
    assert!(record(&region).await.cursor_ledger.is_some());
    drop((topic, cursor));
    let topic = region.topic().await;
    assert_eq!(super::cursor(&topic).await.mark_delete_offset(), Offset::new(9));
}

#[tokio::test(start_paused = true)]
async fn acknowledgements_that_nobody_waits_for_are_stored_when_nothing_follows_them() {
    let region = Region::new();
    let (topic, _, cursor) = ten(&region).await;
    for through in 1..=9 {
        cursor.acknowledge(Offset::new(through), None).unwrap();
    }
    stored(&cursor, 9).await;
    drop((topic, cursor));
    let topic = region.topic().await;
    assert_eq!(super::cursor(&topic).await.backlog(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_bookies_do_not_take_is_found_after_a_crash_although_there_is_a_backlog() {
    let region = Region::new();
    let (topic, positions, cursor) = ten(&region).await;
    for bookie in &region.bookies {
        region.memory.down(bookie);
    }
    cursor.mark_delete(positions[3]).await.unwrap();
    cursor.delete(&[positions[6]]).await.unwrap();
    drop((topic, cursor));
    for bookie in &region.bookies {
        region.memory.up(bookie);
    }
    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    assert_eq!((cursor.mark_delete_offset(), cursor.backlog()), (Offset::new(4), 5));
}

#[tokio::test(start_paused = true)]
async fn acknowledgements_around_a_reset_end_as_they_were_ordered() {
    let region = Region::new();
    let (topic, positions, cursor) = ten(&region).await;
    hold(&region);
    let mut before = Box::pin(cursor.mark_delete(positions[7]));
    assert!(is_pending(&mut before));
    others_run().await;
    let mut reset = Box::pin(cursor.reset(StartAt::Position(positions[2]), |_| ()));
    assert!(is_pending(&mut reset));
    let mut during = Box::pin(async { cursor.delete(&[positions[8]]).await });
    assert!(is_pending(&mut during));
    assert_eq!(cursor.backlog(), 7);
    release(&region);
    before.await.unwrap();
    reset.await.unwrap();
    during.await.unwrap();
    drop((topic, cursor));
    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    assert_eq!((cursor.mark_delete_offset(), cursor.backlog()), (Offset::new(2), 7));
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_the_record_that_another_ledger_is_written_into() {
    let region = Region::new();
    let (topic, positions, cursor) = ten(&region).await;
    region.store.hold(&cursor.key);
    let mut acknowledging = Box::pin(cursor.mark_delete(positions[3]));
    assert!(is_pending(&mut acknowledging));
    region.store.holds().await;
    let mut closing = Box::pin(cursor.close());
    assert!(is_pending(&mut closing));
    others_run().await;
    assert!(is_pending(&mut closing) && is_pending(&mut acknowledging));
    region.store.release();
    assert_eq!((acknowledging.await, closing.await), (Ok(()), Ok(())));
    assert_eq!(record(&region).await.cursor_ledger, None);
    assert_eq!(super::cursor(&topic).await.mark_delete_offset(), Offset::new(4));
}

#[tokio::test(start_paused = true)]
async fn close_whose_bookies_fail_has_its_state_in_the_record_and_writes_nothing_after() {
    let region = Region::new();
    let (topic, positions, cursor) = ten(&region).await;
    cursor.mark_delete(positions[0]).await.unwrap();
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::LoseResponses);
    }
    let (acknowledged, closed) = tokio::join!(cursor.mark_delete(positions[3]), cursor.close());
    assert_eq!((acknowledged, closed), (Ok(()), Ok(())));
    let written = region.store.get(&cursor.key).await.unwrap();
    assert_eq!(record(&region).await.cursor_ledger, None);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(region.store.get(&cursor.key).await.unwrap(), written);
    for bookie in &region.bookies {
        region.faults.heal(bookie);
    }
    assert_eq!(super::cursor(&topic).await.mark_delete_offset(), Offset::new(4));
}

#[tokio::test]
async fn more_ranges_than_a_snapshot_holds_are_said_and_the_first_of_them_kept() {
    let region = Region::new();
    let topic = region.topic_with(Default::default()).await;
    let entries = 2 * (ACKED_RANGES_MAX + 3);
    let positions = append(&topic, entries).await;
    let cursor = cursor(&topic).await;
    let every_other: Vec<_> = positions.iter().skip(1).step_by(2).copied().collect();
    cursor.delete(&every_other[..ACKED_RANGES_MAX]).await.unwrap();
    let error = cursor.delete(&every_other[ACKED_RANGES_MAX..]).await.unwrap_err();
    assert_eq!(error, MarkDeleteError::TooManyHoles);
    assert_eq!(cursor.backlog(), entries as u64 / 2);
    drop((topic, cursor));
    let topic = region.topic_with(Default::default()).await;
    let cursor = super::cursor(&topic).await;
    assert_eq!(cursor.backlog(), (entries - ACKED_RANGES_MAX) as u64, "the oldest are kept");
    let last_kept = every_other[ACKED_RANGES_MAX - 1];
    cursor.mark_delete(last_kept).await.unwrap();
    assert_eq!(cursor.backlog(), 6);
}

#[tokio::test(start_paused = true)]
async fn reads_that_storage_does_not_answer_all_end_in_time() {
    let region = Region::new();
    let (_topic, _, cursor) = ten(&region).await;
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::LoseResponses);
    }
    let four = ReadLimits { entries: 4, bytes: 1 << 20 };
    let reads = async { tokio::join!(cursor.read_entries(four), cursor.read_entries(four)) };
    let ended = tokio::time::timeout(Duration::from_secs(60), reads).await;
    let (first, second) = ended.expect("every read has its time");
    assert!(matches!(first, Err(ReadEntriesError::Failed(_))), "{first:?}");
    assert_eq!(second, Err(ReadEntriesError::Superseded), "it goes on where the first was");
    for bookie in &region.bookies {
        region.faults.heal(bookie);
    }
    assert_eq!(offsets(&cursor.read_entries(four).await.unwrap()), [0, 1, 2, 3]);
}

#[tokio::test]
async fn entries_that_storage_has_lost_fail_their_reads_until_exactly_they_are_skipped() {
    let region = Region::new();
    let (_topic, positions, cursor) = ten(&region).await;
    let lost = positions[4].ledger;
    region.client.delete(lost).await.unwrap();
    region.memory.delete_ledgers([lost]);
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [0, 1, 2, 3]);
    for _ in 0..2 {
        let error = cursor.read_entries(LIMITS).await.unwrap_err();
        assert!(error.to_string().contains(&format!("ledger {lost}")), "{error}");
        assert_eq!(cursor.read_position(), Offset::new(4));
    }
    cursor.mark_delete(at("0:3")).await.unwrap();
    assert_eq!((cursor.skip(4).await, cursor.backlog()), (Ok(4), 2));
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [8, 9]);
}
