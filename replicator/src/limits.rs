//! The bounds of one replicator.

use std::time::Duration;

use georepl_storage::Advice;

use crate::backoff::Backoff;

/// Bounds and timeouts of one replicator. The defaults suit a link of up to 200 ms round trip.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Entries that may be read and not yet acknowledged. More hides a longer link and costs
    /// memory, about 100 bytes each, and repeats after a lost link; fewer limits throughput to this
    /// many entries a round trip. At least 1; default 131,072, which fills 1 Gb/s at 150 ms with
    /// entries of 150 bytes.
    pub window_entries: u32,
    /// Their stored bytes; one entry larger than it still passes, alone. Default 64 MiB, which fills
    /// 1 Gb/s at 500 ms.
    pub window_bytes: u64,
    /// Entries of one read. Default 500.
    pub read_entries: u32,
    /// Bytes of one read. Default 5 MiB.
    pub read_bytes: u64,
    /// Reads in storage at once, 1 to 16. More hides slow storage. Default 2.
    pub reads_in_flight: u32,
    /// How long storage may take over a read. Afterwards the read no longer counts, and the cursor
    /// is rewound. Longer than storage's own timeouts. Default 30 s.
    pub read_timeout: Duration,
    /// How long the remote may leave the first unanswered entry so, whatever it answers for later
    /// ones, before the session is given up. Default 30 s.
    pub receipt_timeout: Duration,
    /// How long the opening of a session may take. Default 10 s.
    pub open_timeout: Duration,
    /// Between attempts to open a session. Default 100 ms to 60 s.
    pub open_backoff: Backoff,
    /// Before a refused entry is sent again. Default 100 ms to 60 s.
    pub refused_backoff: Backoff,
    /// After a failed or empty read; the next asks for a single entry. Default 1 s to 60 s.
    pub read_backoff: Backoff,
}

impl Default for Limits {
    fn default() -> Self {
        let longest = Duration::from_secs(60);
        let quick = Backoff { first: Duration::from_millis(100), longest };
        Self {
            window_entries: 131_072,
            window_bytes: 64 << 20,
            read_entries: 500,
            read_bytes: 5 << 20,
            reads_in_flight: 2,
            read_timeout: Duration::from_secs(30),
            receipt_timeout: Duration::from_secs(30),
            open_timeout: Duration::from_secs(10),
            open_backoff: quick,
            refused_backoff: quick,
            read_backoff: Backoff { first: Duration::from_secs(1), longest },
        }
    }
}

/// A bound that is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}; set it to {range}")]
pub struct LimitsError {
    name: &'static str,
    value: u64,
    range: &'static str,
}

impl LimitsError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        Advice::GiveUp
    }
}

impl Limits {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`LimitsError`] names the first that is out of range.
    pub fn validate(&self) -> Result<(), LimitsError> {
        let check = |name, value: u64, valid: bool, range| {
            if valid { Ok(()) } else { Err(LimitsError { name, value, range }) }
        };
        let positive = |name, value: u64| check(name, value, value > 0, "at least 1");
        positive("window_entries", self.window_entries.into())?;
        positive("window_bytes", self.window_bytes)?;
        positive("read_entries", self.read_entries.into())?;
        positive("read_bytes", self.read_bytes)?;
        let reads = self.reads_in_flight;
        check("reads_in_flight", reads.into(), (1..=16).contains(&reads), "1 to 16")?;
        // What is over before it has begun is tried again without a pause and never gets anywhere.
        let spans = [
            ("read_timeout", self.read_timeout),
            ("receipt_timeout", self.receipt_timeout),
            ("open_timeout", self.open_timeout),
            ("open_backoff.first", self.open_backoff.first),
            ("open_backoff.longest", self.open_backoff.longest),
            ("refused_backoff.first", self.refused_backoff.first),
            ("refused_backoff.longest", self.refused_backoff.longest),
            ("read_backoff.first", self.read_backoff.first),
            ("read_backoff.longest", self.read_backoff.longest),
        ];
        for (name, span) in spans {
            let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
            check(name, millis, millis > 0, "at least 1 ms")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_would_never_let_anything_happen_are_refused_by_name() {
        let zero = |set: fn(&mut Limits) -> &mut Duration| {
            let mut limits = Limits::default();
            *set(&mut limits) = Duration::from_micros(999);
            limits.validate().unwrap_err().to_string()
        };
        assert_eq!(zero(|l| &mut l.read_timeout), "read_timeout is 0; set it to at least 1 ms");
        assert!(zero(|l| &mut l.receipt_timeout).starts_with("receipt_timeout is 0;"));
        assert!(zero(|l| &mut l.open_timeout).starts_with("open_timeout is 0;"));
        assert!(zero(|l| &mut l.open_backoff.first).starts_with("open_backoff.first is 0;"));
        assert!(zero(|l| &mut l.read_backoff.longest).starts_with("read_backoff.longest is 0;"));
        assert_eq!(Limits::default().validate(), Ok(()));
    }
}
