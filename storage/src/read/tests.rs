//! Readers beside a writer that they do not know, on bookies and a store with faults.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::*;
use crate::bookie::MemoryBookies;
use crate::client::{LedgerClient, LedgerOptions, LedgerWriter};
use crate::config::ClientConfig;
use crate::entry::{MasterKey, Password};
use crate::fault::{Fault, FaultStore, FaultTransport, StoreFault};
use crate::id::{BookieId, Instance};
use crate::metadata::{Expected, MemoryMetadataStore, MetadataStore, encode, ledger_key};
use crate::quorum::QuorumSizes;
use crate::registry::MemoryBookieRegistry;
use crate::transport::BookieTransport;
use crate::write::{self, AppendSink};

struct Cluster {
    bookies: Arc<MemoryBookies>,
    transport: Arc<FaultTransport>,
    store: Arc<FaultStore>,
    client: LedgerClient,
}

struct Confirmed(watch::Sender<Option<EntryId>>);

impl AppendSink for Confirmed {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        self.0.send_replace(Some(through));
    }

    fn failed(&self, _: LedgerId, _: write::Error) {}
}

fn bookie(number: usize) -> BookieId {
    BookieId::from(format!("b{number}"))
}

const NUMBERS: [usize; 3] = [1, 2, 3];

impl Cluster {
    fn new() -> Self {
        let bookies = Arc::new(MemoryBookies::new(NUMBERS.map(bookie)));
        let transport = Arc::new(FaultTransport::new(bookies.clone()));
        let store = Arc::new(FaultStore::new(Arc::new(MemoryMetadataStore::new())));
        let registry = Arc::new(MemoryBookieRegistry::new(bookies.ids()));
        let config = ClientConfig::default();
        let client = LedgerClient::new(transport.clone(), store.clone(), registry, config);
        Self { bookies, transport, store, client }
    }

    /// A writer with `count` confirmed entries; each has the one before it as the LAC in its header.
    async fn written(&self, count: usize) -> LedgerWriter {
        let (sizes, custom) = (QuorumSizes::new(3, 3, 2).expect("valid sizes"), BTreeMap::new());
        let options = LedgerOptions { sizes, password: Password::default(), custom };
        let (sink, mut confirmed) = watch::channel(None);
        let writer =
            self.client.create(options, Arc::new(Confirmed(sink))).await.expect("three bookies");
        for id in 0..count as u64 {
            append(&writer, 1);
            let through = Some(EntryId(id));
            confirmed.wait_for(|confirmed| *confirmed == through).await.expect("the writer lives");
        }
        writer
    }

    async fn open(&self, ledger: LedgerId) -> Arc<LedgerReader> {
        let reader = self.client.open(ledger, &Password::default()).await;
        Arc::new(reader.expect("enough bookies answer"))
    }

    async fn written_and_read(&self, count: usize) -> (LedgerWriter, Arc<LedgerReader>) {
        let writer = self.written(count).await;
        let reader = self.open(writer.id()).await;
        (writer, reader)
    }
}

fn append(writer: &LedgerWriter, count: usize) {
    writer.append((0..count).map(|_| Bytes::from_static(b"payload"))).expect("an open ledger");
}

type Wait = tokio::task::JoinHandle<Result<Tail, RecordError>>;

/// Waits at the end that the reader knows, in a task that has sent its questions when this returns.
async fn waiting(reader: &Arc<LedgerReader>) -> Wait {
    let reader = reader.clone();
    let wait =
        tokio::spawn(
            async move { reader.wait_last_add_confirmed(reader.last_add_confirmed()).await },
        );
    tokio::task::yield_now().await;
    assert!(!wait.is_finished());
    wait
}

