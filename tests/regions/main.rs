//! Whole regions in directories on bad days that a process has to itself: clocks that are set back, bookies at their
//! limit while another region replicates to them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use georepl::Region;
use georepl_cursor::{Entry, ManagedCursor, ManagedLedgerConfig, Retention, StartAt, TopicRecord};
use georepl_replicator::message::{Frame, MessageMetadata, compose};
use georepl_replicator::{
    EmbeddedRemote, EmbeddedTopic, EmbeddedTopicConfig, EmbeddedTopics, Replicator,
    ReplicatorConfig, WallClock,
};
use georepl_storage::{DurableConfig, Expected, MetadataStore};
use georepl_tests::entries;

const TOPIC: &str = "persistent://public/default/orders";
const RECORD: &str = "managed-ledgers/public/default/persistent/orders";

const HOUR: Duration = Duration::from_secs(3_600);

/// How long anything may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

fn message(n: usize) -> Bytes {
    Bytes::from(format!("message {n:05} {}", "x".repeat(1_000)))
}

async fn publish(topic: &EmbeddedTopic, n: usize) -> Result<(), String> {
    let frame = compose(&MessageMetadata::default(), &message(n));
    topic.publish(frame).await.map(drop).map_err(|error| error.to_string())
}

/// The payloads that a region holds, and where the first of them is.
async fn held(region: &Region) -> Vec<Bytes> {
    let topic = region.topic(TOPIC).await.expect("the topic opens");
    let frame = |entry: Entry| Frame::parse(entry.payload).expect("frames stay whole");
    entries(topic.ledger()).await.into_iter().map(|entry| frame(entry).payload()).collect()
}

/// The replicator of west to a region, started.
async fn replicator(west: &Region, east: &Arc<Region>) -> (Replicator, Arc<ManagedCursor>) {
    let topic = west.topic(TOPIC).await.expect("the topic opens");
    let cursor = ManagedCursor::open(topic.ledger(), "pulsar.repl.east", StartAt::Earliest).await;
    let cursor = cursor.expect("the cursor opens");
    let remote = Arc::new(EmbeddedRemote::new(east.clone()));
    let config = ReplicatorConfig::new("west", "east", TOPIC);
    let replicator = Replicator::new(config, cursor.clone(), remote).await.expect("it is made");
    replicator.start();
    (replicator, cursor)
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("stuck: {what}"))
}

/// A clock of the entries' stamps that can be set while it runs. Retention goes by the system's own, which is not set: what it
/// makes of times that a clock gave before it was set back, `ledgers_that_were_closed_in_the_future…` shows.
fn settable(offset_ms: &Arc<AtomicI64>) -> WallClock {
    let offset_ms = offset_ms.clone();
    Arc::new(move || {
        let offset_ms = offset_ms.load(Ordering::SeqCst);
        let by = Duration::from_millis(offset_ms.unsigned_abs());
        let now = SystemTime::now();
        if offset_ms < 0 { now - by } else { now + by }
    })
}

#[tokio::test]
async fn clock_of_the_stamps_that_is_set_back_an_hour_changes_neither_order_nor_what_arrives() {
    let temporary = tempfile::tempdir().expect("there is room");
    let offset_ms = Arc::new(AtomicI64::new(0));
    let open = async |name: &str| {
        let topics =
            EmbeddedTopicConfig { clock: settable(&offset_ms), ..EmbeddedTopicConfig::default() };
        Region::builder().topics(topics).open(temporary.path().join(name)).await
    };
    let west = open("west").await.expect("west opens");
    let east = Arc::new(open("east").await.expect("east opens"));
    let topic = west.topic(TOPIC).await.expect("the topic opens");
    let (running, cursor) = replicator(&west, &east).await;
    for n in 0..60 {
        if n == 20 || n == 40 {
            offset_ms.fetch_sub(HOUR.as_millis() as i64, Ordering::SeqCst);
        }
        publish(&topic, n).await.expect("it is published");
    }
    in_time("replication", running.drained()).await.expect("it does not end");
    running.shutdown(PATIENCE).await;
    cursor.close().await.expect("the cursor closes");
    drop((running, cursor, topic));
    let expected: Vec<_> = (0..60).map(message).collect();
    assert_eq!(held(&west).await, expected);
    assert_eq!(held(&east).await, expected);
    west.close().await.expect("west closes");
    east.close().await.expect("east closes");
    drop((west, east));

    // Opened an hour before it was begun.
    offset_ms.fetch_sub(HOUR.as_millis() as i64, Ordering::SeqCst);
    let west = open("west").await.expect("west opens");
    let east = Arc::new(open("east").await.expect("east opens"));
    let topic = west.topic(TOPIC).await.expect("the topic opens");
    publish(&topic, 60).await.expect("it is published");
    let (running, _cursor) = replicator(&west, &east).await;
    in_time("replication", running.drained()).await.expect("it does not end");
    let expected: Vec<_> = (0..61).map(message).collect();
    assert_eq!((held(&west).await, held(&east).await), (expected.clone(), expected));
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("for some million years")
}

