//! What every remote must do, run on the embedded one, alone and behind a link without faults; then
//! what is particular to each.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use georepl_cursor::{ManagedLedger, ManagedLedgerConfig, Offset, Position};
use georepl_storage::fault::{self as storage_fault, Fault, FaultTransport};
use georepl_storage::{
    Advice, BookieError, BookieId, ClientConfig, LedgerClient, Mailbox, MemoryBookieRegistry,
    MemoryBookies, MemoryMetadataStore,
};

use super::embedded::{BATCH_BYTES_MAX, next_batch};
use super::*;
use crate::message::{Frame, MessageMetadata, Splicer, Unstamped, compose};
use crate::session::{
    Incarnation, OpenError, Outgoing, Receipt, Revision, SessionId, Source, Watermark,
};

mod held;
mod reopened;

const TOPIC: &str = "persistent://acme/eu/orders";

/// An embedded region with one topic.
struct Region {
    bookies: [BookieId; 3],
    faults: Arc<FaultTransport>,
    store: Arc<MemoryMetadataStore>,
    client: LedgerClient,
    topic: EmbeddedTopic,
}

const FRAME_BYTES_MAX: usize = 1_000;

struct OneTopic(EmbeddedTopic);

#[async_trait]
impl EmbeddedTopics for OneTopic {
    async fn topic(&self, name: &str) -> Result<EmbeddedTopic, Arc<str>> {
        if name == TOPIC { Ok(self.0.clone()) } else { Err(format!("no topic {name}").into()) }
    }
}

impl Region {
    async fn new() -> Self {
        let bookies = ["b1", "b2", "b3"].map(BookieId::from);
        let memory = Arc::new(MemoryBookies::new(bookies.clone()));
        let faults = Arc::new(FaultTransport::new(memory));
        let store = Arc::new(MemoryMetadataStore::new());
        let registry = Arc::new(MemoryBookieRegistry::new(bookies.clone()));
        let client =
            LedgerClient::new(faults.clone(), store.clone(), registry, ClientConfig::default());
        let ledger = ManagedLedger::open(TOPIC, client.clone(), store.clone(), Self::log_config());
        let config = Self::topic_config();
        let topic = EmbeddedTopic::open(ledger.await.unwrap(), config).await.unwrap();
        Self { bookies, faults, store, client, topic }
    }

    fn topic_config() -> EmbeddedTopicConfig {
        let clock: WallClock = Arc::new(|| UNIX_EPOCH + Duration::from_millis(1_700));
        EmbeddedTopicConfig { frame_bytes_max: FRAME_BYTES_MAX, clock }
    }

    /// Entries with no more room than a topic asks for.
    fn log_config() -> ManagedLedgerConfig {
        let entry_bytes_max = FRAME_BYTES_MAX + EmbeddedTopic::ROOM_BYTES;
        ManagedLedgerConfig { entry_bytes_max, ..Default::default() }
    }

    /// The topic's log, opened anew; whoever had it open is fenced.
    async fn log_again(&self, config: ManagedLedgerConfig) -> ManagedLedger {
        let (client, store) = (self.client.clone(), self.store.clone());
        ManagedLedger::open(TOPIC, client, store, config).await.unwrap()
    }

    /// The topic, opened anew as after a crash.
    async fn reopen(&mut self) {
        self.reopen_with(Self::log_config()).await;
    }

    async fn reopen_with(&mut self, config: ManagedLedgerConfig) {
        let log = self.log_again(config).await;
        self.topic = EmbeddedTopic::open(log, Self::topic_config()).await.unwrap();
    }

    fn remote(&self) -> EmbeddedRemote {
        EmbeddedRemote::new(Arc::new(OneTopic(self.topic.clone())))
    }

    async fn entries(&self) -> Vec<Frame> {
        let ledger = self.topic.ledger();
        let (mut at, end) = (Offset::ZERO, ledger.end());
        let mut frames = Vec::new();
        while at < end {
            let entries = ledger.read(at, end, 1 << 20).await.unwrap();
            at = at.plus(entries.len() as u64);
            frames.extend(entries.into_iter().map(|entry| Frame::parse(entry.payload).unwrap()));
        }
        frames
    }

