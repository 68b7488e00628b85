use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use georepl_cursor::{ManagedCursor, Offset, StartAt};
use georepl_replicator::message::{Frame, MessageMetadata, compose};
use georepl_replicator::{EmbeddedRemote, Replicator, ReplicatorConfig};

use georepl_storage::bookie_rules::Mode;
use georepl_storage::fault::{CrashDisk, Fault, ReleaseOrder};
use georepl_storage::{
    Advice, AppendSink, BookieId, DurableConfig, EntryId, Expected, LedgerOptions, LedgerWriter,
    MemoryMetadataStore, Password, QuorumSizes, ledger_key, write,
};

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
        let before =
            garbage::collect(&region.bookies, Attendance::All, &*region.store).await.unwrap();
        assert_eq!(before, 0, "every ledger that is held has a record");
        region.delete_topic(&deleted).await.unwrap();
        // Whether its own task or this call comes first.
        garbage::collect(&region.bookies, Attendance::All, &*region.store).await.unwrap();
        let [held, listed] = ledgers(&region).await;
        assert!(held.is_subset(&listed) && !held.is_empty(), "{held:?} {listed:?}");
        assert_eq!(payloads(&kept).await, [payload(0)]);
        assert_eq!(region.topics().await.unwrap(), [TOPIC]);
        region.close().await.unwrap();
    }
}

/// Whoever recovers the ledger that is written to fences its writer. Nobody else has the directory, so the topic goes on.
#[tokio::test]
async fn topic_of_a_region_on_disk_goes_on_when_its_open_ledger_was_recovered() {
    let temporary = tempfile::tempdir().unwrap();
    let east = Region::open(temporary.path().join("east")).await.unwrap();
    let topic = east.topic(TOPIC).await.unwrap();
    topic.publish(message(0)).await.unwrap();
    let open = topic.ledger().last_confirmed().unwrap().ledger;
    east.client().recover(open, &east.ledgers().password).await.unwrap();
    // Whether it is acknowledged or not is for the writer to say; it hears of the fence.
    let mut published = 1;
    while topic.publish(message(published)).await.is_ok() {
        published += 1;
    }
    assert!(matches!(topic.ledger().refusal(), Some(Refusal::Fenced { .. })));
    let again = east.topic(TOPIC).await.unwrap();
    again.publish(message(published)).await.unwrap();
    let expected: Vec<_> = (0..=published).map(payload).collect();
    assert_eq!(payloads(&again).await, expected);
    east.close().await.unwrap();
}

/// Its record may be one that a damaged file hides.
#[tokio::test]
async fn bookies_keep_a_ledger_whose_record_is_gone_without_a_deletion() {
    let temporary = tempfile::tempdir().unwrap();
    for region in [
        Region::builder().name("memory").in_memory(),
        Region::open(temporary.path().join("disk")).await.unwrap(),
    ] {
        let topic = region.topic(TOPIC).await.unwrap();
        topic.publish(message(0)).await.unwrap();
        let key = ledger_key(topic.ledger().last_confirmed().unwrap().ledger);
        let before = region.bookies.ledgers().await;
        // Below what notes deletions.
        let record = region.store.store.get(&key).await.unwrap().unwrap();
        region.store.store.delete(&key, record.version).await.unwrap();
        let collected = garbage::collect(&region.bookies, Attendance::All, &*region.store).await;
        assert_eq!(collected, Ok(0));
        assert_eq!(region.bookies.ledgers().await, before);
    }
}