/// Lets the record of the topic say that every ledger was closed then.
async fn close_all_at(store: &dyn MetadataStore, closed_at_ms: u64) {
    let stored = store.get(RECORD).await.expect("the store answers").expect("there is a record");
    let mut record = TopicRecord::decode(&stored.value).expect("a record");
    let ends = record.ledgers.iter_mut().filter_map(|listed| listed.end.as_mut());
    ends.for_each(|end| end.closed_at_ms = closed_at_ms);
    let version = Expected::Version(stored.version);
    store.put(RECORD, record.encode(), version).await.expect("the store answers");
}

#[tokio::test]
async fn ledgers_that_were_closed_in_the_future_stay_until_they_are_old() {
    let temporary = tempfile::tempdir().expect("there is room");
    let retention = Retention { time: Some(HOUR / 2), bytes: None };
    let open = async || {
        let ledgers = ManagedLedgerConfig {
            ledger_entries_max: 5,
            retention,
            ..ManagedLedgerConfig::default()
        };
        let region = Region::builder().ledgers(ledgers).open(temporary.path().join("west")).await;
        region.expect("the region opens")
    };
    let west = open().await;
    let topic = west.topic(TOPIC).await.expect("the topic opens");
    let all: Vec<_> = (0..20).map(message).collect();
    for n in 0..20 {
        publish(&topic, n).await.expect("it is published");
    }
    west.close().await.expect("it closes");
    // By a clock that was an hour ahead and has been set back since, and then half an hour and more ago.
    close_all_at(&*west.store(), now_ms() + HOUR.as_millis() as u64).await;
    drop((topic, west));
    let west = open().await;
    let topic = west.topic(TOPIC).await.expect("the topic opens");
    assert_eq!(topic.ledger().trim().await.expect("it is trimmed"), 0, "nothing is older");
    assert_eq!(held(&west).await, all);
    west.close().await.expect("it closes");
    close_all_at(&*west.store(), now_ms() - HOUR.as_millis() as u64).await;
    drop((topic, west));
    let west = open().await;
    let topic = west.topic(TOPIC).await.expect("the topic opens");
    publish(&topic, 20).await.expect("it is published");
    assert!(topic.ledger().trim().await.expect("it is trimmed") > 0, "they are old by now");
    let left = held(&west).await;
    let all: Vec<_> = (0..21).map(message).collect();
    assert!(!left.is_empty() && all.ends_with(&left), "the newest stay: {}", left.len());
}

async fn region(directory: &Path, bytes_max: Option<u64>) -> Region {
    let disk = DurableConfig { bytes_max, ..DurableConfig::default() };
    Region::builder().disk(disk).open(directory).await.expect("the region opens")
}

#[tokio::test]
async fn replication_to_a_remote_without_space_says_so_and_goes_on_when_there_is() {
    let temporary = tempfile::tempdir().expect("there is room");
    let [west, east] = ["west", "east"].map(|name| temporary.path().join(name));
    let west = region(&west, None).await;
    let topic = west.topic(TOPIC).await.expect("the topic opens");
    let total = 4_000;
    for part in (0..total).collect::<Vec<_>>().chunks(500) {
        let frames = part.iter().map(|n| compose(&MessageMetadata::default(), &message(*n)));
        topic.publish_batch(frames.collect()).await.expect("they are published");
    }
    let full = Arc::new(region(&east, Some(3 << 20)).await);
    let (running, cursor) = replicator(&west, &full).await;
    let said = async {
        loop {
            let why = running.why().to_string();
            if why.contains("read-only") {
                return why;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let said = in_time("the reason", said).await;
    assert!(said.contains("make space"), "{said}");
    running.shutdown(Duration::ZERO).await;
    let acknowledged = cursor.mark_delete_offset().get();
    cursor.close().await.expect("the cursor closes");
    drop((running, cursor));
    // A log that could not be written may have no end that could be recorded.
    let _ = full.close().await;
    drop(full);

    let east = Arc::new(region(&east, None).await);
    let arrived = held(&east).await;
    let all: Vec<_> = (0..total).map(message).collect();
    assert!(arrived.len() < total && all.starts_with(&arrived), "in order and once");
    assert!(acknowledged <= arrived.len() as u64, "{acknowledged} of {}", arrived.len());
    let (running, _cursor) = replicator(&west, &east).await;
    in_time("replication", running.drained()).await.expect("it does not end");
    assert_eq!(held(&east).await, all);
}