    async fn indexes(&self) -> Vec<Option<u64>> {
        let entries = self.entries().await;
        entries.iter().map(|e| e.broker_entry_metadata().unwrap().unwrap().index).collect()
    }

    async fn payloads(&self) -> Vec<Bytes> {
        self.entries().await.iter().map(Frame::payload).collect()
    }
}

/// Hears what a remote says.
#[derive(Clone, Default)]
struct Ear(Arc<Mailbox<(SessionId, SessionEvent)>>);

impl EventSink for Ear {
    fn session_event(&self, session: SessionId, event: SessionEvent) {
        self.0.push((session, event));
    }
}

impl Ear {
    fn events(&self, session: SessionId) -> SessionEvents {
        SessionEvents::new(session, Arc::new(self.clone()))
    }

    async fn next(&self) -> Vec<(SessionId, SessionEvent)> {
        let mut events = Vec::new();
        let heard = self.0.recv_into(&mut events);
        tokio::time::timeout(Duration::from_secs(10), heard).await.expect("an event").unwrap();
        events
    }

    /// The next `n` receipts, which all belong to `session`.
    async fn receipts(&self, session: SessionId, n: usize) -> Vec<Receipt> {
        let mut all = Vec::new();
        while all.len() < n {
            for (of, event) in self.next().await {
                assert_eq!(of, session);
                match event {
                    SessionEvent::Receipts(receipts) => all.extend(receipts),
                    SessionEvent::NotWritable(message) => panic!("not writable: {message}"),
                    SessionEvent::Lost(message) => panic!("lost: {message}"),
                }
            }
        }
        all
    }

    async fn lost(&self) -> SessionId {
        let events = self.next().await;
        let [(session, SessionEvent::Lost(_))] = &events[..] else { panic!("{events:?}") };
        *session
    }
}

fn id(counter: u64) -> SessionId {
    SessionId { owner: 1, counter }
}

fn at(entry: u64) -> Position {
    format!("7:{entry}").parse().unwrap()
}

fn opening(session: SessionId) -> Opening {
    let source = Source { cluster: "west".into(), topic: TOPIC.into() };
    Opening { source, session, incarnation: Incarnation(0), revision: Revision(0) }
}

fn stored_at_source(entry: u64) -> Bytes {
    let metadata = MessageMetadata { producer_name: "p".into(), ..Default::default() };
    compose(&metadata, &payload(entry))
}

fn payload(entry: u64) -> Bytes {
    format!("entry {entry}").into()
}

fn send(previous: Option<u64>, entry: u64) -> Outgoing<Prepared> {
    let stored = stored_at_source(entry);
    let frame = Frame::parse(stored.clone()).unwrap();
    let spliced = Splicer::new("west").splice(&frame.facts().unwrap(), at(entry));
    Outgoing { previous: previous.map(at), position: at(entry), entry: Prepared::new(spliced) }
}

fn corrupt(previous: Option<u64>, entry: u64) -> Outgoing<Prepared> {
    let mut sent = send(previous, entry);
    sent.entry.payload = "another payload".into();
    sent
}

fn mark(entry: u64) -> Option<Watermark> {
    let checksum = crc32c::crc32c(&stored_at_source(entry));
    Some(Watermark { position: at(entry), checksum })
}

fn payloads(entries: impl IntoIterator<Item = u64>) -> Vec<Bytes> {
    entries.into_iter().map(payload).collect()
}

/// The functions of this module are run on every remote of `region`.
mod conformance {
    use super::*;

    pub(super) async fn entries_are_published_once_in_order(
        region: &Region,
        remote: &dyn RemoteProducer,
    ) {
        let ear = Ear::default();
        let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
        assert_eq!(opened.watermark, None);
        opened.session.submit(vec![send(None, 1), send(Some(1), 3)]);
        opened.session.submit(vec![send(Some(3), 4)]);
        let receipts = ear.receipts(id(1), 3).await;
        assert_eq!(receipts, [1, 3, 4].map(|entry| Receipt::Published(at(entry))));
        assert_eq!(region.payloads().await, payloads([1, 3, 4]));
    }

