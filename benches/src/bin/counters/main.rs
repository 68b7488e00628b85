//! Exact counts of what an entry costs, against the ones that are kept in the tree.
//!
//! Each workload runs in a process of its own, on one thread and with a fixed input, for some entries and for twice as
//! many. The difference is the cost of the entries alone: what begins and ends a process is in both. Load on the
//! machine does not change these counts, so they can stand in a gate where times cannot.

mod probe;
mod work;

use std::alloc::System;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use comfy_table::presets::ASCII_BORDERS_ONLY_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use probe::{Counts, probe};
use work::Work;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

type Failed = Box<dyn Error + Send + Sync>;

/// Counts what an entry of 1 KiB costs, and compares it with the baselines.
///
/// Instructions and polls of tasks are counted by valgrind's callgrind, copied bytes by its dhat. A count that is more
/// than 2 % above its baseline is a regression, and the exit status says so.
#[derive(Debug, Parser)]
#[command(after_help = "Example:\n  cargo run --release -p georepl-benches --bin counters")]
struct Arguments {
    /// Make what was counted the baselines
    #[arg(long)]
    update: bool,
    /// Where the baselines are
    #[arg(long, value_name = "FILE",
        default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/baselines.json"))]
    baselines: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    inner: Option<Inner>,
}

#[derive(Debug, Subcommand)]
enum Inner {
    /// Do a piece of work, and tell what it allocated
    #[command(hide = true)]
    Work { work: Work, entries: u64 },
}

/// Counts by the names of what is counted.
type Named = BTreeMap<String, f64>;

/// One count beside its baseline.
#[derive(Serialize)]
struct Compared {
    work: String,
    count: String,
    baseline: Option<f64>,
    now: f64,
    verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    AsBefore,
    Regressed,
    /// The baseline is to be updated, or a later regression up to it would not be seen.
    Improved,
    /// It has no baseline.
    New,
}

fn main() -> Result<ExitCode, Failed> {
    let arguments = Arguments::parse();
    if let Some(Inner::Work { work, entries }) = arguments.inner {
        let done = work::run(work, entries, ALLOCATOR)?;
        println!("{}", serde_json::to_string(&done)?);
        return Ok(ExitCode::SUCCESS);
    }
    let counted = count()?;
    if arguments.update {
        std::fs::write(&arguments.baselines, serde_json::to_string_pretty(&counted)? + "\n")?;
    }
    let baselines = std::fs::read_to_string(&arguments.baselines);
    let baselines = baselines
        .map_err(|error| format!("{}: {error}; --update writes it", arguments.baselines.display()));
    let compared = compare(&serde_json::from_str(&baselines?)?, &counted);
    match arguments.json {
        true => println!("{}", serde_json::to_string_pretty(&compared)?),
        false => println!("{}", table(&compared)),
    }
    Ok(judge(&compared))
}

/// What each work costs per entry.
fn count() -> Result<BTreeMap<String, Named>, Failed> {
    let mut counted = BTreeMap::new();
    let [append, publish, backlog, live] =
        probe([Work::Append, Work::Publish, Work::Backlog, Work::Live])?;
    // Of a backlog only its replication: it had to be published first.
    for (name, costs) in [("append", append), ("publish", publish), ("live", live)]
        .into_iter()
        .chain([("backlog", backlog - publish)])
    {
        counted.insert(name.to_owned(), named(costs));
    }
    let rewinds = probe::rewinds_per_burst()?;
    counted.insert("failures".into(), Named::from([("rewinds per burst".into(), rewinds)]));
    Ok(counted)
}

fn named(costs: Counts) -> Named {
    let Counts { instructions, allocations, copied_bytes, polls } = costs;
    let named = [
        ("instructions", instructions),
        ("allocations", allocations),
        ("copied bytes", copied_bytes),
        ("polls", polls),
    ];
    named.map(|(name, count)| (name.to_owned(), round(count))).into()
}

/// To what is worth keeping.
fn round(count: f64) -> f64 {
    (count * 10_000.0).round() / 10_000.0
}

fn compare(
    baselines: &BTreeMap<String, Named>,
    counted: &BTreeMap<String, Named>,
) -> Vec<Compared> {
    let mut compared = Vec::new();
    for (work, counts) in counted {
        for (count, &now) in counts {
            let baseline = baselines.get(work).and_then(|counts| counts.get(count)).copied();
            let verdict = match baseline {
                None => Verdict::New,
                Some(baseline) if now > baseline * (1.0 + TOLERANCE) => Verdict::Regressed,
                Some(baseline) if now < baseline * (1.0 - TOLERANCE) => Verdict::Improved,
                Some(_) => Verdict::AsBefore,
            };
            let (work, count) = (work.clone(), count.clone());
            compared.push(Compared { work, count, baseline, now, verdict });
        }
    }
    compared
}

/// Says on standard error what is to be done.
fn judge(compared: &[Compared]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for Compared { work, count, baseline, now, verdict } in compared {
        let before = baseline.map_or_else(|| "no baseline".to_owned(), |before| before.to_string());
        match verdict {
            Verdict::AsBefore => {}
            Verdict::Regressed => {
                eprintln!("{work}: {count} per entry rose from {before} to {now}");
                code = ExitCode::FAILURE;
            }
            Verdict::Improved | Verdict::New => {
                eprintln!(
                    "{work}: {count} per entry: {before}, now {now}; update the baseline (--update)"
                );
            }
        }
    }
    code
}

fn table(compared: &[Compared]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_BORDERS_ONLY_CONDENSED);
    table.set_header(["per entry of 1 KiB", "count", "baseline", "now", "change"]);
    for Compared { work, count, baseline, now, .. } in compared {
        let before = baseline.map_or_else(String::new, |baseline| baseline.to_string());
        let change = baseline.filter(|baseline| *baseline > 0.0);
        let change = change.map_or_else(String::new, |baseline| {
            format!("{:+.1} %", (now / baseline - 1.0) * 100.0)
        });
        table.add_row([work, count, &before, &now.to_string(), &change]);
    }
    table.column_iter_mut().skip(2).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

/// The counts of two runs of one binary differ by less, so a higher one is the program's.
const TOLERANCE: f64 = 0.02;
