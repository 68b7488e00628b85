//! Faults that happened to other systems, by their names in our list of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};

use super::recovery::contents;
use super::*;
use crate::id::Instance;
use crate::read::Tail;
use crate::transport::ResponseBody;

/// A ledger is deleted while it is written, and a bookie has dropped it: a write would make it again there, to be
/// dropped once more.
#[tokio::test(start_paused = true)]
async fn c6_a_ledger_that_a_bookie_has_dropped_ends_its_writer() {
    let cluster = Cluster::with_spares(1);
    let (writer, mut told) = cluster.create().await;
    let ledger = writer.id();
    writer.append(payloads(1)).expect("an open ledger");
    assert_eq!(told.recv().await, Some(Told::Confirmed(0)));
    cluster.client.delete(ledger).await.expect("a store in memory");
    let member = writer.metadata().last_ensemble().1[2].clone();
    cluster.transport.inject(&member, Fault::Answer(BookieError::NoSuchLedger));
    writer.append(payloads(1)).expect("nobody knows yet");
    let mut last = told.recv().await;
    if let Some(Told::Confirmed(1)) = last {
        // By the two that have not dropped it yet.
        last = told.recv().await;
    }
    let dropped = write::Error::Dropped { ledger, bookie: member };
    assert_eq!(last, Some(Told::Failed(dropped.clone())));
    assert_eq!(writer.append(payloads(1)), Err(dropped));
    assert!(matches!(writer.close().await, Err(CloseError::Record { .. })));
}

/// Whatever is lost on the way during a recovery, no entry is.
#[tokio::test(start_paused = true)]
async fn c8_lost_packets_during_a_recovery_lose_no_entry() {
    let ways = [None, Some(Fault::LoseRequests), Some(Fault::LoseResponses)];
    let mut recovered = 0;
    for number in 0..27 {
        let cluster = Cluster::new();
        let ledger = cluster.written(5).await.id();
        for (place, factor) in [1, 3, 9].into_iter().enumerate() {
            if let Some(fault) = ways[number / factor % 3] {
                cluster.transport.inject(&bookie(place + 1), fault);
            }
        }
        match cluster.recover(ledger).await {
            Ok(reader) => {
                recovered += 1;
                assert_eq!(reader.last_add_confirmed(), Some(EntryId(4)));
            }
            Err(error) => {
                assert_eq!(error.advice(), Advice::Retry, "{error}");
                assert_eq!(cluster.state(ledger).await, LedgerState::InRecovery);
            }
        }
        (1..=3).for_each(|number| cluster.transport.heal(&bookie(number)));
        let reader = cluster.recover(ledger).await.expect("all bookies are up");
        assert_eq!(contents(&reader).await, payloads(5));
    }
    assert_eq!(recovered, 1 + 3 * 2, "with at most one of three silent");
}

/// Uses its ledger from within the call that tells of a confirmation.
struct Calling {
    writer: OnceLock<Weak<LedgerWriter>>,
    told: mpsc::UnboundedSender<u64>,
}

