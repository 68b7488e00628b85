//! What this machine can do at most with the same bytes.

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use cpu_time::ProcessTime;

use crate::Sample;

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
