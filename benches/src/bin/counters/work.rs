//! What is counted: pieces of work on one thread, with the same input each time.

use std::alloc::System;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use georepl::Region;
use georepl::cursor::{ManagedCursor, StartAt};
use georepl::replicator::message::{MessageMetadata, compose};
use georepl::replicator::{
    Backoff, EmbeddedRemote, EmbeddedTopic, EmbeddedTopics, FaultyRemote, ReleaseOrder,
    RemoteFaults, Replicator, ReplicatorConfig,
};
use georepl::storage::{
    AppendSink, BookieId, ClientConfig, EntryId, LedgerClient, LedgerId, LedgerOptions,
    MemoryBookieRegistry, MemoryBookies, MemoryMetadataStore, Password, QuorumSizes, write,
};
use serde::{Deserialize, Serialize};
use stats_alloc::{Region as Counted, StatsAlloc};
use tokio::sync::watch;

use super::Failed;

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Append entries to a ledger on three bookies in memory, each to all of them.
    Append,
    /// Publish messages to a topic of a region in memory.
    Publish,
    /// Publish messages, and then replicate and acknowledge them.
    Backlog,
    /// Replicate and acknowledge messages while they are published.
    Live,
    /// So many times, let a whole window of messages be refused.
    Bursts,
}

/// What a piece of work says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Heap allocations, and those that were made larger.
    pub(crate) allocations: usize,
    /// Rewinds of the replicator's cursor.
    pub(crate) rewinds: u64,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no work is hidden");
        f.write_str(value.get_name())
    }
}

/// Does a piece of work.
pub(crate) fn run(
    work: Work,
    entries: u64,
    allocator: &StatsAlloc<System>,
) -> Result<Done, Failed> {
    let counted = Counted::new(allocator);
    // The clock stands still while there is anything to do, so that a slow machine meets no more timers than a fast one.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build()?;
    let rewinds = runtime.block_on(async {
        match work {
            Work::Append => append(entries).await.map(|()| 0),
            Work::Publish => publish(&topic(&region("west")).await?, entries).await.map(|()| 0),
            Work::Backlog => backlog(entries).await,
            Work::Live => live(entries).await,
            Work::Bursts => bursts(entries).await,
        }
    })?;
    let stats = counted.change();
    Ok(Done { allocations: stats.allocations + stats.reallocations, rewinds })
}

struct Sink(watch::Sender<Result<u64, write::Error>>);

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        self.0.send_modify(|told| *told = Ok(through.get() + 1));
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        self.0.send_modify(|told| *told = Err(error));
    }
}

async fn append(entries: u64) -> Result<(), Failed> {
    let ids = ["b1", "b2", "b3"].map(BookieId::from);
    let bookies = Arc::new(MemoryBookies::new(ids.clone()));
    let registry = Arc::new(MemoryBookieRegistry::new(ids));
    let store = Arc::new(MemoryMetadataStore::new());
    let client = LedgerClient::new(bookies, store, registry, ClientConfig::default());
    let sizes = QuorumSizes::new(3, 3, 2)?;
    let options = LedgerOptions { sizes, password: Password::default(), custom: BTreeMap::new() };
    let (sink, mut confirmed) = watch::channel(Ok(0));
    let writer = client.create(options, Arc::new(Sink(sink))).await?;
    let (payload, mut sent) = (Bytes::from(payload()), 0);
    while sent < entries {
        let batch = BATCH_ENTRIES.min(entries - sent);
        writer.append((0..batch).map(|_| payload.clone()))?;
        sent += batch;
        let all = |told: &Result<u64, _>| told.as_ref().map_or(true, |told| *told == sent);
        confirmed.wait_for(all).await?.clone()?;
    }
    writer.close().await?;
    Ok(())
}

async fn backlog(entries: u64) -> Result<u64, Failed> {
    let pair = Pair::new(Limits::Default).await?;
    publish(&pair.source, entries).await?;
    pair.replicator.start();
    pair.replicated(entries).await
}

