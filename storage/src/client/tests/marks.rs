//! What a ledger is marked for, and by whom.

use super::*;
use crate::marks::{MarkError, mark_key};
use crate::shortfall::Shortfall;

fn of(number: usize, first: u64, last: u64) -> Shortfall {
    Shortfall { bookie: bookie(number), first: EntryId(first), last: EntryId(last) }
}

async fn marked(cluster: &Cluster, ledger: LedgerId) -> Vec<Shortfall> {
    cluster.client.check(ledger, |_| ()).await.expect("enough bookies are up").marked
}

#[tokio::test(start_paused = true)]
async fn entries_that_a_bookie_had_not_acknowledged_at_the_close_are_marked() {
    let cluster = Cluster::new();
    cluster.transport.inject(&bookie(3), Fault::HoldResponses);
    let writer = cluster.written(4).await;
    writer.close().await.expect("two of three have acknowledged all");
    assert_eq!(writer.shortfalls(), [of(3, 0, 3)]);
    cluster.transport.heal(&bookie(3));
    assert_eq!(marked(&cluster, writer.id()).await, [of(3, 0, 3)]);
}

#[tokio::test(start_paused = true)]
async fn a_ledger_with_all_its_copies_is_not_marked() {
    let cluster = Cluster::new();
    let writer = cluster.written(4).await;
    writer.close().await.expect("an open ledger");
    assert_eq!(marked(&cluster, writer.id()).await, []);
    assert_eq!(cluster.store.children("underreplicated").await, Ok(vec![]));
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
    assert_eq!(list, Ok(vec![Shortfall { bookie: lost, ..of(1, 0, 2) }]));
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
    assert_eq!(cluster.store.children("underreplicated").await, Ok(vec![]));
    writer.close().await.expect("an open ledger");
    let expected = Shortfall { bookie: lost, ..of(1, 0, 0) };
    assert_eq!(marked(&cluster, writer.id()).await, [expected]);
}

#[tokio::test(start_paused = true)]
async fn a_mark_goes_with_its_ledger() {
    let cluster = Cluster::new();
    cluster.transport.inject(&bookie(3), Fault::LoseRequests);
    let writer = cluster.written(1).await;
    writer.close().await.expect("two of three bookies are up");
    assert_eq!(cluster.store.children("underreplicated").await.map(|marks| marks.len()), Ok(1));
    cluster.client.delete(writer.id()).await.expect("a store in memory");
    assert_eq!(cluster.store.children("underreplicated").await, Ok(vec![]));
}

#[tokio::test(start_paused = true)]
async fn marks_are_added_up_whatever_the_store_answers() {
    let cluster = Cluster::new();
    let ledger = LedgerId(7);
    let core = &cluster.client.core;
    crate::marks::add(core, ledger, &[of(1, 5, 6)]).await.expect("a store in memory");
    cluster.store.inject(StoreFault::LoseReply, 1);
    crate::marks::add(core, ledger, &[of(2, 0, 0), of(1, 3, 3)]).await.expect("it came through");
    // A read of the mark as it was leads to a conflict, and to another attempt.
    cluster.store.inject(StoreFault::StaleRead, 1);
    crate::marks::add(core, ledger, &[of(3, 1, 1)]).await.expect("the second attempt");
    let all = vec![of(1, 3, 6), of(2, 0, 0), of(3, 1, 1)];
    assert_eq!(crate::marks::read(core, ledger).await, Ok(all));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_mark_is_an_error_of_the_check_and_not_none() {
    let cluster = Cluster::new();
    let writer = cluster.written(1).await;
    let (key, ledger) = (mark_key(writer.id()), writer.id());
    cluster.store.put(&key, "x".into(), Expected::Absent).await.expect("no mark yet");
    let checked = cluster.client.check(ledger, |_| ()).await;
    assert_eq!(checked, Err(CheckError::Mark(MarkError::Damaged { ledger })));
}
