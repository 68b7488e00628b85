//! What is found again after a restart.

use georepl_storage::{EntryId, LedgerId};

use super::*;
use crate::position::Place;
use crate::progress::Kept as KeptEntry;
use crate::records::{CursorRecord, Snapshot};
use crate::snapshots::RECORD_RANGES_MAX;

pub(super) fn at(text: &str) -> Position {
    text.parse().unwrap()
}

pub(super) async fn record(region: &Region) -> CursorRecord {
    let key = "managed-ledgers/acme/eu/persistent/orders/c";
    CursorRecord::decode(&region.store.get(key).await.unwrap().unwrap().value).unwrap()
}

/// The copies of every entry of the cursor's ledger, by bookie.
async fn snapshots(region: &Region) -> (LedgerId, Vec<Snapshot>) {
    let ledger = record(region).await.cursor_ledger.unwrap();
    let entries = region.memory.entries(&region.bookies[0], ledger);
    (ledger, entries.iter().map(|e| Snapshot::decode(e.payload()).unwrap()).collect())
}

/// Waits until the ledger is deleted, which a task does.
async fn deleted(region: &Region, ledger: LedgerId) {
    while region.client.open(ledger, &Default::default()).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

/// A topic of 10 entries in three ledgers, and a cursor that has acknowledged 3 and the entries 5, 6 and 8.
async fn acknowledged(region: &Region) -> (ManagedLedger, Arc<ManagedCursor>) {
    let topic = region.topic().await;
    let positions = append(&topic, 10).await;
    let cursor = cursor(&topic).await;
    cursor.mark_delete(positions[2]).await.unwrap();
    cursor.delete(&[positions[8], positions[5], positions[6]]).await.unwrap();
    let note = |progress: &mut Progress| {
        progress.incarnation = 2;
        progress.last_published = Some(positions[1]);
        progress.kept.insert(positions[0], KeptEntry::Quarantined);
    };
    cursor.store_progress(note).await.unwrap();
    (topic, cursor)
}

/// What was given up is noted until mark-delete is past it, also across a restart, and no longer.
#[tokio::test]
async fn what_was_given_up_is_noted_until_it_is_acknowledged() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 6).await;
    let cursor = cursor(&topic).await;
    let give_up = |progress: &mut Progress| {
        progress.discarded.extend([positions[0], positions[2], positions[4]]);
    };
    cursor.store_progress(give_up).await.unwrap();
    cursor.mark_delete(positions[1]).await.unwrap();
    let left = [positions[2], positions[4]].into();
    assert_eq!(cursor.progress().discarded, left);
    cursor.close().await.unwrap();
    topic.close().await.unwrap();

    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    assert_eq!(cursor.progress().discarded, left);
    cursor.skip(u64::MAX).await.unwrap();
    assert!(cursor.progress().discarded.is_empty());
}

async fn assert_restored(cursor: &ManagedCursor) {
    assert_eq!(cursor.mark_delete_offset(), Offset::new(3));
    assert_eq!(cursor.backlog(), 4, "10 less 3 and the single ones");
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [3, 4]);
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [7]);
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [9]);
    let progress = cursor.progress();
    assert_eq!((progress.incarnation, progress.last_published), (2, Some(at("0:1"))));
    assert_eq!(progress.kept, [(at("0:0"), KeptEntry::Quarantined)].into());
}

#[tokio::test]
async fn everything_acknowledged_is_found_after_a_close_and_lies_in_the_record() {
    let region = Region::new();
    let (topic, cursor) = acknowledged(&region).await;
    let (ledger, _) = snapshots(&region).await;
    cursor.close().await.unwrap();
    topic.close().await.unwrap();
    assert_eq!(record(&region).await.cursor_ledger, None);
    assert!(
        region.client.open(ledger, &Default::default()).await.is_err(),
        "its ledger is deleted"
    );
    let topic = region.topic().await;
    assert_restored(&*super::cursor(&topic).await).await;
}

#[tokio::test]
async fn everything_durable_is_found_after_a_crash() {
    let region = Region::new();
    let (topic, cursor) = acknowledged(&region).await;
    drop((topic, cursor));
    assert!(record(&region).await.cursor_ledger.is_some());
    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    assert!(cursor.recovery_notes().is_empty(), "{:?}", cursor.recovery_notes());
    assert_restored(&cursor).await;
}

#[tokio::test]
async fn what_was_read_and_not_acknowledged_is_read_again_after_a_crash() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 6).await;
    let cursor = cursor(&topic).await;
    let read = offsets(&cursor.read_entries(LIMITS).await.unwrap());
    assert!(read.starts_with(&[0, 1, 2, 3]), "{read:?}");
    cursor.mark_delete(positions[1]).await.unwrap();
    drop((topic, cursor));
    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    assert_eq!(cursor.mark_delete_offset(), Offset::new(2));
    let read = offsets(&cursor.read_entries(LIMITS).await.unwrap());
    assert!(read.starts_with(&[2, 3]), "{read:?}");
}

