//! Two regions in one process, and rounds of replication between them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use futures::future::try_join_all;
use georepl::Region;
use georepl::cursor::{ManagedCursor, ManagedLedgerConfig, StartAt};
use georepl::replicator::message::{MessageMetadata, compose};
use georepl::replicator::{
    EmbeddedRemote, EmbeddedTopic, EmbeddedTopics, PublishError, Replicator, ReplicatorConfig,
};
use georepl::storage::QuorumSizes;

use crate::{Failed, Sample, measure};

/// Where the regions keep their entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In the memory of the process.
    Memory,
    /// In a new directory in this one, which is deleted after the round.
    Directory(PathBuf),
}

/// How many bookies of a region keep each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Copies {
    /// One bookie, and no other.
    #[value(name = "1")]
    One,
    /// Three of four; two are enough to acknowledge it.
    #[value(name = "3")]
    Three,
}

/// What a round measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything: publish, replicate and acknowledge at once.
    Live,
    /// What is left when everything was published before the replicators start.
    Backlog,
}

/// One round.
#[derive(Clone, Debug)]
pub struct Case {
    /// Where the entries are kept.
    pub storage: Storage,
    /// How often.
    pub copies: Copies,
    /// Topics, with a replicator each.
    pub topics: usize,
    /// Entries of all topics together; at least one for each.
    pub entries: u64,
    /// Entries that each replicator may have read and not acknowledged; none for its default.
    pub window_entries: Option<u32>,
    /// What is timed.
    pub mode: Mode,
}

impl Copies {
    /// The number.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            Self::One => 1,
            Self::Three => 3,
        }
    }

    const fn bookies(self) -> usize {
        match self {
            Self::One => 1,
            Self::Three => 4,
        }
    }

    fn ledgers(self) -> ManagedLedgerConfig {
        let sizes = match self {
            Self::One => QuorumSizes::new(1, 1, 1),
            Self::Three => QuorumSizes::new(3, 3, 2),
        };
        ManagedLedgerConfig { sizes: sizes.expect("valid sizes"), ..ManagedLedgerConfig::default() }
    }
}

/// A new region.
///
/// # Errors
/// If it cannot be begun in its directory.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn region(name: &str, storage: &Storage, copies: Copies) -> Result<Arc<Region>, Failed> {
    let region = Region::builder().name(name).bookies(copies.bookies()).ledgers(copies.ledgers());
    Ok(Arc::new(match storage {
        Storage::Memory => region.in_memory(),
        Storage::Directory(directory) => region.open(directory.join(name)).await?,
    }))
}

/// Of a replicator from west to east.
#[must_use]
pub fn replicator_config(topic: String, window_entries: Option<u32>) -> ReplicatorConfig {
    let mut config = ReplicatorConfig::new("west", "east", topic);
    config.limits.window_entries = window_entries.unwrap_or(config.limits.window_entries);
    config
}

/// The topic of that number.
#[must_use]
pub fn lane_name(number: usize) -> String {
    format!("persistent://public/default/bench-{number:06}")
}

/// A pair of fresh regions, and one round between them.
///
/// # Errors
/// If something fails, or a replicator ends.
///
/// # Panics
/// If an entry is not in the other region, or is there twice.
pub async fn replicate(case: &Case, payloads: &[Bytes]) -> Result<Sample, Failed> {
    let (storage, directory) = match &case.storage {
        Storage::Memory => (Storage::Memory, None),
        Storage::Directory(directory) => {
            let directory = tempfile::tempdir_in(directory)?;
            (Storage::Directory(directory.path().to_owned()), Some(directory))
        }
    };
    let west = region("west", &storage, case.copies).await?;
    let east = region("east", &storage, case.copies).await?;
    let sample = round(&west, &east, case, payloads).await?;
    west.close().await?;
    east.close().await?;
    drop((west, east, directory));
    Ok(sample)
}

async fn round(
    west: &Arc<Region>,
    east: &Arc<Region>,
    case: &Case,
    payloads: &[Bytes],
) -> Result<Sample, Failed> {
    let each = (case.entries / case.topics as u64).max(1);
    let remote = Arc::new(EmbeddedRemote::new(east.clone()));
    let mut lanes = Vec::new();
    for number in 0..case.topics {
        let name = lane_name(number);
        let topic = west.topic(&name).await.map_err(|error| error.to_string())?;
        east.topic(&name).await.map_err(|error| error.to_string())?;
        let cursor = ManagedCursor::open(topic.ledger(), "pulsar.repl.east", StartAt::Earliest);
        let config = replicator_config(name, case.window_entries);
        let replicator = Replicator::new(config, cursor.await?, remote.clone()).await?;
        lanes.push((topic, replicator));
    }
    let publish_all =
        || try_join_all(lanes.iter().map(|(topic, _)| publish(topic, payloads, each)));
    let drain_all = async || {
        lanes.iter().for_each(|(_, replicator)| replicator.start());
        try_join_all(lanes.iter().map(|(_, replicator)| replicator.drained())).await
    };
    let total = each * case.topics as u64;
    let sample = match case.mode {
        Mode::Live => {
            let work = async {
                lanes.iter().for_each(|(_, replicator)| replicator.start());
                publish_all().await?;
                drain_all().await?;
                Ok::<_, Failed>(())
            };
            let (done, sample) = measure(total, work).await;
            done?;
            sample
        }
        Mode::Backlog => {
            publish_all().await?;
            let (done, sample) = measure(total, drain_all()).await;
            done?;
            sample
        }
    };
    for (topic, replicator) in &lanes {
        let copy = east.topic(topic.ledger().name()).await.map_err(|error| error.to_string())?;
        assert_eq!(copy.ledger().end().get(), each, "every entry is in east, once");
        assert_eq!(replicator.shutdown(Duration::from_secs(10)).await.backlog, 0);
    }
    Ok(sample)
}

/// Publishes so many messages, in batches, each when the one before is durable.
///
/// # Errors
/// [`PublishError`].
pub async fn publish(
    topic: &EmbeddedTopic,
    payloads: &[Bytes],
    entries: u64,
) -> Result<(), PublishError> {
    let mut all = (0..entries).zip(payloads.iter().cycle()).peekable();
    while all.peek().is_some() {
        let batch = all.by_ref().take(BATCH_ENTRIES).map(|(number, payload)| {
            let metadata = MessageMetadata {
                producer_name: "bench".to_owned(),
                sequence_id: number,
                ..MessageMetadata::default()
            };
            compose(&metadata, payload)
        });
        topic.publish_batch(batch.collect()).await?;
    }
    Ok(())
}

const BATCH_ENTRIES: usize = 256;
