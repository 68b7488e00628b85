//! Appends to one ledger on three bookies on disk, by how many are in flight.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use cpu_time::ProcessTime;
use georepl::storage::{
    AppendSink, BookieId, ClientConfig, DirectoryDisk, Disk, DurableBookies, DurableConfig,
    EntryId, LedgerClient, LedgerId, LedgerOptions, LocalMetadataStore, Password, QuorumSizes,
    write,
};
use georepl_benches::{Report, Row, Sample, count, spread};
use tokio::sync::watch;

/// Appends entries of 1 KiB to a ledger on three bookies on disk, each entry to all of them.
///
/// Nothing is answered before it is synced, so with few in flight this measures the disk.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p georepl-benches --bin append -- --directory /dev/shm"
)]
struct Arguments {
    /// Directories on the disks to measure
    #[arg(long, value_delimiter = ',', default_value = ".")]
    directory: Vec<PathBuf>,
    /// How many appends are in flight
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 1_024, 8_192],
        value_parser = clap::value_parser!(u64).range(1..))]
    in_flight: Vec<u64>,
    /// How often each is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// How long each round is
    #[arg(long, value_name = "SECONDS", default_value_t = 3,
        value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

type Failed = Box<dyn Error + Send + Sync>;

struct Sink(watch::Sender<Result<u64, write::Error>>);

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        self.0.send_modify(|told| *told = Ok(through.get() + 1));
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        self.0.send_modify(|told| *told = Err(error));
    }
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let mut rows = Vec::new();
    for directory in &arguments.directory {
        for &in_flight in &arguments.in_flight {
            let mut samples = Vec::new();
            for _ in 0..arguments.rounds {
                let time = Duration::from_secs(arguments.seconds);
                samples.push(round(directory, in_flight, time).await?);
            }
            rows.push(Row {
                what: format!("{}, {} in flight", directory.display(), count(in_flight)),
                entries: samples[0].entries,
                rate: spread(samples.iter().map(Sample::rate)),
                cpu_ns: spread(samples.iter().map(Sample::cpu_ns)),
                of_raw: None,
            });
        }
    }
    let rounds = arguments.rounds.try_into()?;
    Report { bench: "append", rounds, rows }.print(arguments.json)?;
    Ok(())
}

/// Appends for a while, always with so many in flight, and counts what was confirmed.
async fn round(directory: &Path, in_flight: u64, time: Duration) -> Result<Sample, Failed> {
    let directory = tempfile::tempdir_in(directory)?;
    let disk: Arc<dyn Disk> = Arc::new(DirectoryDisk::new(directory.path()));
    let store = Arc::new(LocalMetadataStore::open(disk.clone()).await?);
    let ids = ["b1", "b2", "b3"].map(BookieId::from);
    let (bookies, failed) =
        DurableBookies::open(disk, ids, &*store, &DurableConfig::default()).await;
    if let Some((_, error)) = failed.into_iter().next() {
        return Err(error.into());
    }
    let registry = bookies.registry();
    let client = LedgerClient::new(Arc::new(bookies), store, registry, ClientConfig::default());
    let sizes = QuorumSizes::new(3, 3, 2).expect("valid sizes");
    let options = LedgerOptions { sizes, password: Password::default(), custom: BTreeMap::new() };
    let (sink, mut confirmed) = watch::channel(Ok(0));
    let writer = client.create(options, Arc::new(Sink(sink))).await?;
    let payload = Bytes::from(vec![7; 1 << 10]);
    let (begun, cpu, mut sent) = (Instant::now(), ProcessTime::now(), 0);
    while begun.elapsed() < time {
        let room = in_flight - (sent - confirmed.borrow_and_update().clone()?);
        if room == 0 {
            confirmed.changed().await?;
            continue;
        }
        writer.append((0..room).map(|_| payload.clone()).collect::<Vec<_>>())?;
        sent += room;
    }
    let all = |told: &Result<u64, _>| told.as_ref().is_err() || *told == Ok(sent);
    let entries = confirmed.wait_for(all).await?.clone()?;
    let sample = Sample { wall: begun.elapsed(), cpu: cpu.elapsed(), entries };
    writer.close().await?;
    Ok(sample)
}
