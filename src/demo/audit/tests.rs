//! Damage that is planted on every replica, so that no other copy can hide it.

use std::sync::Arc;

use bytes::Bytes;
use georepl::RegionConfig;
use georepl::cursor::ManagedLedgerConfig;
use georepl::replicator::EmbeddedTopics;
use georepl::replicator::message::{MessageMetadata, compose};
use georepl::storage::Entry;

use super::*;

const TOPIC: &str = "persistent://public/default/orders";
const MESSAGES: u64 = 10;

/// A region with ten messages in ledgers of four, closed.
async fn region(name: &str) -> Region {
    let ledgers = ManagedLedgerConfig { ledger_entries_max: 4, ..Default::default() };
    let region = Region::in_memory(name, RegionConfig { ledgers, ..RegionConfig::default() });
    let frame = |n: u64| {
        let metadata = MessageMetadata {
            producer_name: "test".to_owned(),
            sequence_id: n,
            ..MessageMetadata::default()
        };
        // Payloads repeat, as the demo's do.
        compose(&metadata, format!("order {}", n % 3).as_bytes())
    };
    let topic = region.topic(TOPIC).await.unwrap();
    topic.publish_batch((0..MESSAGES).map(frame).collect()).await.unwrap();
    region.close().await.unwrap();
    region
}

struct Regions {
    west: Region,
    east: Region,
    /// Of east's second ledger, which holds messages 4 to 7.
    ledger: LedgerId,
}

impl Regions {
    async fn new() -> Arc<Self> {
        let (west, east) = (region("west").await, region("east").await);
        let ledger = east.ledgers(TOPIC).await[1];
        Arc::new(Self { west, east, ledger })
    }

    async fn audit(&self) -> Audit {
        let ledgers = self.west.ledgers(TOPIC).await;
        let last = Position::new(ledgers[2], EntryId(1));
        self.audit_with(MESSAGES, Some(last)).await
    }

    async fn audit_with(&self, published: u64, mark_delete: Option<Position>) -> Audit {
        Audit::run(&self.west, &self.east, TOPIC, published, mark_delete).await.unwrap()
    }

    fn payload(&self, entry: u64) -> Bytes {
        let bookies = self.east.bookies();
        let mut copies = bookies.ids().flat_map(|bookie| bookies.entries(&bookie, self.ledger));
        copies.find(|copy| copy.entry() == EntryId(entry)).unwrap().into_payload()
    }

    /// Puts another payload into every copy of an entry, well sealed.
    fn replace(&self, entry: u64, payload: &Bytes) {
        let bookies = self.east.bookies();
        let mut copies = 0;
        for bookie in bookies.ids() {
            let found = bookies.entries(&bookie, self.ledger);
            if let Some(old) = found.into_iter().find(|copy| copy.entry() == EntryId(entry)) {
                let new =
                    Entry::seal(self.ledger, old.entry(), old.lac(), old.length(), payload.clone());
                copies += usize::from(bookies.replace_entry(&bookie, self.ledger, new).is_some());
            }
        }
        assert_eq!(copies, 3);
    }

    fn at(&self, entry: u64) -> Position {
        Position::new(self.ledger, EntryId(entry))
    }
}

fn assert_named(audit: &Audit, words: &str) {
    assert!(!audit.passed());
    assert!(audit.findings.iter().any(|finding| finding.contains(words)), "{:?}", audit.findings);
}

#[tokio::test]
async fn equal_regions_pass() {
    let audit = Regions::new().await.audit().await;
    assert!(audit.passed(), "{:?}", audit.findings);
    assert_eq!((audit.entries, audit.bytes, audit.findings.len()), (MESSAGES, 70, 0));
    assert_eq!(audit.source_sha256, audit.target_sha256);
}

#[tokio::test]
async fn lost_entry_is_named() {
    let regions = Regions::new().await;
    let bookies = regions.east.bookies();
    let lose = |bookie| bookies.remove_entry(&bookie, regions.ledger, EntryId(2)).is_some();
    assert_eq!(bookies.ids().filter(|bookie| lose(bookie.clone())).count(), 3);
    let audit = regions.audit().await;
    assert_eq!((audit.unreadable, audit.missing, audit.repeated), (1, 1, 0));
    assert_named(&audit, &format!("{} of east is unreadable", regions.at(2)));
    assert_named(&audit, "is missing in east");
}

#[tokio::test]
async fn doubled_entry_is_named() {
    let regions = Regions::new().await;
    regions.replace(2, &regions.payload(1));
    let audit = regions.audit().await;
    assert_eq!((audit.repeated, audit.missing, audit.unreadable), (1, 1, 0));
    let (first, second) = (regions.at(1), regions.at(2));
    assert_named(&audit, &format!("is twice in east, at {first} and {second}"));
}

#[tokio::test]
async fn swapped_pair_is_named() {
    let regions = Regions::new().await;
    let (first, second) = (regions.payload(1), regions.payload(2));
    regions.replace(1, &second);
    regions.replace(2, &first);
    let audit = regions.audit().await;
    assert_eq!((audit.out_of_order, audit.missing, audit.repeated), (1, 0, 0));
    assert_named(&audit, &format!("is out of order in east, at {}", regions.at(2)));
}

#[tokio::test]
async fn unacknowledged_entries_are_counted() {
    let regions = Regions::new().await;
    let mark_delete = Position::new(regions.west.ledgers(TOPIC).await[0], EntryId(3));
    let audit = regions.audit_with(MESSAGES, Some(mark_delete)).await;
    assert_eq!(audit.backlog, 6);
    assert_named(&audit, &format!("unacknowledged: mark-delete is {mark_delete}"));
    assert_eq!(regions.audit_with(MESSAGES, None).await.backlog, MESSAGES);
}

#[tokio::test]
async fn messages_that_never_reached_the_source_are_named() {
    let regions = Regions::new().await;
    let audit = regions.audit_with(MESSAGES + 2, None).await;
    assert_eq!(audit.missing, 2);
    assert_named(&audit, "messages 10 to 11 are missing in west");
}
