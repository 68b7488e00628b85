use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use georepl_cursor::{CloseError, ManagedCursor, Offset, StartAt};
use georepl_replicator::message::{Frame, MessageMetadata, compose};
use georepl_replicator::{EmbeddedRemote, Replicator, ReplicatorConfig};

use georepl_storage::bookie_rules::Mode;
use georepl_storage::fault::{CrashDisk, Fault, ReleaseOrder};
use georepl_storage::{Advice, BookieId, DurableConfig, MemoryMetadataStore};

use super::*;

const TOPIC: &str = "persistent://acme/eu/orders";

fn region(name: &str) -> Arc<Region> {
    Arc::new(Region::builder().name(name).in_memory())
}

fn memory(region: &Region) -> &MemoryBookies {
    &region.memory().unwrap().bookies
}

fn message(n: usize) -> Bytes {
    let metadata = MessageMetadata { producer_name: "p".into(), ..Default::default() };
    compose(&metadata, payload(n).as_bytes())
}

fn payload(n: usize) -> String {
    format!("message {n}")
}

/// Takes bookies down until no ledger can be written.
fn fail_writes(region: &Region) -> Vec<BookieId> {
    let down: Vec<_> = memory(region).ids().take(3).collect();
    down.iter().for_each(|bookie| memory(region).down(bookie));
    down
}

async fn payloads(topic: &EmbeddedTopic) -> Vec<String> {
    let log = topic.ledger();
    let entries = log.read(Offset::ZERO, log.end(), u64::MAX).await.unwrap();
    let payload = |bytes| Frame::parse(bytes).unwrap().payload();
    entries
        .into_iter()
        .map(|entry| String::from_utf8(payload(entry.payload).to_vec()).unwrap())
        .collect()
}

#[tokio::test]
async fn replication_goes_on_after_the_log_of_the_remote_failed() {
    let (west, east) = (region("west"), region("east"));
    let source = west.topic(TOPIC).await.unwrap();
    let cursor = ManagedCursor::open(source.ledger(), "pulsar.repl.east", StartAt::Earliest);
    let remote = Arc::new(EmbeddedRemote::new(east.clone()));
    let config = ReplicatorConfig::new("west", "east", TOPIC);
    let replicator = Replicator::new(config, cursor.await.unwrap(), remote).await.unwrap();
    replicator.start();
    for n in 0..3 {
        source.publish(message(n)).await.unwrap();
    }
    replicator.drained().await.unwrap();
    let failed = east.topic(TOPIC).await.unwrap();

    let down = fail_writes(&east);
    for n in 3..6 {
        source.publish(message(n)).await.unwrap();
    }
    let fails = async {
        while failed.ledger().refusal().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), fails).await.expect("east's log fails");
    down.iter().for_each(|bookie| memory(&east).up(bookie));
    tokio::time::timeout(Duration::from_secs(60), replicator.drained()).await.unwrap().unwrap();

    let topic = east.topic(TOPIC).await.unwrap();
    assert!(failed.ledger().refusal().is_some() && topic.ledger().refusal().is_none());
    assert_eq!(payloads(&topic).await, (0..6).map(payload).collect::<Vec<_>>());
    let error = failed.publish(message(9)).await.unwrap_err();
    assert_eq!(error.advice(), Advice::Reopen);
    topic.publish(message(9)).await.unwrap();
}

