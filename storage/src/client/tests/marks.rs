//! What a ledger is marked for, and by whom.

use super::*;
use crate::marks::{Mark, mark_key};
use crate::shortfall::Shortfall;

fn of(number: usize, first: u64, last: u64) -> Shortfall {
    Shortfall { bookie: bookie(number), first: EntryId(first), last: EntryId(last) }
}

async fn marked(cluster: &Cluster, ledger: LedgerId) -> Mark {
    cluster.client.check(ledger, |_| ()).await.expect("enough bookies are up").marked
}

async fn marks(cluster: &Cluster) -> usize {
    cluster.store.children("underreplicated").await.expect("a store in memory").len()
}

/// A ledger of which b3 lacks entry 0, and a moment later its writer knows.
async fn short_of_one(cluster: &Cluster) -> (LedgerWriter, mpsc::UnboundedReceiver<Told>) {
    let (writer, mut told) = cluster.create().await;
    cluster.transport.inject(&bookie(3), Fault::LoseRequests);
    writer.append(payloads(1)).expect("an open ledger");
    assert_eq!(told.recv().await, Some(Told::Confirmed(0)));
    until(async || !writer.shortfalls().is_empty()).await;
    assert_eq!(writer.shortfalls(), [of(3, 0, 0)]);
    (writer, told)
}

#[tokio::test(start_paused = true)]
async fn entries_that_a_failed_bookie_had_not_acknowledged_are_marked_at_the_close() {
    let cluster = Cluster::new();
    let (writer, _told) = short_of_one(&cluster).await;
    assert_eq!(marks(&cluster).await, 0, "nobody took its place, so the record was not written");
    writer.close().await.expect("two of three have acknowledged all");
    cluster.transport.heal(&bookie(3));
    assert_eq!(marked(&cluster, writer.id()).await, Mark::Shortfalls(vec![of(3, 0, 0)]));
}

