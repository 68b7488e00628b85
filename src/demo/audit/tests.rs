//! Damage that is planted on every replica, so that no other copy can hide it.

use std::sync::Arc;

use georepl::cursor::ManagedLedgerConfig;
use georepl::replicator::EmbeddedTopics;
use georepl::replicator::message::{MessageMetadata, compose};

use super::*;
use crate::cli::Damage;
use crate::demo::plant::plant;

const TOPIC: &str = "persistent://public/default/orders";
const MESSAGES: u64 = 10;

/// A region with ten messages in ledgers of four, closed.
async fn region(name: &str) -> Region {
    let ledgers = ManagedLedgerConfig { ledger_entries_max: 4, ..Default::default() };
    let region = Region::builder().name(name).ledgers(ledgers).in_memory();
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

async fn ledger_ids(region: &Region) -> Vec<LedgerId> {
    let listed = ledgers::listed(region, TOPIC).await.unwrap();
    listed.into_iter().map(|listed| listed.ledger).collect()
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
        let ledger = ledger_ids(&east).await[1];
        Arc::new(Self { west, east, ledger })
    }

    async fn audit(&self) -> Audit {
        let ledgers = ledger_ids(&self.west).await;
        let last = Position::new(ledgers[2], EntryId(1));
        self.audit_with(MESSAGES, Some(last)).await
    }

    async fn audit_with(&self, published: u64, mark_delete: Option<Position>) -> Audit {
        Audit::run(&self.west, &self.east, TOPIC, published, mark_delete).await.unwrap()
    }

    fn plant(&self, entry: u64, damage: Damage) {
        plant(&self.east.memory().unwrap().bookies, self.at(entry), damage);
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
    regions.plant(2, Damage::Lost);
    let audit = regions.audit().await;
    assert_eq!((audit.unreadable, audit.missing, audit.repeated, audit.ack_holes), (1, 1, 0, 1));
    assert_named(&audit, &format!("{} of east is unreadable", regions.at(2)));
    assert_named(&audit, "is missing in east");
}

#[tokio::test]
async fn doubled_entry_is_named() {
    let regions = Regions::new().await;
    regions.plant(1, Damage::Doubled);
    let audit = regions.audit().await;
    assert_eq!((audit.repeated, audit.missing, audit.unreadable), (1, 1, 0));
    let (first, second) = (regions.at(1), regions.at(2));
    assert_named(&audit, &format!("is twice in east, at {first} and {second}"));
}

#[tokio::test]
async fn swapped_pair_is_named() {
    let regions = Regions::new().await;
    regions.plant(1, Damage::Swapped);
    let audit = regions.audit().await;
    assert_eq!((audit.out_of_order, audit.missing, audit.repeated), (1, 0, 0));
    assert_named(&audit, &format!("is out of order in east, at {}", regions.at(2)));
}

#[tokio::test]
async fn unacknowledged_entries_are_counted() {
    let regions = Regions::new().await;
    let mark_delete = Position::new(ledger_ids(&regions.west).await[0], EntryId(3));
    let audit = regions.audit_with(MESSAGES, Some(mark_delete)).await;
    assert_eq!(audit.backlog, 6);
    assert_named(&audit, &format!("unacknowledged: mark-delete is {mark_delete}"));
    assert_eq!(regions.audit_with(MESSAGES, None).await.backlog, MESSAGES);
    // What is missing and not acknowledged is no hole: it will still be sent.
    regions.plant(2, Damage::Lost);
    let audit = regions.audit_with(MESSAGES, Some(mark_delete)).await;
    assert_eq!((audit.missing, audit.ack_holes), (1, 0));
}

#[tokio::test]
async fn messages_that_never_reached_the_source_are_named() {
    let regions = Regions::new().await;
    let audit = regions.audit_with(MESSAGES + 2, None).await;
    assert_eq!(audit.missing, 2);
    assert_named(&audit, "messages 10 to 11 are missing in west");
}