    pub(super) async fn an_opening_answers_what_is_held_and_repeats_are_duplicates(
        region: &Region,
        remote: &dyn RemoteProducer,
    ) {
        let ear = Ear::default();
        let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
        opened.session.submit(vec![send(None, 1), send(Some(1), 2)]);
        ear.receipts(id(1), 2).await;
        drop(opened);

        let mut opened = remote.open(opening(id(2)), ear.events(id(2))).await.unwrap();
        assert_eq!(opened.watermark, mark(2));
        opened.session.submit(vec![send(None, 1), send(Some(1), 2), send(Some(2), 3)]);
        let expected =
            [Receipt::Duplicate(at(1)), Receipt::Duplicate(at(2)), Receipt::Published(at(3))];
        assert_eq!(ear.receipts(id(2), 3).await, expected);
        assert_eq!(region.payloads().await, payloads([1, 2, 3]));
    }

    pub(super) async fn a_missing_predecessor_is_a_gap(
        region: &Region,
        remote: &dyn RemoteProducer,
    ) {
        let ear = Ear::default();
        let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
        opened.session.submit(vec![send(None, 1), send(Some(2), 3), send(Some(3), 4)]);
        let expected = [Receipt::Published(at(1)), Receipt::Gap(at(3)), Receipt::Gap(at(4))];
        assert_eq!(ear.receipts(id(1), 3).await, expected);
        assert_eq!(region.payloads().await, payloads([1]));
    }

    pub(super) async fn a_stale_session_is_over_and_what_it_sends_never_lands(
        region: &Region,
        remote: &dyn RemoteProducer,
    ) {
        let ear = Ear::default();
        let mut old = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
        let mut new = remote.open(opening(id(2)), ear.events(id(2))).await.unwrap();
        old.session.submit(vec![send(None, 1)]);
        assert_eq!(ear.lost().await, id(1));
        new.session.submit(vec![send(None, 2)]);
        assert_eq!(ear.receipts(id(2), 1).await, [Receipt::Published(at(2))]);
        assert_eq!(region.payloads().await, payloads([2]));

        let refused = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap_err();
        assert_eq!(refused, OpenError::LaterOwner { asked: id(1), newest: id(2) });
    }

    pub(super) async fn a_refused_entry_leaves_no_trace(
        region: &Region,
        remote: &dyn RemoteProducer,
    ) {
        let ear = Ear::default();
        let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
        opened.session.submit(vec![send(None, 1), corrupt(Some(1), 2), send(Some(2), 3)]);
        let receipts = ear.receipts(id(1), 3).await;
        assert!(matches!(&receipts[1], Receipt::Refused(p, _) if *p == at(2)), "{receipts:?}");
        assert_eq!(receipts[2], Receipt::Gap(at(3)));

        let mut opened = remote.open(opening(id(2)), ear.events(id(2))).await.unwrap();
        assert_eq!(opened.watermark, mark(1));
        opened.session.submit(vec![send(Some(1), 2), send(Some(2), 3)]);
        assert_eq!(ear.receipts(id(2), 2).await, [2, 3].map(|e| Receipt::Published(at(e))));
        assert_eq!(region.payloads().await, payloads([1, 2, 3]));
    }

    pub(super) async fn an_earlier_incarnation_is_refused_and_a_later_one_begins_anew(
        region: &Region,
        remote: &dyn RemoteProducer,
    ) {
        let ear = Ear::default();
        let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
        opened.session.submit(vec![send(None, 1)]);
        ear.receipts(id(1), 1).await;
        let later = Opening { incarnation: Incarnation(1), ..opening(id(2)) };
        let mut opened = remote.open(later, ear.events(id(2))).await.unwrap();
        assert_eq!(opened.watermark, None);
        opened.session.submit(vec![send(None, 1)]);
        assert_eq!(ear.receipts(id(2), 1).await, [Receipt::Published(at(1))]);
        assert_eq!(region.payloads().await, payloads([1, 1]));

        let refused = remote.open(opening(id(3)), ear.events(id(3))).await.unwrap_err();
        let (asked, newest) = (Incarnation(0), Incarnation(1));
        assert_eq!(refused, OpenError::LaterIncarnation { asked, newest });
    }
}

macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        mod embedded_remote {
            use super::*;
            $(#[tokio::test]
            async fn $name() {
                let region = Region::new().await;
                conformance::$name(&region, &region.remote()).await;
            })*
        }

        mod remote_behind_a_link_without_faults {
            use super::*;
            $(#[tokio::test]
            async fn $name() {
                let region = Region::new().await;
                let remote = FaultyRemote::new(region.remote(), RemoteFaults::new());
                conformance::$name(&region, &remote).await;
            })*
        }
    };
}

conformance!(
    entries_are_published_once_in_order,
    an_opening_answers_what_is_held_and_repeats_are_duplicates,
    a_missing_predecessor_is_a_gap,
    a_stale_session_is_over_and_what_it_sends_never_lands,
    a_refused_entry_leaves_no_trace,
    an_earlier_incarnation_is_refused_and_a_later_one_begins_anew,
);

/// Lets the other tasks of this thread run until `done`.
async fn settle(what: &str, done: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if done() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never happened: {what}");
}

fn inject(region: &Region, fault: Fault) {
    region.bookies.iter().for_each(|bookie| region.faults.inject(bookie, fault));
}

fn release(region: &Region) {
    for bookie in &region.bookies {
        region.faults.heal(bookie);
        region.faults.release(bookie, storage_fault::ReleaseOrder::Oldest);
    }
}

async fn all_hold_answers(region: &Region) {
    let held = || region.bookies.iter().all(|bookie| region.faults.held(bookie) > 0);
    settle("the append reaches the bookies", held).await;
}

#[tokio::test]
async fn nothing_is_answered_before_it_is_durable_and_late_sends_never_land() {
    let region = Region::new().await;
    let (remote, ear) = (region.remote(), Ear::default());
    let mut old = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
    inject(&region, Fault::HoldResponses);
    old.session.submit(vec![send(None, 1)]);
    all_hold_answers(&region).await;

    let mut newer = Box::pin(remote.open(opening(id(2)), ear.events(id(2))));
    assert!(futures::poll!(&mut newer).is_pending(), "an append is not durable yet");
    old.session.submit(vec![send(Some(1), 2)]);
    assert_eq!(ear.lost().await, id(1), "no receipt came before it");
    assert!(futures::poll!(&mut newer).is_pending());

    release(&region);
    assert_eq!(newer.await.unwrap().watermark, mark(1));
    assert_eq!(ear.receipts(id(1), 1).await, [Receipt::Published(at(1))]);
    assert_eq!(region.payloads().await, payloads([1]));
}

#[tokio::test]
async fn an_opening_that_is_dropped_while_it_waits_does_not_hinder_the_next() {
    let region = Region::new().await;
    let (remote, ear) = (region.remote(), Ear::default());
    let mut old = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
    inject(&region, Fault::HoldResponses);
    old.session.submit(vec![send(None, 1)]);
    all_hold_answers(&region).await;

    let mut dropped = Box::pin(remote.open(opening(id(2)), ear.events(id(2))));
    assert!(futures::poll!(&mut dropped).is_pending());
    drop(dropped);
    let mut superseded = Box::pin(remote.open(opening(id(3)), ear.events(id(3))));
    assert!(futures::poll!(&mut superseded).is_pending());
    let mut newest = Box::pin(remote.open(opening(id(4)), ear.events(id(4))));
    assert!(futures::poll!(&mut newest).is_pending());
    let error = OpenError::LaterOwner { asked: id(3), newest: id(4) };
    assert_eq!(superseded.await.unwrap_err(), error);
    release(&region);
    assert_eq!(newest.await.unwrap().watermark, mark(1));
}

