//! Whole ledgers on bookies in memory, with faults on the way to them.

mod cases;
mod checking;
mod marks;
mod recovery;
mod seeds;

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::*;
use crate::bookie::MemoryBookies;
use crate::entry::{Entry, MasterKey};
use crate::fault::{Fault, FaultStore, FaultTransport, ReleaseOrder, StoreFault};
use crate::id::{BookieId, EntryId};
use crate::mailbox::Mailbox;
use crate::metadata::{LedgerEnd, LedgerState, MemoryMetadataStore};
use crate::read::{LacError, ReadError};
use crate::registry::MemoryBookieRegistry;
use crate::replica::ReplicaError;
use crate::transport::{
    AddKind, BookieError, CompletionSink, Request, RequestBody, RequestId, Response,
};
use crate::write::{CloseError, ClosedElsewhere};

/// Waits, in virtual time, until something is so.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("it comes to be so");
}

/// Bookies b1 to b3 behind a transport with faults, a store and a client.
struct Cluster {
    bookies: Arc<MemoryBookies>,
    transport: Arc<FaultTransport>,
    store: Arc<FaultStore>,
    /// The store behind the faults.
    memory: Arc<MemoryMetadataStore>,
    registry: Arc<MemoryBookieRegistry>,
    client: LedgerClient,
}

#[derive(Debug, PartialEq)]
enum Told {
    Confirmed(u64),
    Failed(write::Error),
}

struct Sink(mpsc::UnboundedSender<Told>);

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        // A test that is over no longer listens.
        let _ = self.0.send(Told::Confirmed(through.get()));
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        let _ = self.0.send(Told::Failed(error));
    }
}

fn bookie(number: usize) -> BookieId {
    BookieId::from(format!("b{number}"))
}

fn options() -> LedgerOptions {
    LedgerOptions {
        sizes: QuorumSizes::new(3, 3, 2).expect("valid sizes"),
        password: Password::from("secret"),
        custom: BTreeMap::new(),
    }
}

fn payloads(count: usize) -> Vec<Bytes> {
    (0..count).map(|i| Bytes::from(format!("payload {i}"))).collect()
}

impl Cluster {
    fn new() -> Self {
        Self::with_spares(0)
    }

    /// With more bookies than a ledger has.
    fn with_spares(spares: usize) -> Self {
        let bookies = Arc::new(MemoryBookies::new((1..=3 + spares).map(bookie)));
        let transport = Arc::new(FaultTransport::new(bookies.clone()));
        let memory = Arc::new(MemoryMetadataStore::new());
        let store = Arc::new(FaultStore::new(memory.clone()));
        let registry = Arc::new(MemoryBookieRegistry::new(bookies.ids()));
        let config = ClientConfig::default();
        let client = LedgerClient::new(transport.clone(), store.clone(), registry.clone(), config);
        Self { bookies, transport, store, memory, registry, client }
    }

    async fn create_with(
        &self,
        sizes: (usize, usize, usize),
    ) -> (LedgerWriter, mpsc::UnboundedReceiver<Told>) {
        let sizes = QuorumSizes::new(sizes.0, sizes.1, sizes.2).expect("valid sizes");
        let (sink, told) = mpsc::unbounded_channel();
        let options = LedgerOptions { sizes, ..options() };
        (self.client.create(options, Arc::new(Sink(sink))).await.expect("enough bookies"), told)
    }

    async fn create(&self) -> (LedgerWriter, mpsc::UnboundedReceiver<Told>) {
        self.create_with((3, 3, 2)).await
    }

    /// A ledger with `count` confirmed entries.
    async fn written(&self, count: usize) -> LedgerWriter {
        let (writer, mut told) = self.create().await;
        assert_eq!(writer.append(payloads(count)), Ok(EntryId::FIRST));
        while told.recv().await != Some(Told::Confirmed(count as u64 - 1)) {}
        writer
    }

    fn inject(&self, fault: Fault) {
        self.bookies.ids().for_each(|bookie| self.transport.inject(&bookie, fault));
    }

    async fn open(&self, ledger: LedgerId) -> Result<LedgerReader, OpenError> {
        self.client.open(ledger, &options().password).await
    }

