//! Ledgers that fail, end elsewhere, or come too late.

use std::time::Duration;

use super::*;

/// Two of three bookies store what they are sent and say so only when the topic has gone on.
#[tokio::test(start_paused = true)]
async fn answers_for_a_ledger_that_was_given_up_confirm_nothing_in_the_next() {
    let region = Region::new();
    let topic = region.topic().await;
    let first = append(&topic, 1).await[0];
    for bookie in &region.bookies[1..] {
        region.faults.inject(bookie, Fault::HoldResponses);
    }
    let permit = topic.reserve(100).await.unwrap();
    let batch = topic.append_batch(permit, payloads(2));
    let gone_on = async {
        while topic.internal_stats().ledgers.len() < 2 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), gone_on).await.expect("it goes on");
    for bookie in &region.bookies[1..] {
        region.faults.heal(bookie);
        region.faults.release(bookie, ReleaseOrder::Oldest);
    }
    let positions = batch.await.unwrap();
    assert!(positions.iter().all(|position| position.ledger > first.ledger), "{positions:?}");
    for (position, payload) in positions.iter().zip(payloads(2)) {
        assert_eq!(topic.read_at(*position).await.unwrap().payload, payload);
    }
    assert_eq!(topic.end(), Offset::new(3));
    let expected = [payloads(1), payloads(2)].concat();
    assert_eq!(contents(&topic).await, expected, "each once");
    drop(topic);
    assert_eq!(contents(&region.topic().await).await, expected);
}

/// An entry that was stored and not acknowledged is in two ledgers; the record knows where the first one ends.
#[tokio::test]
async fn entries_behind_the_recorded_end_of_a_ledger_are_not_part_of_the_topic() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 6).await;
    topic.close().await.unwrap();
    let mut record = stored_record(&region).await;
    let end = record.ledgers[0].end.as_mut().unwrap();
    (end.entries, end.bytes) = (3, 21);
    let stored = region.store.get(&key()).await.unwrap().unwrap();
    let expected = Expected::Version(stored.version);
    region.store.put(&key(), record.encode(), expected).await.unwrap();

    let topic = region.topic().await;
    assert_eq!(topic.end(), Offset::new(5));
    let entries = topic.read(Offset::ZERO, topic.end(), u64::MAX).await.unwrap();
    let read: Vec<_> = entries.iter().map(|entry| entry.position).collect();
    assert_eq!(read, [&positions[..3], &positions[4..]].concat());
    assert!(matches!(topic.read_at(positions[3]).await, Err(ReadError::NoSuchEntry { .. })));
}

/// Somebody repairs the ledger that the topic writes to.
#[tokio::test]
async fn ledger_that_is_recovered_from_outside_ends_its_owner_and_loses_nothing() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 2).await;
    region.client.recover(positions[0].ledger, &Password::default()).await.unwrap();
    let error = topic.append("late".into()).await.unwrap_err();
    assert_eq!(error.advice(), Advice::Reopen, "{error}");
    assert!(matches!(topic.refusal(), Some(Refusal::Fenced { .. })), "{:?}", topic.refusal());
    let topic = region.topic().await;
    assert_eq!(contents(&topic).await, payloads(2));
    let next = append(&topic, 1).await[0];
    assert!(next.ledger > positions[0].ledger);
}

#[tokio::test]
async fn small_request_does_not_overtake_a_large_one_that_waits() {
    let config = ManagedLedgerConfig { append_bytes_in_flight_max: 10, ..Default::default() };
    let topic = Region::new().topic_with(config).await;
    let held = topic.reserve(6).await.unwrap();
    let mut waiting = [8, 1].map(|bytes| Box::pin(topic.reserve(bytes)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for request in &mut waiting {
        assert!(request.as_mut().poll(&mut context).is_pending(), "also the one that would fit");
    }
    drop(held);
    for request in waiting {
        drop(request.await.unwrap());
    }
}

/// The store makes a ledger when its creation was given up long ago.
#[tokio::test(start_paused = true)]
async fn ledger_that_is_created_too_late_is_no_part_of_the_topic() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 2).await;
    topic.close().await.unwrap();
    // The creation is the first thing that an opening changes.
    region.ledger_store.inject(StoreFault::LandLate, 1);
    let (client, store) = (region.client.clone(), region.store.clone());
    let config = ManagedLedgerConfig::default();
    let opened = ManagedLedger::open(NAME, client, store, config).await;
    if let Err(error) = &opened {
        assert_eq!(error.advice(), Advice::Retry, "{error}");
    }
    drop(opened);
    let topic = region.topic().await;
    assert!(region.ledger_store.land().await.is_some(), "it was under way");
    assert_eq!(append(&topic, 3).await.len(), 3);
    drop(topic);
    let topic = region.topic().await;
    assert_eq!(contents(&topic).await, [payloads(2), payloads(3)].concat());
}