const fn end(last_entry: Option<u64>, length: u64) -> LedgerEnd {
    LedgerEnd {
        last_entry: match last_entry {
            Some(last) => Some(EntryId(last)),
            None => None,
        },
        length,
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_reader_is_told_of_the_next_entry_without_a_timer() {
    let cluster = Cluster::new();
    let (writer, reader) = cluster.written_and_read(2).await;
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(0)));
    let started = Instant::now();
    let wait = waiting(&reader).await;
    append(&writer, 1);
    let told = wait.await.expect("no panic");
    assert_eq!(told, Ok(Tail::Confirmed(EntryId(1))), "as the header of entry 2 says");
    assert_eq!(started.elapsed(), Duration::ZERO);
    let read = reader.read(EntryId(0), EntryId(1)).await.expect("both are confirmed");
    assert_eq!(read.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lac_that_the_writer_tells_by_itself_makes_its_last_entry_visible() {
    let cluster = Cluster::new();
    let (writer, reader) = cluster.written_and_read(2).await;
    let wait = waiting(&reader).await;
    let mailbox = Arc::new(Mailbox::new());
    let sink: Arc<dyn CompletionSink> = mailbox.clone();
    let body = RequestBody::WriteLac { lac: EntryId(1), key: MasterKey::of(&Password::default()) };
    let mut batch = vec![Request { id: RequestId(0), ledger: writer.id(), body }];
    cluster.transport.submit(&bookie(2), &mut batch, &sink);
    assert_eq!(wait.await.expect("no panic"), Ok(Tail::Confirmed(EntryId(1))));
    assert_eq!(cluster.open(writer.id()).await.last_add_confirmed(), Some(EntryId(1)));
}

#[tokio::test(start_paused = true)]
async fn a_close_ends_the_wait_with_the_exact_end_within_one_check() {
    let cluster = Cluster::new();
    let (writer, reader) = cluster.written_and_read(2).await;
    let started = Instant::now();
    let wait = waiting(&reader).await;
    writer.close().await.expect("an open ledger");
    assert_eq!(wait.await.expect("no panic"), Ok(Tail::Closed(end(Some(1), 14))));
    assert_eq!(started.elapsed(), ClientConfig::default().tail_check_interval);
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(1)));
    let again = reader.wait_last_add_confirmed(None).await;
    assert_eq!(again, Ok(Tail::Closed(end(Some(1), 14))), "an end is told at once");
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_an_idle_ledger_asks_each_bookie_once_per_check() {
    let cluster = Cluster::new();
    let (writer, reader) = cluster.written_and_read(2).await;
    // Nobody is there who would tell the last entry, and every question is answered at once, with nothing new.
    drop(writer);
    cluster.transport.inject(&bookie(1), Fault::Answer(crate::BookieError::TooManyRequests));
    cluster.transport.inject(&bookie(2), Fault::HoldRequests);
    let _wait = waiting(&reader).await;
    tokio::time::sleep(ClientConfig::default().tail_check_interval * 10 + Duration::from_secs(1))
        .await;
    assert_eq!(cluster.transport.held(&bookie(2)), 11);
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_the_writer_waits_without_asking_anybody() {
    let cluster = Cluster::new();
    let writer = cluster.written(1).await;
    let reader = Arc::new(writer.reader());
    NUMBERS
        .iter()
        .for_each(|&number| cluster.transport.inject(&bookie(number), Fault::HoldRequests));
    let wait = waiting(&reader).await;
    assert!(NUMBERS.iter().all(|&number| cluster.transport.held(&bookie(number)) == 0));
    NUMBERS.iter().for_each(|&number| cluster.transport.heal(&bookie(number)));
    append(&writer, 1);
    assert_eq!(wait.await.expect("no panic"), Ok(Tail::Confirmed(EntryId(1))));
    let wait = waiting(&reader).await;
    writer.close().await.expect("an open ledger");
    assert_eq!(wait.await.expect("no panic"), Ok(Tail::Closed(end(Some(1), 14))));
}

#[tokio::test(start_paused = true)]
async fn a12_a_read_beyond_the_known_lac_looks_whether_the_ledger_was_closed() {
    let cluster = Cluster::new();
    let (writer, reader) = cluster.written_and_read(5).await;
    append(&writer, 5);
    let beyond = reader.read(EntryId(9), EntryId(9)).await;
    assert!(matches!(beyond, Err(ReadError::BeyondLac { .. })), "{beyond:?}");
    writer.close().await.expect("an open ledger");
    assert_eq!(reader.read(EntryId(9), EntryId(9)).await.map(|read| read.len()), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_negative_answer_is_not_believed_while_the_record_cannot_be_read() {
    let cluster = Cluster::new();
    let (_writer, reader) = cluster.written_and_read(2).await;
    cluster.store.inject(StoreFault::Unavailable, 1);
    let read = reader.read(EntryId(5), EntryId(5)).await;
    assert!(matches!(read, Err(ReadError::Record(RecordError::Metadata(_)))), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn x2_x3_bookies_that_know_more_do_not_move_the_end_of_a_closed_ledger() {
    let cluster = Cluster::new();
    let (writer, reader) = cluster.written_and_read(4).await;
    let ledger = writer.id();
    // The answers to a LAC read are on their way while the ledger is closed below what they say.
    NUMBERS
        .iter()
        .for_each(|&number| cluster.transport.inject(&bookie(number), Fault::HoldResponses));
    let late = {
        let reader = reader.clone();
        tokio::spawn(async move { reader.read_last_add_confirmed().await })
    };
    while cluster.transport.held(&bookie(3)) == 0 {
        tokio::task::yield_now().await;
    }
    let found = cluster.store.get(&ledger_key(ledger)).await.expect("an answer").expect("a record");
    let record = crate::metadata::decode(&found.value).expect("a record");
    let cut = encode(&record.closed(Some(EntryId(1)), 14).expect("an open ledger"));
    let put = cluster.store.put(&ledger_key(ledger), cut, Expected::Version(found.version)).await;
    put.expect("the version just read");
    let closed = reader.wait_last_add_confirmed(reader.last_add_confirmed()).await;
    assert_eq!(closed, Ok(Tail::Closed(end(Some(1), 14))));
    NUMBERS.iter().for_each(|&number| {
        cluster.transport.release(&bookie(number), crate::fault::ReleaseOrder::Oldest);
    });
    let learned = late.await.expect("no panic");
    assert_eq!(learned, Ok(Some(EntryId(1))), "the bookies have said 2");
    let beyond = reader.read(EntryId(2), EntryId(2)).await;
    assert!(matches!(beyond, Err(ReadError::BeyondLac { .. })), "{beyond:?}");
}

#[tokio::test(start_paused = true)]
async fn an_older_record_does_not_take_the_place_of_a_newer_one() {
    let cluster = Cluster::new();
    let (writer, reader) = cluster.written_and_read(3).await;
    writer.close().await.expect("an open ledger");
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(2))));
    cluster.store.inject(StoreFault::StaleRead, 1);
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(2))));
    assert_eq!(reader.metadata().state(), LedgerState::Closed(end(Some(2), 21)));
}