#[tokio::test]
async fn recovery_walks_back_over_damaged_snapshots_and_says_so() {
    let region = Region::new();
    let (topic, cursor) = acknowledged(&region).await;
    cursor.mark_delete(at("1:1")).await.unwrap();
    drop((topic, cursor));
    let (ledger, written) = snapshots(&region).await;
    let last = EntryId(written.len() as u64 - 1);
    for bookie in &region.bookies {
        assert!(region.memory.corrupt_entry(bookie, ledger, last).is_some());
    }
    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    let notes = cursor.recovery_notes().join("\n");
    assert!(notes.contains(&format!("{ledger}:{last}")), "{notes}");
    assert_restored(&cursor).await;
}

#[tokio::test]
async fn without_its_ledger_a_cursor_goes_back_to_its_record_and_says_so() {
    let region = Region::new();
    let (topic, cursor) = acknowledged(&region).await;
    drop((topic, cursor));
    let (ledger, written) = snapshots(&region).await;
    region.client.delete(ledger).await.unwrap();
    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    assert!(cursor.recovery_notes()[0].contains("does not exist"));
    // The record has what was true when the ledger was begun, without the single ones.
    assert_eq!(written[0].mark_delete, Some(Place::after(at("0:2"))));
    assert_eq!((cursor.mark_delete_offset(), cursor.backlog()), (Offset::new(3), 7));
}

