//! What this machine can do at most with the same bytes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cpu_time::ProcessTime;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{Failed, Sample};

/// What has to be done to each entry whoever does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// How often its bytes are copied.
    pub copies: usize,
    /// How often a checksum is made of them.
    pub checksums: usize,
}

/// Does nothing but that, with a payload after the other, in one thread: RAW.
#[must_use]
pub fn raw(work: Work, payloads: &[Bytes], entries: u64) -> Sample {
    let bytes = payloads.iter().map(Bytes::len).max().unwrap_or_default();
    let mut copies = vec![vec![0_u8; bytes]; work.copies];
    let (begun, cpu) = (Instant::now(), ProcessTime::now());
    for payload in payloads.iter().cycle().take(usize::try_from(entries).unwrap_or(usize::MAX)) {
        for _ in 0..work.checksums {
            black_box(crc32c::crc32c(black_box(payload)));
        }
        for copy in &mut copies {
            copy[..payload.len()].copy_from_slice(payload);
            black_box(&copy);
        }
    }
    Sample { wall: begun.elapsed(), cpu: cpu.elapsed(), entries }
}

/// How long it takes to wake another task that does nothing but wake this one, so many times.
///
/// # Errors
/// If the other task panics.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn hops(times: usize) -> Result<Vec<Duration>, Failed> {
    let (there, mut here) = mpsc::unbounded_channel::<()>();
    let (back, mut again) = mpsc::unbounded_channel();
    let other =
        tokio::spawn(async move { while here.recv().await.is_some() && back.send(()).is_ok() {} });
    let mut taken = Vec::with_capacity(times);
    for _ in 0..times {
        let begun = Instant::now();
        there.send(())?;
        again.recv().await.ok_or("the other task ended")?;
        taken.push(begun.elapsed());
    }
    drop(there);
    other.await?;
    Ok(taken)
}

/// Bits behind a lock: the least that remembers which entries of a topic are acknowledged.
#[derive(Debug)]
pub struct BitSet(Mutex<Vec<u64>>);

impl BitSet {
    /// With room for so many.
    #[must_use]
    pub fn new(bits: u64) -> Self {
        Self(Mutex::new(vec![0; usize::try_from(bits / 64 + 1).unwrap_or(usize::MAX)]))
    }

    /// Sets one.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn set(&self, bit: u64) {
        self.0.lock()[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    /// How many of the first 64 are set.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.0.lock()[0].count_ones()
    }
}