    async fn state(&self, ledger: LedgerId) -> LedgerState {
        self.client.core.record(ledger).await.expect("a record").0.state()
    }

    /// Sends one request to a bookie past the faults, and returns the answer.
    fn ask(&self, number: usize, ledger: LedgerId, body: RequestBody) -> Response {
        let mailbox = Arc::new(Mailbox::new());
        let sink: Arc<dyn CompletionSink> = mailbox.clone();
        let mut batch = vec![Request { id: RequestId(0), ledger, body }];
        self.bookies.submit(&bookie(number), &mut batch, &sink);
        let mut responses = Vec::new();
        mailbox.take_into(&mut responses);
        responses.pop().expect("bookies in memory answer at once")
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_appended_is_confirmed_read_and_closed_at_its_exact_end() {
    let cluster = Cluster::new();
    let writer = cluster.written(5).await;
    assert_eq!(writer.append(payloads(1)), Ok(EntryId(5)));
    let end = LedgerEnd { last_entry: Some(EntryId(5)), length: 6 * 9 };
    assert_eq!(writer.close().await, Ok(end));
    assert_eq!(writer.close().await, Ok(end), "closing again learns the same end");
    let closed = write::Error::Closed { ledger: writer.id() };
    assert_eq!(writer.append(payloads(1)), Err(closed));

    let reader = cluster.open(writer.id()).await.expect("a closed ledger");
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(5)));
    let read = reader.read(EntryId(1), EntryId(5)).await.expect("all bookies are up");
    let found: Vec<_> = read.iter().map(|entry| (entry.id.get(), &entry.payload[..])).collect();
    let expected: [(u64, &[u8]); 5] = [
        (1, b"payload 1"),
        (2, b"payload 2"),
        (3, b"payload 3"),
        (4, b"payload 4"),
        (5, b"payload 0"),
    ];
    assert_eq!(found, expected);
    for number in 1..=3 {
        assert_eq!(cluster.bookies.entries(&bookie(number), writer.id()).len(), 6);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_the_writer_is_bounded_by_its_lac() {
    let cluster = Cluster::new();
    let writer = cluster.written(2).await;
    let reader = writer.reader();
    cluster.inject(Fault::LoseResponses);
    writer.append(payloads(1)).expect("an open ledger");
    tokio::task::yield_now().await;
    let ledger = writer.id();
    let beyond =
        ReadError::BeyondLac { ledger, last: EntryId(2), last_add_confirmed: Some(EntryId(1)) };
    assert_eq!(reader.read(EntryId(0), EntryId(2)).await, Err(beyond));
}

#[tokio::test(start_paused = true)]
async fn reordered_responses_are_acknowledged_in_order() {
    let cluster = Cluster::new();
    let (writer, mut told) = cluster.create().await;
    cluster.inject(Fault::HoldResponses);
    writer.append(payloads(3)).expect("an open ledger");
    while cluster.transport.held(&bookie(3)) < 3 {
        tokio::task::yield_now().await;
    }
    cluster.transport.release(&bookie(1), ReleaseOrder::Newest);
    cluster.transport.release(&bookie(2), ReleaseOrder::Newest);
    let mut order = Vec::new();
    while order.last() != Some(&2) {
        let Some(Told::Confirmed(through)) = told.recv().await else {
            panic!("the ledger failed");
        };
        order.push(through);
    }
    assert!(order.is_sorted());
    assert_eq!(writer.last_add_confirmed(), Some(EntryId(2)));
}

#[tokio::test(start_paused = true)]
async fn duplicate_responses_are_no_second_copy() {
    let cluster = Cluster::new();
    let (writer, mut told) = cluster.create().await;
    cluster.transport.inject(&bookie(1), Fault::DuplicateResponses);
    cluster.transport.inject(&bookie(2), Fault::Answer(BookieError::Unreachable));
    cluster.transport.inject(&bookie(3), Fault::HoldResponses);
    writer.append(payloads(1)).expect("an open ledger");
    while cluster.transport.held(&bookie(3)) < 1 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(writer.last_add_confirmed(), None);
    cluster.transport.release(&bookie(3), ReleaseOrder::Oldest);
    assert_eq!(told.recv().await, Some(Told::Confirmed(0)));
}

#[tokio::test(start_paused = true)]
async fn one_bookie_down_of_three_keeps_the_ledger_going() {
    let cluster = Cluster::new();
    cluster.transport.inject(&bookie(2), Fault::LoseRequests);
    let writer = cluster.written(4).await;
    // Later than the timeout of the lost requests.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(writer.append(payloads(1)), Ok(EntryId(4)));
    assert_eq!(writer.close().await.map(|end| end.last_entry), Ok(Some(EntryId(4))));
    assert_eq!(cluster.bookies.entries(&bookie(2), writer.id()), []);
    let reader = cluster.open(writer.id()).await.expect("a closed ledger");
    assert_eq!(reader.read(EntryId(0), EntryId(4)).await.map(|entries| entries.len()), Ok(5));
}

#[tokio::test(start_paused = true)]
async fn two_bookies_down_end_the_ledger_at_its_last_confirmed_entry() {
    let cluster = Cluster::new();
    let (writer, mut told) = cluster.create().await;
    writer.append(payloads(1)).expect("an open ledger");
    assert_eq!(told.recv().await, Some(Told::Confirmed(0)));
    cluster.transport.inject(&bookie(1), Fault::LoseRequests);
    cluster.transport.inject(&bookie(2), Fault::Answer(BookieError::Io));
    writer.append(payloads(2)).expect("nobody knows yet");
    let Some(Told::Failed(error)) = told.recv().await else {
        panic!("an entry with one copy was confirmed");
    };
    let write::Error::QuorumLost { entry: EntryId(1), failures, .. } = &error else {
        panic!("the quorum was lost, not {error}");
    };
    assert!(failures.contains(&(bookie(1), BookieError::Timeout.into())));
    assert!(failures.contains(&(bookie(2), BookieError::Io.into())));
    assert_eq!(writer.append(payloads(1)), Err(error));
    let end = LedgerEnd { last_entry: Some(EntryId(0)), length: 9 };
    assert_eq!(writer.close().await, Ok(end));
}

#[tokio::test(start_paused = true)]
async fn a_fenced_writer_stops_acknowledging_and_leaves_the_record_alone() {
    let cluster = Cluster::new();
    let (writer, mut told) = cluster.create().await;
    writer.append(payloads(2)).expect("an open ledger");
    assert_eq!(told.recv().await, Some(Told::Confirmed(1)));
    let ledger = writer.id();
    let fence = Some(MasterKey::of(&options().password));
    cluster.ask(2, ledger, RequestBody::ReadLac { fence }).result.expect("the right key");

    writer.append(payloads(1)).expect("nobody knows yet");
    let fenced = write::Error::Fenced { ledger };
    let mut last = told.recv().await;
    if let Some(Told::Confirmed(_)) = last {
        // Two of three bookies are not fenced, so the entry may have reached its quorum before the refusal.
        last = told.recv().await;
    }
    assert_eq!(last, Some(Told::Failed(fenced.clone())));
    assert_eq!(writer.append(payloads(1)), Err(fenced));
    assert_eq!(writer.close().await, Err(CloseError::Fenced { ledger }));
    assert_eq!(cluster.state(ledger).await, LedgerState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_reader_passes_over_a_corrupt_copy_and_names_them_when_all_are() {
    let cluster = Cluster::new();
    let writer = cluster.written(3).await;
    writer.close().await.expect("an open ledger");
    let reader = cluster.open(writer.id()).await.expect("a closed ledger");
    for number in 1..=3 {
        let read = reader.read(EntryId(0), EntryId(2)).await.expect("there is a good copy");
        assert_eq!(read[1].payload, "payload 1");
        let lost = cluster.bookies.corrupt_entry(&bookie(number), writer.id(), EntryId(1));
        assert!(lost.is_some(), "each bookie has a copy");
    }
    let Err(ReadError::Unreadable { entry: EntryId(1), answers, .. }) =
        reader.read(EntryId(0), EntryId(2)).await
    else {
        panic!("entry 1 has no good copy left");
    };
    let mut named: Vec<_> = answers.0.iter().map(|(bookie, _)| bookie.clone()).collect();
    named.sort();
    assert_eq!(named, [bookie(1), bookie(2), bookie(3)]);
    assert!(answers.0.iter().all(|(_, error)| matches!(error, ReplicaError::Copy(_))));
}

#[tokio::test(start_paused = true)]
async fn only_unanimous_absence_is_called_absence() {
    let cluster = Cluster::new();
    let writer = cluster.written(2).await;
    let reader = writer.reader();
    cluster.transport.inject(&bookie(3), Fault::Answer(BookieError::Unreachable));
    for number in 1..=3 {
        cluster.bookies.remove_entry(&bookie(number), writer.id(), EntryId(0));
    }
    let read = reader.read(EntryId(0), EntryId(0)).await;
    assert!(matches!(read, Err(ReadError::Unreadable { .. })), "{read:?}");
    cluster.transport.heal(&bookie(3));
    let read = reader.read(EntryId(0), EntryId(0)).await;
    assert!(matches!(read, Err(ReadError::NoSuchEntry { .. })), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_goes_on_to_the_next_replica_when_one_is_silent() {
    let cluster = Cluster::new();
    let writer = cluster.written(3).await;
    let reader = writer.reader();
    cluster.transport.inject(&bookie(1), Fault::LoseResponses);
    let started = tokio::time::Instant::now();
    let read = reader.read(EntryId(0), EntryId(2)).await.expect("two bookies answer");
    assert_eq!(read.len(), 3);
    assert_eq!(started.elapsed().as_secs(), 2, "one speculative delay for all of them");
}

#[tokio::test(start_paused = true)]
async fn a_reader_finds_entries_that_were_moved_since_it_read_the_record() {
    let cluster = Cluster::new();
    let ledger = LedgerId(7);
    let LedgerOptions { sizes, password, custom } = options();
    let key = MasterKey::of(&password);
    let ensemble = |numbers: [usize; 3]| numbers.map(bookie).to_vec();
    let before = LedgerMetadata::created(sizes, password, ensemble([1, 2, 4]), 1, custom);
    let before = before.expect("three members");
    let moved = before.ensemble_changed(EntryId(0), ensemble([1, 2, 3])).expect("an open ledger");
    for (number, id) in [(1, 1), (2, 1), (3, 0)] {
        let lac = EntryId(id).checked_prev();
        let entry = Entry::seal(ledger, EntryId(id), lac, 9, Bytes::from(format!("payload {id}")));
        let body = RequestBody::Add { entry, key, kind: AddKind::Normal };
        cluster.ask(number, ledger, body).result.expect("a new entry");
    }
    let name = ledger_key(ledger);
    let version = cluster.store.put(&name, encode(&before), Expected::Absent).await;
    let reader = cluster.open(ledger).await.expect("two of three bookies answer");
    let unreadable = reader.read(EntryId(0), EntryId(0)).await;
    assert!(matches!(unreadable, Err(ReadError::Unreadable { .. })), "{unreadable:?}");
    let version = Expected::Version(version.expect("a new record"));
    cluster.store.put(&name, encode(&moved), version).await.expect("the version just written");
    let read = reader.read(EntryId(0), EntryId(0)).await.expect("the new record names its bookie");
    assert_eq!(read[0].payload, "payload 0");
}

#[tokio::test(start_paused = true)]
async fn a_reader_learns_that_its_ledger_was_closed_and_where() {
    let cluster = Cluster::new();
    let writer = cluster.written(1).await;
    let reader = cluster.open(writer.id()).await.expect("an open ledger");
    assert_eq!(
        reader.last_add_confirmed(),
        None,
        "the only entry's header knows of none before it"
    );
    writer.append(payloads(1)).expect("an open ledger");
    writer.close().await.expect("an open ledger");
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(1))));
    cluster.inject(Fault::Answer(BookieError::Unreachable));
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(1))), "nobody is asked");
}

