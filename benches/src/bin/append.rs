//! Appends to one ledger on three bookies on disk, by how many are in flight.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use cpu_time::ProcessTime;
use georepl_benches::{
    Appender, Failed, Report, Row, Sample, at_least_one, count, on_disk, progress,
};

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
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    rounds: usize,
    /// How long each round is
    #[arg(long, value_name = "SECONDS", default_value_t = 3,
        value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let Arguments { directory, in_flight, rounds, seconds, json } = Arguments::parse();
    let progress = progress(directory.len() * in_flight.len() * rounds);
    let mut rows = Vec::new();
    for directory in &directory {
        for &in_flight in &in_flight {
            let what = format!("{}, {} in flight", directory.display(), count(in_flight));
            progress.set_message(what.clone());
            let mut samples = Vec::new();
            for _ in 0..rounds {
                samples.push(round(directory, in_flight, Duration::from_secs(seconds)).await?);
                progress.inc(1);
            }
            rows.push(Row::new(what, &samples, Vec::new(), Vec::new()));
        }
    }
    progress.finish_and_clear();
    Report { bench: "append", rounds, rows, figures: Vec::new() }.print(json)?;
    Ok(())
}

/// Appends for a while, always with so many in flight, and counts what was confirmed.
async fn round(directory: &Path, in_flight: u64, time: Duration) -> Result<Sample, Failed> {
    let directory = tempfile::tempdir_in(directory)?;
    let client = on_disk(directory.path()).await?;
    let mut appender = Appender::create(&client).await?;
    let payloads = [Bytes::from(vec![7; 1 << 10])];
    let (begun, cpu) = (Instant::now(), ProcessTime::now());
    let more = |_| if begun.elapsed() < time { u64::MAX } else { 0 };
    let entries = appender.append(&payloads, in_flight, more).await?;
    let sample = Sample { wall: begun.elapsed(), cpu: cpu.elapsed(), entries };
    appender.writer().close().await?;
    Ok(sample)
}