#[tokio::test]
async fn a_failed_append_loses_the_session_and_the_reopened_log_goes_on() {
    let mut region = Region::new().await;
    let (remote, ear) = (region.remote(), Ear::default());
    let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
    opened.session.submit(vec![send(None, 1)]);
    ear.receipts(id(1), 1).await;
    inject(&region, Fault::Answer(BookieError::ReadOnly));
    opened.session.submit(vec![send(Some(1), 2)]);
    assert_eq!(ear.lost().await, id(1));
    let error = remote.open(opening(id(2)), ear.events(id(2))).await.unwrap_err();
    assert!(matches!(&error, OpenError::Unreachable(why) if why.contains("reopen")), "{error}");
    let error = region.topic.publish(stored_at_source(1)).await.unwrap_err();
    assert_eq!(error.advice(), Advice::Reopen, "{error}");

    release(&region);
    region.topic.ledger().close().await.unwrap();
    region.reopen().await;
    let remote = region.remote();
    let error = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap_err();
    assert!(matches!(error, OpenError::LaterOwner { .. }), "sessions are remembered: {error}");
    let mut opened = remote.open(opening(id(3)), ear.events(id(3))).await.unwrap();
    assert_eq!(opened.watermark, mark(1), "2 was not stored");
    opened.session.submit(vec![send(None, 1), send(Some(1), 2)]);
    let expected = [Receipt::Duplicate(at(1)), Receipt::Published(at(2))];
    assert_eq!(ear.receipts(id(3), 2).await, expected);
    assert_eq!(region.payloads().await, payloads([1, 2]));
    assert_eq!(region.indexes().await, [Some(0), Some(1)], "no index is given twice or left out");
}

/// The log fails after it acknowledged an entry, and before the session has heard of it.
#[tokio::test]
async fn an_entry_that_was_stored_when_the_log_failed_is_found_in_it() {
    let mut region = Region::new().await;
    let (remote, ear) = (region.remote(), Ear::default());
    let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
    inject(&region, Fault::HoldResponses);
    opened.session.submit(vec![send(None, 1)]);
    all_hold_answers(&region).await;
    opened.session.submit(vec![send(Some(1), 2)]);
    let closed = {
        let mut closed = Box::pin(region.topic.ledger().close());
        assert!(futures::poll!(&mut closed).is_pending(), "1 is not decided");
        let error = remote.open(opening(id(2)), ear.events(id(2))).await.unwrap_err();
        assert!(matches!(error, OpenError::Unreachable(_)), "{error}");
        release(&region);
        closed.await
    };
    assert_eq!(closed, Ok(()));

    region.reopen().await;
    let heard = Ear::default();
    let mut opened = region.remote().open(opening(id(3)), heard.events(id(3))).await.unwrap();
    assert_eq!(opened.watermark, mark(1));
    opened.session.submit(vec![send(Some(1), 2)]);
    assert_eq!(heard.receipts(id(3), 1).await, [Receipt::Published(at(2))]);
    assert_eq!(region.payloads().await, payloads([1, 2]));
}

#[tokio::test]
async fn what_an_older_incarnation_stored_is_not_held_by_the_newer() {
    let mut region = Region::new().await;
    let (remote, ear) = (region.remote(), Ear::default());
    let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
    inject(&region, Fault::HoldResponses);
    opened.session.submit(vec![send(None, 1)]);
    all_hold_answers(&region).await;
    let later = |session| Opening { incarnation: Incarnation(1), ..opening(session) };
    let mut waiting = Box::pin(remote.open(later(id(2)), ear.events(id(2))));
    assert!(futures::poll!(&mut waiting).is_pending());
    let mut closed = Box::pin(region.topic.ledger().close());
    assert!(futures::poll!(&mut closed).is_pending());
    remote.open(later(id(3)), ear.events(id(3))).await.unwrap_err();
    waiting.await.unwrap_err();
    release(&region);
    closed.await.unwrap();

    region.reopen().await;
    assert_eq!(region.payloads().await, payloads([1]));
    let opened = region.remote().open(later(id(4)), ear.events(id(4))).await.unwrap();
    assert_eq!(opened.watermark, None);
}

#[tokio::test]
async fn the_largest_local_message_is_taken_by_an_equal_region() {
    let (west, east) = (Region::new().await, Region::new().await);
    let bare = compose(&MessageMetadata::default(), b"").len();
    let frame = compose(&MessageMetadata::default(), &vec![7; FRAME_BYTES_MAX - bare]);
    assert_eq!(frame.len(), FRAME_BYTES_MAX);
    let position = west.topic.publish(frame).await.unwrap();

    let entry = west.topic.ledger().read_at(position).await.unwrap();
    let frame = Frame::parse(entry.payload.clone()).unwrap();
    let cluster = "a-cluster-with-a-name-that-nobody-would-like-to-type";
    let spliced = Splicer::new(cluster).splice(&frame.facts().unwrap(), position);
    let entry = Prepared::new(spliced);
    assert!(entry.frame_bytes() > FRAME_BYTES_MAX);
    let ear = Ear::default();
    let mut asked = opening(id(1));
    asked.source.cluster = cluster.into();
    let mut opened = east.remote().open(asked, ear.events(id(1))).await.unwrap();
    opened.session.submit(vec![Outgoing { previous: None, position, entry }]);
    assert_eq!(ear.receipts(id(1), 1).await, [Receipt::Published(position)]);
}