async fn live(entries: u64) -> Result<u64, Failed> {
    let pair = Pair::new(Limits::Default).await?;
    pair.replicator.start();
    publish(&pair.source, entries).await?;
    pair.replicated(entries).await
}

/// Each time the first message of a window is refused, and all behind it with it.
async fn bursts(bursts: u64) -> Result<u64, Failed> {
    let pair = Pair::new(Limits::Hasty).await?;
    pair.replicator.start();
    for burst in 1..=bursts {
        pair.faults.refuse_next(1);
        pair.faults.hold_receipts();
        publish(&pair.source, WINDOW_ENTRIES).await?;
        pair.faults.until(|counts| counts.receipts_held == burst * WINDOW_ENTRIES).await;
        pair.faults.release_receipts(ReleaseOrder::Given);
        pair.replicator.drained().await?;
    }
    pair.replicated(bursts * WINDOW_ENTRIES).await
}

/// Two regions and a replicator between them.
struct Pair {
    source: EmbeddedTopic,
    target: EmbeddedTopic,
    faults: RemoteFaults,
    replicator: Replicator,
    _regions: [Arc<Region>; 2],
}

enum Limits {
    Default,
    /// It waits for a moment only before it tries again.
    Hasty,
}

impl Pair {
    async fn new(limits: Limits) -> Result<Self, Failed> {
        let (west, east) = (Arc::new(region("west")), Arc::new(region("east")));
        let (source, target) = (topic(&west).await?, topic(&east).await?);
        let cursor = ManagedCursor::open(source.ledger(), "pulsar.repl.east", StartAt::Earliest);
        let mut config = ReplicatorConfig::new("west", "east", TOPIC);
        if let Limits::Hasty = limits {
            let moment = Duration::from_millis(1);
            config.limits.refused_backoff = Backoff { first: moment, longest: moment };
        }
        let faults = RemoteFaults::new();
        let remote = EmbeddedRemote::new(east.clone());
        let replicator = match limits {
            Limits::Default => Replicator::new(config, cursor.await?, Arc::new(remote)).await?,
            Limits::Hasty => {
                let remote = Arc::new(FaultyRemote::new(remote, faults.clone()));
                Replicator::new(config, cursor.await?, remote).await?
            }
        };
        Ok(Self { source, target, faults, replicator, _regions: [west, east] })
    }

    /// Waits until everything is replicated, and tells how often the cursor was rewound.
    async fn replicated(&self, entries: u64) -> Result<u64, Failed> {
        self.replicator.drained().await?;
        assert_eq!(self.target.ledger().end().get(), entries, "every entry is in east, once");
        let rewinds = self.replicator.accounting().rewinds;
        self.replicator.shutdown(Duration::from_secs(10)).await;
        Ok(rewinds)
    }
}

fn region(name: &str) -> Region {
    Region::builder().name(name).in_memory()
}

async fn topic(region: &Region) -> Result<EmbeddedTopic, Failed> {
    Ok(region.topic(TOPIC).await.map_err(|error| error.to_string())?)
}

/// The same message each time, composed beforehand: composing is the producer's.
async fn publish(topic: &EmbeddedTopic, entries: u64) -> Result<(), Failed> {
    let metadata = MessageMetadata { producer_name: "bench".to_owned(), ..Default::default() };
    let (message, mut left) = (compose(&metadata, &payload()), entries);
    while left > 0 {
        let batch = BATCH_ENTRIES.min(left);
        topic.publish_batch((0..batch).map(|_| message.clone()).collect()).await?;
        left -= batch;
    }
    Ok(())
}

/// Incompressible, and the same in each run.
fn payload() -> Vec<u8> {
    let mut payload = vec![0; PAYLOAD_BYTES];
    fastrand::Rng::with_seed(7).fill(&mut payload);
    payload
}

const TOPIC: &str = "persistent://public/default/counted";
const PAYLOAD_BYTES: usize = 1 << 10;
const BATCH_ENTRIES: u64 = 256;
/// The default window of a replicator.
const WINDOW_ENTRIES: u64 = 1_000;