#[tokio::test(start_paused = true)]
async fn a_hung_replica_is_passed_over_after_the_speculative_delay_and_all_of_them_fail_in_time() {
    let cluster = Cluster::new();
    let (_writer, reader) = cluster.written_and_read(4).await;
    cluster.transport.inject(&bookie(1), Fault::LoseResponses);
    let started = Instant::now();
    assert_eq!(reader.read(EntryId(0), EntryId(2)).await.map(|read| read.len()), Ok(3));
    assert_eq!(started.elapsed(), Duration::from_secs(2));

    NUMBERS
        .iter()
        .for_each(|&number| cluster.transport.inject(&bookie(number), Fault::LoseResponses));
    let started = Instant::now();
    let Err(ReadError::Unreadable { answers, .. }) = reader.read(EntryId(0), EntryId(0)).await
    else {
        panic!("nobody answers");
    };
    assert_eq!(answers.0.len(), 3, "each replica is named once: {answers}");
    // Asked after 0, 2 and 4 seconds; the last one has its full time.
    assert_eq!(started.elapsed(), Duration::from_secs(9));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_overtaken_still_counts() {
    let cluster = Cluster::new();
    let (_writer, reader) = cluster.written_and_read(4).await;
    // One is only slow, the others never answer.
    let first = reader.metadata().last_ensemble().1[0].clone();
    NUMBERS
        .iter()
        .for_each(|&number| cluster.transport.inject(&bookie(number), Fault::LoseResponses));
    cluster.transport.inject(&first, Fault::HoldResponses);
    let read = {
        let reader = reader.clone();
        tokio::spawn(async move { reader.read(EntryId(0), EntryId(0)).await })
    };
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.transport.release(&first, crate::fault::ReleaseOrder::Oldest);
    assert_eq!(read.await.expect("no panic").map(|read| read.len()), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_bookie_that_was_set_up_anew_cannot_deny_an_entry() {
    let cluster = Cluster::new();
    let (writer, reader) = cluster.written_and_read(3).await;
    for number in NUMBERS {
        cluster.bookies.remove_entry(&bookie(number), writer.id(), EntryId(0));
    }
    cluster.bookies.wipe(&bookie(2), Instance(2));
    let Err(ReadError::Unreadable { answers, .. }) = reader.read(EntryId(0), EntryId(0)).await
    else {
        panic!("what a wiped bookie has not says nothing");
    };
    let other = (bookie(2), crate::replica::ReplicaError::OtherInstance);
    assert!(answers.0.contains(&other), "{answers}");
    assert_eq!(reader.read(EntryId(1), EntryId(1)).await.map(|read| read.len()), Ok(1));
}

/// A third entry that all bookies have and nobody confirmed.
async fn append_unheard(cluster: &Cluster, writer: &LedgerWriter) {
    NUMBERS.iter().for_each(|n| cluster.transport.inject(&bookie(*n), Fault::LoseResponses));
    append(writer, 1);
    let hold = |n: &usize| cluster.bookies.entries(&bookie(*n), writer.id()).len() == 3;
    while !NUMBERS.iter().all(hold) {
        tokio::task::yield_now().await;
    }
    NUMBERS.iter().for_each(|n| cluster.transport.heal(&bookie(*n)));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_outlives_its_writer_reads_what_a_recovery_found() {
    let cluster = Cluster::new();
    let writer = cluster.written(2).await;
    let (ledger, reader) = (writer.id(), Arc::new(writer.reader()));
    append_unheard(&cluster, &writer).await;
    let wait = waiting(&reader).await;
    drop(writer);
    while !reader.lac.has_writer_ended() {
        tokio::task::yield_now().await;
    }
    cluster.client.recover(ledger, &Password::default()).await.expect("all bookies are up");
    let beyond = reader.read(EntryId(0), EntryId(2)).await.map(|entries| entries.len());
    assert_eq!(beyond, Ok(3), "the record is looked at, as nobody else says what is confirmed");
    assert_eq!(wait.await.expect("no panic"), Ok(Tail::Closed(end(Some(2), 21))));
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(2)));
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_a_fenced_writer_learns_where_others_closed_the_ledger() {
    let cluster = Cluster::new();
    let writer = cluster.written(2).await;
    let (ledger, reader) = (writer.id(), writer.reader());
    append_unheard(&cluster, &writer).await;
    cluster.client.recover(ledger, &Password::default()).await.expect("all bookies are up");
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(1))), "as its writer says");
    append(&writer, 1);
    while writer.append([]).is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(2))));
}

