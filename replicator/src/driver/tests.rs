//! Whole replicators between embedded topics, on the runtime's paused clock.

use std::sync::OnceLock;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use georepl_cursor::{ManagedLedger, ManagedLedgerConfig, StartAt};
use georepl_storage::{
    BookieId, BookieTransport, ClientConfig, CompletionSink, EntryId, LedgerClient,
    MemoryBookieRegistry, MemoryBookies, MemoryMetadataStore, Request, RequestBody,
};

use super::*;
use crate::limits::Limits;
use crate::message::{MessageMetadata, compose};
use crate::producer::{
    EmbeddedRemote, EmbeddedTopic, EmbeddedTopicConfig, EmbeddedTopics, FaultyRemote,
    OpenedSession, Opening, ReleaseOrder, RemoteFaults, SessionEvents, WallClock,
};
use crate::session::{Incarnation, OpenError, Outgoing, Receipt, Revision, Source};
use crate::why::{Reason, Wake};

mod changing;

const TOPIC: &str = "persistent://acme/eu/orders";

struct OneTopic(EmbeddedTopic);

#[async_trait]
impl EmbeddedTopics for OneTopic {
    async fn topic(&self, _: &str) -> Result<EmbeddedTopic, Arc<str>> {
        Ok(self.0.clone())
    }
}

/// Keeps reads on their way to the bookies while it holds, and lets everything else pass.
struct Reads {
    inner: MemoryBookies,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    holds: bool,
    reads: Vec<(BookieId, Request, Arc<dyn CompletionSink>)>,
}

impl Reads {
    fn hold(&self, holds: bool) {
        self.kept.lock().holds = holds;
    }

    fn held(&self) -> usize {
        self.kept.lock().reads.len()
    }

    fn release(&self) {
        self.hold(false);
        let kept = std::mem::take(&mut self.kept.lock().reads);
        for (bookie, request, sink) in kept {
            self.inner.submit(&bookie, &mut vec![request], &sink);
        }
    }
}

impl BookieTransport for Reads {
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>) {
        let mut kept = self.kept.lock();
        if kept.holds {
            let is_read = |request: &mut Request| matches!(request.body, RequestBody::Read { .. });
            let reads = batch.extract_if(.., is_read);
            kept.reads.extend(reads.map(|request| (bookie.clone(), request, Arc::clone(sink))));
        }
        drop(kept);
        if !batch.is_empty() {
            self.inner.submit(bookie, batch, sink);
        }
    }
}

async fn topic() -> EmbeddedTopic {
    topic_on_bookies().await.0
}

async fn topic_on_bookies() -> (EmbeddedTopic, Arc<Reads>) {
    // Small ledgers, so that every test crosses from one to the next.
    let config = ManagedLedgerConfig { ledger_entries_max: 7, ..ManagedLedgerConfig::default() };
    topic_with(config).await
}

async fn topic_with(config: ManagedLedgerConfig) -> (EmbeddedTopic, Arc<Reads>) {
    let bookies = ["b1", "b2", "b3", "b4"].map(BookieId::from);
    let inner = MemoryBookies::new(bookies.clone());
    let memory = Arc::new(Reads { inner, kept: Mutex::default() });
    let store = Arc::new(MemoryMetadataStore::new());
    let registry = Arc::new(MemoryBookieRegistry::new(bookies));
    let client =
        LedgerClient::new(memory.clone(), store.clone(), registry, ClientConfig::default());
    let ledger = ManagedLedger::open(TOPIC, client, store, config).await.unwrap();
    let clock: WallClock = Arc::new(SystemTime::now);
    let config = EmbeddedTopicConfig { frame_bytes_max: 1_000, clock };
    (EmbeddedTopic::open(ledger, config).await.unwrap(), memory)
}

async fn publish(topic: &EmbeddedTopic, numbers: std::ops::Range<u64>) {
    let frame = |n: u64| {
        let metadata = MessageMetadata {
            producer_name: "test".to_owned(),
            sequence_id: n,
            ..MessageMetadata::default()
        };
        compose(&metadata, n.to_string().as_bytes())
    };
    topic.publish_batch(numbers.map(frame).collect()).await.unwrap();
}

