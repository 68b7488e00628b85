//! One measurement, and what several make together.

use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use serde::Serialize;

/// What some work took.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// From beginning to end.
    pub wall: Duration,
    /// Of all threads of the process, user and system.
    pub cpu: Duration,
    /// How many entries were done.
    pub entries: u64,
}

/// The middle of several rounds, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Of the middle round; of the upper one of two.
    pub median: f64,
    /// Of the lowest round.
    pub min: f64,
    /// Of the highest round.
    pub max: f64,
}

impl Sample {
    /// Entries a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.entries as f64 / self.wall.as_secs_f64()
    }

    /// Processor time of an entry, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.entries as f64
    }
}

/// Runs a piece of work of so many entries.
pub async fn measure<R>(entries: u64, work: impl Future<Output = R>) -> (R, Sample) {
    let (begun, cpu) = (Instant::now(), ProcessTime::now());
    let result = work.await;
    (result, Sample { wall: begun.elapsed(), cpu: cpu.elapsed(), entries })
}

/// What rounds make together.
///
/// # Panics
/// Without any.
#[must_use]
pub fn spread(rounds: impl IntoIterator<Item = f64>) -> Spread {
    let mut rounds: Vec<_> = rounds.into_iter().collect();
    rounds.sort_by(f64::total_cmp);
    let [min, .., max] = rounds[..] else {
        let only = rounds[0];
        return Spread { median: only, min: only, max: only };
    };
    Spread { median: rounds[rounds.len() / 2], min, max }
}

/// The shortest time that this part of them, from 0 to 1, does not exceed. Sorts them.
///
/// # Panics
/// Without any.
#[must_use]
pub fn percentile(times: &mut [Duration], part: f64) -> Duration {
    times.sort_unstable();
    let rank = (times.len() as f64 * part).ceil() as usize;
    times[rank.clamp(1, times.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_times() {
        let mut times: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        let micros = |times: &mut [_], part| percentile(times, part).as_micros();
        assert_eq!(micros(&mut times, 0.5), 100);
        assert_eq!(micros(&mut times, 0.99), 198);
        assert_eq!(micros(&mut times, 0.0), 1);
        assert_eq!(micros(&mut times, 1.0), 200);
        assert_eq!(micros(&mut times[..1], 0.99), 1);
    }
}
