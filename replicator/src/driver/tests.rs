//! Whole replicators between embedded topics, on the runtime's paused clock.

use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use georepl_cursor::{ManagedLedger, ManagedLedgerConfig, StartAt};
use georepl_storage::{
    BookieId, ClientConfig, EntryId, LedgerClient, MemoryBookieRegistry, MemoryBookies,
    MemoryMetadataStore,
};

use super::*;
use crate::message::{MessageMetadata, compose};
use crate::producer::{
    EmbeddedRemote, EmbeddedTopic, EmbeddedTopicConfig, EmbeddedTopics, FaultyRemote, ReleaseOrder,
    RemoteFaults, WallClock,
};
use crate::why::{Reason, StopReason, Wake};

const TOPIC: &str = "persistent://acme/eu/orders";

struct OneTopic(EmbeddedTopic);

#[async_trait]
impl EmbeddedTopics for OneTopic {
    async fn topic(&self, _: &str) -> Result<EmbeddedTopic, Arc<str>> {
        Ok(self.0.clone())
    }
}

async fn topic() -> EmbeddedTopic {
    let bookies = ["b1", "b2", "b3", "b4"].map(BookieId::from);
    let memory = Arc::new(MemoryBookies::new(bookies.clone()));
    let store = Arc::new(MemoryMetadataStore::new());
    let registry = Arc::new(MemoryBookieRegistry::new(bookies));
    let client = LedgerClient::new(memory, store.clone(), registry, ClientConfig::default());
    // Small ledgers, so that every test crosses from one to the next.
    let config = ManagedLedgerConfig { ledger_entries_max: 7, ..ManagedLedgerConfig::default() };
    let ledger = ManagedLedger::open(TOPIC, client, store, config).await.unwrap();
    let clock: WallClock = Arc::new(SystemTime::now);
    EmbeddedTopic::new(ledger, EmbeddedTopicConfig { frame_bytes_max: 1_000, clock }).unwrap()
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
    east: EmbeddedTopic,
    cursor: Arc<ManagedCursor>,
    faults: RemoteFaults,
    replicator: Replicator,
}

async fn link(
    from: (&str, &EmbeddedTopic),
    to: (&str, &EmbeddedTopic),
    faults: RemoteFaults,
) -> (Arc<ManagedCursor>, Replicator) {
    let name = format!("pulsar.repl.{}", to.0);
    let cursor = ManagedCursor::open(from.1.ledger(), &name, StartAt::Earliest).await.unwrap();
    let remote = EmbeddedRemote::new(Arc::new(OneTopic(to.1.clone())));
    let config = ReplicatorConfig::new(from.0, to.0, TOPIC);
    let remote = Arc::new(FaultyRemote::new(remote, faults));
    let replicator = Replicator::new(config, Arc::clone(&cursor), remote).await.unwrap();
    (cursor, replicator)
}

impl Pair {
    async fn new() -> Self {
        let (west, east, faults) = (topic().await, topic().await, RemoteFaults::new());
        let (cursor, replicator) = link(("west", &west), ("east", &east), faults.clone()).await;
        Self { west, east, cursor, faults, replicator }
    }

    async fn waiting(&self) {
        let waiting = || self.replicator.why().reason == Reason::WaitingForEntries;
        until("a waiting read", waiting).await;
    }

    async fn drained(&self) {
        self.within(self.replicator.drained()).await;
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
    pair.faults.fail_opens(1);
    pair.faults.cut_link();
    publish(&pair.west, 5..12).await;
    publish(&pair.west, 12..20).await;
    pair.assert_complete(20).await;
    pair.waiting().await;
    pair.replicator.stop();
    pair.replicator.start();
    publish(&pair.west, 20..30).await;
    pair.assert_complete(30).await;
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
    let there = link(("west", &west), ("east", &east), RemoteFaults::new()).await;
    let back = link(("east", &east), ("west", &west), RemoteFaults::new()).await;
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
async fn shutdown_settles_what_was_sent_and_reports_the_rest() {
    let pair = Pair::new().await;
    pair.replicator.start();
    publish(&pair.west, 0..5).await;
    pair.drained().await;
    pair.faults.hold_receipts();
    publish(&pair.west, 5..8).await;
    until("sends", || pair.replicator.accounting().sends == 8).await;
    let leftover = pair.replicator.shutdown(Duration::from_secs(1)).await;
    assert_eq!((leftover, pair.replicator.state()), (Leftover { backlog: 3 }, State::Stopped));
    pair.faults.release_receipts(ReleaseOrder::Given);
    pair.replicator.start();
    pair.assert_complete(8).await;
}

#[tokio::test(start_paused = true)]
async fn drained_waits_for_what_was_published_before_it_and_for_nothing_later() {
    let pair = Pair::new().await;
    pair.replicator.drained().await;
    publish(&pair.west, 0..5).await;
    let mut drained = std::pin::pin!(pair.replicator.drained());
    let pending = |now: Option<()>| assert_eq!(now, None, "nothing is acknowledged");
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
    pair.within(drained).await;
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
    pair.within(waiting).await.unwrap();
    assert_eq!(pair.cursor.backlog(), 0);
}

#[tokio::test(start_paused = true)]
async fn later_owner_of_the_cursor_ends_the_earlier_one() {
    let pair = Pair::new().await;
    pair.replicator.start();
    pair.waiting().await;
    let remote = EmbeddedRemote::new(Arc::new(OneTopic(pair.east.clone())));
    let config = ReplicatorConfig::new("west", "east", TOPIC);
    let later = Replicator::new(config, Arc::clone(&pair.cursor), Arc::new(remote)).await.unwrap();
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