async fn payloads(topic: &EmbeddedTopic) -> Vec<u64> {
    let ledger = topic.ledger();
    let (mut at, mut numbers) = (Offset::ZERO, Vec::new());
    while at < ledger.end() {
        for entry in ledger.read(at, ledger.end(), 1 << 20).await.unwrap() {
            let frame = Frame::parse(entry.payload).unwrap();
            frame.verify().unwrap();
            numbers.push(std::str::from_utf8(&frame.payload()).unwrap().parse().unwrap());
            at = at.plus(1);
        }
    }
    numbers
}

/// Waits for a condition; time is virtual, so waiting costs none.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), wait).await.expect(what);
}

/// From one topic to another, over a link with faults.
struct Pair {
    west: EmbeddedTopic,
    reads: Arc<Reads>,
    east: EmbeddedTopic,
    cursor: Arc<ManagedCursor>,
    faults: RemoteFaults,
    replicator: Replicator,
}

async fn link(
    from: (&str, &EmbeddedTopic),
    to: (&str, &EmbeddedTopic),
    faults: RemoteFaults,
    limits: Limits,
) -> (Arc<ManagedCursor>, Replicator) {
    let name = format!("pulsar.repl.{}", to.0);
    let cursor = ManagedCursor::open(from.1.ledger(), &name, StartAt::Earliest).await.unwrap();
    let remote = EmbeddedRemote::new(Arc::new(OneTopic(to.1.clone())));
    let config = ReplicatorConfig { limits, ..ReplicatorConfig::new(from.0, to.0, TOPIC) };
    let remote = Arc::new(FaultyRemote::new(remote, faults));
    let replicator = Replicator::new(config, Arc::clone(&cursor), remote).await.unwrap();
    (cursor, replicator)
}

impl Pair {
    async fn new() -> Self {
        Self::within_limits(Limits::default()).await
    }

    async fn within_limits(limits: Limits) -> Self {
        let ((west, reads), east) = (topic_on_bookies().await, topic().await);
        let faults = RemoteFaults::new();
        let (cursor, replicator) =
            link(("west", &west), ("east", &east), faults.clone(), limits).await;
        Self { west, reads, east, cursor, faults, replicator }
    }

    /// Another replicator of the same cursor, which takes it over.
    async fn successor(&self) -> Replicator {
        let remote = EmbeddedRemote::new(Arc::new(OneTopic(self.east.clone())));
        let config = ReplicatorConfig::new("west", "east", TOPIC);
        Replicator::new(config, Arc::clone(&self.cursor), Arc::new(remote)).await.unwrap()
    }

    async fn waiting(&self) {
        let waiting = || self.replicator.why().reason == Reason::WaitingForEntries;
        until("a waiting read", waiting).await;
    }

    async fn drained(&self) {
        self.within(self.replicator.drained()).await.unwrap();
    }

    async fn within<T>(&self, future: impl Future<Output = T>) -> T {
        let waited = tokio::time::timeout(Duration::from_secs(600), future).await;
        waited.unwrap_or_else(|_| panic!("{}", self.replicator.why()))
    }

    async fn assert_complete(&self, entries: u64) {
        self.drained().await;
        assert_eq!(payloads(&self.east).await, (0..entries).collect::<Vec<_>>());
        assert_eq!(self.cursor.mark_delete_position(), self.west.ledger().last_confirmed());
        assert!(self.replicator.accounting().balances());
    }
}

#[tokio::test(start_paused = true)]
async fn published_entries_arrive_once_in_order_and_are_acknowledged() {
    let pair = Pair::new().await;
    publish(&pair.west, 0..10).await;
    assert_eq!(pair.replicator.state(), State::Stopped);
    assert_eq!(pair.replicator.why().reason, Reason::Stopped(StopReason::NotStarted));
    pair.replicator.start();
    pair.drained().await;
    publish(&pair.west, 10..25).await;
    pair.assert_complete(25).await;
    let accounting = pair.replicator.accounting();
    assert_eq!((accounting.published, accounting.sent_again, accounting.rewinds), (25, 0, 1));
    let stats = serde_json::to_value(pair.replicator.stats()).unwrap();
    assert_eq!((&stats["msgOutCount"], &stats["connected"]), (&25.into(), &true.into()));
}