#[tokio::test(start_paused = true)]
async fn an_opener_knows_more_than_the_bookies_when_the_record_proves_it() {
    let cluster = Cluster::new();
    let ledger = LedgerId(904_368);
    let ensemble = |numbers: [usize; 3]| numbers.map(bookie).to_vec();
    let LedgerOptions { sizes, password, custom } = options();
    let key = MasterKey::of(&password);
    let metadata = LedgerMetadata::created(sizes, password, ensemble([1, 2, 3]), 1, custom)
        .expect("three members")
        .ensemble_changed(EntryId(15), ensemble([1, 2, 4]))
        .expect("an open ledger");
    let stored = cluster.store.put(&ledger_key(ledger), encode(&metadata), Expected::Absent).await;
    let version = stored.expect("a new record");
    let entry =
        Entry::seal(ledger, EntryId(14), Some(EntryId(13)), 150, Bytes::from_static(b"entry 14"));
    for number in [1, 2] {
        let body = RequestBody::Add { entry: entry.clone(), key, kind: AddKind::Normal };
        cluster.ask(number, ledger, body).result.expect("a new entry");
    }

    let reader = cluster.open(ledger).await.expect("two of three bookies answer");
    assert_eq!(reader.stored_lac(), Some(EntryId(13)));
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(14)));
    let read = reader.read(EntryId(14), EntryId(14)).await.expect("entry 14 is confirmed");
    assert_eq!(read[0].payload, "entry 14");
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(14))));
    let found = cluster
        .store
        .get(&ledger_key(ledger))
        .await
        .expect("a store in memory")
        .expect("it is there");
    assert_eq!(found.version, version, "opening changes nothing");
}

