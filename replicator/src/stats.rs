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
    /// Seconds for which there has been a backlog, as the replicator's turns and these figures saw
    /// it; 0 while there is none. Under a backlog that is never worked off it grows, although its
    /// oldest entry may be younger.
    pub replication_delay_in_seconds: u64,
}

/// What of it needs a memory, and the metrics. Each replicator adds to the counters what it did
/// itself, so that they go on when another takes its topic over.
pub(crate) struct Meters {
    behind_since: Option<Time>,
    sample: (Time, u64, u64),
    rates: (f64, f64),
    counted: Accounting,
    published: Counter,
    published_bytes: Counter,
    duplicate: Counter,
    filtered: Counter,
    quarantined: Counter,
    discarded: Counter,
    skipped: Counter,
    sent_again: Counter,
    rewinds: Counter,
    /// Set by every turn and every call for figures: stopped or blocked, there are no turns.
    backlog: Gauge,
}

/// Rates are taken over at least this long.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

impl Meters {
    pub(crate) fn new(local: &str, remote: &str, topic: &str) -> Self {
        let labels = [("local", local), ("remote", remote), ("topic", topic)]
            .map(|(name, value)| (name, value.to_owned()));
        Self {
            behind_since: None,
            sample: (Time::ZERO, 0, 0),
            rates: (0.0, 0.0),
            counted: Accounting::default(),
            published: counter!("georepl_replication_published_total", &labels),
            published_bytes: counter!("georepl_replication_published_bytes_total", &labels),
            duplicate: counter!("georepl_replication_duplicate_total", &labels),
            filtered: counter!("georepl_replication_filtered_total", &labels),
            quarantined: counter!("georepl_replication_quarantined_total", &labels),
            discarded: counter!("georepl_replication_discarded_total", &labels),
            skipped: counter!("georepl_replication_skipped_total", &labels),
            sent_again: counter!("georepl_replication_sent_again_total", &labels),
            rewinds: counter!("georepl_replication_rewinds_total", &labels),
            backlog: gauge!("georepl_replication_backlog", &labels),
        }
    }

    pub(crate) fn turn(&mut self, now: Time, accounting: &Accounting, backlog: u64) {
        let before = std::mem::replace(&mut self.counted, *accounting);
        self.published.increment(accounting.published - before.published);
        self.published_bytes.increment(accounting.published_bytes - before.published_bytes);
        self.duplicate.increment(accounting.duplicate - before.duplicate);
        self.filtered.increment(accounting.filtered() - before.filtered());
        self.quarantined.increment(accounting.quarantined - before.quarantined);
        self.discarded.increment(accounting.discarded - before.discarded);
        self.skipped.increment(accounting.skipped - before.skipped);
        self.sent_again.increment(accounting.sent_again - before.sent_again);
        self.rewinds.increment(accounting.rewinds - before.rewinds);
        self.see_backlog(now, backlog);
    }

    pub(crate) fn stats(
        &mut self,
        now: Time,
        accounting: &Accounting,
        backlog: u64,
        connected: bool,
    ) -> ReplicatorStats {
        self.see_backlog(now, backlog);
        let Accounting { published, published_bytes, .. } = *accounting;
        let (then, entries, bytes) = self.sample;
        let interval = now.saturating_since(then);
        if interval >= RATE_INTERVAL {
            let per_second = |now: u64, then: u64| (now - then) as f64 / interval.as_secs_f64();
            self.rates = (per_second(published, entries), per_second(published_bytes, bytes));
            self.sample = (now, published, published_bytes);
        }
        let behind = self.behind_since.map_or(Duration::ZERO, |since| now.saturating_since(since));
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

    fn see_backlog(&mut self, now: Time, backlog: u64) {
        self.backlog.set(backlog as f64);
        self.behind_since = (backlog > 0).then(|| self.behind_since.unwrap_or(now));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use metrics::{Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
    use parking_lot::Mutex;

    use super::*;

    /// Keeps every metric by name and labels, as a recorder of the embedder does.
    #[derive(Default)]
    struct Kept(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

    impl Kept {
        fn cell(&self, key: &Key) -> Arc<AtomicU64> {
            let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
            let name = key.name().to_owned() + &labels.collect::<String>();
            Arc::clone(self.0.lock().entry(name).or_default())
        }

        fn get(&self, name: &str) -> u64 {
            let name = format!("georepl_replication_{name} local=west remote=east topic=orders");
            self.0.lock()[&name].load(Ordering::Relaxed)
        }
    }

    impl Recorder for Kept {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.cell(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.cell(key))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    fn meters() -> Meters {
        Meters::new("west", "east", "orders")
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn published(entries: u64) -> Accounting {
        let mut accounting = Accounting::default();
        accounting.published = entries;
        accounting.published_bytes = 10 * entries;
        accounting
    }

    #[test]
    fn delay_begins_with_the_backlog_and_not_with_the_hour_before() {
        let mut meters = meters();
        let mut delay = |seconds: u64, backlog| {
            let stats = meters.stats(at(seconds), &Accounting::default(), backlog, true);
            stats.replication_delay_in_seconds
        };
        assert_eq!(delay(1, 0), 0);
        assert_eq!(delay(3_601, 1), 0);
        assert_eq!(delay(3_611, 1), 10);
        assert_eq!(delay(3_612, 0), 0);
        assert_eq!(delay(3_700, 1), 0);
    }

    #[test]
    fn counters_go_on_when_another_replicator_takes_over() {
        let kept = Kept::default();
        metrics::with_local_recorder(&kept, || {
            let mut first = meters();
            first.turn(at(1), &published(3), 0);
            first.turn(at(2), &published(5), 0);
            meters().turn(at(3), &published(2), 0);
        });
        assert_eq!((kept.get("published_total"), kept.get("published_bytes_total")), (7, 70));
    }

    #[test]
    fn backlog_is_seen_by_asking_when_no_turn_reports_it() {
        let kept = Kept::default();
        metrics::with_local_recorder(&kept, || {
            meters().stats(at(1), &Accounting::default(), 12, false);
        });
        assert_eq!(f64::from_bits(kept.get("backlog")), 12.0);
    }

    #[test]
    fn rates_are_taken_over_a_second_at_least() {
        let mut meters = meters();
        let mut rate = |millis: u64, entries: u64| {
            let now = Time::ZERO + Duration::from_millis(millis);
            meters.stats(now, &published(entries), 0, true).msg_rate_out
        };
        assert_eq!((rate(999, 50), rate(2_000, 100), rate(2_500, 900)), (0.0, 50.0, 50.0));
    }
}
