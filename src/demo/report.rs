//! The outcome, for people and programs.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::Table;
use serde::Serialize;

use super::Verdict;
use super::audit::Audit;
use super::faults::Survived;
use super::lane::Outcome;

/// The outcome of a demo.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    /// From the first message published to the last acknowledged.
    pub(crate) seconds: f64,
    pub(crate) entries_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) topics: Vec<TopicReport>,
}

/// The outcome for one topic.
#[derive(Debug, Serialize)]
pub(crate) struct TopicReport {
    pub(crate) topic: String,
    pub(crate) audit: Audit,
    pub(crate) rewinds: u64,
    pub(crate) sent_again: u64,
    pub(crate) duplicates: u64,
    pub(crate) ack_holes: u64,
    pub(crate) faults: Vec<Survived>,
}

impl TopicReport {
    pub(crate) fn new(topic: String, outcome: Outcome, audit: Audit, ack_holes: u64) -> Self {
        let Outcome { survived: faults, accounting } = outcome;
        let (rewinds, sent_again) = (accounting.rewinds, accounting.sent_again);
        let duplicates = accounting.duplicate;
        Self { topic, audit, rewinds, sent_again, duplicates, ack_holes, faults }
    }
}

impl Report {
    pub(crate) fn new(elapsed: Duration, topics: Vec<TopicReport>) -> Self {
        let passed = topics.iter().all(|topic| topic.audit.passed() && topic.ack_holes == 0);
        let verdict = if passed { Verdict::Passed } else { Verdict::Failed };
        let seconds = elapsed.as_secs_f64();
        let per_second = |of: fn(&Audit) -> u64| {
            topics.iter().map(|topic| of(&topic.audit)).sum::<u64>() as f64 / seconds
        };
        let entries_per_second = per_second(|audit| audit.entries);
        let bytes_per_second = per_second(|audit| audit.bytes);
        Self { verdict, seconds, entries_per_second, bytes_per_second, topics }
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
        let (entries, mib) = (self.entries_per_second, self.bytes_per_second / f64::from(1 << 20));
        writeln!(out, "{entries:.0} entries/s, {mib:.1} MiB/s for {:.1} s", self.seconds)?;
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
    fn table(&self) -> Table {
        let audit = &self.audit;
        let mut table = Table::new();
        table.set_header(["", "value"]);
        for (name, value) in [
            ("entries", audit.entries),
            ("payload bytes", audit.bytes),
            ("missing", audit.missing),
            ("repeated", audit.repeated),
            ("out of order", audit.out_of_order),
            ("unreadable", audit.unreadable),
            ("foreign", audit.foreign),
            ("backlog", audit.backlog),
            ("ack holes", self.ack_holes),
            ("duplicates refused by east", self.duplicates),
            ("rewinds", self.rewinds),
            ("entries sent again", self.sent_again),
            ("lag p50, ms", audit.lag_p50_ms),
            ("lag p99, ms", audit.lag_p99_ms),
        ] {
            table.add_row([name.to_owned(), value.to_string()]);
        }
        table.add_row(["SHA-256 in west", audit.source_sha256.as_str()]);
        table.add_row(["SHA-256 in east", audit.target_sha256.as_str()]);
        table
    }
}
