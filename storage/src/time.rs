//! Time as the machines see it: an integer that a driver reads from a clock and hands in.

use std::ops::Add;
use std::time::Duration;

/// A point in time: nanoseconds since the origin of one process's clock.
///
/// Points of different clocks must not be compared. The range is about 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);

    /// The point `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time that has passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// The point `span` later. A span beyond the range gives the end of the range, which is never reached.
    fn add(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// The clock of a driver. Follows the runtime's clock, so a paused runtime pauses it too.
#[cfg(feature = "io")]
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: tokio::time::Instant,
}

#[cfg(feature = "io")]
impl Clock {
    /// A clock whose origin is now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }

    /// The present time.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Completes when the clock has reached `time`. Cancel-safe: dropping it forgets the wait.
    pub async fn sleep_until(&self, time: Time) {
        tokio::time::sleep_until(self.instant(time)).await;
    }

    /// The same point on the runtime's clock; far in the future when that clock cannot express it.
    pub(crate) fn instant(&self, time: Time) -> tokio::time::Instant {
        const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
        self.origin + Duration::from_nanos(time.as_nanos()).min(FAR)
    }
}

#[cfg(feature = "io")]
impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_saturate_at_both_ends() {
        let later = Time::ZERO + Duration::from_millis(3);
        assert_eq!(later.saturating_since(Time::ZERO), Duration::from_millis(3));
        assert_eq!(Time::ZERO.saturating_since(later), Duration::ZERO);
        assert_eq!(later + Duration::MAX, Time::from_nanos(u64::MAX));
    }
}