#[tokio::test(start_paused = true)]
async fn entries_on_their_way_to_a_bookie_that_serves_are_not_marked_at_the_end() {
    let cluster = Cluster::new();
    cluster.transport.inject(&bookie(3), Fault::HoldResponses);
    let writer = cluster.written(4).await;
    writer.close().await.expect("two of three have acknowledged all");
    assert_eq!(writer.shortfalls(), []);
    assert_eq!(writer.stats().entries_below_write_quorum, 0);
    let dropped = cluster.written(4).await;
    drop(dropped);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(marks(&cluster).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_is_dropped_marks_what_it_knows_to_be_missing() {
    let cluster = Cluster::new();
    let (writer, mut told) = short_of_one(&cluster).await;
    let ledger = writer.id();
    drop(writer);
    // Its task ends with its sink.
    assert_eq!(told.recv().await, None);
    until(async || marks(&cluster).await == 1).await;
    cluster.transport.heal(&bookie(3));
    assert_eq!(marked(&cluster, ledger).await, Mark::Shortfalls(vec![of(3, 0, 0)]));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_holds_up_no_news_of_the_end_and_a_close_for_two_operations_at_most() {
    let cluster = Cluster::new();
    let (writer, mut told) = short_of_one(&cluster).await;
    let ledger = writer.id();
    let fence = Some(MasterKey::of(&options().password));
    cluster.ask(2, ledger, RequestBody::ReadLac { fence }).result.expect("the right key");
    cluster.store.inject(StoreFault::Hold, 100);
    writer.append(payloads(1)).expect("nobody knows yet");
    let started = tokio::time::Instant::now();
    while told.recv().await != Some(Told::Failed(write::Error::Fenced { ledger })) {}
    assert_eq!(started.elapsed(), Duration::ZERO);
    cluster.store.heal();
    let timeout = ClientConfig::default().metadata_timeout;
    assert_eq!(writer.close().await, Err(CloseError::Fenced { ledger }));
    assert!(started.elapsed() <= 2 * timeout, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_mark_takes_no_longer_than_one_operation_of_the_store_may() {
    let cluster = Cluster::new();
    let (writer, _told) = cluster.create().await;
    let (ledger, core) = (writer.id(), cluster.client.core.clone());
    let timeout = ClientConfig::default().metadata_timeout;
    cluster.store.inject(StoreFault::Hold, 100);
    let started = tokio::time::Instant::now();
    let adding =
        tokio::spawn(async move { crate::marks::add(&core, ledger, &[of(3, 0, 0)]).await });
    // Reads are answered and writes are not.
    while !adding.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        cluster.store.release();
        tokio::time::sleep(timeout).await;
    }
    let added = adding.await.expect("no panic");
    assert!(matches!(added, Err(MetadataError::Unavailable { .. })), "{added:?}");
    assert!(started.elapsed() < timeout + Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_ledger_with_all_its_copies_is_not_marked() {
    let cluster = Cluster::new();
    let writer = cluster.written(4).await;
    writer.close().await.expect("an open ledger");
    assert_eq!(marked(&cluster, writer.id()).await, Mark::None);
    assert_eq!(marks(&cluster).await, 0);
}

/// Rule 2: a mark is durable before the record says that nobody will look any more.
#[tokio::test(start_paused = true)]
async fn a_ledger_is_marked_before_its_ensemble_changes_and_before_it_is_closed() {
    let cluster = Cluster::with_spares(1);
    let (writer, mut told) = cluster.create().await;
    let ledger = writer.id();
    let lost = writer.metadata().last_ensemble().1[0].clone();
    cluster.transport.inject(&lost, Fault::LoseRequests);
    writer.append(payloads(3)).expect("an open ledger");
    while told.recv().await != Some(Told::Confirmed(2)) {}
    // The read and the write of the mark, then the write of the record, each held until the next will be.
    cluster.store.inject(StoreFault::Hold, 1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    for _ in 0..2 {
        assert_eq!(cluster.store.held(), 1);
        cluster.store.inject(StoreFault::Hold, 1);
        cluster.store.release();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(cluster.store.held(), 1, "the write of the record");
    let core = &cluster.client.core;
    let list = crate::marks::read(core, ledger).await;
    assert_eq!(
        list.expect("a store in memory").0,
        Mark::Shortfalls(vec![Shortfall { bookie: lost, ..of(1, 0, 2) }])
    );
    assert_eq!(core.record(ledger).await.expect("a record").0.ensembles().len(), 1);
    cluster.store.release();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(writer.metadata().ensembles().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_the_store_does_not_take_is_tried_again_at_the_close() {
    let cluster = Cluster::with_spares(1);
    let (writer, mut told) = cluster.create().await;
    let lost = writer.metadata().last_ensemble().1[0].clone();
    cluster.transport.inject(&lost, Fault::LoseRequests);
    writer.append(payloads(1)).expect("an open ledger");
    assert_eq!(told.recv().await, Some(Told::Confirmed(0)));
    cluster.store.inject(StoreFault::Unavailable, 1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(writer.stats().ensemble_changes, 1, "the change does not wait for the mark");
    assert_eq!(marks(&cluster).await, 0);
    writer.close().await.expect("an open ledger");
    let expected = Shortfall { bookie: lost, ..of(1, 0, 0) };
    assert_eq!(marked(&cluster, writer.id()).await, Mark::Shortfalls(vec![expected]));
}

#[tokio::test(start_paused = true)]
async fn a_mark_goes_with_its_ledger() {
    let cluster = Cluster::new();
    let (writer, _told) = short_of_one(&cluster).await;
    writer.close().await.expect("two of three bookies are up");
    assert_eq!(marks(&cluster).await, 1);
    cluster.client.delete(writer.id()).await.expect("a store in memory");
    assert_eq!(marks(&cluster).await, 0);
}

/// The operations of the one are interleaved with those of the other in every order.
#[tokio::test(start_paused = true)]
async fn a_mark_that_is_added_while_its_ledger_is_deleted_goes_with_it_or_with_a_check() {
    // The writer reads and writes the mark.
    for deleted_after in 0..=2 {
        let cluster = Cluster::new();
        let (writer, _told) = short_of_one(&cluster).await;
        let (ledger, core) = (writer.id(), cluster.client.core.clone());
        cluster.store.inject(StoreFault::Hold, 100);
        let adding =
            tokio::spawn(async move { crate::marks::add(&core, ledger, &[of(3, 0, 0)]).await });
        for _ in 0..deleted_after {
            cluster.store.release();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        // The deletion of the record, and that of the mark, past the faults.
        let inner = cluster.memory.clone();
        let (record, mark) = (ledger_key(ledger), mark_key(ledger));
        let found = inner.get(&record).await.expect("in memory").expect("a record");
        inner.delete(&record, found.version).await.expect("the version just read");
        while let Some(found) = inner.get(&mark).await.expect("in memory") {
            let _ = inner.delete(&mark, found.version).await;
        }
        cluster.store.heal();
        cluster.store.release();
        adding.await.expect("no panic").expect("the store answers");
        let gone = CheckError::Record(RecordError::NoSuchLedger { ledger });
        assert_eq!(cluster.client.check(ledger, |_| ()).await, Err(gone));
        assert_eq!(inner.get(&mark).await, Ok(None), "{deleted_after}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_of_a_ledger_that_is_gone_removes_the_mark_it_left() {
    let cluster = Cluster::new();
    let ledger = LedgerId(7);
    let stored = Shortfall::encode(&[of(1, 0, 0)]);
    cluster.store.put(&mark_key(ledger), stored, Expected::Absent).await.expect("no mark yet");
    let gone = CheckError::Record(RecordError::NoSuchLedger { ledger });
    assert_eq!(cluster.client.check(ledger, |_| ()).await, Err(gone));
    assert_eq!(marks(&cluster).await, 0);
}

#[tokio::test(start_paused = true)]
async fn marks_are_added_up_whatever_the_store_answers() {
    let cluster = Cluster::new();
    let (writer, _told) = cluster.create().await;
    let ledger = writer.id();
    let core = &cluster.client.core;
    crate::marks::add(core, ledger, &[of(1, 5, 6)]).await.expect("a store in memory");
    cluster.store.inject(StoreFault::LoseReply, 1);
    crate::marks::add(core, ledger, &[of(2, 0, 0), of(1, 3, 3)]).await.expect("it came through");
    // A read of the mark as it was leads to a conflict, and to another attempt.
    cluster.store.inject(StoreFault::StaleRead, 1);
    crate::marks::add(core, ledger, &[of(3, 1, 1)]).await.expect("the second attempt");
    let all = vec![of(1, 3, 6), of(2, 0, 0), of(3, 1, 1)];
    let (mark, _) = crate::marks::read(core, ledger).await.expect("a store in memory");
    assert_eq!(mark, Mark::Shortfalls(all));
}

/// That of the mark, and those of the record, which was not there before it was.
#[tokio::test(start_paused = true)]
async fn stale_reads_take_no_mark_off_a_ledger_that_is_written() {
    let cluster = Cluster::new();
    let (writer, _told) = cluster.create().await;
    let ledger = writer.id();
    cluster.store.inject(StoreFault::StaleRead, 3);
    let added = crate::marks::add(&cluster.client.core, ledger, &[of(3, 0, 0)]).await;
    assert_eq!((added, marks(&cluster).await), (Ok(()), 1));
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_a_lagging_store_does_not_show_is_deleted_or_not_said_to_be() {
    for stale in [1, 2, 3, 1_000] {
        let cluster = Cluster::new();
        let (writer, _told) = cluster.create().await;
        let ledger = writer.id();
        cluster.store.inject(StoreFault::StaleRead, stale);
        let deleted = cluster.client.delete(ledger).await;
        let left = cluster.memory.get(&ledger_key(ledger)).await.expect("in memory");
        assert_eq!((deleted.is_ok(), left.is_none()), (stale < 10, stale < 10), "{stale}");
    }
}

/// A store that lags shows a check neither the ledger nor its mark; meanwhile it catches up.
#[tokio::test(start_paused = true)]
async fn a_check_takes_no_mark_off_a_ledger_that_the_store_has_not_shown_yet() {
    let cluster = Cluster::new();
    let (writer, _told) = cluster.create().await;
    let ledger = writer.id();
    crate::marks::add(&cluster.client.core, ledger, &[of(3, 0, 0)]).await.expect("in memory");
    // The mark, and the record twice.
    cluster.store.inject(StoreFault::StaleRead, 3);
    let gone = CheckError::Record(RecordError::NoSuchLedger { ledger });
    assert_eq!(cluster.client.check(ledger, |_| ()).await, Err(gone));
    assert_eq!(marks(&cluster).await, 1);
    assert_eq!(marked(&cluster, ledger).await, Mark::Shortfalls(vec![of(3, 0, 0)]));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_mark_is_named_by_the_check_and_not_none() {
    let cluster = Cluster::new();
    let writer = cluster.written(1).await;
    let key = mark_key(writer.id());
    cluster.store.put(&key, "x".into(), Expected::Absent).await.expect("no mark yet");
    let report = cluster.client.check(writer.id(), |_| ()).await.expect("all bookies are up");
    assert_eq!((report.marked, report.fragments.len()), (Mark::Unreadable, 1));
}