#[tokio::test]
async fn settings_that_leave_no_room_are_refused_and_the_defaults_leave_it() {
    let region = Region::new().await;
    let with = async |frame_bytes_max| {
        let config = EmbeddedTopicConfig { frame_bytes_max, ..Default::default() };
        EmbeddedTopic::open(region.topic.ledger().clone(), config).await
    };
    assert!(with(FRAME_BYTES_MAX).await.is_ok());
    for frame_bytes_max in [FRAME_BYTES_MAX + 1, usize::MAX] {
        let error = with(frame_bytes_max).await.unwrap_err();
        assert!(matches!(error, OpenTopicError::FramesTooLarge { .. }), "{error}");
        assert_eq!(error.advice(), Advice::GiveUp);
    }
    let frame_bytes_max = EmbeddedTopicConfig::default().frame_bytes_max;
    assert_eq!(frame_bytes_max, (5 << 20) - (32 << 10));
    let entry_bytes_max = ManagedLedgerConfig::default().entry_bytes_max;
    assert!(frame_bytes_max + EmbeddedTopic::ROOM_BYTES <= entry_bytes_max);
}

#[tokio::test]
async fn a_publish_that_is_refused_for_its_size_hinders_nobody() {
    let region = Region::new().await;
    let (remote, ear) = (region.remote(), Ear::default());
    let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
    let large = compose(&MessageMetadata::default(), &[0; FRAME_BYTES_MAX]);
    let error = region.topic.publish(large).await.unwrap_err();
    assert_eq!(error.advice(), Advice::GiveUp, "{error}");
    opened.session.submit(vec![send(None, 1)]);
    assert_eq!(ear.receipts(id(1), 1).await, [Receipt::Published(at(1))]);
    assert!(remote.open(opening(id(2)), ear.events(id(2))).await.is_ok());
}

#[tokio::test]
async fn stored_entries_carry_time_and_index_in_the_order_of_the_log() {
    let region = Region::new().await;
    let (remote, ear) = (region.remote(), Ear::default());
    let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
    let batch = MessageMetadata { num_messages_in_batch: Some(3), ..Default::default() };
    let local = vec![stored_at_source(0), compose(&batch, b"three messages")];
    let positions = region.topic.publish_batch(local).await.unwrap();
    assert_eq!(positions.len(), 2);
    opened.session.submit(vec![send(None, 1)]);
    ear.receipts(id(1), 1).await;

    let entries = region.entries().await;
    let stamps: Vec<_> = entries
        .iter()
        .map(|frame| frame.broker_entry_metadata().unwrap().unwrap())
        .map(|broker| (broker.broker_timestamp, broker.index))
        .collect();
    assert_eq!(stamps, [0, 3, 4].map(|index| (Some(1_700), Some(index))));
    assert!(entries.iter().all(|frame| frame.verify().is_ok()));
    let replicated = entries[2].metadata().unwrap();
    assert_eq!(replicated.replicated_from.as_deref(), Some("west"));
}