impl AppendSink for Calling {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        let writer = self.writer.get().and_then(Weak::upgrade).expect("the test keeps it");
        assert_eq!(writer.last_add_confirmed(), Some(through));
        assert_eq!(writer.reader().last_add_confirmed(), Some(through));
        assert_eq!((writer.stats().lost_members, writer.metadata().ensembles().len()), (0, 1));
        if through < EntryId(5) {
            writer.append(payloads(1)).expect("an open ledger");
        }
        let _ = self.told.send(through.get());
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        panic!("all bookies are up: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn d4_a_sink_may_use_its_ledger() {
    let cluster = Cluster::new();
    let (sender, mut told) = mpsc::unbounded_channel();
    let sink = Arc::new(Calling { writer: OnceLock::new(), told: sender });
    let writer = Arc::new(cluster.client.create(options(), sink.clone()).await.expect("bookies"));
    sink.writer.set(Arc::downgrade(&writer)).expect("set once");
    writer.append(payloads(1)).expect("an open ledger");
    for through in 0..=5 {
        assert_eq!(told.recv().await, Some(through));
    }
}

/// A wait at the end of a ledger whose entries each are on two of four bookies.
#[tokio::test(start_paused = true)]
async fn d15_a_wait_for_more_works_with_more_bookies_than_the_write_quorum() {
    let cluster = Cluster::with_spares(1);
    let (writer, _told) = cluster.create_with((4, 2, 2)).await;
    let reader = cluster.open(writer.id()).await.expect("all bookies are up");
    let mut known = None;
    for entry in 0..9 {
        writer.append(payloads(1)).expect("an open ledger");
        let tail = reader.wait_last_add_confirmed(known).await;
        assert_eq!(tail, Ok(Tail::Confirmed(EntryId(entry))));
        known = Some(EntryId(entry));
    }
    assert_eq!(reader.read(EntryId(0), EntryId(8)).await.map(|entries| entries.len()), Ok(9));
}

/// A payload that is counted until nobody needs it.
struct Counted(Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        b"payload"
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn d18_nothing_is_kept_of_entries_once_they_are_settled_or_their_writer_is_gone() {
    let cluster = Cluster::new();
    let kept = Arc::new(AtomicUsize::new(0));
    let counted = |count: usize| {
        kept.fetch_add(count, Ordering::Relaxed);
        (0..count).map(|_| Bytes::from_owner(Counted(kept.clone()))).collect::<Vec<_>>()
    };
    cluster.transport.inject(&bookie(3), Fault::LoseRequests);
    let (writer, mut told) = cluster.create().await;
    writer.append(counted(10)).expect("an open ledger");
    while told.recv().await != Some(Told::Confirmed(9)) {}
    cluster.bookies.delete_ledgers(cluster.bookies.ledgers());
    assert_eq!(kept.load(Ordering::Relaxed), 10, "b3 may still ask for them");
    // When b3 is given up.
    until(async || kept.load(Ordering::Relaxed) == 0).await;

    cluster.inject(Fault::LoseResponses);
    writer.append(counted(10)).expect("an open ledger");
    tokio::task::yield_now().await;
    drop(writer);
    cluster.bookies.delete_ledgers(cluster.bookies.ledgers());
    while told.recv().await.is_some() {}
    assert_eq!(kept.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn d20_a_store_whose_session_is_lost_for_a_while_fails_nothing() {
    const LOST: usize = 3;
    let cluster = Cluster::with_spares(1);
    let (writer, mut told) = cluster.create().await;
    let ledger = writer.id();
    writer.append(payloads(1)).expect("an open ledger");
    assert_eq!(told.recv().await, Some(Told::Confirmed(0)));

    cluster.store.inject(StoreFault::Unavailable, LOST);
    let lost = writer.metadata().last_ensemble().1[0].clone();
    cluster.transport.inject(&lost, Fault::Answer(BookieError::Unreachable));
    writer.append(payloads(1)).expect("an open ledger");
    assert_eq!(told.recv().await, Some(Told::Confirmed(1)));
    until(async || writer.stats().ensemble_changes == 1).await;

    cluster.store.inject(StoreFault::Unavailable, LOST);
    assert_eq!(writer.close().await.map(|end| end.last_entry), Ok(Some(EntryId(1))));

    let abandoned = cluster.written(2).await.id();
    cluster.store.inject(StoreFault::Unavailable, LOST);
    let started = tokio::time::Instant::now();
    let reader = cluster.recover(abandoned).await.expect("the store is back");
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(1)));
    assert!(started.elapsed() > Duration::from_millis(20), "it was given time");
    assert_eq!(cluster.client.delete(ledger).await, Ok(()));
}

/// A5 for readers: with AQ 3 one answer tells all, and the bookie that gives it has forgotten everything.
#[tokio::test(start_paused = true)]
async fn a5_a_wiped_bookie_does_not_make_a_ledger_look_empty_to_an_opener() {
    let cluster = Cluster::new();
    let (writer, mut told) = cluster.create_with((3, 3, 3)).await;
    writer.append(payloads(5)).expect("an open ledger");
    while told.recv().await != Some(Told::Confirmed(4)) {}
    let ledger = writer.id();
    // The writer tells the LAC by itself.
    let told = ResponseBody::LastAddConfirmed { lac: Some(EntryId(4)) };
    let ask = |number| cluster.ask(number, ledger, RequestBody::ReadLac { fence: None }).result;
    until(async || (1..=3).all(|number| ask(number).as_ref() == Ok(&told))).await;
    cluster.bookies.wipe(&bookie(1), Instance(2));
    [2, 3].iter().for_each(|number| cluster.bookies.down(&bookie(*number)));
    let Err(OpenError::Unknown(unknown)) = cluster.open(ledger).await else {
        panic!("nobody who knows answers");
    };
    assert!(unknown.answers.0.contains(&(bookie(1), ReplicaError::OtherInstance)));
    cluster.bookies.up(&bookie(2));
    let reader = cluster.open(ledger).await.expect("one that knows answers for all");
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(4)));
}