/// The record is read while the writer still says what is confirmed, and counts once it does no more.
#[tokio::test(start_paused = true)]
async fn a_reader_that_met_the_end_before_its_writer_ended_has_not_forgotten_it() {
    let cluster = Cluster::new();
    let writer = cluster.written(2).await;
    let (ledger, reader) = (writer.id(), Arc::new(writer.reader()));
    append_unheard(&cluster, &writer).await;
    let wait = waiting(&reader).await;
    cluster.client.recover(ledger, &Password::default()).await.expect("all bookies are up");
    assert_eq!(wait.await.expect("no panic"), Ok(Tail::Closed(end(Some(2), 21))));
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(1)), "as its writer says");
    drop(writer);
    while !reader.lac.has_writer_ended() {
        tokio::task::yield_now().await;
    }
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(2))));
}

/// One of the writer's readers has met the end of the ledger. Another one has not, and hears of more from a bookie.
#[tokio::test(start_paused = true)]
async fn no_reader_of_a_writer_moves_the_end_that_another_one_has_met() {
    let cluster = Cluster::new();
    let writer = cluster.written(2).await;
    let (ledger, one, other) = (writer.id(), writer.reader(), Arc::new(writer.reader()));
    drop(writer);
    let wait = waiting(&other).await;
    while !one.lac.has_writer_ended() {
        tokio::task::yield_now().await;
    }
    cluster.client.recover(ledger, &Password::default()).await.expect("all bookies are up");
    // The other one has looked at the record when the writer ended, and looks again in five seconds.
    assert_eq!(one.read_last_add_confirmed().await, Ok(Some(EntryId(1))));
    assert!(!wait.is_finished());
    let mailbox = Arc::new(Mailbox::new());
    let sink: Arc<dyn CompletionSink> = mailbox.clone();
    let body = RequestBody::WriteLac { lac: EntryId(7), key: MasterKey::of(&Password::default()) };
    let mut batch = vec![Request { id: RequestId(0), ledger, body }];
    cluster.transport.submit(&bookie(2), &mut batch, &sink);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(one.last_add_confirmed(), Some(EntryId(1)));
    assert_eq!(wait.await.expect("no panic"), Ok(Tail::Closed(end(Some(1), 14))));
}