#[tokio::test]
async fn what_is_too_large_or_damaged_is_refused_by_name() {
    let region = Region::new().await;
    let (remote, ear) = (region.remote(), Ear::default());
    let large = compose(&MessageMetadata::default(), &[0; 1_000]);
    let size = large.len();
    let error = region.topic.publish_batch(vec![stored_at_source(1), large.clone()]).await;
    let expected = PublishError::TooLarge { index: 1, bytes: size, bytes_max: FRAME_BYTES_MAX };
    assert_eq!(error, Err(expected));
    let error = region.topic.publish(stored_at_source(1).slice(..20)).await.unwrap_err();
    assert!(error.to_string().starts_with("message 0 of the batch is no frame: "), "{error}");

    let mut opened = remote.open(opening(id(1)), ear.events(id(1))).await.unwrap();
    let mut sent = send(None, 1);
    sent.entry.payload = vec![0; FRAME_BYTES_MAX + EmbeddedTopic::ROOM_BYTES].into();
    opened.session.submit(vec![sent, corrupt(None, 2), send(None, 3)]);
    let refusals: Vec<String> = ear
        .receipts(id(1), 3)
        .await
        .into_iter()
        .map(|receipt| match receipt {
            Receipt::Refused(_, refusal) => refusal.to_string(),
            other => format!("{other:?}"),
        })
        .collect();
    let limit = Region::log_config().entry_bytes_max - Unstamped::ROOM_BYTES;
    assert!(refusals[0].ends_with(&format!("above the limit of {limit}")), "{refusals:?}");
    assert!(refusals[1].starts_with("the frame's checksum is "), "{refusals:?}");
    assert_eq!(region.payloads().await, payloads([3]), "neither left a trace");
}

#[tokio::test]
async fn entry_that_names_another_cluster_than_its_session_is_refused() {
    let region = Region::new().await;
    let (remote, ear) = (region.remote(), Ear::default());
    let mut asked = opening(id(1));
    asked.source.cluster = "north".into();
    let mut opened = remote.open(asked, ear.events(id(1))).await.unwrap();
    opened.session.submit(vec![send(None, 1)]);
    let receipts = ear.receipts(id(1), 1).await;
    let [Receipt::Refused(_, refusal)] = &receipts[..] else { panic!("{receipts:?}") };
    assert_eq!(&*refusal.message, "the message does not say that it is from north");
}

#[test]
fn many_bytes_are_appended_in_several_batches() {
    let sizes = [BATCH_BYTES_MAX / 2, BATCH_BYTES_MAX / 2, 1, 2 * BATCH_BYTES_MAX, 1];
    let sends = sizes.map(|size| {
        let entry = Prepared { head: Bytes::new(), payload: vec![0; size].into(), checksum: 0 };
        Outgoing { previous: None, position: at(1), entry }
    });
    let mut sends = Vec::from(sends).into_iter();
    let lengths: Vec<_> = std::iter::from_fn(|| Some(next_batch(&mut sends).len()))
        .take_while(|length| *length > 0)
        .collect();
    assert_eq!(lengths, [2, 1, 1, 1]);
}

/// A region behind a link with faults.
struct Linked {
    faults: RemoteFaults,
    remote: FaultyRemote<EmbeddedRemote>,
    ear: Ear,
}

impl Linked {
    async fn new() -> Self {
        let region = Region::new().await;
        let faults = RemoteFaults::new();
        let remote = FaultyRemote::new(region.remote(), faults.clone());
        Self { faults, remote, ear: Ear::default() }
    }

    async fn open(&self, counter: u64) -> Result<OpenedSession, OpenError> {
        self.remote.open(opening(id(counter)), self.ear.events(id(counter))).await
    }
}

#[tokio::test]
async fn a_cut_link_loses_receipts_and_what_was_sent_is_held_by_the_remote() {
    let linked = Linked::new().await;
    let mut opened = linked.open(1).await.unwrap();
    linked.faults.hold_receipts();
    opened.session.submit(vec![send(None, 1)]);
    linked.faults.until(|counts| counts.receipts_held == 1).await;
    linked.faults.cut_link();
    assert_eq!(linked.ear.lost().await, id(1));
    opened.session.submit(vec![send(Some(1), 2)]);
    linked.faults.release_receipts(ReleaseOrder::Given);

    let mut opened = linked.open(2).await.unwrap();
    assert_eq!(opened.watermark, mark(1), "what was sent over the cut link did not arrive");
    opened.session.submit(vec![send(Some(1), 2)]);
    assert_eq!(linked.ear.receipts(id(2), 1).await, [Receipt::Published(at(2))]);
    let counts = FaultCounts {
        sessions_cut: 1,
        receipts_held: 1,
        receipts_lost: 1,
        ..FaultCounts::default()
    };
    assert_eq!(linked.faults.counts(), counts);
}