/// A bookie that is away still has what the others drop, and drops it when it is back.
#[tokio::test]
async fn what_was_deleted_while_a_bookie_was_away_goes_when_it_is_back() {
    let temporary = tempfile::tempdir().unwrap();
    let (directory, away) = (temporary.path().join("east"), temporary.path().join("away"));
    let sizes = QuorumSizes::new(3, 3, 2).unwrap();
    let open = async || {
        let ledgers = ManagedLedgerConfig { sizes, ..ManagedLedgerConfig::default() };
        Region::builder().bookies(4).ledgers(ledgers).open(&directory).await.unwrap()
    };
    let east = open().await;
    // In several ledgers, so that each bookie has some.
    for n in 0..8 {
        let topic = east.topic(&format!("a/b{n}")).await.unwrap();
        topic.publish(message(n)).await.unwrap();
    }
    east.close().await.unwrap();
    drop(east);
    std::fs::rename(directory.join("bookie-east-bookie-2.redb"), &away).unwrap();
    let east = open().await;
    assert_eq!(east.missing().len(), 1);
    for n in 0..8 {
        let topic = east.topic(&format!("a/b{n}")).await.unwrap();
        east.delete_topic(&topic).await.unwrap();
    }
    let collected = garbage::collect(&east.bookies, Attendance::Some, &*east.store).await;
    assert!(collected.unwrap() >= 8);
    east.close().await.unwrap();
    drop(east);
    std::fs::rename(&away, directory.join("bookie-east-bookie-2.redb")).unwrap();
    let east = open().await;
    garbage::collect(&east.bookies, Attendance::All, &*east.store).await.unwrap();
    assert_eq!(ledgers(&east).await, [BTreeSet::new(), BTreeSet::new()]);
    assert_eq!(east.store.children("deleted").await, Ok(Vec::new()), "and is remembered no more");
}

struct Unheard;

impl AppendSink for Unheard {
    fn confirmed(&self, _: LedgerId, _: EntryId) {}
    fn failed(&self, _: LedgerId, _: write::Error) {}
}

/// Creates a ledger for somebody, as a process does before it names the ledger.
async fn created(region: &Region, custom: &[(&str, &str)]) -> LedgerWriter {
    let custom = custom.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()));
    let options = LedgerOptions {
        sizes: region.ledgers().sizes,
        password: Password::default(),
        custom: custom.collect(),
    };
    region.client().create(options, Arc::new(Unheard)).await.unwrap()
}

#[tokio::test]
async fn ledgers_that_earlier_openings_left_to_nobody_are_deleted_and_no_others() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path().join("east");
    let path = ("pulsar/managed-ledger", "acme/eu/persistent/orders");
    let other = ("pulsar/managed-ledger", "acme/eu/persistent/none");
    let (mut left, mut kept) = (BTreeSet::new(), BTreeSet::new());
    {
        let east = Region::open(&directory).await.unwrap();
        let topic = east.topic(TOPIC).await.unwrap();
        let cursor = ManagedCursor::open(topic.ledger(), "c", StartAt::Earliest).await.unwrap();
        for n in 0..3 {
            topic.publish(message(n)).await.unwrap();
        }
        // Its state is in a ledger of its own.
        cursor.mark_delete(topic.ledger().position_of(Offset::new(1)).unwrap()).await.unwrap();
        kept.extend(ledgers(&east).await[1].clone());
        for custom in [
            &[path][..],
            &[other],
            &[path, ("pulsar/cursor", "c")],
            &[path, ("pulsar/cursor", "gone")],
        ] {
            left.insert(created(&east, custom).await.id());
        }
        kept.insert(created(&east, &[("application", "mine")]).await.id());
        let written = created(&east, &[path]).await;
        written.append([Bytes::from_static(b"what no topic lists")]).unwrap();
        written.close().await.unwrap();
        kept.insert(written.id());
        // The process is killed: neither is closed.
    }
    // Its tasks are still ending.
    let east = loop {
        match Region::open(&directory).await {
            Err(OpenRegionError::InUse { .. }) => tokio::task::yield_now().await,
            opened => break opened.unwrap(),
        }
    };
    let held = east.bookies.ledgers().await;
    let topic = east.topic(TOPIC).await.unwrap();
    let listed_now = ledgers(&east).await[1].clone();
    kept.extend(listed_now.difference(&left));
    assert!(left.is_subset(&listed_now));
    // That of somebody who is about to name it.
    kept.insert(created(&east, &[path]).await.id());
    let deleted = orphans::delete(&east.store, &held, east.client()).await;
    assert_eq!(deleted, Ok(left.len()));
    assert_eq!(ledgers(&east).await[1], kept);
    assert_eq!(payloads(&topic).await, [0, 1, 2].map(payload));
    let cursor = ManagedCursor::open(topic.ledger(), "c", StartAt::Earliest).await.unwrap();
    assert_eq!((cursor.backlog(), cursor.recovery_notes().len()), (1, 0));
}