#[tokio::test(start_paused = true)]
async fn every_reader_of_a_writer_is_told_of_every_move() {
    let cluster = Cluster::new();
    let writer = cluster.written(1).await;
    let readers: Vec<_> = (0..4).map(|_| Arc::new(writer.reader())).collect();
    for entry in 1..10 {
        let mut waits = Vec::new();
        for reader in &readers {
            waits.push(waiting(reader).await);
        }
        let started = Instant::now();
        append(&writer, 1);
        for wait in waits {
            assert_eq!(wait.await.expect("no panic"), Ok(Tail::Confirmed(EntryId(entry))));
        }
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn one_stale_read_without_a_record_is_no_deleted_ledger() {
    let cluster = Cluster::new();
    let (writer, reader) = cluster.written_and_read(2).await;
    // By then the writer has told its LAC by itself.
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The record has changed once: before that it was not there.
    let stale = || cluster.store.inject(StoreFault::StaleRead, 1);
    stale();
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(1))));
    let wait = waiting(&reader).await;
    stale();
    tokio::time::sleep(ClientConfig::default().tail_check_interval).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    append(&writer, 1);
    assert_eq!(wait.await.expect("no panic"), Ok(Tail::Confirmed(EntryId(2))));
    stale();
    assert_eq!(cluster.open(writer.id()).await.last_add_confirmed(), Some(EntryId(2)));
    stale();
    let report = cluster.client.check(writer.id(), |_| ()).await.expect("all bookies are up");
    assert_eq!(report.last_add_confirmed, Some(EntryId(2)));
    stale();
    cluster.client.delete(writer.id()).await.expect("a store in memory");
    let gone = RecordError::NoSuchLedger { ledger: writer.id() };
    let read = reader.read(EntryId(5), EntryId(5)).await;
    assert_eq!(read, Err(ReadError::Record(gone)), "two reads agree");
}

/// Answers that come after their read was done: the first replica's, overtaken by the second, and an error of it.
#[tokio::test(start_paused = true)]
async fn d7_an_answer_after_the_end_of_its_read_harms_nobody() {
    let cluster = Cluster::new();
    let (_writer, reader) = cluster.written_and_read(3).await;
    // The LAC has been told by itself, so that nothing but reads is under way.
    tokio::time::sleep(Duration::from_secs(2)).await;
    reader.read_last_add_confirmed().await.expect("all bookies are up");
    let first = reader.metadata().ensemble_of(EntryId(0))[0].clone();
    for late in [Fault::HoldResponses, Fault::HoldRequests] {
        cluster.transport.inject(&first, late);
        let read = reader.read(EntryId(0), EntryId(0)).await.expect("the second replica");
        assert_eq!((read.len(), read[0].id), (1, EntryId(0)));
        assert_eq!(cluster.transport.held(&first), 1);
        if late == Fault::HoldRequests {
            cluster.bookies.down(&first);
        }
        let (read, ()) = tokio::join!(reader.read(EntryId(1), EntryId(1)), async {
            cluster.transport.release(&first, crate::fault::ReleaseOrder::Oldest);
        });
        assert_eq!(read.expect("another replica")[0].id, EntryId(1));
    }
}