#[tokio::test]
async fn a_refused_head_is_withheld_and_its_successors_meet_a_gap() {
    let linked = Linked::new().await;
    linked.faults.refuse_next(2);
    for counter in [1, 2] {
        let mut opened = linked.open(counter).await.unwrap();
        opened.session.submit(vec![send(None, 1), send(Some(1), 2)]);
        let receipts = linked.ear.receipts(id(counter), 2).await;
        assert!(matches!(&receipts[0], Receipt::Refused(p, _) if *p == at(1)), "{receipts:?}");
        assert_eq!(receipts[1], Receipt::Gap(at(2)));
    }
    let mut opened = linked.open(3).await.unwrap();
    opened.session.submit(vec![send(None, 1), send(Some(1), 2)]);
    let published = [1, 2].map(|entry| Receipt::Published(at(entry)));
    assert_eq!(linked.ear.receipts(id(3), 2).await, published);
    assert_eq!(linked.faults.counts().entries_refused, 2);
}

#[tokio::test]
async fn a_refused_position_stays_refused_until_it_is_allowed() {
    let linked = Linked::new().await;
    let mut opened = linked.open(1).await.unwrap();
    linked.faults.refuse_position(at(2));
    for _ in 0..2 {
        opened.session.submit(vec![send(None, 2)]);
        let receipts = linked.ear.receipts(id(1), 1).await;
        assert!(matches!(&receipts[0], Receipt::Refused(p, _) if *p == at(2)), "{receipts:?}");
    }
    linked.faults.allow_position(at(2));
    opened.session.submit(vec![send(None, 2)]);
    assert_eq!(linked.ear.receipts(id(1), 1).await, [Receipt::Published(at(2))]);
}

#[tokio::test]
async fn held_receipts_come_late_and_in_the_order_asked_for() {
    for order in [ReleaseOrder::Given, ReleaseOrder::Reversed] {
        let linked = Linked::new().await;
        let mut opened = linked.open(1).await.unwrap();
        linked.faults.hold_receipts();
        opened.session.submit(vec![send(None, 1), send(Some(1), 2), send(Some(2), 3)]);
        linked.faults.until(|counts| counts.receipts_held == 3).await;
        linked.faults.release_receipts(order);
        let mut expected = [1, 2, 3].map(|entry| Receipt::Published(at(entry)));
        if order == ReleaseOrder::Reversed {
            expected.reverse();
        }
        assert_eq!(linked.ear.receipts(id(1), 3).await, expected);
    }
}

#[tokio::test]
async fn receipts_come_twice_until_they_are_released() {
    let linked = Linked::new().await;
    let mut opened = linked.open(1).await.unwrap();
    linked.faults.duplicate_receipts();
    opened.session.submit(vec![send(None, 1)]);
    assert_eq!(linked.ear.receipts(id(1), 2).await, [1, 1].map(|e| Receipt::Published(at(e))));
    linked.faults.release_receipts(ReleaseOrder::Given);
    opened.session.submit(vec![send(Some(1), 2), send(Some(2), 3)]);
    assert_eq!(linked.ear.receipts(id(1), 2).await, [2, 3].map(|e| Receipt::Published(at(e))));
    assert_eq!(linked.faults.counts().receipts_duplicated, 1);
}

#[tokio::test]
async fn on_a_half_open_link_sends_land_and_nothing_is_heard() {
    let linked = Linked::new().await;
    let mut opened = linked.open(1).await.unwrap();
    linked.faults.half_open();
    opened.session.submit(vec![send(None, 1)]);
    linked.faults.until(|counts| counts.receipts_lost == 1).await;
    linked.faults.cut_link();

    let mut next = linked.open(2).await.unwrap();
    assert_eq!(next.watermark, mark(1));
    next.session.submit(vec![send(Some(1), 2)]);
    let receipts = linked.ear.receipts(id(2), 1).await;
    assert_eq!(receipts, [Receipt::Published(at(2))], "and no event of session 1 before it");
}

#[tokio::test]
async fn openings_fail_as_often_as_asked_for() {
    let linked = Linked::new().await;
    linked.faults.fail_opens(2);
    for counter in [1, 2] {
        let error = linked.open(counter).await.unwrap_err();
        assert!(matches!(error, OpenError::Unreachable(_)), "{error}");
    }
    assert!(linked.open(3).await.is_ok());
    assert_eq!(linked.faults.counts().opens_failed, 2);
}