#[tokio::test]
async fn nothing_is_deleted_where_a_record_is_of_no_ledger() {
    let east = region("east");
    created(&east, &[("pulsar/managed-ledger", "a/b")]).await;
    for name in ["ledgers/L0000000", "ledgers/M0000000000", "ledgers/L00000000001"] {
        let version = east.store.put(name, Bytes::new(), Expected::Absent).await.unwrap();
        let refused = orphans::delete(&east.store, &BTreeSet::new(), east.client()).await;
        assert!(refused.unwrap_err().to_string().contains(name));
        east.store.delete(name, version).await.unwrap();
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
    east.set_retention(&two, Retention::FOREVER).await.unwrap();
    east.delete_topic(&one).await.unwrap();
    trim_aged(&east.topics, &east.aging).await;
    assert_eq!(shortest(), None, "no timer is armed any more");
    east.set_retention(&two, Retention::NONE).await.unwrap();
    assert_eq!(*east.aging.borrow(), Some(ROLLOVER_AGE), "its last ledger is to go, too");
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

/// Others take its place in new ledgers, so nobody has a request for it.
#[tokio::test]
async fn bookie_that_failed_is_named_and_comes_back_by_itself() {
    let disk = Arc::new(CrashDisk::new());
    let store = Arc::new(MemoryMetadataStore::default());
    let ids = ["a", "b", "c", "d"].map(BookieId::from);
    let (bookies, failed) =
        DurableBookies::open(disk.clone(), ids, &*store, &DurableConfig::default()).await;
    assert!(failed.is_empty(), "{failed:?}");
    let bookies = Bookies::Disk(Arc::new(bookies));
    let west = Region::start("west".into(), Settings::default(), bookies, store, Vec::new(), None);
    assert_eq!(west.failed(), []);
    let file = "bookie-a.redb";
    let content = disk.content(file).unwrap();
    disk.remove(file);
    let mut published = 0;
    while west.failed().is_empty() {
        let topic = west.topic(&format!("a/b{published}")).await.unwrap();
        topic.publish(message(published)).await.unwrap();
        published += 1;
    }
    assert_eq!(west.failed(), [BookieId::from("a")]);
    disk.replace(file, content);
    let back = async {
        while !west.failed().is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back).await.expect("its file is there again");
    assert_eq!(west.registered().len(), 4);
}

#[tokio::test]
async fn idle_topic_lets_its_last_ledger_go_when_that_is_old() {
    let ledgers = ManagedLedgerConfig {
        retention: Retention { time: Some(Duration::from_millis(1)), bytes: None },
        ..ManagedLedgerConfig::default()
    };
    let east = Region::builder().name("east").ledgers(ledgers).in_memory();
    let topic = east.topic(TOPIC).await.unwrap();
    topic.publish(message(0)).await.unwrap();
    let cursor = ManagedCursor::open(topic.ledger(), "c", StartAt::Earliest).await.unwrap();
    trim_aged(&east.topics, &east.aging).await;
    assert_eq!(payloads(&topic).await, [payload(0)], "somebody needs it");
    cursor.clear_backlog().await.unwrap();
    let goes = async {
        while topic.ledger().start() < topic.ledger().end() {
            trim_aged(&east.topics, &east.aging).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), goes).await.expect("nobody needs it");
    topic.publish(message(1)).await.unwrap();
    assert_eq!(cursor.backlog(), 1);
}
