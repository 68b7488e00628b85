//! What topics cost that nobody uses: how long they take to open, what they keep in memory, and what they do.
//!
//! One process begins a region with topics that hold one message each and closes it. Another one opens the region, then
//! every topic, and looks at itself (`/proc/self`, so on Linux) while nothing happens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use comfy_table::presets::ASCII_BORDERS_ONLY_CONDENSED;
use cpu_time::ProcessTime;
use futures::{StreamExt, TryStreamExt, stream};
use georepl::Region;
use georepl::replicator::EmbeddedTopics;
use georepl::replicator::message::{MessageMetadata, compose};
use georepl_benches::{Failed, Switches, count, resident_bytes};
use serde::Serialize;

/// Topics that are opened at once: enough to fill every commit.
const AT_ONCE: usize = 64;

/// Opens a region of topics that nobody uses, and watches them do nothing.
///
/// The processor time of a process and its memory are what Linux says of it.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p georepl-benches --bin topics -- --topics 1000"
)]
struct Arguments {
    /// How many topics
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    topics: usize,
    /// How long to watch them do nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    idle: u64,
    /// Where the region is begun; one that is there is measured as it is [default: a directory that is deleted]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Begin the region and end
    #[arg(long, hide = true)]
    begin: bool,
}

/// What was measured.
#[derive(Serialize)]
struct Measured {
    topics: usize,
    begin_seconds: f64,
    disk_bytes: u64,
    open_region_seconds: f64,
    open_topics_seconds: f64,
    /// Resident memory of the process.
    bytes_before_topics: u64,
    bytes_with_topics: u64,
    bytes_per_topic: u64,
    idle_seconds: u64,
    /// In all threads.
    idle_cpu_seconds: f64,
    /// How often a thread went to sleep, which it has to be woken for.
    idle_switches: u64,
    close_seconds: f64,
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let temporary = tempfile::tempdir()?;
    let directory = arguments.directory.clone().unwrap_or_else(|| temporary.path().join("region"));
    if arguments.begin {
        return begin(&directory, arguments.topics).await;
    }
    let begun = Instant::now();
    if !directory.exists() {
        let topics = arguments.topics.to_string();
        let begun = Command::new(std::env::current_exe()?)
            .args(["--begin", "--topics", &topics, "--directory"])
            .arg(&directory)
            .status()?;
        if !begun.success() {
            return Err("the region could not be begun".into());
        }
    }
    let begin_seconds = begun.elapsed().as_secs_f64();
    let measured = measure(&directory, begin_seconds, arguments.idle).await?;
    match arguments.json {
        true => println!("{}", serde_json::to_string_pretty(&measured)?),
        false => println!("{}", table(&measured)),
    }
    Ok(())
}

fn name(n: usize) -> String {
    format!("persistent://public/default/topic-{n:06}")
}

async fn begin(directory: &Path, topics: usize) -> Result<(), Failed> {
    let region = Region::open(directory).await?;
    let begun = stream::iter(0..topics).map(async |n| {
        let topic = region.topic(&name(n)).await.map_err(|error| error.to_string())?;
        let message = compose(&MessageMetadata::default(), b"the only one");
        topic.publish(message).await.map(drop).map_err(|error| error.to_string())
    });
    begun.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    region.close().await?;
    Ok(())
}

async fn measure(
    directory: &Path,
    begin_seconds: f64,
    idle_seconds: u64,
) -> Result<Measured, Failed> {
    let disk_bytes = fs::read_dir(directory)?
        .map(|file| file?.metadata().map(|metadata| metadata.len()))
        .sum::<Result<_, _>>()?;
    let begun = Instant::now();
    let region = Region::open(directory).await?;
    let open_region_seconds = begun.elapsed().as_secs_f64();
    let names = region.topics().await?;
    let bytes_before_topics = resident_bytes()?;

    let begun = Instant::now();
    let opening = stream::iter(&names).map(|name| region.topic(name));
    let opened = opening.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>();
    let opened = opened.await.map_err(|error: Arc<str>| error.to_string())?;
    let open_topics_seconds = begun.elapsed().as_secs_f64();
    // What an opening leaves to do has been done.
    tokio::time::sleep(SETTLE).await;
    let bytes_with_topics = resident_bytes()?;

    let (cpu, before) = (ProcessTime::now(), Switches::now()?);
    tokio::time::sleep(Duration::from_secs(idle_seconds)).await;
    let (idle_cpu_seconds, idle_switches) = (cpu.elapsed().as_secs_f64(), before.since()?);

    let topics = opened.len();
    drop(opened);
    let begun = Instant::now();
    region.close().await?;
    Ok(Measured {
        topics,
        begin_seconds,
        disk_bytes,
        open_region_seconds,
        open_topics_seconds,
        bytes_before_topics,
        bytes_with_topics,
        bytes_per_topic: bytes_with_topics.saturating_sub(bytes_before_topics)
            / topics.max(1) as u64,
        idle_seconds,
        idle_cpu_seconds,
        idle_switches,
        close_seconds: begun.elapsed().as_secs_f64(),
    })
}

/// How long an opening may have something left to do.
const SETTLE: Duration = Duration::from_secs(5);

fn table(measured: &Measured) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_BORDERS_ONLY_CONDENSED);
    table.set_header(["figure", "value"]);
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64);
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    let per_second = measured.topics as f64 / measured.open_topics_seconds;
    for (figure, value) in [
        ("topics", count(measured.topics as u64)),
        ("begun, with a message each, in", seconds(measured.begin_seconds)),
        ("files", mib(measured.disk_bytes)),
        ("region opened in", seconds(measured.open_region_seconds)),
        ("all topics opened in", seconds(measured.open_topics_seconds)),
        ("topics opened a second", count(per_second as u64)),
        ("memory before", mib(measured.bytes_before_topics)),
        ("memory with all topics open", mib(measured.bytes_with_topics)),
        ("memory of an idle topic", format!("{} bytes", count(measured.bytes_per_topic))),
        (
            "processor while idle",
            format!(
                "{} in {} s",
                format_args!("{:.4} s", measured.idle_cpu_seconds),
                measured.idle_seconds
            ),
        ),
        ("switches while idle", count(measured.idle_switches)),
        ("region closed in", seconds(measured.close_seconds)),
    ] {
        table.add_row([figure.to_owned(), value]);
    }
    table
}
