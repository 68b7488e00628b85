//! What is sent, and how much of it.

use std::num::NonZeroUsize;

use bytes::Bytes;

/// Incompressible bytes, the same in each run, and more of them than a cache holds.
#[must_use]
pub fn payloads(size: usize) -> Vec<Bytes> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut payload = || {
        let mut bytes = vec![0; size];
        random.fill(&mut bytes);
        Bytes::from(bytes)
    };
    (0..((64 << 20) / size.max(1)).clamp(16, 4096)).map(|_| payload()).collect()
}

/// How many entries of a size a round has: as many as were asked for, or what makes 256 MiB, and at most `entries_max`.
#[must_use]
pub fn entries_of(size: usize, asked: Option<u64>, entries_max: u64) -> u64 {
    asked.unwrap_or_else(|| (BYTES_MAX / size.max(1) as u64).min(entries_max))
}

/// Of a round whose number of entries was not asked for.
const BYTES_MAX: u64 = 256 << 20;

/// A number on the command line that is not 0.
///
/// # Errors
/// What is wrong with it.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse::<NonZeroUsize>().map_err(|error| error.to_string())?;
    Ok(number.get())
}
