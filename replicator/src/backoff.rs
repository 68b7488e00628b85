//! How long to wait before trying again.

use std::time::Duration;

/// Doubling delays between two bounds. Jitter is the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    /// The first delay.
    pub first: Duration,
    /// No delay is longer.
    pub longest: Duration,
}

impl Backoff {
    /// The delay before the retry that follows `failures` failures in a row (at least 1).
    pub fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let backoff =
            Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(60) };
        let delays = [1, 2, 3, 10, 11, u32::MAX].map(|n| backoff.delay(n).as_millis());
        assert_eq!(delays, [100, 200, 400, 51_200, 60_000, 60_000]);
    }
}
