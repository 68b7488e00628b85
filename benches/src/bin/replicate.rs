//! Replication from one region in memory to another: live, and of a backlog.

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use futures::future::try_join_all;
use georepl::Region;
use georepl::cursor::{ManagedCursor, StartAt};
use georepl::replicator::message::{MessageMetadata, compose};
use georepl::replicator::{
    EmbeddedRemote, EmbeddedTopic, EmbeddedTopics, PublishError, Replicator, ReplicatorConfig,
};
use georepl_benches::{Report, Row, Sample, Work, count, measure, payload, raw, spread};
use indicatif::{ProgressBar, ProgressStyle};

/// Publish, replicate and acknowledge, from a region in memory to another in the same process.
///
/// "live" is all of it at once. "backlog" is what is left when everything was published before the replicator starts.
/// RAW copies the same bytes six times, for three bookies in each region, and makes two checksums of them, in one thread.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p georepl-benches --bin replicate -- --sizes 1024 --topics 1"
)]
struct Arguments {
    /// Sizes of payloads, in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1024, 65_536])]
    sizes: Vec<usize>,
    /// Numbers of topics.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100], value_parser = at_least_one)]
    topics: Vec<usize>,
    /// How often each is measured.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// Entries of a round, all topics together, at least one for each; by default 200 000, or what makes 256 MiB.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    entries: Option<u64>,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse::<NonZeroUsize>().map_err(|error| error.to_string())?;
    Ok(number.get())
}

type Failed = Box<dyn Error + Send + Sync>;

#[derive(Clone, Copy)]
enum Mode {
    Live,
    Backlog,
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let progress = ProgressBar::new(0);
    progress.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
    let modes = [(Mode::Live, "live"), (Mode::Backlog, "backlog")];
    let cases = arguments.sizes.len() * arguments.topics.len() * modes.len();
    progress.set_length((cases * arguments.rounds) as u64);
    let mut rows = Vec::new();
    for &size in &arguments.sizes {
        let entries =
            arguments.entries.unwrap_or_else(|| BYTES_MAX / size.max(1) as u64).min(ENTRIES);
        let payloads = payloads(size);
        let mut limits = Vec::new();
        let mut ours = Vec::new();
        for &topics in &arguments.topics {
            for (mode, name) in modes {
                let what = format!("{}, {} topics, {name}", payload(size), count(topics as u64));
                progress.set_message(what.clone());
                let (mut samples, mut of_raw) = (Vec::new(), Vec::new());
                for _ in 0..arguments.rounds {
                    let limit = raw(RAW, &payloads, entries);
                    let sample = round(&payloads, topics, entries, mode).await?;
                    of_raw.push(sample.rate() / limit.rate());
                    samples.push(sample);
                    limits.push(limit);
                    progress.inc(1);
                }
                ours.push(row(what, &samples, of_raw));
            }
        }
        rows.push(row(format!("{}, RAW", payload(size)), &limits, Vec::new()));
        rows.append(&mut ours);
    }
    progress.finish_and_clear();
    Report { bench: "replicate", rounds: arguments.rounds, rows }.print(arguments.json)?;
    Ok(())
}

fn row(what: String, samples: &[Sample], of_raw: Vec<f64>) -> Row {
    Row {
        what,
        entries: samples[0].entries,
        rate: spread(samples.iter().map(Sample::rate)),
        cpu_ns: spread(samples.iter().map(Sample::cpu_ns)),
        of_raw: (!of_raw.is_empty()).then(|| spread(of_raw)),
    }
}

/// Incompressible bytes, the same in each run, and more of them than a cache holds.
fn payloads(size: usize) -> Vec<Bytes> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut payload = || {
        let mut bytes = vec![0; size];
        random.fill(&mut bytes);
        Bytes::from(bytes)
    };
    (0..((64 << 20) / size.max(1)).clamp(16, 4096)).map(|_| payload()).collect()
}

/// A pair of fresh regions, and one round between them.
async fn round(
    payloads: &[Bytes],
    topics: usize,
    entries: u64,
    mode: Mode,
) -> Result<Sample, Failed> {
    let west = Arc::new(Region::builder().name("west").in_memory());
    let east = Arc::new(Region::builder().name("east").in_memory());
    let each = (entries / topics as u64).max(1);
    let remote = Arc::new(EmbeddedRemote::new(east.clone()));
    let mut lanes = Vec::new();
    for number in 0..topics {
        let name = format!("persistent://public/default/bench-{number}");
        let topic = west.topic(&name).await.map_err(|error| error.to_string())?;
        east.topic(&name).await.map_err(|error| error.to_string())?;
        let cursor = ManagedCursor::open(topic.ledger(), "pulsar.repl.east", StartAt::Earliest);
        let config = ReplicatorConfig::new("west", "east", name);
        let replicator = Replicator::new(config, cursor.await?, remote.clone()).await?;
        lanes.push((topic, replicator));
    }
    let publish_all =
        || try_join_all(lanes.iter().map(|(topic, _)| publish(topic, payloads, each)));
    let drain_all = async || {
        lanes.iter().for_each(|(_, replicator)| replicator.start());
        try_join_all(lanes.iter().map(|(_, replicator)| replicator.drained())).await
    };
    let total = each * topics as u64;
    let sample = match mode {
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

async fn publish(
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

/// Three copies in each region. The digest of west's entry and the checksum of the frame that is sent.
const RAW: Work = Work { copies: 6, checksums: 2 };
const ENTRIES: u64 = 200_000;
const BYTES_MAX: u64 = 256 << 20;
const BATCH_ENTRIES: usize = 256;