/// Apache Pulsar's pull request 20931: the read that waited before the producer restarted
/// completes afterwards and moves the read position past entries that nobody publishes.
#[tokio::test(start_paused = true)]
async fn waiting_read_before_a_producer_restart_skips_nothing() {
    let pair = Pair::new().await;
    pair.replicator.start();
    publish(&pair.west, 0..5).await;
    pair.drained().await;
    pair.waiting().await;
    // The entries wake the read, and storage takes its time over it.
    pair.reads.hold(true);
    publish(&pair.west, 5..12).await;
    until("the old read in storage", || pair.reads.held() > 0).await;
    pair.reads.hold(false);
    pair.replicator.stop();
    pair.replicator.start();
    publish(&pair.west, 12..20).await;
    pair.assert_complete(20).await;
    assert_eq!(pair.replicator.accounting().rewinds, 2, "it was started anew");
    // Now the old read completes, with entries that were replicated by another.
    assert!(pair.reads.held() > 0);
    pair.reads.release();
    pair.waiting().await;
    publish(&pair.west, 20..30).await;
    pair.assert_complete(30).await;
}

#[tokio::test(start_paused = true)]
async fn cut_link_while_a_read_waits_or_is_in_storage_skips_nothing() {
    let pair = Pair::new().await;
    pair.replicator.start();
    publish(&pair.west, 0..5).await;
    pair.drained().await;
    pair.waiting().await;
    pair.faults.fail_opens(1);
    pair.faults.cut_link();
    publish(&pair.west, 5..12).await;
    pair.assert_complete(12).await;
    pair.waiting().await;
    pair.reads.hold(true);
    publish(&pair.west, 12..20).await;
    until("a read in storage", || pair.reads.held() > 0).await;
    pair.faults.cut_link();
    until("another session", || pair.replicator.accounting().sessions == 4).await;
    pair.reads.release();
    pair.assert_complete(20).await;
}

#[tokio::test(start_paused = true)]
async fn cut_link_with_receipts_in_flight_neither_loses_nor_repeats() {
    let pair = Pair::new().await;
    pair.faults.hold_receipts();
    pair.replicator.start();
    publish(&pair.west, 0..20).await;
    until("sends", || pair.replicator.accounting().sends == 20).await;
    pair.faults.cut_link();
    pair.faults.release_receipts(ReleaseOrder::Reversed);
    pair.assert_complete(20).await;
}

#[tokio::test(start_paused = true)]
async fn refused_entry_blocks_by_name_and_arrives_when_it_is_allowed() {
    let pair = Pair::new().await;
    publish(&pair.west, 0..10).await;
    let refused = pair.west.ledger().position_of(Offset::new(3)).unwrap();
    pair.faults.refuse_position(refused);
    pair.replicator.start();
    let refusals = || matches!(pair.replicator.why().reason, Reason::Refused { times: 3.., .. });
    until("three refusals", refusals).await;
    let why = pair.replicator.why();
    assert!(matches!(why.reason, Reason::Refused { position, .. } if position == refused));
    assert!(matches!(why.wake, Wake::Timer(_)), "{why}");
    assert_eq!((why.backlog, payloads(&pair.east).await), (7, vec![0, 1, 2]));
    pair.faults.allow_position(refused);
    pair.assert_complete(10).await;
}

#[tokio::test(start_paused = true)]
async fn half_open_link_is_given_up_when_receipts_stay_away() {
    let pair = Pair::new().await;
    pair.replicator.start();
    pair.waiting().await;
    pair.faults.half_open();
    publish(&pair.west, 0..10).await;
    until("unanswered sends", || pair.replicator.accounting().sends == 10).await;
    let why = pair.replicator.why();
    assert!(matches!(why.reason, Reason::AwaitingReceipts { entries: 10, .. }), "{why}");
    pair.assert_complete(10).await;
    assert_eq!(pair.replicator.accounting().links_lost, 1);
}