#[tokio::test]
async fn topic_that_takes_long_to_open_keeps_nobody_from_another() {
    let east = region("east");
    let other = "persistent://acme/eu/payments";
    let (slow, open) = (east.topic(TOPIC).await.unwrap(), east.topic(other).await.unwrap());
    slow.publish(message(0)).await.unwrap();
    let down = fail_writes(&east);
    slow.publish(message(1)).await.unwrap_err();
    down.iter().for_each(|bookie| memory(&east).up(bookie));

    let bookies: Vec<_> = memory(&east).ids().collect();
    let way = east.transport();
    bookies.iter().for_each(|bookie| way.inject(bookie, Fault::HoldRequests));
    let opening = tokio::spawn({
        let east = east.clone();
        async move { payloads(&east.topic(TOPIC).await.unwrap()).await }
    });
    let waits = async {
        while !bookies.iter().any(|bookie| way.held(bookie) > 0) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.expect("its ledger is recovered");
    let found = east.topic(other).now_or_never().expect("it is open").unwrap();
    assert!(found.ledger().refusal().is_none());
    assert_eq!(found.ledger().end(), open.ledger().end());
    for bookie in &bookies {
        way.heal(bookie);
        way.release(bookie, ReleaseOrder::Oldest);
    }
    assert_eq!(opening.await.unwrap()[0], payload(0));
}

#[tokio::test]
async fn topic_that_was_asked_for_by_somebody_who_left_is_there() {
    let east = region("east");
    let asked = east.topic(TOPIC).now_or_never();
    assert!(asked.is_none(), "it is opened by a task");
    let topic = east.topic(TOPIC).await.unwrap();
    topic.publish(message(0)).await.unwrap();
    assert_eq!(payloads(&east.topic(TOPIC).await.unwrap()).await, [payload(0)]);
}

#[tokio::test]
async fn closed_region_opens_no_topic_again() {
    let east = region("east");
    let topic = east.topic(TOPIC).await.unwrap();
    topic.publish(message(0)).await.unwrap();
    east.close().await.unwrap();
    let error = east.topic(TOPIC).await.unwrap_err();
    assert!(error.ends_with("is closed; open it again"), "{error}");
    let fenced = CloseError::Fenced { topic: TOPIC.into() };
    let region: Arc<str> = "east".into();
    let error = CloseRegionError { region, topic: TOPIC.into(), error: fenced };
    assert_eq!(error.advice(), Advice::Reopen);
}

#[tokio::test]
async fn topics_with_names_of_nothing_are_refused_by_name() {
    let west = region("west");
    for bad in ["", "persistent://acme/eu", "persistent://acme/eu/", "acme//orders", "or\nders"] {
        let refused = west.topic(bad).await.unwrap_err();
        assert!(refused.starts_with(&format!("{bad:?} names no topic")), "{refused}");
    }
    assert!(west.store().children("managed-ledgers").await.unwrap().is_empty(), "nothing is left");
    assert_eq!(west.topics.places().len(), 0, "nor in memory");
}

/// The ledgers that bookies hold and those that have a record.
async fn ledgers(region: &Region) -> [BTreeSet<LedgerId>; 2] {
    let held = region.bookies.ledgers().await;
    let names = region.store().children("ledgers").await.unwrap();
    let listed = names.iter().map(|name| LedgerId(name[1..].parse().unwrap())).collect();
    [held, listed]
}

#[tokio::test]
async fn region_on_disk_has_after_reopening_what_was_acknowledged() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path().join("east");
    let east = Region::open(&directory).await.unwrap();
    let topic = east.topic(TOPIC).await.unwrap();
    for n in 0..3 {
        topic.publish(message(n)).await.unwrap();
    }
    let second = Region::open(&directory).await.unwrap_err();
    assert!(matches!(second, OpenRegionError::InUse { pid: Some(_), .. }), "{second}");
    drop(topic);
    east.close().await.unwrap();
    drop(east);
    let east = Region::open(&directory).await.unwrap();
    assert_eq!((&**east.name(), east.topics().await.unwrap()), ("east", vec![TOPIC.to_owned()]));
    assert_eq!(east.existing_topic("a/b/c").await.map(|topic| topic.is_some()), Ok(false));
    let topic = east.topic(TOPIC).await.unwrap();
    topic.publish(message(3)).await.unwrap();
    assert_eq!(payloads(&topic).await, (0..4).map(payload).collect::<Vec<_>>());
    east.close().await.unwrap();
}

#[tokio::test]
async fn directory_is_held_as_long_as_anything_writes_in_it() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path().join("east");
    let east = Region::open(&directory).await.unwrap();
    let topic = east.topic(TOPIC).await.unwrap();
    drop(east);
    topic.publish(message(0)).await.unwrap();
    let second = Region::open(&directory).await.unwrap_err();
    assert!(matches!(second, OpenRegionError::InUse { pid: Some(_), .. }), "{second}");
    topic.publish(message(1)).await.unwrap();
    topic.ledger().close().await.unwrap();
    drop(topic);
    let east = Region::open(&directory).await.unwrap();
    let topic = east.topic(TOPIC).await.unwrap();
    assert_eq!(payloads(&topic).await, [payload(0), payload(1)]);
}

#[tokio::test]
async fn region_whose_file_somebody_uses_is_in_use_and_not_opened_without_it() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path().join("east");
    Region::open(&directory).await.unwrap().close().await.unwrap();
    for file in ["metadata.redb", "bookie-east-bookie-2.redb"] {
        let used = std::fs::File::open(directory.join(file)).unwrap();
        used.lock().unwrap();
        let refused = Region::open(&directory).await.unwrap_err();
        assert!(matches!(refused, OpenRegionError::InUse { pid: None, .. }), "{file}: {refused}");
        drop(used);
        Region::open(&directory).await.unwrap();
    }
}

