//! The outcome, for people and programs.

use std::fmt;
use std::io::{self, Write};

use comfy_table::Table;
use comfy_table::presets::ASCII_BORDERS_ONLY_CONDENSED;
use serde::Serialize;

use super::Verdict;
use super::audit::Audit;
use super::faults::Survived;
use super::lane::Outcome;
use super::ledgers::Ledgers;
use super::wire::Refused;

/// The outcome of a demo.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    /// Of all topics together.
    pub(crate) throughput: Throughput,
    pub(crate) topics: Vec<TopicReport>,
}

/// The outcome for one topic.
#[derive(Debug, Serialize)]
pub(crate) struct TopicReport {
    pub(crate) topic: String,
    pub(crate) audit: Audit,
    pub(crate) ledgers: Ledgers,
    pub(crate) throughput: Throughput,
    /// By east, on its wire.
    pub(crate) refused: Refused,
    /// By the replicator, its start included.
    pub(crate) rewinds: u64,
    /// By the replicator.
    pub(crate) sent_again: u64,
    pub(crate) faults: Vec<Survived>,
}

/// What was replicated, over the time it took.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Throughput {
    /// From the first message published to the last acknowledged.
    pub(crate) seconds: f64,
    pub(crate) entries_per_second: f64,
    /// Of payload.
    pub(crate) bytes_per_second: f64,
}

impl Throughput {
    fn new<'a>(audits: impl Iterator<Item = &'a Audit>, seconds: f64) -> Self {
        let (entries, bytes) =
            audits.fold((0, 0), |sum, audit| (sum.0 + audit.entries, sum.1 + audit.bytes));
        let [entries_per_second, bytes_per_second] = [entries, bytes].map(|n| n as f64 / seconds);
        Self { seconds, entries_per_second, bytes_per_second }
    }
}

impl TopicReport {
    pub(crate) fn new(topic: String, outcome: Outcome, audit: Audit, ledgers: Ledgers) -> Self {
        let Outcome { survived: faults, accounting, refused, elapsed } = outcome;
        let (rewinds, sent_again) = (accounting.rewinds, accounting.sent_again);
        let throughput = Throughput::new(std::iter::once(&audit), elapsed.as_secs_f64());
        Self { topic, audit, ledgers, throughput, refused, rewinds, sent_again, faults }
    }
}

impl Report {
    pub(crate) fn new(topics: Vec<TopicReport>) -> Self {
        let passed = topics.iter().all(|topic| topic.audit.passed());
        let verdict = if passed { Verdict::Passed } else { Verdict::Failed };
        // They begin together, so the slowest took as long as all of them.
        let seconds = topics.iter().map(|topic| topic.throughput.seconds).fold(0.0, f64::max);
        let throughput = Throughput::new(topics.iter().map(|topic| &topic.audit), seconds);
        Self { verdict, throughput, topics }
    }

    /// One JSON object.
    pub(crate) fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        writeln!(out)
    }

    /// A table for each topic, what is wrong, and the verdict.
    pub(crate) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        for topic in &self.topics {
            writeln!(out, "{}\n{}", topic.topic, topic.table())?;
            for finding in &topic.audit.findings {
                writeln!(out, "  {finding}")?;
            }
        }
        if self.topics.len() > 1 {
            writeln!(out, "all topics together: {}", self.throughput)?;
        }
        match self.verdict {
            Verdict::Passed => writeln!(
                out,
                "PASSED: nothing is missing, repeated, out of order or unacknowledged."
            ),
            Verdict::Failed => writeln!(out, "FAILED: the regions differ, see above."),
        }
    }
}

impl TopicReport {
    /// Each figure with where it comes from.
    fn table(&self) -> Table {
        let (audit, ledgers, refused) = (&self.audit, &self.ledgers, &self.refused);
        let mut table = Table::new();
        table.load_style(ASCII_BORDERS_ONLY_CONDENSED);
        table.set_header(["", "value", "source"]);
        for (name, value, source) in [
            ("entries", audit.entries, BOOKIES),
            ("payload bytes", audit.bytes, BOOKIES),
            ("missing", audit.missing, BOOKIES),
            ("repeated", audit.repeated, BOOKIES),
            ("out of order", audit.out_of_order, BOOKIES),
            ("unreadable", audit.unreadable, BOOKIES),
            ("foreign", audit.foreign, BOOKIES),
            ("backlog", audit.backlog, BOOKIES_AND_CURSOR),
            ("ack holes", audit.ack_holes, BOOKIES_AND_CURSOR),
            ("ensemble changes", ledgers.ensemble_changes, RECORDS),
            ("under-replicated fragments", ledgers.under_replicated_fragments, UNREPAIRED),
            ("lag p50, ms", audit.lag_p50_ms, BOOKIES),
            ("lag p99, ms", audit.lag_p99_ms, BOOKIES),
            ("duplicates refused by east", refused.duplicates, WIRE),
            ("late sends refused by east", refused.late, WIRE),
            ("rewinds", self.rewinds, REPLICATOR),
            ("entries sent again", self.sent_again, REPLICATOR),
        ] {
            table.add_row([name, &value.to_string(), source]);
        }
        table.add_row(["throughput", &self.throughput.to_string(), "bookies, clock"]);
        table.add_row(["SHA-256 in west", &audit.source_sha256, BOOKIES]);
        table.add_row(["SHA-256 in east", &audit.target_sha256, BOOKIES]);
        table
    }
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entries, seconds) = (self.entries_per_second, self.seconds);
        let mib = self.bytes_per_second / f64::from(1 << 20);
        write!(f, "{entries:.0} entries/s, {mib:.1} MiB/s for {seconds:.2} s")
    }
}

const BOOKIES: &str = "bookies";
const BOOKIES_AND_CURSOR: &str = "bookies, cursor";
const RECORDS: &str = "ledger records";
/// No fault of the run: nothing copies what a bookie has lost until there is AutoRecovery.
const UNREPAIRED: &str = "bookies, not repaired yet";
const WIRE: &str = "wire to east";
const REPLICATOR: &str = "replicator";