#[tokio::test(start_paused = true)]
async fn unreachable_remote_is_named_and_found_again() {
    let pair = Pair::new().await;
    pair.faults.fail_opens(3);
    publish(&pair.west, 0..5).await;
    pair.replicator.start();
    let failing = || matches!(pair.replicator.why().reason, Reason::Connecting { failures: 2, .. });
    until("two failures", failing).await;
    assert_eq!(pair.replicator.state(), State::Starting);
    pair.assert_complete(5).await;
    assert_eq!(pair.replicator.state(), State::Started);
}

#[tokio::test(start_paused = true)]
async fn entry_that_is_no_message_blocks_and_is_never_passed_over() {
    let pair = Pair::new().await;
    publish(&pair.west, 0..2).await;
    let bad = pair.west.ledger().append(Bytes::from_static(b"\x0e\x01")).await.unwrap();
    pair.replicator.start();
    let blocked = || matches!(pair.replicator.why().wake, Wake::Operator);
    until("a block", || pair.replicator.state() == State::Started && blocked()).await;
    let why = pair.replicator.why();
    assert!(matches!(why.reason, Reason::Unreadable { position, .. } if position == bad), "{why}");
    assert_eq!((why.backlog, payloads(&pair.east).await), (1, vec![0, 1]));
}

#[tokio::test(start_paused = true)]
async fn regions_that_replicate_to_each_other_neither_loop_nor_double() {
    let (west, east) = (topic().await, topic().await);
    let there =
        link(("west", &west), ("east", &east), RemoteFaults::new(), Limits::default()).await;
    let back = link(("east", &east), ("west", &west), RemoteFaults::new(), Limits::default()).await;
    publish(&west, 0..10).await;
    publish(&east, 100..110).await;
    there.1.start();
    back.1.start();
    publish(&west, 10..20).await;
    let drained = || there.0.backlog() == 0 && back.0.backlog() == 0;
    let all_there = || west.ledger().end().get() >= 30 && east.ledger().end().get() >= 30;
    until("empty backlogs", || drained() && all_there()).await;
    for topic in [&west, &east] {
        let mut numbers = payloads(topic).await;
        let own: Vec<u64> = numbers.iter().copied().filter(|n| *n < 100).collect();
        assert_eq!(own, (0..20).collect::<Vec<_>>());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..20).chain(100..110).collect::<Vec<_>>());
    }
    let passed = there.1.accounting().filtered_already_replicated;
    assert_eq!((passed, back.1.accounting().filtered_already_replicated), (10, 20));
}

#[tokio::test(start_paused = true)]
async fn shutdown_settles_what_was_sent() {
    let pair = Pair::new().await;
    pair.faults.hold_receipts();
    pair.replicator.start();
    publish(&pair.west, 0..5).await;
    pair.faults.until(|counts| counts.receipts_held == 5).await;
    let mut shutdown = std::pin::pin!(pair.replicator.shutdown(Duration::from_secs(1)));
    let early = tokio::time::timeout(Duration::from_millis(500), shutdown.as_mut()).await;
    assert!(early.is_err(), "receipts are awaited");
    let why = pair.replicator.why();
    assert_eq!((why.reason, why.backlog), (Reason::Stopping, 5));
    pair.faults.release_receipts(ReleaseOrder::Given);
    assert_eq!(pair.within(shutdown).await, Leftover { backlog: 0 });
    assert_eq!(pair.replicator.state(), State::Stopped);
}

