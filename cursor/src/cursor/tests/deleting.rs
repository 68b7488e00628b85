//! What a handle of a topic can still do when the topic was deleted.

use super::topic::{TOPIC, config};
use super::*;
use crate::managed_ledger::{ChangeError, Refusal, Retention};

fn is_closed<T: fmt::Debug>(outcome: Result<T, ChangeError>) -> bool {
    matches!(outcome, Err(ChangeError::Refused(Refusal::Closed { .. })))
}

async fn nothing_is_stored(region: &Region) {
    others_run().await;
    assert_eq!(region.store.get(TOPIC).await.unwrap(), None);
    assert_eq!(region.store.children(TOPIC).await.unwrap(), Vec::<String>::new());
}

/// With its last cursor goes what kept retention from deleting all but its last ledger.
#[tokio::test]
async fn a_terminated_topic_that_was_deleted_stays_gone_whatever_its_handles_are_asked() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::NONE)).await;
    let cursor = cursor(&topic).await;
    append(&topic, 10).await;
    topic.terminate().await.unwrap();
    topic.delete().await.unwrap();
    nothing_is_stored(&region).await;

    assert!(is_closed(topic.trim().await));
    assert!(is_closed(topic.set_retention(Retention::NONE).await));
    assert!(is_closed(topic.set_properties([("a".to_owned(), None)]).await));
    let opened = ManagedCursor::open(&topic, "c", StartAt::Earliest).await;
    assert!(matches!(opened, Err(OpenCursorError::Topic(_))), "{opened:?}");
    assert!(ManagedCursor::remove(&topic, "c").await.is_err());
    assert_eq!(topic.close().await, Ok(()));
    nothing_is_stored(&region).await;
    drop(cursor);
    assert_eq!(region.topic().await.end(), Offset::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_topic_whose_end_could_not_be_recorded_is_closed_without_it() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 3).await;
    region.store.keep_silent(TOPIC, Silence::Late);
    topic.delete().await.unwrap();
    assert!(region.store.is_late(), "the close was not answered");
    assert_eq!(topic.close().await, Ok(()));
    nothing_is_stored(&region).await;
}

#[tokio::test]
async fn a_cursor_that_begins_while_its_topic_is_deleted_keeps_it_or_is_refused() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 3).await;
    region.store.hold(&topic.cursor_key("c").unwrap());
    let mut opening = Box::pin(ManagedCursor::open(&topic, "c", StartAt::Earliest));
    assert!(is_pending(&mut opening));
    let mut deleting = Box::pin(topic.delete());
    assert!(is_pending(&mut deleting));
    others_run().await;
    region.store.release();
    let (opened, deleted) = tokio::join!(opening, deleting);
    let left = region.store.children(TOPIC).await.unwrap();
    let topic = region.store.get(TOPIC).await.unwrap();
    assert!(left.is_empty() || topic.is_some(), "{opened:?}, {deleted:?}: no cursor without topic");
}