#[tokio::test]
async fn bookies_drop_what_was_deleted_and_nothing_else() {
    let temporary = tempfile::tempdir().unwrap();
    for region in [
        Region::builder().name("memory").in_memory(),
        Region::open(temporary.path().join("disk")).await.unwrap(),
    ] {
        let (kept, deleted) =
            (region.topic(TOPIC).await.unwrap(), region.topic("a/b").await.unwrap());
        for topic in [&kept, &deleted] {
            topic.publish(message(0)).await.unwrap();
        }
        let before = garbage::collect(&region.bookies, &*region.store()).await.unwrap();
        assert_eq!(before, 0, "every ledger that is held has a record");
        region.delete_topic(&deleted).await.unwrap();
        // Whether its own task or this call comes first.
        garbage::collect(&region.bookies, &*region.store()).await.unwrap();
        let [held, listed] = ledgers(&region).await;
        assert!(held.is_subset(&listed) && !held.is_empty(), "{held:?} {listed:?}");
        assert_eq!(payloads(&kept).await, [payload(0)]);
        assert_eq!(region.topics().await.unwrap(), [TOPIC]);
        region.close().await.unwrap();
    }
}

#[tokio::test]
async fn shortest_time_is_that_of_the_topics_that_are_open_now() {
    let east = region("east");
    let hours = |hours: u64| Retention {
        time: Some(Duration::from_secs(3_600 * hours)),
        ..Retention::FOREVER
    };
    let shortest = || east.aging.borrow().map(|time| time.as_secs() / 3_600);
    let (one, two) = (east.topic("a/b").await.unwrap(), east.topic(TOPIC).await.unwrap());
    assert_eq!(shortest(), None, "nobody has to look");
    east.set_retention(&two, hours(2)).await.unwrap();
    east.set_retention(&one, hours(1)).await.unwrap();
    east.set_retention(&one, hours(3)).await.unwrap();
    assert_eq!(shortest(), Some(1), "until somebody looks");
    let busy = east.topics.hold("a/b").await;
    trim_aged(&east.topics, &east.aging).await;
    assert_eq!(shortest(), Some(1), "one of them is not known");
    drop(busy);
    trim_aged(&east.topics, &east.aging).await;
    assert_eq!(shortest(), Some(2));
    east.set_retention(&two, Retention::NONE).await.unwrap();
    east.delete_topic(&one).await.unwrap();
    trim_aged(&east.topics, &east.aging).await;
    assert_eq!(shortest(), None, "no timer is armed any more");
}

#[tokio::test]
async fn topic_whose_deletion_was_not_waited_for_can_be_made_again() {
    let east = region("east");
    let topic = east.topic(TOPIC).await.unwrap();
    topic.publish(message(0)).await.unwrap();
    assert!(east.delete_topic(&topic).now_or_never().is_none(), "it takes a while");
    let again = east.topic(TOPIC).await.unwrap();
    again.publish(message(1)).await.unwrap();
    assert_eq!(payloads(&again).await, [payload(1)], "it was deleted all the same");
}

#[tokio::test]
async fn handle_of_an_earlier_opening_takes_no_place_from_a_later_one() {
    let east = region("east");
    let earlier = east.topic(TOPIC).await.unwrap();
    east.delete_topic(&earlier).await.unwrap();
    let later = east.topic(TOPIC).await.unwrap();
    later.publish(message(0)).await.unwrap();
    // Refused, or without anything to delete.
    let _ = east.delete_topic(&earlier).await;
    later.publish(message(1)).await.unwrap();
    assert!(east.topic(TOPIC).await.unwrap().ledger().is_same(later.ledger()));
}

#[tokio::test]
async fn places_that_were_looked_at_while_they_were_let_go_are_forgotten() {
    let east = region("east");
    let held = east.topics.hold(TOPIC).await;
    let looked_at = east.topics.places();
    drop(held);
    drop(looked_at);
    assert_eq!(east.topics.places().len(), 0);
}

#[tokio::test]
async fn region_whose_disk_was_full_goes_on_when_there_is_space() {
    let disk = Arc::new(CrashDisk::new());
    let store = Arc::new(MemoryMetadataStore::default());
    let ids = ["a", "b", "c"].map(BookieId::from);
    let (bookies, failed) =
        DurableBookies::open(disk.clone(), ids, &*store, &DurableConfig::default()).await;
    assert!(failed.is_empty(), "{failed:?}");
    let bookies = Bookies::Disk(Arc::new(bookies));
    let west = Region::start("west".into(), Settings::default(), bookies, store, Vec::new(), None);
    disk.set_space(Some(4 << 20));
    let publish = async |n: usize| {
        let topic = west.topic(TOPIC).await.map_err(|error| error.to_string())?;
        topic.publish(message(n)).await.map_err(|error| error.to_string())
    };
    let mut published = 0;
    while publish(published).await.is_ok() {
        published += 1;
        disk.set_space(Some(1 << 20));
    }
    let full = || west.registered().iter().any(|bookie| bookie.mode == Mode::ReadOnly);
    let is_full = async {
        while !full() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_full).await.expect("one takes no entries");
    disk.set_space(None);
    let goes_on = async {
        while publish(published).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), goes_on).await.expect("there is space");
    let payloads = payloads(&west.topic(TOPIC).await.unwrap()).await;
    assert_eq!(payloads, (0..=published).map(payload).collect::<Vec<_>>());
}