#[tokio::test(start_paused = true)]
async fn shutdown_reports_what_is_left_at_its_deadline_and_not_later() {
    let pair = Pair::new().await;
    pair.faults.hold_receipts();
    publish(&pair.west, 0..3).await;
    pair.replicator.start();
    pair.faults.until(|counts| counts.receipts_held == 3).await;
    // Long enough for jitter to show, shorter than the timeout of receipts.
    let begun = tokio::time::Instant::now();
    let leftover = pair.within(pair.replicator.shutdown(Duration::from_secs(25))).await;
    assert_eq!((leftover, pair.replicator.state()), (Leftover { backlog: 3 }, State::Stopped));
    let took = begun.elapsed();
    assert!(took <= Duration::from_millis(25_002), "{took:?}");
    pair.faults.release_receipts(ReleaseOrder::Given);
    pair.replicator.start();
    pair.assert_complete(3).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_its_turn_and_is_not_missed_for_a_later_start() {
    let pair = Pair::new().await;
    publish(&pair.west, 0..3).await;
    // None of it was processed when the shutdown is asked for.
    pair.replicator.start();
    let leftover = pair.within(pair.replicator.shutdown(Duration::from_secs(1))).await;
    assert_eq!((leftover.backlog, pair.replicator.state()), (3, State::Stopped));
    // One turn takes both, and at its end it runs.
    pair.replicator.start();
    pair.waiting().await;
    let start = async { pair.replicator.start() };
    let shutdown = pair.replicator.shutdown(Duration::from_secs(1));
    pair.within(async { tokio::join!(biased; shutdown, start) }).await;
    until("the start", || pair.replicator.state() != State::Stopped).await;
    pair.assert_complete(3).await;
}

#[tokio::test(start_paused = true)]
async fn drained_waits_for_what_was_published_before_it_and_for_nothing_later() {
    let pair = Pair::new().await;
    pair.replicator.drained().await.unwrap();
    publish(&pair.west, 0..5).await;
    let mut drained = std::pin::pin!(pair.replicator.drained());
    let pending = |now: Option<Result<(), Ended>>| assert_eq!(now, None, "nothing is acknowledged");
    pending(drained.as_mut().now_or_never());
    // Not even what is durable at the remote is drained before the receipts are here.
    pair.faults.hold_receipts();
    pair.replicator.start();
    pair.faults.until(|counts| counts.receipts_held == 5).await;
    pending(drained.as_mut().now_or_never());
    // What is published later stays without a receipt; the call does not wait for it.
    let fifth = pair.west.ledger().last_confirmed();
    pair.faults.release_receipts(ReleaseOrder::Given);
    pair.faults.half_open();
    publish(&pair.west, 5..8).await;
    pair.within(drained).await.unwrap();
    assert_eq!((pair.cursor.mark_delete_position(), pair.cursor.backlog()), (fifth, 3));
}

#[tokio::test(start_paused = true)]
async fn dropped_drained_harms_nobody_and_outlives_a_stop() {
    let pair = Pair::new().await;
    publish(&pair.west, 0..5).await;
    let wait = tokio::time::timeout(Duration::from_secs(1), pair.replicator.drained()).await;
    assert!(wait.is_err(), "it is not started");
    assert_eq!(pair.replicator.why().reason, Reason::Stopped(StopReason::NotStarted));
    let replicator = pair.replicator.clone();
    let waiting = tokio::spawn(async move { replicator.drained().await });
    pair.faults.hold_receipts();
    pair.replicator.start();
    pair.faults.until(|counts| counts.receipts_held == 5).await;
    pair.replicator.stop();
    pair.faults.release_receipts(ReleaseOrder::Given);
    pair.replicator.start();
    pair.within(waiting).await.unwrap().unwrap();
    assert_eq!(pair.cursor.backlog(), 0);
}

#[tokio::test(start_paused = true)]
async fn later_owner_of_the_cursor_ends_the_earlier_one() {
    let pair = Pair::new().await;
    pair.replicator.start();
    pair.waiting().await;
    let later = pair.successor().await;
    pair.replicator.stop();
    later.start();
    publish(&pair.west, 0..5).await;
    pair.drained().await;
    pair.replicator.start();
    let ended =
        || matches!(pair.replicator.why().reason, Reason::Stopped(StopReason::LaterOwner(_)));
    until("its end", ended).await;
    assert_eq!(payloads(&pair.east).await, (0..5).collect::<Vec<_>>());
}

/// Of a session that nobody listens to.
struct Nobody;

impl EventSink for Nobody {
    fn session_event(&self, _: SessionId, _: SessionEvent) {}
}

#[tokio::test(start_paused = true)]
async fn source_that_was_put_back_and_forgot_nothing_else_follows_the_sessions_of_its_later_state()
{
    // Far beyond the versions that the store has given out, one that it reaches while it opens a session, and the same.
    for ahead in [1_000_000, 1, 0] {
        let pair = Pair::new().await;
        let taken = *pair.replicator.shared().taken.lock();
        let gone = SessionId { owner: taken + ahead, counter: 7 };
        let source = Source { cluster: "west".into(), topic: TOPIC.into() };
        let (incarnation, revision) = (Incarnation(1), Revision(0));
        let opening = Opening { source, session: gone, incarnation, revision };
        let remote = EmbeddedRemote::new(Arc::new(OneTopic(pair.east.clone())));
        let opened = remote.open(opening, SessionEvents::new(gone, Arc::new(Nobody))).await;
        drop(opened.map_err(|error| error.to_string()).unwrap());

        publish(&pair.west, 0..5).await;
        pair.replicator.start();
        pair.assert_complete(5).await;
        assert_eq!(pair.cursor.progress().sessions_after, gone.owner, "it is stored");
        // Of the owners that follow, the later one wins as ever.
        pair.replicator.stop();
        let later = pair.successor().await;
        later.start();
        publish(&pair.west, 5..8).await;
        pair.within(later.drained()).await.unwrap();
        pair.replicator.start();
        let ended =
            || matches!(pair.replicator.why().reason, Reason::Stopped(StopReason::LaterOwner(_)));
        until("the end of the earlier one", ended).await;
        assert_eq!(payloads(&pair.east).await, (0..8).collect::<Vec<_>>());
        assert_eq!(later.state(), State::Started);
    }
}

#[tokio::test(start_paused = true)]
async fn incarnation_that_the_remote_names_is_noted_for_a_seek_by_whoever_has_the_cursor_next() {
    let pair = Pair::new().await;
    let (later, at) = (SessionId { owner: 1, counter: 1 }, Incarnation(7));
    let source = Source { cluster: "west".into(), topic: TOPIC.into() };
    let opening = Opening { source, session: later, incarnation: at, revision: Revision(0) };
    let remote = EmbeddedRemote::new(Arc::new(OneTopic(pair.east.clone())));
    let opened = remote.open(opening, SessionEvents::new(later, Arc::new(Nobody))).await;
    drop(opened.map_err(|error| error.to_string()).unwrap());

    publish(&pair.west, 0..3).await;
    pair.replicator.start();
    let ended =
        || pair.replicator.why().reason == Reason::Stopped(StopReason::LaterIncarnation(at));
    until("its end", ended).await;
    let to = StartAt::Earliest;
    let seek = Change::seek(to, &pair.cursor.progress());
    assert_eq!(seek, Change::Seek { to, incarnation: Incarnation(8) });
    pair.cursor.reset(to, |progress| seek.apply(progress)).await.unwrap();
    let next = pair.successor().await;
    next.start();
    pair.within(next.drained()).await.unwrap();
    assert_eq!(payloads(&pair.east).await, [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn remote_that_lost_data_blocks_by_name() {
    let pair = Pair::new().await;
    pair.replicator.start();
    publish(&pair.west, 0..5).await;
    pair.drained().await;
    pair.replicator.stop();
    let empty = topic().await;
    let remote = EmbeddedRemote::new(Arc::new(OneTopic(empty.clone())));
    let config = ReplicatorConfig::new("west", "east", TOPIC);
    let cursor = Arc::clone(&pair.cursor);
    let replicator = Replicator::new(config, cursor, Arc::new(remote)).await.unwrap();
    publish(&pair.west, 5..6).await;
    replicator.start();
    let behind = || matches!(replicator.why().reason, Reason::RemoteBehind { .. });
    until("a block", behind).await;
    let why = replicator.why();
    assert_eq!((why.wake, why.backlog, replicator.state()), (Wake::Operator, 1, State::Started));
    assert_eq!(payloads(&empty).await, Vec::<u64>::new());
}

#[tokio::test]
async fn topics_of_these_tests_cross_from_one_ledger_to_the_next() {
    let west = topic().await;
    publish(&west, 0..8).await;
    assert_eq!(west.ledger().last_confirmed().unwrap().entry, EntryId(0));
}

#[tokio::test(start_paused = true)]
async fn replicator_that_still_runs_when_its_cursor_is_taken_ends_and_nothing_is_lost() {
    let pair = Pair::new().await;
    pair.replicator.start();
    pair.waiting().await;
    let later = pair.successor().await;
    later.start();
    for n in 0..30 {
        publish(&pair.west, n..n + 1).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    pair.within(later.drained()).await.unwrap();
    assert_eq!(payloads(&pair.east).await, (0..30).collect::<Vec<_>>());
    let ended =
        || matches!(pair.replicator.why().reason, Reason::Stopped(StopReason::LaterOwner(_)));
    until("the end of the earlier one", ended).await;
    assert_eq!(later.state(), State::Started);
}

#[tokio::test(start_paused = true)]
async fn operator_skips_with_the_cursor_what_the_remote_refuses() {
    let limits = Limits { window_entries: 10, read_entries: 5, ..Limits::default() };
    let pair = Pair::within_limits(limits).await;
    publish(&pair.west, 0..30).await;
    let at = |n| pair.west.ledger().position_of(Offset::new(n)).unwrap();
    pair.faults.refuse_position(at(2));
    pair.replicator.start();
    let refused = || matches!(pair.replicator.why().reason, Reason::Refused { .. });
    until("a refusal", refused).await;
    pair.cursor.mark_delete(at(15)).await.unwrap();
    pair.drained().await;
    let expected: Vec<u64> = (0..2).chain(16..30).collect();
    assert_eq!(payloads(&pair.east).await, expected);
}

#[tokio::test(start_paused = true)]
async fn cursor_that_others_rewind_and_read_loses_and_repeats_nothing() {
    let limits = Limits { window_entries: 4, read_entries: 2, ..Limits::default() };
    let pair = Pair::within_limits(limits).await;
    pair.replicator.start();
    let one = ReadLimits { entries: 1, bytes: 1_000 };
    for n in 0..40 {
        publish(&pair.west, n..n + 1).await;
        if n % 3 == 0 {
            pair.cursor.rewind();
        }
        if n % 5 == 0 {
            // Refused or not, the replicator goes on.
            let _ = pair.cursor.read_entries(one).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pair.assert_complete(40).await;
}

#[tokio::test(start_paused = true)]
async fn closed_topic_ends_it_also_when_it_is_found_by_an_opening() {
    let pair = Pair::new().await;
    pair.replicator.start();
    publish(&pair.west, 0..5).await;
    pair.drained().await;
    pair.replicator.stop();
    let (own, cursor) = (pair.west.ledger().clone(), &pair.cursor);
    own.close().await.unwrap();
    pair.replicator.start();
    let ended = || pair.replicator.why().reason == Reason::Stopped(StopReason::CursorClosed);
    until("its end", ended).await;
    assert_eq!((cursor.backlog(), pair.replicator.accounting().sessions), (0, 2));
}

/// Takes everything and answers at once, from within the call; what else it does is up to a test.
struct Inline<F>(F);

struct InlineSession<F> {
    events: SessionEvents,
    also: F,
}

#[async_trait]
impl<F: Fn() + Clone + Send + Sync + 'static> RemoteProducer for Inline<F> {
    async fn open(&self, _: Opening, events: SessionEvents) -> Result<OpenedSession, OpenError> {
        let session = Box::new(InlineSession { events, also: self.0.clone() });
        Ok(OpenedSession { watermark: None, session })
    }
}

impl<F: Fn() + Send> RemoteSession for InlineSession<F> {
    fn submit(&mut self, batch: Vec<Outgoing<Prepared>>) {
        (self.also)();
        let published = |sent: &Outgoing<Prepared>| Receipt::Published(sent.position);
        self.events.receipts(batch.iter().map(published).collect());
    }
}

async fn inline<F: Fn() + Clone + Send + Sync + 'static>(also: F) -> (EmbeddedTopic, Replicator) {
    let west = topic().await;
    let cursor = ManagedCursor::open(west.ledger(), "c", StartAt::Earliest).await.unwrap();
    let limits = Limits { window_entries: 8, read_entries: 4, ..Limits::default() };
    let config = ReplicatorConfig { limits, ..ReplicatorConfig::new("west", "east", TOPIC) };
    let replicator = Replicator::new(config, cursor, Arc::new(Inline(also))).await.unwrap();
    (west, replicator)
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_remotes_code_ends_it_visibly() {
    let (west, replicator) = inline(|| panic!("planted")).await;
    publish(&west, 0..1).await;
    let (drained, state) = (replicator.drained(), replicator.watch());
    replicator.start();
    let ended = drained.await.unwrap_err();
    assert!(matches!(ended.reason, StopReason::Failed(_)), "{ended}");
    assert_eq!(ended.advice(), Advice::Reopen);
    assert_eq!((replicator.state(), *state.borrow()), (State::Stopped, State::Stopped));
    assert_eq!(replicator.why().reason, Reason::Stopped(ended.reason));
    assert_eq!(replicator.shutdown(Duration::from_secs(1)).await, Leftover { backlog: 1 });
    replicator.start();
    assert!(replicator.drained().await.is_err(), "it is not started again");
}

/// Panics in the first attempt to open, and never answers the second.
#[derive(Default)]
struct PanicsThenHangs(std::sync::atomic::AtomicU32);

#[async_trait]
impl RemoteProducer for PanicsThenHangs {
    async fn open(&self, _: Opening, _: SessionEvents) -> Result<OpenedSession, OpenError> {
        if self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            panic!("planted");
        }
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn panic_while_a_session_is_opened_is_named_also_during_the_next_attempt() {
    let west = topic().await;
    let cursor = ManagedCursor::open(west.ledger(), "c", StartAt::Earliest).await.unwrap();
    let config = ReplicatorConfig::new("west", "east", TOPIC);
    let remote = Arc::new(PanicsThenHangs::default());
    let replicator = Replicator::new(config, cursor, remote.clone()).await.unwrap();
    publish(&west, 0..1).await;
    let begun = tokio::time::Instant::now();
    replicator.start();
    let opening = || remote.0.load(std::sync::atomic::Ordering::Relaxed) == 2;
    until("the second attempt", opening).await;
    assert!(begun.elapsed() < Limits::default().open_timeout, "it is not waited for as if silent");
    let why = replicator.why();
    let said = "1 entry behind: no session after 1 attempt: the code of the remote panicked while";
    assert!(why.to_string().starts_with(said), "{why}");
    assert!(matches!(why.wake, Wake::Remote(_)), "{why}");
}

#[tokio::test(start_paused = true)]
async fn names_of_nothing_are_refused_before_the_cursor_is_taken_over() {
    let pair = Pair::new().await;
    let config = ReplicatorConfig::new("west", "", TOPIC);
    let remote = Arc::new(EmbeddedRemote::new(Arc::new(OneTopic(pair.east.clone()))));
    let refused = Replicator::new(config, Arc::clone(&pair.cursor), remote).await.unwrap_err();
    assert!(refused.to_string().starts_with("remote_cluster is \"\";"), "{refused}");
    pair.replicator.start();
    publish(&pair.west, 0..3).await;
    pair.assert_complete(3).await;
}

#[test]
fn end_of_its_runtime_ends_it_visibly() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (inside, outside) = (runtime(), runtime());
    let (west, replicator) = inside.block_on(inline(|| {}));
    inside.block_on(publish(&west, 0..1));
    drop(inside);
    let ended = outside.block_on(replicator.drained()).unwrap_err();
    assert_eq!(ended.reason, StopReason::Failed("its runtime was shut down".into()));
    assert_eq!(outside.block_on(replicator.shutdown(Duration::from_secs(1))).backlog, 1);
}

#[tokio::test(start_paused = true)]
async fn remotes_code_may_ask_the_replicator() {
    let asked = Arc::new(OnceLock::<Replicator>::new());
    let (replicator, asking) = (Arc::clone(&asked), move || {
        let replicator = asked.get().expect("set before it is started");
        assert!(replicator.why().backlog > 0 && replicator.stats().connected);
    });
    let (west, started) = inline(asking).await;
    let started = replicator.get_or_init(|| started);
    publish(&west, 0..20).await;
    started.start();
    started.drained().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn busy_replicator_lets_other_tasks_run() {
    let (west, replicator) = inline(|| {}).await;
    publish(&west, 0..2_000).await;
    replicator.start();
    let mut turns = 0;
    let draining = replicator.drained();
    let mut draining = std::pin::pin!(draining);
    while draining.as_mut().now_or_never().is_none() {
        turns += 1;
        tokio::task::yield_now().await;
    }
    assert!(turns > 3, "it was given {turns} turns while 2,000 entries were replicated");
}