#[tokio::test(start_paused = true)]
async fn without_coverage_the_lac_is_unknown_and_not_none() {
    let cluster = Cluster::new();
    let writer = cluster.written(2).await;
    cluster.transport.inject(&bookie(1), Fault::LoseRequests);
    let reader = cluster.open(writer.id()).await.expect("two of three bookies answer");
    assert_eq!(reader.last_add_confirmed(), reader.stored_lac());
    cluster.transport.inject(&bookie(2), Fault::Answer(BookieError::Io));
    let Err(OpenError::Unknown(unknown)) = cluster.open(writer.id()).await else {
        panic!("one bookie of three cannot speak for all");
    };
    assert_eq!(
        unknown.answers.0,
        [(bookie(2), BookieError::Io.into()), (bookie(1), BookieError::Timeout.into())]
    );
    assert!(matches!(reader.read_last_add_confirmed().await, Err(LacError::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn the_wrong_password_opens_nothing() {
    let cluster = Cluster::new();
    let writer = cluster.written(1).await;
    let opened = cluster.client.open(writer.id(), &Password::from("guess")).await;
    assert_eq!(
        opened.map(|reader| reader.id()),
        Err(OpenError::Unauthorized { ledger: writer.id() })
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_ledger_is_gone_and_deleting_it_again_is_fine() {
    let cluster = Cluster::new();
    let writer = cluster.written(1).await;
    let ledger = writer.id();
    assert_eq!(cluster.client.delete(ledger).await, Ok(()));
    assert_eq!(cluster.client.delete(ledger).await, Ok(()));
    let gone = OpenError::Record(RecordError::NoSuchLedger { ledger });
    assert_eq!(cluster.open(ledger).await.map(|reader| reader.id()), Err(gone));
    cluster.bookies.delete_ledgers([ledger]);
    assert_eq!(cluster.bookies.entries(&bookie(1), ledger), []);
}

#[tokio::test(start_paused = true)]
async fn too_few_bookies_make_no_ledger() {
    let cluster = Cluster::new();
    let sizes = QuorumSizes::new(4, 3, 2).expect("valid sizes");
    let (sink, _told) = mpsc::unbounded_channel();
    let created =
        cluster.client.create(LedgerOptions { sizes, ..options() }, Arc::new(Sink(sink))).await;
    let needed = NotEnoughBookies { needed: 4, available: 3, read_only: 0 };
    assert_eq!(created.map(|writer| writer.id()), Err(CreateError::NotEnoughBookies(needed)));
    assert_eq!(cluster.store.children("ledgers").await, Ok(vec![]));
}

#[tokio::test(start_paused = true)]
async fn lost_answers_to_create_and_close_are_recognised() {
    let cluster = Cluster::new();
    cluster.store.inject(StoreFault::LoseReply, 1);
    let writer = cluster.written(2).await;
    let one = Ok(vec!["L0000000000".to_owned()]);
    assert_eq!(cluster.store.children("ledgers").await, one, "one ledger was created, not two");
    cluster.store.inject(StoreFault::LoseReply, 1);
    let end = LedgerEnd { last_entry: Some(EntryId(1)), length: 18 };
    assert_eq!(writer.close().await, Ok(end));
    assert_eq!(cluster.state(writer.id()).await, LedgerState::Closed(end));
}

#[tokio::test(start_paused = true)]
async fn an_id_that_somebody_else_created_is_passed_over() {
    let cluster = Cluster::new();
    let taken = Bytes::from_static(b"another format");
    cluster
        .store
        .put(&ledger_key(LedgerId(0)), taken, Expected::Absent)
        .await
        .expect("an empty store");
    let (writer, _told) = cluster.create().await;
    assert_eq!(writer.id(), LedgerId(1));
}

#[tokio::test(start_paused = true)]
async fn a_close_at_another_end_than_the_recorded_one_is_an_error() {
    let cluster = Cluster::new();
    let writer = cluster.written(3).await;
    let ledger = writer.id();
    let (metadata, version) = cluster.client.core.record(ledger).await.expect("a record");
    let cut = metadata.closed(Some(EntryId(1)), 18).expect("an open ledger");
    let put =
        cluster.store.put(&ledger_key(ledger), encode(&cut), Expected::Version(version)).await;
    put.expect("the version just read");
    let found = LedgerEnd { last_entry: Some(EntryId(1)), length: 18 };
    let confirmed = LedgerEnd { last_entry: Some(EntryId(2)), length: 27 };
    let elsewhere = ClosedElsewhere { ledger, found, confirmed };
    assert_eq!(elsewhere.lost(), Some(EntryId(2)..=EntryId(2)));
    assert_eq!(writer.close().await, Err(elsewhere.into()));
}

#[test]
fn a_runtime_that_is_shut_down_leaves_a_writer_that_says_so() {
    // On one thread, so that the ledger's task cannot run between the shutdown and the close.
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let first = runtime().expect("a runtime");
    let (cluster, writer, mut told) = first.block_on(async {
        let cluster = Cluster::new();
        let (writer, mut told) = cluster.create().await;
        writer.append(payloads(1)).expect("an open ledger");
        assert_eq!(told.recv().await, Some(Told::Confirmed(0)));
        (cluster, writer, told)
    });
    drop(first);
    let ledger = writer.id();
    assert_eq!(told.try_recv(), Ok(Told::Failed(write::Error::Stopped { ledger })));
    assert_eq!(writer.append(payloads(1)), Err(write::Error::Stopped { ledger }));
    let second = runtime().expect("a runtime");
    assert_eq!(second.block_on(writer.close()), Err(CloseError::Stopped { ledger }));
    assert_eq!(second.block_on(cluster.state(ledger)), LedgerState::Open);
}

/// Panics when it is told of a confirmation, and hands on what it is told of the end.
struct Panicking(mpsc::UnboundedSender<write::Error>);

impl AppendSink for Panicking {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        panic!("a sink that does not like {through}");
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        let _ = self.0.send(error);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_says_so_to_its_sink_its_owner_and_its_readers() {
    let cluster = Cluster::new();
    let (sink, mut told) = mpsc::unbounded_channel();
    let writer = cluster.client.create(options(), Arc::new(Panicking(sink))).await;
    let writer = writer.expect("three bookies");
    let (ledger, reader) = (writer.id(), writer.reader());
    writer.append(payloads(1)).expect("an open ledger");
    assert_eq!(told.recv().await, Some(write::Error::Stopped { ledger }));
    assert_eq!(told.recv().await, None, "once, and the sink is let go");
    assert_eq!(writer.append(payloads(1)), Err(write::Error::Stopped { ledger }));
    assert_eq!(writer.close().await, Err(CloseError::Stopped { ledger }));
    cluster.client.recover(ledger, &options().password).await.expect("all bookies are up");
    assert_eq!(reader.read_last_add_confirmed().await, Ok(Some(EntryId(0))));
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_is_dropped_tells_its_sink_nothing() {
    let cluster = Cluster::new();
    let (writer, mut told) = cluster.create().await;
    drop(writer);
    assert_eq!(told.recv().await, None);
}
