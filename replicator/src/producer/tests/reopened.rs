//! A topic that was opened anew goes on where it was.

use georepl_cursor::{ManagedCursor, Retention, StartAt};

use super::*;

/// Ledgers of two entries, which are deleted as soon as no cursor needs them.
fn trimmed_early() -> ManagedLedgerConfig {
    ManagedLedgerConfig {
        ledger_entries_max: 2,
        retention: Retention::NONE,
        ..Region::log_config()
    }
}

async fn opened(region: &Region, ear: &Ear, session: SessionId) -> OpenedSession {
    region.remote().open(opening(session), ear.events(session)).await.unwrap()
}

/// The next `n` entries after `from` are published.
async fn publish(session: &mut OpenedSession, ear: &Ear, id: SessionId, from: u64, n: u64) {
    let sends = (from + 1..=from + n).map(|e| send((e > 1).then_some(e - 1), e)).collect();
    session.session.submit(sends);
    let receipts = ear.receipts(id, n as usize).await;
    assert!(receipts.iter().all(|r| matches!(r, Receipt::Published(_))), "{receipts:?}");
}

#[tokio::test]
async fn topic_opened_anew_knows_what_it_holds_and_who_was_newest() {
    let mut region = Region::new().await;
    let ear = Ear::default();
    let mut session = opened(&region, &ear, id(5)).await;
    publish(&mut session, &ear, id(5), 0, 3).await;
    region.topic.publish(stored_at_source(9)).await.unwrap();

    region.reopen().await;
    let refused = region.remote().open(opening(id(5)), ear.events(id(5))).await.unwrap_err();
    assert_eq!(refused, OpenError::LaterOwner { asked: id(5), newest: id(5) });
    let mut session = opened(&region, &ear, id(6)).await;
    assert_eq!(session.watermark, mark(3));
    session.session.submit(vec![send(Some(1), 2), send(Some(2), 3), send(Some(3), 4)]);
    let expected =
        [Receipt::Duplicate(at(2)), Receipt::Duplicate(at(3)), Receipt::Published(at(4))];
    assert_eq!(ear.receipts(id(6), 3).await, expected);
    assert_eq!(region.payloads().await, payloads([1, 2, 3, 9, 4]));
    assert_eq!(region.indexes().await, [0, 1, 2, 3, 4].map(Some));
}

/// Also one whose opening was answered and in which nothing was sent.
#[tokio::test]
async fn sessions_and_incarnations_are_durable_before_an_opening_is_answered() {
    let mut region = Region::new().await;
    let ear = Ear::default();
    let later = Opening { incarnation: Incarnation(4), ..opening(id(7)) };
    region.remote().open(later, ear.events(id(7))).await.unwrap();
    region.reopen().await;
    let refused = region.remote().open(opening(id(7)), ear.events(id(7))).await.unwrap_err();
    assert!(matches!(refused, OpenError::LaterOwner { .. }), "{refused}");
    let refused = region.remote().open(opening(id(8)), ear.events(id(8))).await.unwrap_err();
    let (asked, newest) = (Incarnation(0), Incarnation(4));
    assert_eq!(refused, OpenError::LaterIncarnation { asked, newest });
}

#[tokio::test]
async fn revision_is_durable_before_an_opening_is_answered() {
    let mut region = Region::new().await;
    let ear = Ear::default();
    let mut session = opened(&region, &ear, id(1)).await;
    publish(&mut session, &ear, id(1), 0, 3).await;
    let later = |session| Opening { revision: Revision(2), ..opening(session) };
    region.remote().open(later(id(2)), ear.events(id(2))).await.unwrap();
    region.reopen().await;
    let refused = region.remote().open(opening(id(3)), ear.events(id(3))).await.unwrap_err();
    let (asked, newest) = (Revision(0), Revision(2));
    assert_eq!(refused, OpenError::LaterRevision { asked, newest, watermark: Some(at(3)) });
    let session = region.remote().open(later(id(4)), ear.events(id(4))).await.unwrap();
    assert_eq!(session.watermark, mark(3));
}