#[tokio::test(start_paused = true)]
async fn bookies_that_are_down_fail_the_opening_and_roll_nothing_back() {
    let region = Region::new();
    let (topic, cursor) = acknowledged(&region).await;
    topic.close().await.unwrap();
    drop(cursor);
    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    cursor.mark_delete(at("0:3")).await.unwrap();
    drop((topic, cursor));
    let topic = region.topic().await;
    let before = record(&region).await;
    for bookie in &region.bookies[..2] {
        region.memory.down(bookie);
    }
    let error = ManagedCursor::open(&topic, "c", StartAt::Earliest).await.unwrap_err();
    assert!(error.to_string().contains("could not be recovered"), "{error}");
    assert_eq!(error.advice(), Advice::Retry);
    assert_eq!(record(&region).await, before, "nothing was written");
    for bookie in &region.bookies[..2] {
        region.memory.up(bookie);
    }
    assert_eq!(super::cursor(&topic).await.mark_delete_offset(), Offset::new(4));
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_was_taken_is_fenced_and_closed() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 4).await;
    let old = cursor(&topic).await;
    old.mark_delete(positions[0]).await.unwrap();
    // The next owner of the topic.
    let next = region.topic().await;
    let new = cursor(&next).await;
    assert_eq!(new.mark_delete_offset(), Offset::new(1));
    let error = old.mark_delete(positions[1]).await.unwrap_err();
    assert!(matches!(error, MarkDeleteError::NotStored(PersistError::Fenced { .. })), "{error}");
    assert_eq!(error.advice(), Advice::Reopen);
    let refused = old.acknowledge(Offset::new(3), None).unwrap_err();
    assert_eq!(refused, MarkDeleteRefused::Closed);
    new.mark_delete(positions[0]).await.unwrap();
    assert_eq!(new.mark_delete_offset(), Offset::new(1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_the_store_that_is_lost_takes_nothing_from_the_cursor() {
    for silence in [Silence::Made, Silence::Late] {
        let region = Region::new();
        let topic = region.topic().await;
        let positions = append(&topic, 4).await;
        let cursor = cursor(&topic).await;
        region.store.keep_silent(&cursor.key, silence);
        cursor.mark_delete(positions[0]).await.unwrap();
        assert_eq!(cursor.persisted_mark_delete_offset(), Offset::new(1), "{silence:?}");
        if silence == Silence::Late {
            let conflict = region.store.make_late().await.unwrap_err();
            assert!(matches!(conflict, MetadataError::VersionConflict { .. }));
        }
        cursor.mark_delete(positions[2]).await.unwrap();
        drop((topic, cursor));
        let topic = region.topic().await;
        assert_eq!(super::cursor(&topic).await.mark_delete_offset(), Offset::new(3));
    }
}

#[tokio::test]
async fn many_holes_stay_in_a_ledger_when_the_cursor_is_closed() {
    let region = Region::new();
    let topic = region.topic_with(Default::default()).await;
    let entries = 2 * (RECORD_RANGES_MAX + 2);
    let positions = append(&topic, entries).await;
    let cursor = cursor(&topic).await;
    let every_other: Vec<_> = positions.iter().skip(1).step_by(2).copied().collect();
    cursor.delete(&every_other).await.unwrap();
    cursor.close().await.unwrap();
    assert!(record(&region).await.cursor_ledger.is_some());
    let cursor = super::cursor(&topic).await;
    assert_eq!(cursor.backlog(), entries as u64 / 2);
    let stats = topic.internal_stats().cursors["c"].clone();
    assert_eq!(stats.total_non_contiguous_deleted_messages_range, entries as u64 / 2);
    assert!(stats.individually_deleted_messages.starts_with("[(0:0..0:1],(0:2..0:3]"));
}

#[tokio::test(start_paused = true)]
async fn acknowledgements_in_a_burst_share_their_snapshots() {
    let region = Region::new();
    let topic = region.topic_with(Default::default()).await;
    append(&topic, 1_000).await;
    let cursor = cursor(&topic).await;
    for through in 1..=1_000 {
        cursor.acknowledge(Offset::new(through), None).unwrap();
    }
    cursor.persist().await.unwrap();
    assert_eq!(cursor.persisted_mark_delete_offset(), Offset::new(1_000));
    let (_, written) = snapshots(&region).await;
    assert!(written.len() <= 2, "{} snapshots", written.len());
}

#[tokio::test(start_paused = true)]
async fn calls_on_a_closed_cursor_end_and_say_so() {
    let region = Region::new();
    let (_topic, cursor) = acknowledged(&region).await;
    cursor.accept_delete(&[at("1:3")]).unwrap();
    cursor.close().await.unwrap();
    assert_eq!(cursor.persist().await, Ok(()), "the close has stored it");
    let closed = PersistError::Closed { cursor: "c".into() };
    assert_eq!(cursor.store_progress(|p| p.incarnation = 9).await, Err(closed));
    assert_eq!(cursor.close().await, Ok(()));

    // A close that cannot store says so, and may be called again.
    let cursor = super::cursor(&_topic).await;
    cursor.accept_delete(&[at("1:0")]).unwrap();
    region.store.keep_silent(&cursor.key, Silence::Late);
    for bookie in &region.bookies {
        region.memory.down(bookie);
    }
    let error = cursor.close().await.unwrap_err();
    assert_eq!(error.advice(), Advice::Retry, "{error}");
    assert!(cursor.persist().await.is_err());
    cursor.close().await.unwrap();
    assert_eq!(cursor.persist().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_close_stores_the_state_all_the_same() {
    let region = Region::new();
    let (topic, cursor) = acknowledged(&region).await;
    cursor.accept_delete(&[at("0:3")]).unwrap();
    let mut closing = Box::pin(cursor.close());
    assert!(closing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(closing);
    cursor.persist().await.unwrap();
    assert_eq!(record(&region).await.cursor_ledger, None, "it is folded");
    assert_eq!(super::cursor(&topic).await.mark_delete_offset(), Offset::new(4));
}

#[tokio::test]
async fn a_handle_of_a_topic_that_is_somebody_elses_leaves_its_cursors_alone() {
    let region = Region::new();
    let old = region.topic().await;
    append(&old, 3).await;
    let new = region.topic().await;
    append(&new, 3).await;
    let cursor = super::cursor(&new).await;
    cursor.mark_delete(new.last_confirmed().unwrap()).await.unwrap();
    let error = ManagedCursor::open(&old, "c", StartAt::Earliest).await.unwrap_err();
    assert_eq!(error.advice(), Advice::Reopen, "{error}");
    assert!(ManagedCursor::remove(&old, "c").await.is_err());
    cursor.accept_delete(&[]).unwrap();
    cursor.persist().await.unwrap();
    assert_eq!(cursor.backlog(), 0);
}

#[tokio::test]
async fn a_cursor_whose_record_is_damaged_can_be_removed() {
    let region = Region::new();
    let (topic, cursor) = acknowledged(&region).await;
    cursor.close().await.unwrap();
    let stored = region.store.get(&cursor.key).await.unwrap().unwrap();
    let expected = Expected::Version(stored.version);
    region.store.put(&cursor.key, "what?".into(), expected).await.unwrap();
    assert!(ManagedCursor::open(&topic, "c", StartAt::Earliest).await.is_err());
    ManagedCursor::remove(&topic, "c").await.unwrap();
    assert_eq!(super::cursor(&topic).await.backlog(), 10);
}

#[tokio::test]
async fn a_removed_cursor_is_gone_with_its_ledger_and_begins_anew() {
    let region = Region::new();
    let (topic, cursor) = acknowledged(&region).await;
    let (ledger, _) = snapshots(&region).await;
    ManagedCursor::remove(&topic, "c").await.unwrap();
    ManagedCursor::remove(&topic, "c").await.unwrap();
    assert_eq!(cursor.acknowledge(Offset::new(4), None), Err(MarkDeleteRefused::Closed));
    deleted(&region, ledger).await;
    assert_eq!(super::cursor(&topic).await.backlog(), 10);
}

#[tokio::test(start_paused = true)]
async fn bookies_that_come_back_get_what_was_accepted_meanwhile() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 4).await;
    let cursor = cursor(&topic).await;
    for bookie in &region.bookies {
        region.memory.down(bookie);
    }
    // The metadata store still takes it: the record alone has it then.
    cursor.mark_delete(positions[0]).await.unwrap();
    assert_eq!(record(&region).await.cursor_ledger, None);
    for bookie in &region.bookies {
        region.memory.up(bookie);
    }
    cursor.mark_delete(positions[1]).await.unwrap();
    assert!(record(&region).await.cursor_ledger.is_some());
}
