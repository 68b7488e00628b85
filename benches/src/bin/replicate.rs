//! Replication from one region to another: live, and of a backlog.

use std::path::PathBuf;

use clap::Parser;
use georepl_benches::{
    Case, Copies, Failed, Mode, Report, Row, Storage, Work, at_least_one, count, entries_of,
    payload, payloads, progress, raw, replicate,
};

/// Publish, replicate and acknowledge, from a region to another in the same process.
///
/// "live" is all of it at once. "backlog" is what is left when everything was published before the replicator starts.
/// RAW copies the same bytes once for each bookie that keeps them in either region, and makes two checksums of them, in
/// one thread.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p georepl-benches --bin replicate -- --sizes 1024 --topics 1"
)]
struct Arguments {
    /// Sizes of payloads, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1024, 65_536])]
    sizes: Vec<usize>,
    /// Numbers of topics
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100], value_parser = at_least_one)]
    topics: Vec<usize>,
    /// How many bookies of a region keep each entry
    #[arg(long, value_enum, default_value = "3")]
    copies: Copies,
    /// A directory for regions on disk [default: regions in memory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Entries that each replicator may have read and not acknowledged [default: its own]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    window_entries: Option<u32>,
    /// How often each is measured
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// Entries of a round, all topics together, at least one for each [default: 200000, or what makes 256 MiB]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    entries: Option<u64>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let storage = arguments.directory.clone().map_or(Storage::Memory, Storage::Directory);
    let modes = [(Mode::Live, "live"), (Mode::Backlog, "backlog")];
    let cases = arguments.sizes.len() * arguments.topics.len() * modes.len();
    let progress = progress(cases * arguments.rounds);
    // The digest of west's entry and the checksum of the frame that is sent.
    let work = Work { copies: 2 * arguments.copies.number(), checksums: 2 };
    let mut rows = Vec::new();
    for &size in &arguments.sizes {
        let entries = entries_of(size, arguments.entries, ENTRIES);
        let payloads = payloads(size);
        let mut limits = Vec::new();
        let mut ours = Vec::new();
        for &topics in &arguments.topics {
            for (mode, name) in modes {
                let what = format!("{}, {} topics, {name}", payload(size), count(topics as u64));
                progress.set_message(what.clone());
                let (storage, copies) = (storage.clone(), arguments.copies);
                let window_entries = arguments.window_entries;
                let case = Case { storage, copies, topics, entries, window_entries, mode };
                let (mut samples, mut of_raw) = (Vec::new(), Vec::new());
                for _ in 0..arguments.rounds {
                    let limit = raw(work, &payloads, entries);
                    let sample = replicate(&case, &payloads).await?;
                    of_raw.push(sample.rate() / limit.rate());
                    samples.push(sample);
                    limits.push(limit);
                    progress.inc(1);
                }
                ours.push(Row::new(what, &samples, of_raw, Vec::new()));
            }
        }
        let what = format!("{}, RAW", payload(size));
        rows.push(Row::new(what, &limits, Vec::new(), Vec::new()));
        rows.append(&mut ours);
    }
    progress.finish_and_clear();
    let figures = Vec::new();
    Report { bench: "replicate", rounds: arguments.rounds, rows, figures }.print(arguments.json)?;
    Ok(())
}

const ENTRIES: u64 = 200_000;
