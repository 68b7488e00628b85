//! Acknowledging out of order, and moving a cursor elsewhere.

use super::*;

async fn ten(region: &Region) -> (ManagedLedger, Vec<Position>, Arc<ManagedCursor>) {
    let topic = region.topic().await;
    let positions = append(&topic, 10).await;
    let cursor = cursor(&topic).await;
    (topic, positions, cursor)
}

#[tokio::test]
async fn single_acknowledgements_move_mark_delete_when_the_hole_closes() {
    let region = Region::new();
    let (_topic, positions, cursor) = ten(&region).await;
    cursor.delete(&[positions[1], positions[2], positions[4]]).await.unwrap();
    assert_eq!((cursor.mark_delete_offset(), cursor.backlog()), (Offset::ZERO, 7));
    cursor.delete(&[positions[0], positions[1]]).await.unwrap();
    assert_eq!((cursor.mark_delete_offset(), cursor.backlog()), (Offset::new(3), 6));
    cursor.mark_delete(positions[3]).await.unwrap();
    assert_eq!((cursor.mark_delete_offset(), cursor.backlog()), (Offset::new(5), 5));
}

#[tokio::test]
async fn entries_acknowledged_while_storage_reads_them_are_not_delivered() {
    let region = Region::new();
    let (_topic, positions, cursor) = ten(&region).await;
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::HoldResponses);
    }
    let mut read = Box::pin(cursor.read_entries(LIMITS));
    assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    cursor.accept_delete(&positions[1..3]).unwrap();
    for bookie in &region.bookies {
        region.faults.heal(bookie);
        region.faults.release(bookie, ReleaseOrder::Oldest);
    }
    assert_eq!(offsets(&read.await.unwrap())[..2], [0, 3]);
}

#[tokio::test]
async fn an_unknown_entry_refuses_the_whole_list() {
    let region = Region::new();
    let (_topic, positions, cursor) = ten(&region).await;
    let unknown = Position { entry: georepl_storage::EntryId(9), ..positions[0] };
    let error = cursor.delete(&[positions[1], unknown]).await.unwrap_err();
    assert_eq!(error, MarkDeleteError::NoSuchEntry(unknown));
    assert_eq!(cursor.backlog(), 10);
}

#[tokio::test]
async fn skip_and_clear_count_what_was_not_acknowledged() {
    let region = Region::new();
    let (_topic, positions, cursor) = ten(&region).await;
    cursor.delete(&[positions[1]]).await.unwrap();
    assert_eq!(cursor.skip(3).await, Ok(3));
    assert_eq!((cursor.mark_delete_offset(), cursor.backlog()), (Offset::new(4), 6));
    assert_eq!(cursor.skip(0).await, Ok(0));
    assert_eq!(cursor.clear_backlog().await, Ok(6));
    assert_eq!(cursor.clear_backlog().await, Ok(0));
}

#[tokio::test]
async fn reset_goes_back_and_forth_durably_and_forgets_single_acknowledgements() {
    let region = Region::new();
    let (topic, positions, cursor) = ten(&region).await;
    cursor.mark_delete(positions[5]).await.unwrap();
    cursor.delete(&[positions[8]]).await.unwrap();
    let back = cursor.reset(StartAt::Position(positions[2]), |p| p.incarnation += 1).await.unwrap();
    assert_eq!((back.read_position, cursor.backlog()), (Offset::new(2), 8));
    drop((topic, cursor));
    let topic = region.topic().await;
    let cursor = super::cursor(&topic).await;
    assert_eq!((cursor.backlog(), cursor.progress().incarnation), (8, 1));
    // An entry that there is not stands for the next that there is.
    let between = Position { entry: georepl_storage::EntryId(77), ..positions[3] };
    cursor.reset(StartAt::Position(between), |_| ()).await.unwrap();
    assert_eq!(cursor.mark_delete_offset(), Offset::new(4));
    cursor.reset(StartAt::Latest, |_| ()).await.unwrap();
    assert_eq!(cursor.backlog(), 0);
    cursor.reset(StartAt::Earliest, |_| ()).await.unwrap();
    assert_eq!(cursor.backlog(), 10);
}

#[tokio::test]
async fn seek_moves_what_is_read_and_acknowledges_nothing() {
    let region = Region::new();
    let (_topic, positions, cursor) = ten(&region).await;
    cursor.mark_delete(positions[1]).await.unwrap();
    cursor.seek(StartAt::Position(positions[7]));
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [7, 8, 9]);
    assert_eq!(cursor.seek(StartAt::Earliest).read_position, Offset::new(2));
    assert_eq!(cursor.backlog(), 8);
}

#[tokio::test]
async fn a_reader_has_no_record_and_wakes_like_any_cursor() {
    let region = Region::new();
    let (topic, _, _cursor) = ten(&region).await;
    let reader = ManagedCursor::reader(&topic, StartAt::Latest).unwrap();
    let (read, appended) =
        tokio::join!(reader.read_entries_or_wait(LIMITS), topic.append("x".into()));
    assert_eq!(read.unwrap()[0].position, appended.unwrap());
    reader.mark_delete(topic.last_confirmed().unwrap()).await.unwrap();
    let names = region.store.children("managed-ledgers/acme/eu/persistent/orders").await.unwrap();
    assert_eq!(names, ["c"]);
}
