//! Figures for people and programs.

use std::time::Duration;

use georepl_storage::Time;
use metrics::{Counter, Gauge, counter, gauge};

use crate::machine::Accounting;

/// The figures of one replicator, with the JSON names of Pulsar's `topics stats`.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatorStats {
    /// Entries acknowledged by the remote per second, since the figures before (a second at least).
    pub msg_rate_out: f64,
    /// Their stored bytes per second.
    pub msg_throughput_out: f64,
    /// Entries acknowledged by the remote.
    pub msg_out_count: u64,
    /// Their stored bytes.
    pub bytes_out_count: u64,
    /// Entries that are not acknowledged.
    pub replication_backlog: u64,
    /// Whether a session is open.
    pub connected: bool,
    /// Seconds since the backlog was last seen empty; 0 while it is. At least the age of the
    /// oldest entry that is not acknowledged.
    pub replication_delay_in_seconds: u64,
}

/// What of it needs a memory, and the metrics.
pub(crate) struct Meters {
    caught_up: Time,
    sample: (Time, u64, u64),
    rates: (f64, f64),
    published: Counter,
    published_bytes: Counter,
    duplicate: Counter,
    filtered: Counter,
    sent_again: Counter,
    rewinds: Counter,
    backlog: Gauge,
}

/// Rates are taken over at least this long.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

impl Meters {
    pub(crate) fn new(topic: &str, remote: &str) -> Self {
        let labels = [("topic", topic.to_owned()), ("remote", remote.to_owned())];
        Self {
            caught_up: Time::ZERO,
            sample: (Time::ZERO, 0, 0),
            rates: (0.0, 0.0),
            published: counter!("georepl_replication_published_total", &labels),
            published_bytes: counter!("georepl_replication_published_bytes_total", &labels),
            duplicate: counter!("georepl_replication_duplicate_total", &labels),
            filtered: counter!("georepl_replication_filtered_total", &labels),
            sent_again: counter!("georepl_replication_sent_again_total", &labels),
            rewinds: counter!("georepl_replication_rewinds_total", &labels),
            backlog: gauge!("georepl_replication_backlog", &labels),
        }
    }

    pub(crate) fn turn(&mut self, now: Time, accounting: &Accounting, backlog: u64) {
        if backlog == 0 {
            self.caught_up = now;
        }
        self.published.absolute(accounting.published);
        self.published_bytes.absolute(accounting.published_bytes);
        self.duplicate.absolute(accounting.duplicate);
        self.filtered.absolute(accounting.filtered());
        self.sent_again.absolute(accounting.sent_again);
        self.rewinds.absolute(accounting.rewinds);
        self.backlog.set(backlog as f64);
    }

    pub(crate) fn stats(
        &mut self,
        now: Time,
        accounting: &Accounting,
        backlog: u64,
        connected: bool,
    ) -> ReplicatorStats {
        let Accounting { published, published_bytes, .. } = *accounting;
        let (then, entries, bytes) = self.sample;
        let interval = now.saturating_since(then);
        if interval >= RATE_INTERVAL {
            let per_second = |now: u64, then: u64| (now - then) as f64 / interval.as_secs_f64();
            self.rates = (per_second(published, entries), per_second(published_bytes, bytes));
            self.sample = (now, published, published_bytes);
        }
        let behind =
            if backlog == 0 { Duration::ZERO } else { now.saturating_since(self.caught_up) };
        ReplicatorStats {
            msg_rate_out: self.rates.0,
            msg_throughput_out: self.rates.1,
            msg_out_count: published,
            bytes_out_count: published_bytes,
            replication_backlog: backlog,
            connected,
            replication_delay_in_seconds: behind.as_secs(),
        }
    }
}