#[tokio::test]
async fn watermark_outlives_the_entries_that_carried_it() {
    let mut region = Region::new().await;
    region.topic =
        EmbeddedTopic::open(region.log_again(trimmed_early()).await, Region::topic_config())
            .await
            .unwrap();
    let ear = Ear::default();
    let mut session = opened(&region, &ear, id(1)).await;
    publish(&mut session, &ear, id(1), 0, 3).await;
    region.topic.ledger().trim().await.unwrap();
    assert_eq!(region.topic.ledger().start(), Offset::ZERO, "no checkpoint, no trimming");

    // An opening is a checkpoint; what it keeps may go.
    opened(&region, &ear, id(2)).await;
    let local = vec![stored_at_source(0); 4];
    region.topic.publish_batch(local).await.unwrap();
    opened(&region, &ear, id(3)).await;
    region.topic.ledger().trim().await.unwrap();
    assert!(region.topic.ledger().start() > Offset::new(2), "the carriers are gone");

    region.reopen().await;
    let mut session = opened(&region, &ear, id(4)).await;
    assert_eq!(session.watermark, mark(3));
    session.session.submit(vec![send(Some(2), 3), send(Some(3), 4)]);
    let expected = [Receipt::Duplicate(at(3)), Receipt::Published(at(4))];
    assert_eq!(ear.receipts(id(4), 2).await, expected);
}

#[tokio::test]
async fn sources_are_kept_in_the_background_after_so_many_entries() {
    let mut region = Region::new().await;
    let ear = Ear::default();
    let mut session = opened(&region, &ear, id(1)).await;
    publish(&mut session, &ear, id(1), 0, 5).await;
    let keeper = ManagedCursor::open(region.topic.ledger(), KEEPER, StartAt::Earliest).await;
    let keeper = keeper.unwrap();
    assert_eq!(keeper.mark_delete_offset(), Offset::ZERO);
    for _ in 0..10 {
        let local = vec![stored_at_source(0); CHECKPOINT_ENTRIES as usize / 10];
        region.topic.publish_batch(local).await.unwrap();
    }
    let kept = async {
        while keeper.persisted_mark_delete_offset() == Offset::ZERO {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), kept).await.expect("a checkpoint");
    assert!(keeper.mark_delete_offset() > Offset::new(5));
    region.reopen().await;
    assert_eq!(opened(&region, &ear, id(2)).await.watermark, mark(5));
}

/// The bookies get it and do not answer, or never get it; then the topic crashes.
#[tokio::test(start_paused = true)]
async fn checkpoint_that_was_cut_short_keeps_all_or_nothing() {
    let mut region = Region::new().await;
    let ear = Ear::default();
    let mut session = opened(&region, &ear, id(1)).await;
    publish(&mut session, &ear, id(1), 0, 2).await;
    for (asked, fault) in [(id(2), Fault::LoseRequests), (id(3), Fault::LoseResponses)] {
        inject(&region, fault);
        let remote = region.remote();
        let mut half = Box::pin(remote.open(opening(asked), ear.events(asked)));
        for _ in 0..100 {
            assert!(futures::poll!(&mut half).is_pending(), "{fault:?}: it is not durable");
            tokio::task::yield_now().await;
        }
        drop(half);
        release(&region);
        region.reopen().await;
    }
    let session = opened(&region, &ear, id(4)).await;
    assert_eq!(session.watermark, mark(2));
    assert_eq!(region.payloads().await, payloads([1, 2]));
}

#[tokio::test]
async fn log_with_a_history_of_its_own_is_opened_and_counted_on() {
    let mut region = Region::new().await;
    let log = region.topic.ledger();
    log.append("no frame".into()).await.unwrap();
    log.append(stored_at_source(1)).await.unwrap();
    region.reopen().await;
    region.topic.publish(stored_at_source(2)).await.unwrap();
    let last = region.topic.ledger().last_confirmed().unwrap();
    let entry = region.topic.ledger().read_at(last).await.unwrap();
    let stamp = Frame::parse(entry.payload).unwrap().broker_entry_metadata().unwrap().unwrap();
    assert_eq!(stamp.index, Some(2));
}

/// By an operator, or by whoever believes that nobody needs it.
#[tokio::test]
async fn keeper_that_was_closed_or_removed_is_made_anew_and_knows_the_sources() {
    for removed in [false, true] {
        let mut region = Region::new().await;
        let ear = Ear::default();
        let mut session = opened(&region, &ear, id(1)).await;
        publish(&mut session, &ear, id(1), 0, 3).await;
        let ledger = region.topic.ledger();
        if removed {
            ManagedCursor::remove(ledger, KEEPER).await.unwrap();
        } else {
            let keeper = ManagedCursor::open(ledger, KEEPER, StartAt::Earliest).await.unwrap();
            keeper.close().await.unwrap();
        }
        assert_eq!(opened(&region, &ear, id(2)).await.watermark, mark(3));
        // Durably: it is known after a restart, and so is who was newest.
        region.reopen().await;
        let refused = region.remote().open(opening(id(2)), ear.events(id(2))).await.unwrap_err();
        assert_eq!(refused, OpenError::LaterOwner { asked: id(2), newest: id(2) });
        assert_eq!(opened(&region, &ear, id(3)).await.watermark, mark(3));
    }
}
